//! What readers are told while it happens: deltas, progress, and that something was committed. Nothing here is durable, and
//! a reader that misses it loses time, never truth.

#[cfg(test)]
mod contract;
mod embedded;
#[cfg(test)]
mod fuzz;
mod memory;
mod partial_json;
mod shared;
mod under_way;

use std::fmt;
use std::time::Duration;

use async_trait::async_trait;
use serde::{Deserialize, Serialize};

pub use self::embedded::EmbeddedLive;
pub use self::memory::MemoryLive;
pub use self::shared::SharedLive;
pub(crate) use self::under_way::UnderWay;
use crate::agent::content::Block;
use crate::agent::event::AnswerEvent;
use crate::agent::raw::RawJson;
use crate::ids::{ConversationKey, EntryId, PromptId};

/// How often readers look at the store by themselves where nobody tells what other processes do.
const LOOK_EVERY: Duration = Duration::from_millis(500);

/// Not durable; order within one epoch is the order of publication.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", rename_all_fields = "camelCase")]
pub enum LiveEvent {
    /// Something was committed: the newest event has this number.
    Committed {
        event_seq: u64,
        /// The prompt that certainly goes on and asks nobody; `None`: who wants to know looks at the store.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        busy_with: Option<PromptId>,
    },
    /// The conversation was deleted.
    #[serde(skip)]
    Gone,
    /// A turn and its answer began; the durable `turn_start` and `message_start` come with the answer's commit.
    AnswerStarted(LiveAnswer),
    Delta {
        message_id: EntryId,
        event: AnswerEvent,
    },
    /// An answer under way elsewhere, of which a part was missed: it takes the place of what was told of it.
    #[serde(skip)]
    SoFar(Snapshot),
    /// What was streamed of this answer is void.
    Reset {
        message_id: EntryId,
    },
    ToolUpdate(ToolUpdate),
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct LiveAnswer {
    /// Of the worker's claim.
    pub epoch: u64,
    pub message_id: EntryId,
    pub prompt_id: PromptId,
    pub turn: u64,
    /// Whether `turn_start` is new too; a prompt's first turn has begun with its input.
    pub begins_turn: bool,
    /// Whether `agent_start` is new too, because the answer is a retry.
    #[serde(default)]
    pub begins_agent: bool,
    /// Empty when a worker of an earlier version tells of it.
    #[serde(default)]
    pub author: Author,
}

/// Who writes an answer, as the message will say it.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Author {
    pub api: String,
    pub provider: String,
    pub model: String,
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct ToolUpdate {
    /// Of the worker's claim; readers are not told.
    #[serde(skip)]
    pub epoch: u64,
    pub prompt_id: PromptId,
    pub turn: u64,
    pub tool_call_id: String,
    pub tool_name: String,
    pub args: RawJson,
    pub partial_result: RawJson,
}

/// What an answer under way holds so far: for a reader that joins in the middle.
#[derive(Clone, Debug, PartialEq)]
pub struct Snapshot {
    pub answer: LiveAnswer,
    pub content: Vec<Block>,
}

/// One reader. Dropping it ends the subscription.
#[async_trait]
pub trait LiveReader: Send + fmt::Debug {
    /// The next thing that happens. A reader that falls far behind misses deltas and is given
    /// [`LiveEvent::Committed`] instead, so that it looks at the store.
    async fn next(&mut self) -> LiveEvent;
}

/// What a reader waits for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Interest {
    Commits,
    /// Deltas too.
    All,
}

/// A reader's; dropping it ends the looking.
pub trait Attention: Send + fmt::Debug {}

impl Attention for () {}

pub trait Live: Send + Sync + fmt::Debug {
    fn publish(&self, key: &ConversationKey, event: LiveEvent);

    /// Everything published from now on, and the answer under way, if there is one.
    fn subscribe(&self, key: &ConversationKey) -> (Option<Snapshot>, Box<dyn LiveReader>);

    /// From now on subscribers hear what other instances do in the conversation, as long as the answer is kept. Where
    /// there are no others, it does nothing.
    fn attend(&self, _key: &ConversationKey, _interest: Interest) -> Box<dyn Attention> {
        Box::new(())
    }

    /// How often a reader that attends looks at the store by itself, should nobody tell it anything.
    fn look_every(&self) -> Duration {
        LOOK_EVERY
    }
}

impl LiveEvent {
    /// Of what begins something.
    fn epoch(&self) -> Option<u64> {
        match self {
            Self::AnswerStarted(answer) => Some(answer.epoch),
            Self::ToolUpdate(update) => Some(update.epoch),
            Self::Committed { .. }
            | Self::Gone
            | Self::Delta { .. }
            | Self::SoFar(_)
            | Self::Reset { .. } => None,
        }
    }

    /// What it holds beyond its own size.
    fn bytes(&self) -> usize {
        match self {
            Self::Committed { .. } | Self::Gone | Self::AnswerStarted(_) | Self::Reset { .. } => 0,
            Self::SoFar(snapshot) => snapshot.content.iter().map(bytes_of).sum(),
            Self::ToolUpdate(update) => {
                update.args.text().len() + update.partial_result.text().len()
            }
            Self::Delta { event, .. } => match event {
                AnswerEvent::TextStart { .. } | AnswerEvent::ThinkingStart { .. } => 0,
                AnswerEvent::TextDelta { delta: text, .. }
                | AnswerEvent::ThinkingDelta { delta: text, .. }
                | AnswerEvent::ToolcallDelta { delta: text, .. }
                | AnswerEvent::TextEnd { content: text, .. }
                | AnswerEvent::ThinkingEnd { content: text, .. } => text.len(),
                AnswerEvent::ToolcallStart { id, tool_name, .. } => id.len() + tool_name.len(),
                AnswerEvent::ToolcallEnd { tool_call, .. } => tool_call.call.arguments.text().len(),
            },
        }
    }
}

/// Of what an answer under way can hold.
fn bytes_of(block: &Block) -> usize {
    match block {
        Block::Text(text) => text.text.len(),
        Block::Thinking(thinking) => thinking.thinking.len(),
        Block::ToolCall(call) => call.arguments.text().len(),
        Block::Image(_) | Block::File(_) | Block::Other(_) => 0,
    }
}
