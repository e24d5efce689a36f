//! Approval requests: approvals, unknown outcomes, budgets to increase and questions, in one shape.

use serde::{Deserialize, Serialize};
use serde_json::{Value, json};
use utoipa::ToSchema;

use crate::budget::BudgetExceeded;
use crate::destination::Destination;
use crate::question::Asker;
use turnwheel_json::raw::RawJson;
use turnwheel_platform::clock::{Timestamp, iso, iso_option};
use turnwheel_platform::ids::{InputId, PromptId, RequestId, UserId};

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "snake_case")]
pub enum RequestKind {
    /// Approval of a tool call.
    Tool,
    /// Outcome of a write whose response was lost.
    Outcome,
    /// Increase of an exceeded budget.
    Budget,
    /// Question of an extension.
    Question,
}

impl RequestKind {
    /// The possible decisions, in display order.
    pub fn decisions(self) -> &'static [Verdict] {
        match self {
            Self::Tool | Self::Budget => &[Verdict::Approve, Verdict::Reject],
            Self::Outcome => &[Verdict::Happened, Verdict::DidNotHappen, Verdict::Again],
            Self::Question => &[Verdict::Answer, Verdict::Reject],
        }
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "snake_case")]
pub enum Verdict {
    Approve,
    Reject,
    Happened,
    DidNotHappen,
    Again,
    Answer,
    /// The request expired without a decision. Only the expiry creates it.
    Expired,
    /// The prompt was aborted. Only the abort creates it.
    Aborted,
}

impl Verdict {
    /// The name in JSON.
    pub fn name(self) -> &'static str {
        match self {
            Self::Approve => "approve",
            Self::Reject => "reject",
            Self::Happened => "happened",
            Self::DidNotHappen => "did_not_happen",
            Self::Again => "again",
            Self::Answer => "answer",
            Self::Expired => "expired",
            Self::Aborted => "aborted",
        }
    }
}

/// An approval request. Undecided ones are in the head, so they are small: arguments stay in the
/// entry of the response.
#[serde_with::skip_serializing_none]
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Request {
    pub id: RequestId,
    pub kind: RequestKind,
    pub title: String,
    pub reason: String,
    /// Empty: no prompt waits for the decision.
    pub prompt_id: PromptId,
    /// The command that waits for the answer to a question.
    pub input_id: Option<InputId>,
    /// The call. Absent for budgets, and for questions about a compaction or a command.
    pub call: Option<CallRef>,
    pub tool_call_id: Option<String>,
    pub tool: Option<String>,
    /// Display name of the tool. Absent: its name.
    pub label: Option<String>,
    pub effect: Option<Effect>,
    /// Arguments that an extension set. Absent: those of the model's call.
    pub arguments: Option<RawJson>,
    /// Hashes of tool name, arguments, definition and destination, and of the extensions that
    /// require the approval. An approval is valid only for these.
    pub binding: Option<String>,
    /// The place to which the call is sent. Absent: the app itself, or a request of an earlier
    /// version.
    pub destination: Option<Destination>,
    /// The exceeded limit, for a budget request.
    pub budget: Option<BudgetExceeded>,
    /// JSON Schema of the decision's `value`, if one is expected.
    pub schema: Option<RawJson>,
    /// The extension that asks, for a question.
    pub asker: Option<Asker>,
    #[serde(with = "iso")]
    pub requested_at: Timestamp,
    /// The user who started the prompt.
    pub requested_by: UserId,
    #[serde(default, with = "iso_option")]
    pub expires_at: Option<Timestamp>,
    /// `owner`, `link`, `role:NAME`.
    pub approvers: Vec<String>,
    /// True if the user who started the prompt may not decide it.
    #[serde(default)]
    #[serde(rename = "notRequester")]
    pub is_requester_excluded: bool,
    /// Text for the model if the request is rejected or expires. Absent: the general texts.
    pub refusal: Option<String>,
}

