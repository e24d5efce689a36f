//! What subscribers of an agent are told.

use serde::Serialize;
use serde::de::DeserializeOwned;
use serde_json::Value;

use crate::agent::event::AnswerEvent;
use crate::agent::message::{Message, Rejection};
use crate::agent::raw::RawJson;

/// One thing that happened. Serializes with the sources' names and members; what the HTTP API adds to each event (`promptId`,
/// `turn`, `at`) is not in it.
#[derive(Clone, Debug, PartialEq, Serialize)]
#[serde(tag = "type", rename_all = "snake_case", rename_all_fields = "camelCase")]
#[non_exhaustive]
pub enum AgentEvent {
    AgentStart,
    /// The messages that are new in this run. Another run may follow at once: see [`AgentEvent::AgentSettled`].
    AgentEnd {
        messages: Vec<Message>,
        /// Whether the answer failed and is tried once more.
        will_retry: bool,
    },
    /// The true end: nothing runs and nothing waits to run.
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
    /// More of an answer. The answer so far is the state's `stream_message`.
    MessageUpdate {
        message_id: String,
        #[serde(rename = "assistantMessageEvent")]
        event: AnswerEvent,
    },
    /// What was told of this message is void: it is begun anew.
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
    /// Prompts, approvals, retries, compactions and what later versions bring, as the HTTP API tells them.
    #[serde(untagged)]
    Other {
        #[serde(skip)]
        name: String,
        #[serde(flatten)]
        data: Value,
    },
}

impl AgentEvent {
    /// The event of that name with that data; what does not read as one of ours is told as it is.
    pub(super) fn of(name: &str, data: &Value) -> Self {
        let other = || Self::Other { name: name.to_owned(), data: data.clone() };
        Self::known(name, data).unwrap_or_else(other)
    }

    fn known(name: &str, data: &Value) -> Option<Self> {
        let text = |member: &str| Some(data.get(member)?.as_str()?.to_owned());
        let value = |member: &str| data.get(member).cloned();
        Some(match name {
            "agent_start" => Self::AgentStart,
            "agent_end" => Self::AgentEnd {
                messages: messages(data.get("messages")?),
                will_retry: data.get("willRetry")?.as_bool()?,
            },
            "agent_settled" => Self::AgentSettled,
            "turn_start" => Self::TurnStart,
            "turn_end" => Self::TurnEnd {
                message: data.get("message").and_then(message),
                tool_results: messages(data.get("toolResults")?),
            },
            "message_start" => Self::MessageStart {
                message_id: text("messageId")?,
                message: message(data.get("message")?)?,
            },
            "message_update" => Self::MessageUpdate {
                message_id: text("messageId")?,
                event: read(data.get("assistantMessageEvent")?)?,
            },
            "message_reset" => Self::MessageReset { message_id: text("messageId")? },
            "message_end" => Self::MessageEnd {
                message_id: text("messageId")?,
                message: message(data.get("message")?)?,
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
                rejected: data.get("rejected").and_then(read),
            },
            _ => return None,
        })
    }
}

/// From text: what is read by parts loses nothing of how numbers were written.
fn read<T: DeserializeOwned>(value: &Value) -> Option<T> {
    serde_json::from_str(&value.to_string()).ok()
}

fn message(value: &Value) -> Option<Message> {
    Message::from_raw(RawJson::of(value)).ok()
}

fn messages(value: &Value) -> Vec<Message> {
    value.as_array().map(|all| all.iter().filter_map(message).collect()).unwrap_or_default()
}
