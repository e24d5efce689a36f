//! What is owed next. Nothing that waits is held anywhere but here.

use serde::{Deserialize, Serialize};

use crate::agent::request::Effect;
use crate::clock::Timestamp;
use crate::ids::{ConversationId, EffectId, RequestId};

#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(tag = "owed", rename_all = "camelCase", rename_all_fields = "camelCase")]
pub enum Phase {
    /// Nothing is owed.
    #[default]
    Idle,
    /// A model call, not before that time.
    Model {
        /// From 1; counts the tries for the same answer.
        attempt: u32,
        #[serde(default, skip_serializing_if = "Option::is_none")]
        not_before: Option<Timestamp>,
    },
    /// Results of the calls of one answer.
    Calls {
        /// `seq` of the answer's entry.
        answer: u64,
        /// In source order; never empty; the message of at least one result is not on the path.
        calls: Vec<CallState>,
        /// How many of them may run at once, as it was when the answer came; 1: one after the other.
        #[serde(default = "one", skip_serializing_if = "is_one")]
        at_once: u32,
    },
    /// A summary of what the window no longer holds.
    Summary {
        attempt: u32,
        #[serde(default, skip_serializing_if = "Option::is_none")]
        not_before: Option<Timestamp>,
        reason: String,
    },
    /// The conversation is being purged; for everyone else it is gone.
    Deleted,
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct CallState {
    pub status: CallStatus,
    /// Tries so far.
    #[serde(default)]
    pub attempts: u32,
    /// Whether a person was asked about it: its output is in the prompt's view already.
    #[serde(default)]
    pub is_asked: bool,
    /// The binding a person has approved; good for exactly that tool, arguments and definition.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub approved: Option<String>,
    /// Index of an earlier call that has to be done before this one is looked at.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub behind: Option<usize>,
    /// Whether its result asks for an end without another answer.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub terminates: bool,
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(tag = "is", rename_all = "camelCase", rename_all_fields = "camelCase")]
pub enum CallStatus {
    /// Nobody has looked at it yet, or a person let it run.
    Ready,
    /// Somebody else has to move first.
    Waiting { on: WaitsFor },
    /// Sent, or about to be: the intent is committed.
    Started {
        effect_id: EffectId,
        effect: Effect,
        /// The tool's setting for a lost answer.
        on_unknown: OnUnknown,
        /// Hash of tool name and arguments.
        fingerprint: String,
        /// When the attempt is certainly over.
        until: Timestamp,
    },
    /// Its result is in the record.
    Done {
        /// `seq` of the result's entry.
        result: u64,
        /// Set while that entry only keeps the result, because an earlier call has none: its bytes. The message on the path
        /// is written when its turn comes.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        kept: Option<u64>,
    },
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "kind", rename_all = "camelCase", rename_all_fields = "camelCase")]
pub enum WaitsFor {
    Request { request_id: RequestId },
    Conversation { conversation_id: ConversationId },
    Callback { token: String },
}

/// What happens when a write's answer is lost.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum OnUnknown {
    /// A person says what happened.
    #[default]
    Ask,
    /// The model reads that the outcome is unknown and must not repeat it.
    Tell,
}

impl CallState {
    /// A call nobody has looked at.
    pub fn fresh() -> Self {
        Self {
            status: CallStatus::Ready,
            attempts: 0,
            is_asked: false,
            approved: None,
            behind: None,
            terminates: false,
        }
    }

    /// Whether what it gave is known for good.
    pub fn is_done(&self) -> bool {
        matches!(self.status, CallStatus::Done { .. })
    }

    /// Whether its result stands on the path.
    pub fn is_placed(&self) -> bool {
        matches!(self.status, CallStatus::Done { kept: None, .. })
    }

    pub fn is_started(&self) -> bool {
        matches!(self.status, CallStatus::Started { .. })
    }
}

fn one() -> u32 {
    1
}

#[expect(clippy::trivially_copy_pass_by_ref, reason = "serde asks for a reference")]
fn is_one(number: &u32) -> bool {
    *number == 1
}
