//! What one reader was told live.

use std::collections::{HashMap, HashSet};

use crate::agent::event::{Event, EventBody};
use crate::ids::{EntryId, PromptId};
use crate::live::LiveAnswer;

/// What was told live: its durable copy only moves the number on.
#[derive(Debug, Default)]
pub(super) struct Told {
    /// Turns with which the agent began anew.
    pub(super) agents: HashSet<(PromptId, u64)>,
    pub(super) turns: HashSet<(PromptId, u64)>,
    pub(super) starts: HashSet<EntryId>,
    pub(super) resets: HashMap<EntryId, u32>,
    /// Answers whose end was told: deltas that come later are late.
    pub(super) ended: HashSet<EntryId>,
    /// The answer under way.
    pub(super) current: Option<LiveAnswer>,
    /// Whether deltas may have been missed.
    pub(super) has_gap: bool,
}

impl Told {
    /// Whether a durable event was told live; and what it says about the answer under way.
    pub(super) fn has_told(&mut self, event: &Event) -> bool {
        match &event.body {
            EventBody::TurnStart(_) => event
                .prompt_id
                .as_ref()
                .is_some_and(|prompt_id| self.turns.contains(&(prompt_id.clone(), event.turn))),
            EventBody::MessageStart(message) => self.starts.contains(&message.message_id),
            EventBody::MessageEnd(message) => {
                self.ended.insert(message.message_id.clone());
                if self
                    .current
                    .as_ref()
                    .is_some_and(|answer| answer.message_id == message.message_id)
                {
                    self.current = None;
                    self.has_gap = false;
                }
                false
            }
            EventBody::MessageReset(reset) => match self.resets.get_mut(&reset.message_id) {
                Some(count) if *count > 0 => {
                    *count -= 1;
                    true
                }
                Some(_) | None => {
                    // Its next attempt begins anew for this reader too.
                    self.resets.entry(reset.message_id.clone()).or_default();
                    self.current.take_if(|answer| answer.message_id == reset.message_id);
                    false
                }
            },
            EventBody::AgentStart(_) => event
                .prompt_id
                .as_ref()
                .is_some_and(|prompt_id| self.agents.contains(&(prompt_id.clone(), event.turn))),
            EventBody::AgentEnd(_)
            | EventBody::AgentSettled(_)
            | EventBody::TurnEnd(_)
            | EventBody::ToolExecutionStart(_)
            | EventBody::ToolExecutionEnd(_)
            | EventBody::AutoCompactionStart(_)
            | EventBody::AutoCompactionEnd(_)
            | EventBody::SummarizationRetryScheduled(_)
            | EventBody::SummarizationRetryFinished(_)
            | EventBody::AutoRetryStart(_)
            | EventBody::AutoRetryEnd(_)
            | EventBody::PromptCreated(_)
            | EventBody::PromptOutput(_)
            | EventBody::PromptOutputUpdated(_)
            | EventBody::PromptApprovalRequested(_)
            | EventBody::PromptApprovalSettled(_)
            | EventBody::PromptCompleted(_)
            | EventBody::PromptError(_)
            | EventBody::Other(_) => false,
        }
    }
}
