//! The head: the one small mutable document of a conversation, guarded by its ETag.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use crate::budget::{AlertMark, LimitIncrease, Metering, Reservation};
use crate::compaction::prospects::CompactionNote;
use crate::context_ranges::SeqRange;
use crate::entry::EntryBody;
use crate::frame_entry::CurrentFrame;
use crate::message::IncompleteDetails;
use crate::path_settings::PathSettings;
use crate::pause::{Deferral, Pause};
use crate::phase::Phase;
use crate::plugin_state::PluginStates;
use crate::profile::messages::ProfileMessages;
use crate::prompt_span::PromptSpan;
use crate::question::WaitingCommand;
use crate::request::{Request, RequestKind};
use crate::settings::{DEFAULT_MODEL, Settings};
use crate::suspicion::{DELAY_MAX, DELAYS, Death, ISOLATED_DEATHS_MAX, SUSPECT_DEATHS, Suspicion};
use crate::unknown_members::{Extra, keep_unknown_members};
use crate::usage::{Usage, UsageTotals};
use crate::waits::{ExtensionChain, WaitingMessage};
use turnwheel_platform::clock::Timestamp;
use turnwheel_platform::ids::{
    CommitId, ConversationId, ConversationKey, EntryId, InputId, PromptId, TenantId, UserId,
    WorkerId,
};

/// Schema version that this version writes.
pub const SCHEMA_VERSION: u32 = 1;
/// The highest `minReader` that this version can process.
pub const READER_VERSION: u32 = 9;
/// Maximum bytes of a head as JSON. A larger commit is rejected.
pub const HEAD_BYTES_MAX: usize = 64 * 1024;
/// Number of prompts whose span is in the head.
pub const PROMPT_SPANS_MAX: usize = 20;

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", remote = "Self")]
pub struct Head {
    pub schema: u32,
    /// Minimum reader version. An older worker acknowledges the message and leaves the work to
    /// newer ones.
    pub min_reader: u32,
    pub tenant: TenantId,
    pub user: UserId,
    pub conversation_id: ConversationId,
    /// Eight hex digits, new at creation. They distinguish the conversation from an earlier one
    /// with the same id.
    pub incarnation: String,
    pub commit_id: CommitId,
    /// Increases with each change visible to clients: their `ETag`.
    pub revision: u64,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[serde(rename = "claim")]
    pub lease: Option<Lease>,
    /// Epoch of the newest lease. Each lease increases it by one.
    #[serde(default)]
    pub epoch: u64,
    /// Deaths of worker processes during the same step without progress, whatever their cause.
    #[serde(default)]
    #[serde(rename = "claims")]
    pub leases_without_progress: u32,
    #[serde(default, skip_serializing_if = "Suspicion::is_blank")]
    pub suspicion: Suspicion,
    pub phase: Phase,
    #[serde(default)]
    pub leaf_id: Option<EntryId>,
    /// `seq` of the newest entry. 0: none.
    pub seq: u64,
    /// Number of the newest event. 0: none.
    pub event_seq: u64,
    /// Number of turns started.
    pub turn: u64,
    /// Number of stored model responses; names the next one.
    #[serde(default)]
    #[serde(rename = "answers")]
    pub response_count: u64,
    pub agent: String,
    #[serde(default)]
    pub settings: Settings,
    /// Model, thinking level and active tools of the beginning. Absent: none of them has changed, or
    /// only an earlier version changed them.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub base_settings: Option<Box<PathSettings>>,
    #[serde(default)]
    pub usage: Usage,
    /// The running or waiting prompt.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub prompt: Option<PromptRun>,
    /// The newest prompts, oldest first.
    #[serde(default)]
    pub prompts: Vec<PromptSpan>,
    /// Undecided approval requests.
    #[serde(default)]
    pub requests: Vec<Request>,
    /// Commands that wait for the answer to a question of an extension, or are to run again.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub waiting_commands: Vec<WaitingCommand>,
    /// Number of requests made; names the next one.
    #[serde(default)]
    pub requests_made: u64,
    /// Writes with an unknown outcome: hash of tool and arguments → request. An equal call does not
    /// start meanwhile.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    #[serde(rename = "unknownWrites")]
    pub indeterminate_writes: BTreeMap<String, String>,
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub plugin_state: PluginStates,
    /// Messages that the profile of the user has not received. Absent: none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub profile_messages: Option<Box<ProfileMessages>>,
    /// The frame of the last model response. Absent before the first one, and after a move of the
    /// leaf.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub frame: Option<CurrentFrame>,
    /// Number of inbox items that actions of extensions made; names the next one.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub items_made: u64,
    /// A message of a queue that could not be accepted yet.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub waiting_message: Option<Box<WaitingMessage>>,
    /// The prompts in a row that extensions started. Absent: the last one was started by a person.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub extension_chain: Option<ExtensionChain>,
    /// `seq` at the last compaction or failed attempt. The next attempt needs a newer entry.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[serde(rename = "compactionTried")]
    pub compaction_attempt_seq: Option<u64>,
    /// Why the last automatic compaction did not help. Absent: it helped, or there was none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub compaction_note: Option<Box<CompactionNote>>,
    /// The prompt whose automatic compaction an approver declined. It starts no other one, nor does
    /// its end.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub compaction_declined: Option<PromptId>,
    /// Tokens of the last model call. Absent: the model has not responded yet, or not since the last
    /// compaction.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub context_tokens: Option<u64>,
    /// Numbers of the entries that the next steps need. Absent: all.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub context: Vec<SeqRange>,
    /// True if a `compaction` entry exists.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub is_compacted: bool,
    /// Reservation of the current model call. Absent: no call, or no limit.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[serde(rename = "held")]
    pub reservation: Option<Reservation>,
    #[serde(default, skip_serializing_if = "Metering::is_blank")]
    #[serde(rename = "books")]
    pub metering: Metering,
    /// The pause of the next step. Each inbox read removes or renews it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[serde(rename = "brake")]
    pub pause: Option<Pause>,
    /// See [`Head::deferral`].
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[serde(rename = "putOff")]
    pub deferral: Option<Deferral>,
    /// True if a model response was copied into the conversation, which `response_count` does not
    /// include.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub has_copied_response: bool,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub name: Option<String>,
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub labels: BTreeMap<String, String>,
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub metadata: BTreeMap<String, String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub parent: Option<Parent>,
    /// Inbox items that were read, left in the inbox, and will start something. The worker that
    /// releases the conversation must read them again. Items that wait for the next prompt are not
    /// counted.
    #[serde(default)]
    #[serde(rename = "waiting")]
    pub waiting_items: u32,
    /// Inbox documents that the last commit left, and changes of the inbox since: a member of the
    /// stored document, beside the head. Absent: unknown.
    #[serde(skip)]
    pub inbox_count: Option<u32>,
    /// Time at which work is due. Absent: no pending work.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub due: Option<Timestamp>,
    pub created_at: Timestamp,
    pub updated_at: Timestamp,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub deleted_at: Option<Timestamp>,
    /// Set if a model call ran at the deletion. Until this time its worker may report the cost.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub unreported_call: Option<Timestamp>,
    #[serde(flatten, skip_deserializing)]
    pub extra: Extra,
}
keep_unknown_members!([] Head);

