//! Events for the subscribers of an agent.

use serde::Serialize;
use serde::de::DeserializeOwned;
use serde_json::Value;

use crate::agent::event::AssistantMessageEvent;
use crate::agent::message::{Message, Rejection};
use crate::agent::raw::RawJson;

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
        args: Value,
    },
    ToolExecutionUpdate {
        tool_call_id: String,
        tool_name: String,
        args: Value,
        partial_result: Value,
    },
    ToolExecutionEnd {
        tool_call_id: String,
        tool_name: String,
        result: Value,
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
        #[serde(flatten)]
        data: Value,
    },
}

impl AgentEvent {
    /// Parses an event of the HTTP API. An unknown or invalid event becomes [`AgentEvent::Other`].
    pub(super) fn from_api(name: &str, data: &Value) -> Self {
        let other = || Self::Other { name: name.to_owned(), data: data.clone() };
        Self::parse_known(name, data).unwrap_or_else(other)
    }

    fn parse_known(name: &str, data: &Value) -> Option<Self> {
        let text = |member: &str| Some(data.get(member)?.as_str()?.to_owned());
        let value = |member: &str| data.get(member).cloned();
        Some(match name {
            "agent_start" => Self::AgentStart,
            "agent_end" => Self::AgentEnd {
                messages: parse_messages(data.get("messages")?),
                will_retry: data.get("willRetry")?.as_bool()?,
            },
            "agent_settled" => Self::AgentSettled,
            "turn_start" => Self::TurnStart,
            "turn_end" => Self::TurnEnd {
                message: data.get("message").and_then(parse_message),
                tool_results: parse_messages(data.get("toolResults")?),
            },
            "message_start" => Self::MessageStart {
                message_id: text("messageId")?,
                message: parse_message(data.get("message")?)?,
            },
            "message_update" => Self::MessageUpdate {
                message_id: text("messageId")?,
                event: deserialize(data.get("assistantMessageEvent")?)?,
            },
            "message_reset" => Self::MessageReset { message_id: text("messageId")? },
            "message_end" => Self::MessageEnd {
                message_id: text("messageId")?,
                message: parse_message(data.get("message")?)?,
            },
            "tool_execution_start" => Self::ToolExecutionStart {
                tool_call_id: text("toolCallId")?,
                tool_name: text("toolName")?,
                args: value("args")?,
            },
            "tool_execution_update" => Self::ToolExecutionUpdate {
                tool_call_id: text("toolCallId")?,
                tool_name: text("toolName")?,
                args: value("args")?,
                partial_result: value("partialResult")?,
            },
            "tool_execution_end" => Self::ToolExecutionEnd {
                tool_call_id: text("toolCallId")?,
                tool_name: text("toolName")?,
                result: value("result")?,
                is_error: data.get("isError")?.as_bool()?,
                rejected: data.get("rejected").and_then(deserialize),
            },
            _ => return None,
        })
    }
}

/// Deserialises through text, so that raw JSON members keep the original form of numbers.
fn deserialize<T: DeserializeOwned>(value: &Value) -> Option<T> {
    serde_json::from_str(&value.to_string()).ok()
}

fn parse_message(value: &Value) -> Option<Message> {
    Message::from_raw(RawJson::from_value(value)).ok()
}

fn parse_messages(value: &Value) -> Vec<Message> {
    value.as_array().map(|all| all.iter().filter_map(parse_message).collect()).unwrap_or_default()
}
