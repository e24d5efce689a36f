//! What an agent is like at this moment.

use std::collections::BTreeSet;

use crate::agent::content::Block;
use crate::agent::message::{AssistantMessage, Message};
use crate::agent::settings::ThinkingLevel;
use crate::app::agent::event::AgentEvent;

/// As of the events that subscribers have been told.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct AgentState {
    pub system_prompt: String,
    /// A model id; `None`: the default.
    pub model: Option<String>,
    pub thinking_level: ThinkingLevel,
    /// Names of the tools that are offered.
    pub tools: Vec<String>,
    /// What was said, whole messages only.
    pub messages: Vec<Message>,
    pub is_streaming: bool,
    /// What an answer under way holds so far.
    pub stream_message: Option<Vec<Block>>,
    pub pending_tool_calls: BTreeSet<String>,
    /// Of the last answer, if it failed or was aborted.
    pub error: Option<String>,
}

/// What the events say of the state.
#[derive(Clone, Debug, Default)]
pub(super) struct Seen {
    pub(super) messages: Vec<Message>,
    pub(super) pending_tool_calls: BTreeSet<String>,
    pub(super) error: Option<String>,
    /// How often the messages were changed by other than events: the next run may need another conversation.
    pub(super) changes: u64,
}

impl Seen {
    pub(super) fn forget(&mut self) {
        *self = Self { changes: self.changes + 1, ..Self::default() };
    }

    pub(super) fn take_in(&mut self, event: &AgentEvent) {
        match event {
            AgentEvent::AgentStart => self.error = None,
            AgentEvent::MessageEnd { message, .. } => self.messages.push(message.clone()),
            AgentEvent::ToolExecutionStart { tool_call_id, .. } => {
                self.pending_tool_calls.insert(tool_call_id.clone());
            }
            AgentEvent::ToolExecutionEnd { tool_call_id, .. } => {
                self.pending_tool_calls.remove(tool_call_id);
            }
            AgentEvent::TurnEnd { message, .. } => {
                let answer = message.as_ref().and_then(Message::as_assistant);
                self.error = answer.and_then(error_of);
            }
            AgentEvent::AgentEnd { .. }
            | AgentEvent::AgentSettled
            | AgentEvent::TurnStart
            | AgentEvent::MessageStart { .. }
            | AgentEvent::MessageUpdate { .. }
            | AgentEvent::MessageReset { .. }
            | AgentEvent::ToolExecutionUpdate { .. }
            | AgentEvent::Other { .. } => {}
        }
    }
}

fn error_of(answer: &AssistantMessage) -> Option<String> {
    if answer.is_failed() { answer.error_message.clone() } else { None }
}
