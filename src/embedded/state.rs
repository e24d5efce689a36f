//! Current state of an agent.

use std::collections::BTreeSet;

use crate::embedded::event::AgentEvent;
use turnwheel_conversation::content::Block;
use turnwheel_conversation::message::{AssistantMessage, Message};
use turnwheel_conversation::settings::ThinkingLevel;

/// State of an agent after the events that its subscribers have received.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct AgentState {
    pub system_prompt: String,
    /// A model id; `None`: the default.
    pub model: Option<String>,
    pub thinking_level: ThinkingLevel,
    /// Names of the tools.
    pub tools: Vec<String>,
    /// Complete messages of the conversation.
    pub messages: Vec<Message>,
    pub is_streaming: bool,
    /// Content blocks of a streamed response so far.
    pub stream_message: Option<Vec<Block>>,
    pub pending_tool_calls: BTreeSet<String>,
    /// Error of the last response, if it failed or was aborted.
    pub error: Option<String>,
}

/// State derived from published events.
#[derive(Clone, Debug, Default)]
pub(super) struct ObservedState {
    pub(super) messages: Vec<Message>,
    pub(super) pending_tool_calls: BTreeSet<String>,
    pub(super) error: Option<String>,
    /// Version of the messages, incremented by setters but not by events. After a change, the next
    /// run begins a new conversation.
    pub(super) messages_version: u64,
}

impl ObservedState {
    pub(super) fn clear(&mut self) {
        *self = Self { messages_version: self.messages_version + 1, ..Self::default() };
    }

    /// The state of an idle agent with messages from the store.
    pub(super) fn restart_with(&mut self, messages: Vec<Message>) {
        *self = Self { messages, messages_version: self.messages_version, ..Self::default() };
    }

    pub(super) fn apply(&mut self, event: &AgentEvent) {
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
                let response = message.as_ref().and_then(Message::as_assistant);
                self.error = response.and_then(response_error);
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

fn response_error(response: &AssistantMessage) -> Option<String> {
    if response.is_failed() { response.error_message.clone() } else { None }
}
