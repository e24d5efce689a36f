//! The receipt of a prompt: its cost, its tool calls and the decisions on them, derived from the
//! entries alone.

use std::collections::BTreeMap;
use std::sync::Arc;

use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use crate::content::Block;
use crate::entry::{Entry, EntryBody, MessageEntry, PromptEntry, PromptState, PromptStop, Source};
use crate::message::{AssistantMessage, Message, ToolResultMessage};
use crate::request::{CallRef, Decision, Effect, Request, RequestKind, Verdict};
use crate::step::UNKNOWN_OUTCOME;
use crate::usage::Usage;
use turnwheel_json::raw::RawJson;
use turnwheel_platform::clock::{Timestamp, iso, iso_option};
use turnwheel_platform::ids::{PromptId, RequestId, UserId};

#[serde_with::skip_serializing_none]
#[derive(Clone, Debug, Serialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub struct PromptReceipt {
    #[schema(value_type = String)]
    pub prompt_id: PromptId,
    #[schema(value_type = String)]
    pub user_id: UserId,
    pub source: Source,
    /// Id of the model that sent the last response.
    pub resolved_model: Option<String>,
    /// `running`, `waiting_for_approval`, `completed`, `failed` or `aborted`.
    #[schema(value_type = String)]
    pub state: PromptState,
    #[schema(value_type = Option<String>)]
    pub stop_reason: Option<PromptStop>,
    #[serde(with = "iso")]
    #[schema(value_type = String, format = DateTime)]
    pub started_at: Timestamp,
    #[serde(with = "iso_option")]
    #[schema(value_type = Option<String>, format = DateTime)]
    pub ended_at: Option<Timestamp>,
    /// Model responses that continued or ended the prompt.
    pub turns: u64,
    /// Model calls, including failed and lost ones and those of summaries.
    pub model_calls: u64,
    /// Usage of all model responses and summaries, failed ones included, and the usage that tools
    /// report.
    #[schema(value_type = Object)]
    pub usage: Usage,
    /// Estimated usage of calls whose response was lost with a worker. It is in none of the other
    /// sums.
    #[schema(value_type = Option<Object>)]
    pub lost_usage: Option<Usage>,
    /// Tool calls that were started.
    pub tool_calls: u64,
    pub writes: WriteCounts,
    pub requests: Vec<RequestSummary>,
}

/// Counts of calls with the effect `write`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub struct WriteCounts {
    pub done: u64,
    /// Calls that failed for certain.
    pub failed: u64,
    /// Calls with an unknown outcome.
    pub unknown: u64,
    /// Calls that run, or whose outcome an approver has to decide.
    pub open: u64,
    /// Repetitions that an approver decided.
    pub again: u64,
    /// Repetitions without a decision: always 0.
    pub repeated: u64,
}

/// An approval request of the prompt, with its decision.
#[serde_with::skip_serializing_none]
#[derive(Clone, Debug, Serialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub struct RequestSummary {
    #[schema(value_type = String)]
    pub id: RequestId,
    #[schema(value_type = String)]
    pub kind: RequestKind,
    pub title: String,
    pub tool_call_id: Option<String>,
    pub tool_name: Option<String>,
    /// The former name of `toolName`.
    #[schema(deprecated)]
    pub tool: Option<String>,
    #[serde(with = "iso")]
    #[schema(value_type = String, format = DateTime)]
    pub requested_at: Timestamp,
    #[schema(value_type = Option<String>)]
    pub decision: Option<Verdict>,
    pub reason: Option<String>,
    #[schema(value_type = Option<Object>)]
    pub value: Option<RawJson>,
    /// A user's id, `link`, `expiry`, `abort`, `budget` or `late-result`.
    pub decided_by: Option<String>,
    #[serde(with = "iso_option")]
    #[schema(value_type = Option<String>, format = DateTime)]
    pub decided_at: Option<Timestamp>,
}

/// One tool call, as the entries show it.
#[derive(Default)]
struct CallRecord {
    effect: Option<Effect>,
    attempts: u64,
    /// Number of decisions to send it again.
    again: u64,
    result: Option<CallOutcome>,
}

/// Outcome of a call that was started.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub enum CallOutcome {
    Done,
    /// It failed for certain.
    Failed,
    /// Its response was lost.
    Unknown,
}

impl CallOutcome {
    /// The name in JSON.
    pub fn name(self) -> &'static str {
        match self {
            Self::Done => "done",
            Self::Failed => "failed",
            Self::Unknown => "unknown",
        }
    }
}

