//! Live events for readers: deltas, tool progress and notices of commits. Nothing here is durable:
//! a reader that misses an event reads the committed result later.

#[cfg(test)]
mod contract;
mod embedded;
#[cfg(test)]
mod fuzz;
#[cfg(any(test, feature = "testing"))]
mod memory;
mod partial_response;
mod shared;

use std::fmt;
use std::time::Duration;

use async_trait::async_trait;
use serde::{Deserialize, Serialize};

pub use self::embedded::EmbeddedLive;
#[cfg(any(test, feature = "testing"))]
pub use self::memory::MemoryLive;
pub use self::partial_response::PartialResponse;
pub use self::shared::SharedLive;
use turnwheel_conversation::content::Block;
use turnwheel_conversation::event::{AssistantMessageEvent, Event, EventBody};
use turnwheel_conversation::head::Head;
use turnwheel_json::raw::RawJson;
use turnwheel_platform::ids::{ConversationKey, EntryId, PromptId};

/// Poll interval of readers if commits of other processes are not published here.
const POLL_INTERVAL: Duration = Duration::from_millis(500);

/// A live event; not durable. The order within one epoch is the order of publication.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", rename_all_fields = "camelCase")]
pub enum LiveEvent {
    /// A commit; `event_seq` is the number of its newest event.
    Committed {
        event_seq: u64,
        /// The prompt that continues without a request to an approver. `None`: unknown; the store
        /// has the state.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        #[serde(rename = "busyWith")]
        running_prompt: Option<PromptId>,
        /// The newest response that is stored or void. Another response may still stream: then this
        /// is the commit of a request. `None`: there is none, or the worker has an earlier version.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        ended_response: Option<EndedResponse>,
    },
    /// The conversation was deleted.
    #[serde(skip)]
    Deleted,
    /// A turn and its model response started. The durable `turn_start` and `message_start` follow
    /// with the commit of the response.
    ResponseStarted(LiveResponse),
    Delta {
        message_id: EntryId,
        event: AssistantMessageEvent,
    },
    /// The partial response of another instance after a gap. It replaces everything received of
    /// that response.
    #[serde(skip)]
    Snapshot(Snapshot),
    /// Invalidates everything streamed of this response.
    Reset {
        message_id: EntryId,
    },
    ToolUpdate(ToolUpdate),
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct LiveResponse {
    /// Epoch of the worker's lease.
    pub epoch: u64,
    /// Number of the newest event that was stored before the response: readers receive it first. 0 if
    /// the worker has an earlier version.
    #[serde(default)]
    pub event_seq: u64,
    pub message_id: EntryId,
    /// Number of the response in its conversation, from 1. 0 if the worker has an earlier version.
    #[serde(default)]
    pub number: u64,
    pub prompt_id: PromptId,
    pub turn: u64,
    /// True if `turn_start` is new too. The first turn of a prompt has started with its input.
    #[serde(rename = "beginsTurn")]
    pub is_turn_start: bool,
    /// True if `agent_start` is new too, because the response is a retry.
    #[serde(default)]
    #[serde(rename = "beginsAgent")]
    pub is_agent_start: bool,
    /// Empty if the worker has an earlier version.
    #[serde(default)]
    #[serde(rename = "author")]
    pub identity: ModelIdentity,
}

/// A response that is stored or void. All responses with lower numbers are too.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct EndedResponse {
    message_id: EntryId,
    number: u64,
}

/// API, provider and model of a response, as its message will record them.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct ModelIdentity {
    pub api: String,
    pub provider: String,
    pub model: String,
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct ToolUpdate {
    /// Epoch of the worker's lease; not sent to readers.
    #[serde(skip)]
    pub epoch: u64,
    /// As that of [`LiveResponse`]; not sent to readers.
    #[serde(skip)]
    pub event_seq: u64,
    pub prompt_id: PromptId,
    pub turn: u64,
    pub tool_call_id: String,
    pub tool_name: String,
    pub args: RawJson,
    pub partial_result: RawJson,
}

/// The partial content of a model response, for a reader that subscribes in the middle.
#[derive(Clone, Debug, PartialEq)]
pub struct Snapshot {
    pub response: LiveResponse,
    pub content: Vec<Block>,
}

/// A reader of one conversation. Dropping it ends the subscription.
#[async_trait]
pub trait LiveReader: Send {
    /// Waits for the next event. A reader that falls far behind loses events. It gets
    /// [`LiveEvent::Committed`] instead, so that it reads the store, and [`LiveEvent::Snapshot`] if a
    /// response streams.
    async fn next_event(&mut self) -> LiveEvent;
}

/// Kinds of events that a reader needs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Interest {
    Commits,
    /// Commits and deltas.
    CommitsAndDeltas,
}

/// A reader's subscription to the events of other instances. Dropping it ends the polling.
pub trait RemoteSubscription: Send {}

impl RemoteSubscription for () {}

pub trait Live: Send + Sync + fmt::Debug {
    fn publish(&self, key: &ConversationKey, event: LiveEvent);

