//! Events as readers receive them: with the data that stored events only reference.

use std::sync::Arc;

use serde::Serialize;

use crate::conversation::entry_as_message;
use turnwheel_conversation::entry::{Entry, EntryBody};
use turnwheel_conversation::event::{AssistantMessageEvent, EventKind};
use turnwheel_conversation::message::{Message, Rejection};
use turnwheel_json::raw::{RawJson, raw_object};
use turnwheel_platform::clock::Timestamp;
use turnwheel_platform::ids::{EntryId, InputId, PromptId, RequestId};
use turnwheel_storage::live::ToolUpdate;

/// One item of an event stream.
#[derive(Clone, Debug, PartialEq)]
pub enum StreamItem {
    Event(Box<StreamEvent>),
    /// Number of a stored event that was sent live.
    Confirmed(u64),
}

/// An event of a conversation, stored or live.
#[derive(Clone, Debug, PartialEq)]
pub struct StreamEvent {
    /// Number of a stored event. Absent on live events.
    pub number: Option<u64>,
    pub at: Timestamp,
    pub prompt_id: Option<PromptId>,
    pub turn: u64,
    pub payload: EventPayload,
}

/// The kind and data of an event. An absent message has no entry.
#[derive(Clone, Debug, PartialEq)]
pub enum EventPayload {
    AgentStart,
    AgentEnd {
        messages: Vec<EventMessage>,
        will_retry: bool,
    },
    AgentSettled,
    TurnStart,
    TurnEnd {
        message: Option<EventMessage>,
        tool_results: Vec<Option<EventMessage>>,
    },
    MessageStart {
        message_id: EntryId,
        message: Option<EventMessage>,
        /// The input that the message was.
        input_id: Option<InputId>,
    },
    MessageUpdate {
        message_id: EntryId,
        event: AssistantMessageEvent,
    },
    MessageReset {
        message_id: EntryId,
    },
    MessageEnd {
        message_id: EntryId,
        message: Option<EventMessage>,
        input_id: Option<InputId>,
    },
    ToolExecutionStart {
        tool_call_id: String,
        tool_name: String,
        label: Option<String>,
        args: RawJson,
    },
    ToolExecutionUpdate(ToolUpdate),
    ToolExecutionEnd {
        tool_call_id: String,
        tool_name: String,
        /// Content for the model and details for programs.
        result: RawJson,
        is_error: bool,
        rejected: Option<Rejection>,
    },
    ApprovalRequested {
        request_id: RequestId,
        members: RawJson,
    },
    ApprovalSettled {
        request_id: RequestId,
        members: RawJson,
    },
    /// Any other kind, with its members in the API.
    Other {
        kind: EventKind,
        members: RawJson,
    },
}

/// The message of an event.
#[derive(Clone, Debug, PartialEq)]
pub enum EventMessage {
    /// A message or custom message of the conversation.
    Stored(Arc<Entry>),
    /// The start of a model response, without content.
    Started(Box<Message>),
}

impl StreamEvent {
    pub fn kind(&self) -> EventKind {
        self.payload.kind()
    }

    /// The event as in the API: the members of every event, then those of its kind.
    pub fn to_json(&self) -> RawJson {
        let mut event = raw_object!({"type": self.kind().name()});
        if let Some(prompt_id) = &self.prompt_id {
            event =
                event.with_members(vec![("promptId".to_owned(), RawJson::from_value(prompt_id))]);
        }
        let common = raw_object!({"turn": self.turn, "at": self.at.to_string()});
        let members = [common, self.payload.members()].into_iter().filter_map(|it| it.members());
        event.with_members(members.flatten().collect())
    }
}

impl EventPayload {
    fn kind(&self) -> EventKind {
        match self {
            Self::AgentStart => EventKind::AgentStart,
            Self::AgentEnd { .. } => EventKind::AgentEnd,
            Self::AgentSettled => EventKind::AgentSettled,
            Self::TurnStart => EventKind::TurnStart,
            Self::TurnEnd { .. } => EventKind::TurnEnd,
            Self::MessageStart { .. } => EventKind::MessageStart,
            Self::MessageUpdate { .. } => EventKind::MessageUpdate,
            Self::MessageReset { .. } => EventKind::MessageReset,
            Self::MessageEnd { .. } => EventKind::MessageEnd,
            Self::ToolExecutionStart { .. } => EventKind::ToolExecutionStart,
            Self::ToolExecutionUpdate(_) => EventKind::ToolExecutionUpdate,
            Self::ToolExecutionEnd { .. } => EventKind::ToolExecutionEnd,
            Self::ApprovalRequested { .. } => EventKind::PromptApprovalRequested,
            Self::ApprovalSettled { .. } => EventKind::PromptApprovalSettled,
            Self::Other { kind, .. } => kind.clone(),
        }
    }