#[expect(clippy::trivially_copy_pass_by_ref, reason = "serde passes a reference")]
fn is_zero_u32(number: &u32) -> bool {
    *number == 0
}

#[expect(clippy::trivially_copy_pass_by_ref, reason = "serde passes a reference")]
fn is_zero(number: &u64) -> bool {
    *number == 0
}

/// A worker's exclusive, expiring right to process the conversation.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Lease {
    pub worker: WorkerId,
    pub epoch: u64,
    pub until: Timestamp,
}

/// The current prompt.
#[serde_with::skip_serializing_none]
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
#[expect(
    clippy::struct_excessive_bools,
    reason = "each is an independent fact, and a member of the stored head"
)]
pub struct PromptRun {
    pub id: PromptId,
    /// `seq` of its `prompt` entry.
    pub from_seq: u64,
    /// The user who started it.
    pub user: UserId,
    /// Idempotency key as its client sent it. Absent: it sent none.
    pub idempotency_key: Option<String>,
    /// Overrides the conversation's model for this prompt.
    pub model: Option<String>,
    /// Model responses so far.
    pub rounds: u32,
    /// `seq` of the first entry of the agent run. Set if this prompt continues an earlier run
    /// (follow-up) or restarts one (retry). Absent: the run starts with this prompt.
    pub run_from_seq: Option<u64>,
    /// True if the first `turn_start` is stored.
    pub is_turn_open: bool,
    /// True if a model call has exceeded the context window since the last complete response. The
    /// next time ends the prompt.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub has_overflowed: bool,
    /// True if a refused part of the input has been left out since the last complete response. The
    /// next refusal ends the prompt.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub has_repaired_input: bool,
    /// Calls that the prompt has repeated without a refused tool or response schema.
    #[serde(default, skip_serializing_if = "is_zero_u32")]
    pub schema_repairs: u32,
    /// True if a failed response has ended the run. The retry starts a new one.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub is_between_attempts: bool,
    /// True if a steer was applied since the last response or result. One at a time: no further
    /// steer until then.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub is_steered: bool,
    /// True if the model was sent an error about a response that does not match the response
    /// schema.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub has_requested_repair: bool,
    /// True if the model was called again because its last response had neither text nor calls.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub has_repeated_empty: bool,
    /// Why the last response is incomplete.
    pub incomplete: Option<IncompleteDetails>,
    #[serde(default)]
    pub usage: Usage,
    pub traceparent: Option<String>,
    /// W3C trace context of the turn that committed last. The next turn links to it.
    pub last_turn: Option<String>,
    /// Estimated usage of model calls whose response was lost. Not in `usage`.
    #[serde(default, skip_serializing_if = "UsageTotals::is_nothing")]
    pub lost: UsageTotals,
    /// Increases of the prompt limit, for this prompt.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub increases: Vec<LimitIncrease>,
    /// The highest percentage of that limit that an alert reported, by unit.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub alert_marks: Vec<AlertMark>,
    /// `seq` of the entry that holds the system prompt of the agent run. Absent: the agent's own
    /// instructions.
    pub system_prompt_seq: Option<u64>,
    /// Number of turns started in the agent run.
    #[serde(default, skip_serializing_if = "is_zero_u32")]
    pub run_turns: u32,
    /// True if the last step used the loop `protocol`, whose model input is text.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub is_protocol: bool,
    /// Failed calls in a row, in the loop `protocol`.
    #[serde(default, skip_serializing_if = "is_zero_u32")]
    pub failures_in_row: u32,
}