impl Request {
    /// The question to an approver, as one line.
    pub fn display_text(&self) -> String {
        let text = format!("{} {}", self.title, self.reason);
        match &self.destination {
            Some(destination) => format!("{text} Destination: {destination}."),
            None => text,
        }
    }

    /// True if no approver can decide it any more.
    pub fn has_expired(&self, now: Timestamp) -> bool {
        self.expires_at.is_some_and(|at| at <= now)
    }

    /// The prompt that waits for the decision.
    pub fn running_prompt(&self) -> Option<&PromptId> {
        Some(&self.prompt_id).filter(|id| !id.as_str().is_empty())
    }
}

/// The name of a tool for approvers: behind its display name, if it has one.
pub fn labelled_name(name: &str, label: Option<&str>) -> String {
    label.map_or_else(|| name.to_owned(), |label| format!("{label} ({name})"))
}

/// Effect of a tool. It determines what a take-over may do.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "snake_case")]
pub enum Effect {
    /// Changes nothing. May run again.
    Read,
    /// Changes something, but only once per effect id. May run again.
    Idempotent,
    /// Never silently run again.
    Write,
}

impl Effect {
    /// The sentence for an approver.
    pub fn describe(self) -> &'static str {
        match self {
            Self::Read => "Reads only.",
            Self::Idempotent => "Changes something. A repeat changes nothing more.",
            Self::Write => "Changes something. This cannot be undone here.",
        }
    }
}

/// The decision of an approval request.
#[serde_with::skip_serializing_none]
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Decision {
    pub request_id: RequestId,
    #[serde(rename = "decision")]
    pub verdict: Verdict,
    pub reason: Option<String>,
    pub value: Option<RawJson>,
    /// A user's id, `link`, `expiry` or `abort`.
    pub decided_by: String,
    #[serde(with = "iso")]
    pub decided_at: Timestamp,
}

impl Decision {
    /// True if both decisions have the same content. Author and time are ignored.
    pub fn has_same_content(&self, other: &Self) -> bool {
        self.request_id == other.request_id
            && self.verdict == other.verdict
            && self.reason == other.reason
            && self.value == other.value
    }
}

/// A body that makes this decision: for a budget twice the amount, for a question an answer that its
/// schema names. `budget` is in the form of API responses.
pub fn example_decision(decision: &str, budget: Option<&Value>, schema: Option<&Value>) -> Value {
    let value = match (decision, budget) {
        ("approve", Some(budget)) => example_limit(budget),
        ("answer", _) => Some(schema.map_or_else(|| json!("TEXT"), example_answer)),
        _ => None,
    };
    match value {
        Some(value) => json!({"decision": decision, "value": value}),
        None => json!({"decision": decision}),
    }
}

/// Twice the limit, or twice the amount used if that is larger.
fn example_limit(budget: &Value) -> Option<Value> {
    let amount = |name: &str| budget.get(name).and_then(Value::as_f64);
    let doubled = 2.0 * amount("limit")?.max(amount("used")?);
    let is_tokens = budget.get("unit").is_some_and(|unit| unit == "tokens");
    // Tokens are whole numbers.
    let text = if is_tokens { format!("{doubled:.0}") } else { doubled.to_string() };
    serde_json::from_str(&text).ok()
}

fn example_answer(schema: &Value) -> Value {
    let choices = ["enum", "examples"].into_iter().find_map(|it| schema.get(it)?.as_array());
    if let Some(first) = choices.and_then(|choices| choices.first()) {
        return first.clone();
    }
    match schema.get("type").and_then(Value::as_str) {
        Some("boolean") => json!(true),
        Some("integer" | "number") => schema.get("minimum").cloned().unwrap_or_else(|| json!(1)),
        _ => json!("TEXT"),
    }
}

/// Reference to one tool call of one model response.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct CallRef {
    /// `seq` of the response's entry.
    #[serde(rename = "answer")]
    pub response_seq: u64,
    /// From 0, in source order.
    pub index: usize,
}