    /// The members in the API besides those of every event.
    fn members(&self) -> RawJson {
        match self {
            Self::AgentStart | Self::AgentSettled | Self::TurnStart => raw_object!({}),
            Self::AgentEnd { messages, will_retry } => {
                let messages: Vec<_> = messages.iter().filter_map(EventMessage::to_json).collect();
                raw_object!({"messages": messages, "willRetry": will_retry})
            }
            Self::TurnEnd { message, tool_results } => raw_object!({
                "message": message_json(message.as_ref()),
                "toolResults": tool_results.iter().map(|it| message_json(it.as_ref())).collect::<Vec<_>>(),
            }),
            Self::MessageStart { message_id, message, input_id }
            | Self::MessageEnd { message_id, message, input_id } => {
                let message = message_json(message.as_ref());
                let members = raw_object!({"messageId": message_id, "message": message});
                with_optional(members, "inputId", input_id.as_ref())
            }
            Self::MessageUpdate { message_id, event } => {
                raw_object!({"messageId": message_id, "assistantMessageEvent": event})
            }
            Self::MessageReset { message_id } => raw_object!({"messageId": message_id}),
            Self::ToolExecutionStart { tool_call_id, tool_name, label, args } => {
                let members = raw_object!({
                    "toolCallId": tool_call_id, "toolName": tool_name, "args": args,
                });
                with_optional(members, "toolLabel", label.as_ref())
            }
            Self::ToolExecutionUpdate(update) => RawJson::from_value(update),
            Self::ToolExecutionEnd { tool_call_id, tool_name, result, is_error, rejected } => {
                let members = raw_object!({
                    "toolCallId": tool_call_id, "toolName": tool_name,
                    "result": result, "isError": is_error,
                });
                with_optional(members, "rejected", rejected.as_ref())
            }
            Self::ApprovalRequested { members, .. }
            | Self::ApprovalSettled { members, .. }
            | Self::Other { members, .. } => members.clone(),
        }
    }
}

impl EventMessage {
    /// The message of an entry. `None` if the entry has none.
    pub(super) fn from_entry(entry: &Arc<Entry>) -> Option<Self> {
        let has_message = matches!(entry.body, EntryBody::Message(_) | EntryBody::CustomMessage(_));
        has_message.then(|| Self::Stored(Arc::clone(entry)))
    }

    /// True for a failed model response that another attempt replaces.
    pub fn is_retried(&self) -> bool {
        match self {
            Self::Started(_) => false,
            Self::Stored(entry) => {
                matches!(&entry.body, EntryBody::Message(stored) if stored.is_retried)
            }
        }
    }

    pub fn to_message(&self) -> Option<Message> {
        match self {
            Self::Started(message) => Some((**message).clone()),
            Self::Stored(entry) => {
                if let EntryBody::CustomMessage(custom) = &entry.body {
                    return Some(Message::Custom(custom.to_message(entry.base.timestamp)));
                }
                entry.body.message().cloned()
            }
        }
    }

    fn to_json(&self) -> Option<RawJson> {
        match self {
            Self::Started(message) => Some(RawJson::from_value(message)),
            Self::Stored(entry) => {
                if let EntryBody::CustomMessage(_) = &entry.body {
                    return entry_as_message(entry);
                }
                entry.body.message().map(RawJson::from_value)
            }
        }
    }
}

/// The JSON of a message; `null` without one.
fn message_json(message: Option<&EventMessage>) -> Option<RawJson> {
    message.and_then(EventMessage::to_json)
}

/// The object with a further member, unless its value is absent.
pub(super) fn with_optional(
    object: RawJson,
    name: &str,
    value: Option<&impl Serialize>,
) -> RawJson {
    let member = value.map(|value| (name.to_owned(), RawJson::from_value(value)));
    object.with_members(member.into_iter().collect())
}