/// The conversation that started this one.
#[serde_with::skip_serializing_none]
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Parent {
    pub conversation_id: ConversationId,
    pub entry_id: Option<EntryId>,
    pub tool_call_id: Option<String>,
}

impl PromptRun {
    /// `seq` of the first entry of the agent run of which the prompt is part.
    pub(crate) fn run_start_seq(&self) -> u64 {
        self.run_from_seq.unwrap_or(self.from_seq)
    }

    /// Index of the newest turn in the agent run, from 0.
    pub fn turn_index(&self) -> u32 {
        self.run_turns.saturating_sub(1)
    }
}

/// State of a conversation in the API, derived from the head and never stored.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "snake_case")]
pub enum State {
    Idle,
    Running,
    WaitingForApproval,
}

impl Head {
    /// Records the settings of the beginning before the first change of one of them.
    pub fn record_base_settings(&mut self) {
        if self.base_settings.is_none() {
            self.base_settings = Some(Box::new(PathSettings::of(&self.settings)));
        }
    }

    /// The settings of a path on which none was set.
    pub fn base_settings(&self) -> PathSettings {
        self.base_settings.as_deref().cloned().unwrap_or_else(|| PathSettings::of(&self.settings))
    }

    pub fn key(&self) -> ConversationKey {
        ConversationKey {
            tenant: self.tenant.clone(),
            user: self.user.clone(),
            conversation_id: self.conversation_id.clone(),
        }
    }

    /// Id or tier of the model of the next call: the prompt's, that of the effective settings, or the
    /// default.
    pub fn model_name<'a>(&'a self, settings: &'a Settings) -> &'a str {
        let of_prompt = self.prompt.as_ref().and_then(|run| run.model.as_deref());
        of_prompt.or(settings.model.as_deref()).unwrap_or(DEFAULT_MODEL)
    }

    /// Beginning of the input of the newest prompt.
    pub fn preview(&self) -> Option<&str> {
        self.prompts.last()?.preview.as_deref()
    }

    /// True if the conversation has a model response, of any branch.
    pub fn has_model_response(&self) -> bool {
        self.response_count > 0 || self.has_copied_response
    }

    /// Records a copied entry.
    pub fn record_copied_entry(&mut self, body: &EntryBody) {
        self.has_copied_response |= body.message().is_some_and(|it| it.as_assistant().is_some());
    }

