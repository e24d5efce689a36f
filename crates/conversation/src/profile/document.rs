//! The document of a user's profile: the profile, the messages that it has not learnt from, and the
//! claim of the worker that learns from them.

use std::fmt;
use std::time::Duration;

use serde::{Deserialize, Serialize};

use crate::clock_correction::CLOCK_DIFFERENCE_MAX;
use crate::profile::messages::ProfileMessage;
use crate::profile::{Profile, ProfileFields};
use crate::unknown_members::{Extra, keep_unknown_members};
use turnwheel_platform::clock::Timestamp;
use turnwheel_platform::ids::ConversationId;

const SCHEMA: u32 = 1;
/// Unseen messages of all conversations; the newest are kept.
pub(crate) const UNSEEN_MAX: usize = 10;
/// Unseen messages from which the model learns.
pub(crate) const LEARNING_MIN: usize = 5;
/// Claims without a usable response, after which the messages are dropped.
pub const ATTEMPTS_MAX: u32 = 3;
/// Wait after messages were dropped. It doubles with each failure in a row, up to 32 hours.
const FIRST_WAIT: Duration = Duration::from_hours(1);
const WAIT_DOUBLINGS_MAX: u32 = 5;
/// Time of a claim, which covers both model calls. Shorter than the time after which another delivery
/// passes the messages on.
const CLAIM_DURATION: Duration = Duration::from_mins(2);
/// Conversations whose newest message is known; those with the newest messages are kept.
const CONVERSATIONS_MAX: usize = 64;

#[expect(clippy::trivially_copy_pass_by_ref, reason = "serde passes a reference")]
fn is_zero(number: &u32) -> bool {
    *number == 0
}

/// A message that the profile has not learnt from.
#[derive(Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", remote = "Self")]
pub struct UnseenMessage {
    pub conversation_id: ConversationId,
    /// Of its entry. With the conversation it is the key of the message.
    pub seq: u64,
    pub at: Timestamp,
    pub text: String,
    #[serde(flatten, skip_deserializing)]
    pub extra: Extra,
}

impl fmt::Debug for UnseenMessage {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "UnseenMessage({}, {}, {})", self.conversation_id, self.seq, self.at)
    }
}

/// The newest message that a conversation posted. A repeated post of it and of earlier ones changes
/// nothing.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", remote = "Self")]
pub struct PostedMessage {
    pub conversation_id: ConversationId,
    pub incarnation: String,
    pub seq: u64,
    pub at: Timestamp,
    #[serde(flatten, skip_deserializing)]
    pub extra: Extra,
}

/// The right of one worker to learn from the unseen messages. It expires.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", remote = "Self")]
pub struct LearningClaim {
    pub id: String,
    pub until: Timestamp,
    #[serde(flatten, skip_deserializing)]
    pub extra: Extra,
}

/// Messages of completed prompts of one conversation.
#[derive(Clone, Copy, Debug)]
pub struct Posting<'a> {
    pub conversation_id: &'a ConversationId,
    pub incarnation: &'a str,
    /// By `seq`.
    pub messages: &'a [ProfileMessage],
}

#[serde_with::skip_serializing_none]
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", remote = "Self")]
pub struct ProfileDocument {
    pub schema: u32,
    /// Absent: nothing was learnt yet.
    pub profile: Option<Profile>,
    /// Time of the newest message that was learnt from.
    pub learned_until: Option<Timestamp>,
    /// By time, the oldest first.
    #[serde(default)]
    pub unseen: Vec<UnseenMessage>,
    #[serde(default)]
    pub posted: Vec<PostedMessage>,
    pub learning: Option<LearningClaim>,
    /// Claims since the last usable response.
    #[serde(default)]
    pub attempts: u32,
    /// Times in a row that messages were dropped after their last attempt.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub failures: u32,
    /// The model is not called before. Absent: the last learning did not fail.
    pub retry_at: Option<Timestamp>,
    #[serde(flatten, skip_deserializing)]
    pub extra: Extra,
}

impl LearningClaim {
    fn is_live(&self, now: Timestamp) -> bool {
        is_wait_open(self.until, now, CLAIM_DURATION)
    }
}

/// Wait after the messages were dropped, if that happened `failures` times before.
fn failure_wait(failures: u32) -> Duration {
    FIRST_WAIT * (1u32 << failures.min(WAIT_DOUBLINGS_MAX))
}

/// True if the wait is not over. A clock that was ahead has set an end that is further away than the
/// longest wait: that wait is over.
fn is_wait_open(end: Timestamp, now: Timestamp, longest: Duration) -> bool {
    end > now && end <= now.plus(longest + CLOCK_DIFFERENCE_MAX)
}

keep_unknown_members!([] UnseenMessage, PostedMessage, LearningClaim, ProfileDocument);

