//! Messages of a conversation that the profile of its user has not received. The head keeps their
//! beginnings, so that no crash loses them.

use std::fmt;
use std::time::Duration;

use serde::{Deserialize, Serialize};

use crate::entry::PromptState;
use crate::unknown_members::{Extra, keep_unknown_members};
use turnwheel_json::text::one_line;
use turnwheel_platform::clock::Timestamp;

/// Messages of one conversation; the newest are kept.
pub const MESSAGES_MAX: usize = 10;
/// Characters of one message.
const TEXT_CHARS_MAX: usize = 512;
/// Characters of a message that are read for them.
const READ_CHARS_MAX: usize = 4_096;
/// Bytes of all texts in a head.
const BYTES_MAX: usize = 8 * 1024;
/// Time for the delivery that ends a prompt to pass its messages on. Then the recovery sweep wakes
/// another one. Longer than that a nudge is sent for.
pub(crate) const PASS_ON_WITHIN: Duration = Duration::from_mins(3);

/// The beginning of a message that the user wrote.
#[derive(Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", remote = "Self")]
pub struct ProfileMessage {
    /// Of its entry.
    pub seq: u64,
    pub at: Timestamp,
    /// One line.
    pub text: String,
    #[serde(flatten, skip_deserializing)]
    pub extra: Extra,
}

impl fmt::Debug for ProfileMessage {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "ProfileMessage({}, {} bytes)", self.seq, self.text.len())
    }
}

impl ProfileMessage {
    /// `None`: the message has no text.
    pub fn new(seq: u64, at: Timestamp, text: &str) -> Option<Self> {
        let read: String = text.chars().take(READ_CHARS_MAX).collect();
        let text: String = one_line(&read).chars().take(TEXT_CHARS_MAX).collect();
        (!text.is_empty()).then(|| Self { seq, at, text, extra: Extra::new() })
    }
}

/// Messages for the profile, by `seq`.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", remote = "Self")]
pub struct ProfileMessages {
    /// Of the running prompt. They count if it completes.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub running: Vec<ProfileMessage>,
    /// Of completed prompts.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub completed: Vec<ProfileMessage>,
    /// Time at which another delivery passes them on. Set while there are completed ones.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub due: Option<Timestamp>,
    #[serde(flatten, skip_deserializing)]
    pub extra: Extra,
}

keep_unknown_members!([] ProfileMessage, ProfileMessages);

impl ProfileMessages {
    /// `seq` of the newest message of a completed prompt. 0: none.
    pub fn completed_seq(&self) -> u64 {
        self.completed.last().map_or(0, |message| message.seq)
    }

    /// Removes the messages up to this `seq`, which the profile has. `None`: nothing is left.
    pub fn without_passed(mut self: Box<Self>, seq: u64) -> Option<Box<Self>> {
        self.completed.retain(|message| message.seq > seq);
        self.into_non_empty()
    }

    pub(crate) fn end_prompt(&mut self, state: PromptState, now: Timestamp) {
        let ended = std::mem::take(&mut self.running);
        if state == PromptState::Completed && !ended.is_empty() {
            self.completed.extend(ended);
            self.due = Some(now.plus(PASS_ON_WITHIN));
        }
    }

    /// Removes the oldest messages beyond the bounds.
    pub(crate) fn enforce_bounds(&mut self) {
        let surplus = |list: &[ProfileMessage]| list.len().saturating_sub(MESSAGES_MAX);
        self.completed.drain(..surplus(&self.completed));
        self.running.drain(..surplus(&self.running));
        let bytes = |list: &[ProfileMessage]| list.iter().map(|it| it.text.len()).sum::<usize>();
        while bytes(&self.completed) + bytes(&self.running) > BYTES_MAX {
            let oldest =
                if self.completed.is_empty() { &mut self.running } else { &mut self.completed };
            oldest.drain(..1);
        }
    }

    pub(crate) fn into_non_empty(mut self: Box<Self>) -> Option<Box<Self>> {
        if self.completed.is_empty() {
            self.due = None;
        }
        (!self.completed.is_empty() || !self.running.is_empty()).then_some(self)
    }
}
