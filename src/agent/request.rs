//! A request for a person: an approval, an outcome to be told, a budget to extend, a question. One shape.

use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use crate::agent::budget::Shortage;
use crate::agent::entry::CallRef;
use crate::agent::raw::RawJson;
use crate::clock::{Timestamp, iso, iso_option};
use crate::ids::{PromptId, RequestId, UserId};

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "snake_case")]
pub enum RequestKind {
    /// May this call run?
    Tool,
    /// A write's answer was lost: did it happen?
    Outcome,
    /// May this cost more than was agreed?
    Budget,
    /// An extension asks.
    Question,
}

impl RequestKind {
    /// What may be decided, in the order in which a person is offered it.
    pub fn decisions(self) -> &'static [Verdict] {
        match self {
            Self::Tool | Self::Budget => &[Verdict::Approve, Verdict::Reject],
            Self::Outcome => &[Verdict::Happened, Verdict::DidNotHappen, Verdict::Again],
            Self::Question => &[Verdict::Answer],
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
    /// Nobody decided in time; only the clock says so.
    Expired,
    /// The prompt was stopped; only an abort says so.
    Aborted,
}

impl Verdict {
    /// As JSON has it.
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

/// What is asked. Open ones stand in the head, so they are small: arguments stay in the answer's entry.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Request {
    pub id: RequestId,
    pub kind: RequestKind,
    pub title: String,
    pub reason: String,
    pub prompt_id: PromptId,
    /// The call it is about; absent for budgets and questions.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub call: Option<CallRef>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub tool_call_id: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub tool: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub effect: Option<Effect>,
    /// Hash of tool name, arguments and definition: an approval is good for these and nothing else.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub binding: Option<String>,
    /// What is used up, when it is about a budget.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub budget: Option<Shortage>,
    /// JSON Schema of `value`, where one is expected.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub schema: Option<RawJson>,
    #[serde(with = "iso")]
    pub requested_at: Timestamp,
    /// Who began the prompt.
    pub requested_by: UserId,
    #[serde(default, skip_serializing_if = "Option::is_none", with = "iso_option")]
    pub expires_at: Option<Timestamp>,
    /// `owner`, `link`, `role:NAME`.
    pub approvers: Vec<String>,
    /// Whoever began the prompt may not decide it.
    #[serde(default)]
    pub not_requester: bool,
}

/// What a tool does to the world: decides what a take-over may do.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "snake_case")]
pub enum Effect {
    /// Changes nothing: may run again.
    Read,
    /// Changes something, and the same effect id changes it once: may run again.
    Idempotent,
    /// Never silently run again.
    Write,
}

/// What was decided, by whom.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Decision {
    pub request_id: RequestId,
    #[serde(rename = "decision")]
    pub verdict: Verdict,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reason: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub value: Option<RawJson>,
    /// A user's id, `link`, `expiry` or `abort`.
    pub decided_by: String,
    #[serde(with = "iso")]
    pub decided_at: Timestamp,
}

impl Decision {
    /// Whether two decisions say the same; who and when does not matter.
    pub fn says_the_same(&self, other: &Self) -> bool {
        self.request_id == other.request_id
            && self.verdict == other.verdict
            && self.reason == other.reason
            && self.value == other.value
    }
}
