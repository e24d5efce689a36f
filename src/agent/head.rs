//! The head: the one small mutable document of a conversation, guarded by its ETag.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use crate::agent::brake::{Brake, PutOff};
use crate::agent::budget::{AlertMark, Books, Held, Raise};
use crate::agent::entry::Incomplete;
use crate::agent::entry::{PromptState, PromptStop};
use crate::agent::phase::Phase;
use crate::agent::raw::{Extra, RawJson};
use crate::agent::request::{Request, RequestKind};
use crate::agent::settings::Settings;
use crate::agent::suspicion::Suspicion;
use crate::agent::usage::{Tally, Usage};
use crate::clock::Timestamp;
use crate::ids::{
    CommitId, ConversationId, ConversationKey, EntryId, PromptId, TenantId, UserId, WorkerId,
};

/// What this version writes.
pub const SCHEMA: u32 = 1;
/// The newest `minReader` that this version may act on.
pub const READER: u32 = 4;
/// Bytes of a head as JSON; a commit above it is refused.
pub const HEAD_BYTES_MAX: usize = 64 * 1024;
/// Prompts whose span the head remembers.
pub const PROMPTS_KEPT: usize = 20;

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Head {
    pub schema: u32,
    /// A worker below this acknowledges and leaves the work to newer ones.
    pub min_reader: u32,
    pub tenant: TenantId,
    pub user: UserId,
    pub conversation_id: ConversationId,
    /// Eight hex digits, fresh at creation: tells a conversation from an earlier one of the same id.
    pub incarnation: String,
    pub commit_id: CommitId,
    /// Grows with what clients see: their `ETag`.
    pub revision: u64,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub claim: Option<Claim>,
    /// Of the newest claim; grows by one with each.
    #[serde(default)]
    pub epoch: u64,
    /// Deaths of worker processes during the same step without progress, whatever killed them.
    #[serde(default)]
    pub claims: u32,
    #[serde(default, skip_serializing_if = "Suspicion::is_blank")]
    pub suspicion: Suspicion,
    pub phase: Phase,
    #[serde(default)]
    pub leaf_id: Option<EntryId>,
    /// Of the newest entry; 0 when there is none.
    pub seq: u64,
    /// Number of the newest event; 0 when there is none.
    pub event_seq: u64,
    /// Turns begun.
    pub turn: u64,
    /// Model calls whose answer is in the record; names the next answer.
    #[serde(default)]
    pub answers: u64,
    pub agent: String,
    #[serde(default)]
    pub settings: Settings,
    #[serde(default)]
    pub usage: Usage,
    /// The prompt that runs or waits.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub prompt: Option<Run>,
    /// The last ones, oldest first.
    #[serde(default)]
    pub prompts: Vec<PromptSpan>,
    /// What a person is asked and has not decided.
    #[serde(default)]
    pub requests: Vec<Request>,
    /// Requests ever made; names the next.
    #[serde(default)]
    pub requests_made: u64,
    /// Writes whose outcome nobody knows: `tool + arguments` hash → request; an equal call is not started meanwhile.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub unknown_writes: BTreeMap<String, String>,
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub plugin_state: BTreeMap<String, PluginState>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub provider_state: Option<RawJson>,
    /// `seq` when the conversation was last summed up, or could not be: there is no next try before something is said.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub compaction_tried: Option<u64>,
    /// Whether a `compaction` entry was ever written.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub is_compacted: bool,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub hold: Option<RawJson>,
    /// The model call whose cost is held; absent: none is, or nothing bounds what is spent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub held: Option<Held>,
    #[serde(default, skip_serializing_if = "Books::is_blank")]
    pub books: Books,
    /// Good until the next look at what waits, which takes it out or puts it on again.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub brake: Option<Brake>,
    /// See [`Head::put_off`].
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub put_off: Option<PutOff>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub name: Option<String>,
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub labels: BTreeMap<String, String>,
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub metadata: BTreeMap<String, String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub parent: Option<Parent>,
    /// Inbox items that were looked at and left waiting, and will begin something: whoever frees the conversation owes them
    /// a look. What is held for the next prompt is not counted.
    #[serde(default)]
    pub waiting: u32,
    /// When something is owed; absent: nothing is.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub due: Option<Timestamp>,
    pub created_at: Timestamp,
    pub updated_at: Timestamp,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub deleted_at: Option<Timestamp>,
    /// A model call was under way at the deletion: until then its worker may report what it cost.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub unreported_call: Option<Timestamp>,
    #[serde(flatten)]
    pub extra: Extra,
}

/// A worker's right to act.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Claim {
    pub worker: WorkerId,
    pub epoch: u64,
    pub until: Timestamp,
}

