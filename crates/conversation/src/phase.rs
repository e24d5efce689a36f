//! The phase: the conversation's pending work. No other document stores what a conversation waits
//! for.

use serde::{Deserialize, Serialize};

use crate::changed_arguments;
use crate::destination::Destination;
use crate::question::Answers;
use crate::request::Effect;
use turnwheel_json::raw::RawJson;
use turnwheel_platform::clock::Timestamp;
use turnwheel_platform::ids::{ConversationId, EffectId, EntryId, RequestId};

#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(tag = "owed", rename_all = "camelCase", rename_all_fields = "camelCase")]
pub enum Phase {
    /// No work is pending.
    #[default]
    Idle,
    /// A model call, not before `not_before`.
    Model {
        /// From 1; counts the attempts for the same response.
        attempt: u32,
        #[serde(default, skip_serializing_if = "Option::is_none")]
        not_before: Option<Timestamp>,
    },
    /// The tool calls of one response.
    Calls {
        /// `seq` of the response's entry.
        #[serde(rename = "answer")]
        response_seq: u64,
        /// In source order. Never empty: at least one call has no result on the path.
        calls: Vec<CallState>,
        /// How many calls may run in parallel, as set when the response was committed. 1: one after
        /// the other.
        #[serde(default = "one", skip_serializing_if = "is_one")]
        #[serde(rename = "atOnce")]
        concurrency: u32,
    },
    /// A summary because of the context window or a request. Then follows the next model call of
    /// the running prompt, if any.
    Summary {
        attempt: u32,
        #[serde(default, skip_serializing_if = "Option::is_none")]
        not_before: Option<Timestamp>,
        reason: CompactionReason,
        /// Focus of the summary.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        instructions: Option<String>,
        /// Answers to the questions that extensions asked about this compaction.
        #[serde(default, skip_serializing_if = "Answers::is_empty")]
        answers: Answers,
        /// Set if the summary is of the branch that a move of the leaf leaves.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        branch: Option<Box<BranchTarget>>,
    },
    /// The conversation is being purged. Clients receive 404.
    Deleted,
}

/// The place to which the leaf moves with a summary.
#[serde_with::skip_serializing_none]
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct BranchTarget {
    /// Absent: before the first entry.
    pub leaf_id: Option<EntryId>,
    /// Label of the summary.
    pub label: Option<String>,
}

impl Phase {
    /// True while a branch is summarised.
    pub fn is_branch_summary(&self) -> bool {
        matches!(self, Self::Summary { branch: Some(_), .. })
    }

    /// True if an answer to a question of an extension is recorded.
    pub(crate) fn has_answers(&self) -> bool {
        match self {
            Self::Calls { calls, .. } => calls.iter().any(|call| !call.answers.is_empty()),
            Self::Summary { answers, .. } => !answers.is_empty(),
            Self::Idle | Self::Model { .. } | Self::Deleted => false,
        }
    }
}

#[serde_with::skip_serializing_none]
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct CallState {
    pub status: CallStatus,
    /// Attempts so far.
    #[serde(default)]
    pub attempts: u32,
    /// True if an approval request was made for this call. Its output is then already in the
    /// prompt's view.
    #[serde(default)]
    #[serde(rename = "isAsked")]
    pub has_approval_request: bool,
    /// The approved binding. It is valid for exactly this tool, these arguments and this
    /// definition.
    pub approved: Option<String>,
    /// The text that the approvers of `approved` saw, and their names. Absent for bindings that no approver
    /// decided, and in documents of earlier versions.
    pub approval: Option<Box<ApprovedCall>>,
    /// The destination of a started `write`, for a request about its outcome. Absent: the app.
    pub sent_to: Option<Box<Destination>>,
    /// Display name of the tool. Absent: its name. Removed with its result.
    pub label: Option<Box<str>>,
    /// Index of an earlier call that must be done before this one is checked.
    #[serde(rename = "behind")]
    pub depends_on: Option<usize>,
    /// True if its result requests the end of the run without another model response.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    #[serde(rename = "terminates")]
    pub should_terminate: bool,
    /// Answers to the questions that extensions asked about this call. Removed with its result.
    #[serde(default, skip_serializing_if = "Answers::is_empty")]
    pub answers: Answers,
    /// The binding for which `answers` were given. Absent in documents of earlier versions.
    pub answered_for: Option<String>,
    /// Arguments that an extension set in place of the model's. Removed with its result.
    #[serde(default, with = "changed_arguments")]
    pub changed_arguments: Option<RawJson>,
}