/// Builds the receipt of a prompt. `None` if the prompt has not started.
#[expect(clippy::wildcard_enum_match_arm, reason = "most kinds of entry are not in the receipt")]
pub fn build_receipt(id: &PromptId, entries: &[Arc<Entry>]) -> Option<PromptReceipt> {
    let mut receipt: Option<PromptReceipt> = None;
    let mut calls: BTreeMap<(u64, usize), CallRecord> = BTreeMap::new();
    let mut has_failed = false;
    for entry in entries.iter().filter(|entry| entry.base.prompt_id.as_ref() == Some(id)) {
        let at = entry.base.timestamp;
        if let EntryBody::Prompt(prompt) = &entry.body {
            receipt = Some(new_receipt(id, prompt, prompt.started_at.unwrap_or(at)));
        }
        let Some(receipt) = &mut receipt else { continue };
        match &entry.body {
            EntryBody::PromptEnd(end) => {
                receipt.state = end.state;
                receipt.stop_reason = Some(end.stop_reason);
                receipt.ended_at = Some(at);
            }
            EntryBody::Message(MessageEntry { message: Message::Assistant(response), .. }) => {
                receipt.add_response(response);
                has_failed = response.is_failed();
            }
            EntryBody::Message(MessageEntry {
                message: Message::ToolResult(result),
                call: Some(call),
                ..
            }) => {
                call_record(&mut calls, *call).result = Some(call_outcome(result));
                receipt.usage += result.usage();
            }
            EntryBody::LostCall(lost) => {
                receipt.model_calls += 1;
                *receipt.lost_usage.get_or_insert_default() += *lost.estimate;
            }
            EntryBody::Compaction(compaction) => {
                if let Some(usage) = &compaction.usage {
                    receipt.add_summary(**usage, compaction.calls.unwrap_or(1));
                }
            }
            EntryBody::FailedSummary(failed) => receipt.add_summary(*failed.usage, failed.calls),
            EntryBody::ToolStarted(started) => {
                let called = call_record(&mut calls, started.call);
                called.attempts += 1;
                called.effect = called.effect.or(started.effect);
            }
            EntryBody::Request(entry) if entry.request.input_id.is_some() => {}
            EntryBody::Request(request_entry) => {
                let request = &request_entry.request;
                if let Some(call) = request.call {
                    let called = call_record(&mut calls, call);
                    called.effect = called.effect.or(request.effect);
                }
                receipt.requests.push(request_summary(request));
            }
            EntryBody::Decision(decision_entry) => {
                let decision = &decision_entry.decision;
                if decision.verdict == Verdict::Again
                    && let Some(call) = find_decided_call(entries, decision)
                {
                    call_record(&mut calls, call).again += 1;
                }
                apply_decision(&mut receipt.requests, decision);
            }
            _ => {}
        }
    }
    let mut receipt = receipt?;
    // A failed response counts as a turn only if it ended the prompt. Otherwise a retry followed.
    receipt.turns += u64::from(has_failed && receipt.ended_at.is_some());
    receipt.tool_calls = calls.values().filter(|called| called.attempts > 0).count() as u64;
    receipt.writes = count_writes(calls.values(), receipt.ended_at.is_some());
    Some(receipt)
}

impl PromptReceipt {
    fn add_response(&mut self, response: &AssistantMessage) {
        self.usage += *response.usage;
        if response.is_from_model() {
            self.resolved_model = Some(response.model.clone());
            self.model_calls += 1;
            self.turns += u64::from(!response.is_failed());
        }
    }

    fn add_summary(&mut self, usage: Usage, calls: u32) {
        self.model_calls += u64::from(calls);
        self.usage += usage;
    }
}

fn new_receipt(id: &PromptId, prompt: &PromptEntry, started_at: Timestamp) -> PromptReceipt {
    PromptReceipt {
        prompt_id: id.clone(),
        user_id: prompt.user.clone(),
        source: prompt.source,
        resolved_model: None,
        state: PromptState::Running,
        stop_reason: None,
        started_at,
        ended_at: None,
        turns: 0,
        model_calls: 0,
        usage: Usage::default(),
        lost_usage: None,
        tool_calls: 0,
        writes: WriteCounts::default(),
        requests: Vec::new(),
    }
}

fn call_record(calls: &mut BTreeMap<(u64, usize), CallRecord>, call: CallRef) -> &mut CallRecord {
    calls.entry((call.response_seq, call.index)).or_default()
}

pub(crate) fn call_outcome(result: &ToolResultMessage) -> CallOutcome {
    let is_unknown = result
        .content
        .iter()
        .any(|block| matches!(block, Block::Text(text) if text.text.starts_with(UNKNOWN_OUTCOME)));
    if !result.is_error {
        CallOutcome::Done
    } else if is_unknown {
        CallOutcome::Unknown
    } else {
        CallOutcome::Failed
    }
}

fn count_writes<'a>(calls: impl Iterator<Item = &'a CallRecord>, has_ended: bool) -> WriteCounts {
    let mut writes = WriteCounts::default();
    let started = calls.filter(|it| it.effect == Some(Effect::Write) && it.attempts > 0);
    for call in started {
        match call.result {
            Some(CallOutcome::Done) => writes.done += 1,
            Some(CallOutcome::Failed) => writes.failed += 1,
            Some(CallOutcome::Unknown) => writes.unknown += 1,
            None if has_ended => writes.unknown += 1,
            None => writes.open += 1,
        }
        let repetitions = call.attempts - 1;
        writes.again += repetitions.min(call.again);
        writes.repeated += repetitions.saturating_sub(call.again);
    }
    writes
}

fn request_summary(request: &Request) -> RequestSummary {
    RequestSummary {
        id: request.id.clone(),
        kind: request.kind,
        title: request.title.clone(),
        tool_call_id: request.tool_call_id.clone(),
        tool_name: request.tool.clone(),
        tool: request.tool.clone(),
        requested_at: request.requested_at,
        decision: None,
        reason: None,
        value: None,
        decided_by: None,
        decided_at: None,
    }
}

fn apply_decision(requests: &mut [RequestSummary], decision: &Decision) {
    for request in requests.iter_mut().filter(|request| request.id == decision.request_id) {
        request.decision = Some(decision.verdict);
        request.reason.clone_from(&decision.reason);
        request.value.clone_from(&decision.value);
        request.decided_by = Some(decision.decided_by.clone());
        request.decided_at = Some(decision.decided_at);
    }
}

/// The call of a decision's request.
fn find_decided_call(entries: &[Arc<Entry>], decision: &Decision) -> Option<CallRef> {
    entries.iter().find_map(|entry| {
        let EntryBody::Request(request_entry) = &entry.body else { return None };
        request_entry.request.call.filter(|_| request_entry.request.id == decision.request_id)
    })
}
