//! Deduplication of live and stored events for one reader.

use std::collections::{HashMap, HashSet};

use turnwheel_conversation::event::{Event, EventBody};
use turnwheel_platform::ids::{EntryId, PromptId};
use turnwheel_storage::live::LiveResponse;

/// The events that one reader received live. Their stored copies only advance the event number.
#[derive(Debug, Default)]
pub(super) struct LiveDedup {
    /// Turns whose `agent_start` was sent.
    pub(super) agent_starts: HashSet<(PromptId, u64)>,
    pub(super) turn_starts: HashSet<(PromptId, u64)>,
    pub(super) message_starts: HashSet<EntryId>,
    pub(super) message_resets: HashMap<EntryId, u32>,
    /// Messages whose end was sent. Deltas that arrive later are dropped.
    pub(super) ended_messages: HashSet<EntryId>,
    /// The model response in progress.
    pub(super) current_message: Option<LiveResponse>,
}

impl LiveDedup {
    /// True if a stored event was already sent live. Also updates the state of the response in
    /// progress.
    #[expect(clippy::wildcard_enum_match_arm, reason = "only these events can be sent twice")]
    pub(super) fn is_duplicate(&mut self, event: &Event) -> bool {
        match &event.body {
            EventBody::TurnStart(_) => event.prompt_id.as_ref().is_some_and(|prompt_id| {
                self.turn_starts.contains(&(prompt_id.clone(), event.turn))
            }),
            EventBody::MessageStart(message) => self.message_starts.contains(&message.message_id),
            EventBody::MessageEnd(message) => {
                self.ended_messages.insert(message.message_id.clone());
                self.current_message.take_if(|current| current.message_id == message.message_id);
                false
            }
            EventBody::MessageReset(reset) => {
                match self.message_resets.get_mut(&reset.message_id) {
                    Some(count) if *count > 0 => {
                        *count -= 1;
                        true
                    }
                    Some(_) | None => {
                        // Send `message_start` again for the next attempt.
                        self.message_resets.entry(reset.message_id.clone()).or_default();
                        self.current_message
                            .take_if(|answer| answer.message_id == reset.message_id);
                        false
                    }
                }
            }
            EventBody::AgentStart(_) => event.prompt_id.as_ref().is_some_and(|prompt_id| {
                self.agent_starts.contains(&(prompt_id.clone(), event.turn))
            }),
            _ => false,
        }
    }
}