    /// True if the next model call waits for a budget increase.
    pub fn is_waiting_for_budget(&self) -> bool {
        self.requests.iter().any(|request| request.kind == RequestKind::Budget)
    }

    /// True if the next model call waits for a decision: about a budget, or about the compaction.
    pub fn is_waiting_for_decision(&self) -> bool {
        self.is_waiting_for_budget() || self.has_open_question()
    }

    fn has_open_question(&self) -> bool {
        self.step_requests().any(|request| request.kind == RequestKind::Question)
    }

    /// The open requests of the prompt or the compaction: without those of waiting commands.
    pub fn step_requests(&self) -> impl Iterator<Item = &Request> {
        self.requests.iter().filter(|request| request.input_id.is_none())
    }

    /// The open question of a waiting command.
    pub fn question_of(&self, command: &InputId) -> Option<&Request> {
        self.requests.iter().find(|request| request.input_id.as_ref() == Some(command))
    }

    /// True if a question of an extension is open, or an answer is recorded.
    pub(super) fn has_questions(&self) -> bool {
        self.has_open_question() || self.phase.has_answers()
    }

    pub fn state(&self) -> State {
        match &self.phase {
            Phase::Idle | Phase::Deleted => State::Idle,
            Phase::Model { .. } | Phase::Summary { .. } if self.is_waiting_for_decision() => {
                State::WaitingForApproval
            }
            Phase::Model { .. } | Phase::Summary { .. } => State::Running,
            Phase::Calls { .. } if self.step_requests().next().is_none() => State::Running,
            Phase::Calls { .. } => State::WaitingForApproval,
        }
    }

    /// The state that lists show: an idle conversation waits for the open questions of its commands.
    pub fn listed_state(&self) -> State {
        match self.state() {
            State::Idle if !self.requests.is_empty() => State::WaitingForApproval,
            state @ (State::Idle | State::Running | State::WaitingForApproval) => state,
        }
    }
}

impl Head {
    /// Why the model call is deferred. `None`: the call is not deferred, or it waits for a retry.
    pub fn deferral(&self) -> Option<&Deferral> {
        let (Phase::Model { not_before, .. } | Phase::Summary { not_before, .. }) = &self.phase
        else {
            return None;
        };
        // A deferral until another time is over.
        self.deferral.as_ref().filter(|put_off| *not_before == Some(put_off.until))
    }
}

impl Head {
    /// True if the step may kill its process and must not run beside other turns.
    pub fn is_suspect(&self) -> bool {
        self.leases_without_progress >= SUSPECT_DEATHS || self.suspicion.isolated_deaths > 0
    }

    /// True if the step has killed enough isolated processes to fail its prompt.
    pub fn is_poisoned(&self) -> bool {
        self.suspicion.isolated_deaths >= ISOLATED_DEATHS_MAX
    }

    /// Resets the counts when a step or a part of it is done: earlier deaths no longer concern the
    /// current step.
    pub fn reset_suspicion(&mut self) {
        self.leases_without_progress = 0;
        self.suspicion = Suspicion::default();
    }

    pub fn count_death(&mut self, death: Death, now: Timestamp) {
        let was_alone = std::mem::take(&mut self.suspicion.is_running_alone);
        // The number of earlier delays; `None`: the next attempt does not wait.
        let earlier = match death {
            Death::Presumed { delay_deaths } if !was_alone => {
                self.leases_without_progress = self.leases_without_progress.saturating_add(1);
                self.leases_without_progress.checked_sub(delay_deaths)
            }
            Death::Presumed { .. } | Death::Isolated => {
                self.suspicion.isolated_deaths += 1;
                Some(self.suspicion.isolated_deaths - 1)
            }
        };
        let delay =
            earlier.map(|earlier| DELAYS.get(earlier as usize).copied().unwrap_or(DELAY_MAX));
        let delay = delay.filter(|_| self.is_suspect() && !self.is_poisoned());
        self.suspicion.retry_at = delay.map(|delay| now.plus(delay));
    }
}

/// True if this delivery has to make a model call.
pub fn is_model_call_due(head: &Head, now: Timestamp) -> bool {
    let is_call = match head.phase {
        Phase::Model { not_before, .. } | Phase::Summary { not_before, .. } => {
            not_before.is_none_or(|time| time <= now)
        }
        Phase::Idle | Phase::Calls { .. } | Phase::Deleted => false,
    };
    is_call && !head.is_waiting_for_decision() && head.pause.is_none()
}