/// The facts of an approved request that a new one needs if the call has changed.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct ApprovedCall {
    /// Never empty.
    pub approvers: Vec<String>,
    #[serde(default, rename = "notRequester", skip_serializing_if = "std::ops::Not::not")]
    pub is_requester_excluded: bool,
    /// Absent: the app.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub destination: Option<Destination>,
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(tag = "is", rename_all = "camelCase", rename_all_fields = "camelCase")]
pub enum CallStatus {
    /// Not checked yet, or approved.
    Ready,
    /// Waits for a decision, another conversation or a callback.
    Waiting { on: PendingWait },
    /// Sent, or about to be sent: the intent is committed.
    Started {
        effect_id: EffectId,
        effect: Effect,
        /// The tool's setting for a lost response.
        on_unknown: OnUnknown,
        /// Hash of tool name and arguments.
        fingerprint: String,
        /// Time at which the attempt has ended for certain.
        until: Timestamp,
    },
    /// Its result is stored.
    Done {
        /// `seq` of the result's entry.
        #[serde(rename = "result")]
        result_seq: u64,
        /// Bytes of the buffered result. Set while an earlier call has no result. The message is
        /// then appended later, in source order.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        #[serde(rename = "kept")]
        buffered: Option<u64>,
    },
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "kind", rename_all = "camelCase", rename_all_fields = "camelCase")]
pub enum PendingWait {
    Request { request_id: RequestId },
    Conversation { conversation_id: ConversationId },
    Callback { token: String },
}

/// Consequence of a lost response of a write.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum OnUnknown {
    /// An approver decides.
    #[default]
    Ask,
    /// The model reads that the outcome is unknown and that it must not repeat the call.
    Tell,
}

impl Default for CallState {
    /// A call that was not checked yet.
    fn default() -> Self {
        Self {
            status: CallStatus::Ready,
            attempts: 0,
            has_approval_request: false,
            approved: None,
            approval: None,
            sent_to: None,
            label: None,
            depends_on: None,
            should_terminate: false,
            answers: Answers::default(),
            answered_for: None,
            changed_arguments: None,
        }
    }
}

impl CallState {
    /// True if its result is final.
    pub fn is_done(&self) -> bool {
        matches!(self.status, CallStatus::Done { .. })
    }

    /// The binding that an approver decided. Without a decision `approved` is only that of the last
    /// attempt.
    pub(crate) fn decided_binding(&self) -> Option<&str> {
        let is_decided = self.attempts == 0 || self.has_approval_request;
        self.approved.as_deref().filter(|_| is_decided)
    }

    /// True if its result is on the path.
    pub fn is_on_path(&self) -> bool {
        matches!(self.status, CallStatus::Done { buffered: None, .. })
    }

    pub fn is_started(&self) -> bool {
        matches!(self.status, CallStatus::Started { .. })
    }
}

fn one() -> u32 {
    1
}

#[expect(clippy::trivially_copy_pass_by_ref, reason = "serde passes a reference")]
fn is_one(number: &u32) -> bool {
    *number == 1
}

/// Why a conversation is compacted.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum CompactionReason {
    /// The input comes close to the context window.
    Threshold,
    /// The model rejected the input as too long.
    Overflow,
    /// A client requested it.
    Manual,
}
