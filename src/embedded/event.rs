//! Events for the subscribers of an agent.

use serde::Serialize;
use serde_json::Value;

use turnwheel_conversation::event::AssistantMessageEvent;
use turnwheel_conversation::message::{Message, Rejection};
use turnwheel_json::raw::RawJson;
use turnwheel_queries::event_stream::{EventMessage, EventPayload, StreamEvent};

/// An event of an agent. It serialises with the names and members of the source documents, without
/// the members that the HTTP API adds to each event (`promptId`, `turn`, `at`).
#[derive(Clone, Debug, PartialEq, Serialize)]
#[serde(tag = "type", rename_all = "snake_case", rename_all_fields = "camelCase")]
#[non_exhaustive]
pub enum AgentEvent {
    AgentStart,
    /// End of a run, with its new messages. Another run may follow at once: see
    /// [`AgentEvent::AgentSettled`].
    AgentEnd {
        messages: Vec<Message>,
        /// True if the model call failed and will be retried.
        will_retry: bool,
    },
    /// The agent is idle: no prompt runs or is queued.
    AgentSettled,
    TurnStart,
    TurnEnd {
        message: Option<Message>,
        tool_results: Vec<Message>,
    },
    MessageStart {
        message_id: String,
        message: Message,
    },
    /// A part of a streamed response. The response so far is in `stream_message` of the state.
    MessageUpdate {
        message_id: String,
        #[serde(rename = "assistantMessageEvent")]
        event: AssistantMessageEvent,
    },
    /// Earlier events of this message are void; it starts again.
    MessageReset {
        message_id: String,
    },
    MessageEnd {
        message_id: String,
        message: Message,
    },
    ToolExecutionStart {
        tool_call_id: String,
        tool_name: String,
        args: RawJson,
    },
    ToolExecutionUpdate {
        tool_call_id: String,
        tool_name: String,
        args: RawJson,
        partial_result: RawJson,
    },
    ToolExecutionEnd {
        tool_call_id: String,
        tool_name: String,
        result: RawJson,
        is_error: bool,
        /// Present only if an approver rejected the call.
        #[serde(skip_serializing_if = "Option::is_none")]
        rejected: Option<Rejection>,
    },
    /// Events of prompts, approvals, retries and compactions, and unknown events of later versions,
    /// as in the HTTP API.
    #[serde(untagged)]
    Other {
        #[serde(skip)]
        name: String,
        /// A number that a float changes is rounded here.
        #[serde(flatten)]
        data: Value,
    },
}

impl AgentEvent {
    /// Converts an event of the stream. A message event without a message becomes
    /// [`AgentEvent::Other`].
    pub(super) fn from_stream(event: &StreamEvent) -> Self {
        let other = || Self::Other {
            name: event.kind().name().to_owned(),
            data: event.to_json().to_value(),
        };
        match &event.payload {
            EventPayload::AgentStart => Self::AgentStart,
            EventPayload::AgentEnd { messages, will_retry } => Self::AgentEnd {
                messages: messages.iter().filter_map(EventMessage::to_message).collect(),
                will_retry: *will_retry,
            },
            EventPayload::AgentSettled => Self::AgentSettled,
            EventPayload::TurnStart => Self::TurnStart,
            EventPayload::TurnEnd { message, tool_results } => Self::TurnEnd {
                message: message.as_ref().and_then(EventMessage::to_message),
                tool_results: tool_results
                    .iter()
                    .flatten()
                    .filter_map(EventMessage::to_message)
                    .collect(),
            },
            EventPayload::MessageStart { message_id, message, .. } => {
                let message = message.as_ref().and_then(EventMessage::to_message);
                message.map_or_else(other, |message| Self::MessageStart {
                    message_id: message_id.to_string(),
                    message,
                })
            }
            EventPayload::MessageUpdate { message_id, event } => {
                Self::MessageUpdate { message_id: message_id.to_string(), event: event.clone() }
            }
            EventPayload::MessageReset { message_id } => {
                Self::MessageReset { message_id: message_id.to_string() }
            }
            EventPayload::MessageEnd { message_id, message, .. } => {
                let message = message.as_ref().and_then(EventMessage::to_message);
                message.map_or_else(other, |message| Self::MessageEnd {
                    message_id: message_id.to_string(),
                    message,
                })
            }
            EventPayload::ToolExecutionStart { tool_call_id, tool_name, args, .. } => {
                Self::ToolExecutionStart {
                    tool_call_id: tool_call_id.clone(),
                    tool_name: tool_name.clone(),
                    args: args.clone(),
                }
            }
            EventPayload::ToolExecutionUpdate(update) => Self::ToolExecutionUpdate {
                tool_call_id: update.tool_call_id.clone(),
                tool_name: update.tool_name.clone(),
                args: update.args.clone(),
                partial_result: update.partial_result.clone(),
            },
            EventPayload::ToolExecutionEnd {
                tool_call_id,
                tool_name,
                result,
                is_error,
                rejected,
            } => Self::ToolExecutionEnd {
                tool_call_id: tool_call_id.clone(),
                tool_name: tool_name.clone(),
                result: result.clone(),
                is_error: *is_error,
                rejected: rejected.clone(),
            },
            EventPayload::ApprovalRequested { .. }
            | EventPayload::ApprovalSettled { .. }
            | EventPayload::Other { .. } => other(),
        }
    }
}