    /// Returns the partial response, if there is one, and a reader of all later events.
    fn subscribe(&self, key: &ConversationKey) -> (Option<Snapshot>, Box<dyn LiveReader>);

    /// Delivers events of other instances to the subscribers of the conversation until the result
    /// is dropped. Does nothing if there are no other instances.
    fn subscribe_remote(
        &self,
        _key: &ConversationKey,
        _interest: Interest,
    ) -> Box<dyn RemoteSubscription> {
        Box::new(())
    }

    /// Makes the pollers of the conversation read soon, because work was accepted. Does nothing if
    /// there are none.
    fn wake_pollers(&self, _key: &ConversationKey) {}

    /// Interval at which a reader with a remote subscription polls the store without any event.
    fn poll_interval(&self) -> Duration {
        POLL_INTERVAL
    }
}

impl EndedResponse {
    fn from_number(incarnation: &str, number: u64) -> Self {
        Self { message_id: EntryId::from_call_number(incarnation, number), number }
    }
}

/// Returns the newest stored response, by the members of a head.
fn last_response(incarnation: &str, response_count: u64) -> Option<EndedResponse> {
    (response_count > 0).then(|| EndedResponse::from_number(incarnation, response_count))
}

impl LiveEvent {
    /// The commit of this head with these events. A take-over makes the response of the earlier worker
    /// void.
    pub fn committed(head: &Head, events: &[Event], running_prompt: Option<PromptId>) -> Self {
        let next = EndedResponse::from_number(&head.incarnation, head.response_count + 1);
        let is_next_void = events.iter().any(|event| {
            matches!(&event.body, EventBody::MessageReset(it) if it.message_id == next.message_id)
        });
        let ended_response = if is_next_void {
            Some(next)
        } else {
            last_response(&head.incarnation, head.response_count)
        };
        Self::Committed { event_seq: head.event_seq, running_prompt, ended_response }
    }

    /// True if a streamed response is stored or void after this event.
    fn ends(&self, response: &LiveResponse) -> bool {
        match self {
            Self::Committed { ended_response, .. } => {
                ended_response.as_ref().is_some_and(|ended| {
                    ended.message_id == response.message_id
                        || (response.number != 0 && response.number <= ended.number)
                })
            }
            Self::Reset { message_id } => *message_id == response.message_id,
            Self::Deleted => true,
            Self::ResponseStarted(_)
            | Self::Delta { .. }
            | Self::Snapshot(_)
            | Self::ToolUpdate(_) => false,
        }
    }

    /// Number of the stored event that readers receive before this one. 0: there is none, or it is unknown.
    pub fn previous_event_seq(&self) -> u64 {
        match self {
            Self::ResponseStarted(response) | Self::Snapshot(Snapshot { response, .. }) => {
                response.event_seq
            }
            Self::ToolUpdate(update) => update.event_seq,
            Self::Committed { .. } | Self::Deleted | Self::Delta { .. } | Self::Reset { .. } => 0,
        }
    }

    /// Epoch of an event that starts something.
    fn epoch(&self) -> Option<u64> {
        match self {
            Self::ResponseStarted(answer) => Some(answer.epoch),
            Self::ToolUpdate(update) => Some(update.epoch),
            Self::Committed { .. }
            | Self::Deleted
            | Self::Delta { .. }
            | Self::Snapshot(_)
            | Self::Reset { .. } => None,
        }
    }

    /// Bytes of the event's texts.
    fn text_bytes(&self) -> usize {
        match self {
            Self::Committed { .. }
            | Self::Deleted
            | Self::ResponseStarted(_)
            | Self::Reset { .. } => 0,
            Self::Snapshot(snapshot) => snapshot.content.iter().map(block_bytes).sum(),
            Self::ToolUpdate(update) => {
                update.args.text().len() + update.partial_result.text().len()
            }
            Self::Delta { event, .. } => match event {
                AssistantMessageEvent::TextStart { .. }
                | AssistantMessageEvent::ThinkingStart { .. } => 0,
                AssistantMessageEvent::TextDelta { delta: text, .. }
                | AssistantMessageEvent::ThinkingDelta { delta: text, .. }
                | AssistantMessageEvent::ToolcallDelta { delta: text, .. }
                | AssistantMessageEvent::TextEnd { content: text, .. }
                | AssistantMessageEvent::ThinkingEnd { content: text, .. } => text.len(),
                AssistantMessageEvent::ToolcallStart { id, tool_name, .. } => {
                    id.len() + tool_name.len()
                }
                AssistantMessageEvent::ToolcallEnd { tool_call, .. } => {
                    tool_call.call.arguments.text().len()
                }
            },
        }
    }
}

/// Bytes of a block of a partial response.
fn block_bytes(block: &Block) -> usize {
    match block {
        Block::Text(text) => text.text.len(),
        Block::Thinking(thinking) => thinking.thinking.len(),
        Block::ToolCall(call) => call.arguments.text().len(),
        Block::Image(_) | Block::File(_) | Block::Other(_) => 0,
    }
}