/// The prompt that has not ended.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
#[expect(
    clippy::struct_excessive_bools,
    reason = "each is a fact of its own, and a member of the stored head"
)]
pub struct Run {
    pub id: PromptId,
    /// `seq` of its `prompt` entry.
    pub from_seq: u64,
    /// Who began it.
    pub user: UserId,
    /// Overrides the conversation's for this prompt.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub model: Option<String>,
    /// Model answers so far.
    pub rounds: u32,
    /// `seq` at which the agent run began that this prompt is part of: prompts that follow one another without a pause are
    /// one run, and a retry begins a new one. Absent: with this prompt.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub run_from_seq: Option<u64>,
    /// Whether the first `turn_start` is already in the record.
    pub is_turn_open: bool,
    /// Whether the window was too small since the last answer that came whole: the next time it is the prompt's end.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub has_overflowed: bool,
    /// Whether a failed answer has ended the run, which its next try begins anew.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub is_between_tries: bool,
    /// Whether a steer has been taken in since the last answer or result: one at a time means no other until then.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub is_steered: bool,
    /// Whether a response that did not fit the response schema has been shown to the model.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub is_repaired: bool,
    /// Why the last response is cut.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub incomplete: Option<Incomplete>,
    #[serde(default)]
    pub usage: Usage,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub traceparent: Option<String>,
    /// W3C trace context of the turn that committed last: the next one links to it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub last_turn: Option<String>,
    /// Of model calls whose answer was lost, at their estimate; not in `usage`.
    #[serde(default, skip_serializing_if = "Tally::is_nothing")]
    pub lost: Tally,
    /// Of the limit of one prompt, for this one.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub raised: Vec<Raise>,
    /// The highest percentage of that limit that an alert reported, by unit.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub alert_marks: Vec<AlertMark>,
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct PromptSpan {
    pub id: PromptId,
    pub state: PromptState,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub stop_reason: Option<PromptStop>,
    pub from_seq: u64,
    /// `seq` of its `prompt_end` entry; absent while it runs.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub to_seq: Option<u64>,
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct PluginState {
    pub schema: u32,
    pub value: RawJson,
}

/// The conversation that began this one.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Parent {
    pub conversation_id: ConversationId,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub entry_id: Option<EntryId>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub tool_call_id: Option<String>,
}

impl Run {
    /// `seq` of the first entry of the agent run that the prompt is part of.
    pub fn agent_from(&self) -> u64 {
        self.run_from_seq.unwrap_or(self.from_seq)
    }
}

/// What clients are told of a conversation's state; derived, never stored apart.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "snake_case")]
pub enum State {
    Idle,
    Running,
    WaitingForApproval,
}

impl Head {
    pub fn key(&self) -> ConversationKey {
        ConversationKey {
            tenant: self.tenant.clone(),
            user: self.user.clone(),
            conversation_id: self.conversation_id.clone(),
        }
    }

    /// Whether a used-up budget keeps the next model call waiting.
    pub fn is_paused(&self) -> bool {
        self.requests.iter().any(|request| request.kind == RequestKind::Budget)
    }

    /// The oldest version that does right by what is owed now: 2 where calls run at once, which version 1 would take for one
    /// after the other; where a budget bounds the next call, of which version 1 knows nothing; and where the conversation is or
    /// was summed up: version 1 would send the model all of it. 3 while a brake is on, of which version 2 knows nothing. 4 while
    /// the step is suspect: version 3 would run it beside other turns, and fail it for deaths that others may have caused.
    pub fn reader_needed(&self) -> u32 {
        // Version 3 would also forget a reservation that the report of a deleted conversation's call has to end.
        if self.is_suspect() || self.unreported_call.is_some() {
            return 4;
        }
        if self.brake.is_some() {
            return 3;
        }
        let is_bounded = self.settings.budget.is_some() || self.held.is_some() || self.is_paused();
        match self.phase {
            Phase::Calls { at_once: 2.., .. } | Phase::Summary { .. } => 2,
            Phase::Idle | Phase::Model { .. } | Phase::Calls { .. } if self.is_compacted => 2,
            Phase::Idle | Phase::Model { .. } | Phase::Calls { .. } | Phase::Deleted => {
                1 + u32::from(is_bounded)
            }
        }
    }

    pub fn state(&self) -> State {
        match &self.phase {
            Phase::Idle | Phase::Deleted => State::Idle,
            Phase::Model { .. } | Phase::Summary { .. } if self.is_paused() => {
                State::WaitingForApproval
            }
            Phase::Model { .. } | Phase::Summary { .. } => State::Running,
            Phase::Calls { .. } if self.requests.is_empty() => State::Running,
            Phase::Calls { .. } => State::WaitingForApproval,
        }
    }
}