impl ProfileDocument {
    /// Adds the messages of a conversation that were not posted before.
    pub fn post(&mut self, posting: &Posting<'_>) {
        self.schema = self.schema.max(SCHEMA);
        let is_same = |known: &PostedMessage| {
            known.conversation_id == *posting.conversation_id
                && known.incarnation == posting.incarnation
        };
        let known = self.posted.iter().find(|known| is_same(known)).map_or(0, |known| known.seq);
        let new = posting.messages.iter().filter(|message| message.seq > known);
        let new: Vec<&ProfileMessage> = new.collect();
        let Some(newest) = new.last() else { return };
        self.unseen.extend(new.iter().map(|message| UnseenMessage {
            conversation_id: posting.conversation_id.clone(),
            seq: message.seq,
            at: message.at,
            text: message.text.clone(),
            extra: Extra::new(),
        }));
        self.unseen.sort_by_key(|message| message.at);
        self.unseen.drain(..self.unseen.len().saturating_sub(UNSEEN_MAX));
        self.posted.retain(|known| !is_same(known));
        self.posted.push(PostedMessage {
            conversation_id: posting.conversation_id.clone(),
            incarnation: posting.incarnation.to_owned(),
            seq: newest.seq,
            at: newest.at,
            extra: Extra::new(),
        });
        self.posted.sort_by_key(|known| known.at);
        self.posted.drain(..self.posted.len().saturating_sub(CONVERSATIONS_MAX));
    }

    /// True if enough messages are unseen and no worker learns from them.
    pub fn is_learning_due(&self, now: Timestamp) -> bool {
        let is_claimed = self.learning.as_ref().is_some_and(|claim| claim.is_live(now));
        let is_waiting = self.retry_at.is_some_and(|end| {
            is_wait_open(end, now, failure_wait(self.failures.saturating_sub(1)))
        });
        self.unseen.len() >= LEARNING_MIN && !is_claimed && !is_waiting
    }

    /// Drops the unseen messages if the last permitted claim has expired. Returns their number.
    pub fn drop_after_last_attempt(&mut self, now: Timestamp) -> usize {
        let is_expired = self.learning.as_ref().is_some_and(|claim| !claim.is_live(now));
        if !is_expired || self.attempts < ATTEMPTS_MAX {
            return 0;
        }
        self.learning = None;
        self.wait_after_failure(now);
        std::mem::take(&mut self.unseen).len()
    }

    /// The next learning waits longer after each failure in a row: the same model with the same
    /// limits is likely to fail again.
    fn wait_after_failure(&mut self, now: Timestamp) {
        self.retry_at = Some(now.plus(failure_wait(self.failures)));
        (self.attempts, self.failures) = (0, self.failures.saturating_add(1));
    }

    pub fn claim(&mut self, id: &str, now: Timestamp) {
        self.attempts += 1;
        let until = now.plus(CLAIM_DURATION);
        self.learning = Some(LearningClaim { id: id.to_owned(), until, extra: Extra::new() });
    }

    /// True if the worker with this claim learns.
    pub fn is_claimed_by(&self, id: &str) -> bool {
        self.learning.as_ref().is_some_and(|claim| claim.id == id)
    }

    /// Ends the claim. `learned`: the messages that the model has received. `None` for fields: the
    /// profile stays as it is.
    pub fn record_learning(
        &mut self,
        learned: &[UnseenMessage],
        fields: Option<ProfileFields>,
        now: Timestamp,
    ) {
        if let Some(fields) = fields {
            self.profile = Some(Profile::new(fields, now));
        }
        let newest = learned.iter().map(|message| message.at).max();
        self.learned_until = self.learned_until.max(newest);
        self.remove(learned);
        (self.learning, self.attempts) = (None, 0);
        (self.failures, self.retry_at) = (0, None);
    }

    /// Ends the claim of a call without a usable response. The next post claims again, unless this
    /// was the last attempt: then the messages are dropped. Returns their number.
    pub fn record_failure(&mut self, received: &[UnseenMessage], now: Timestamp) -> usize {
        self.learning = None;
        if self.attempts < ATTEMPTS_MAX {
            return 0;
        }
        self.wait_after_failure(now);
        let before = self.unseen.len();
        self.remove(received);
        before - self.unseen.len()
    }

    /// Removes what a deleted conversation posted: everything if no other one has posted.
    pub fn retract(&mut self, conversation_id: &ConversationId) {
        if self.posted.iter().all(|known| known.conversation_id == *conversation_id) {
            *self = Self::default();
            return;
        }
        self.unseen.retain(|message| message.conversation_id != *conversation_id);
        self.posted.retain(|known| known.conversation_id != *conversation_id);
    }

    /// True if it holds nothing.
    pub fn is_blank(&self) -> bool {
        *self == Self::default()
    }

    fn remove(&mut self, messages: &[UnseenMessage]) {
        let is_one = |unseen: &UnseenMessage| {
            messages.iter().any(|message| {
                message.conversation_id == unseen.conversation_id
                    && message.seq == unseen.seq
                    && message.at == unseen.at
            })
        };
        self.unseen.retain(|unseen| !is_one(unseen));
    }
}
