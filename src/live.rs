//! What readers are told while it happens: deltas, progress, and that something was committed. Nothing here is durable, and
//! a reader that misses it loses time, never truth.

#[cfg(test)]
mod contract;
mod embedded;
mod memory;
mod partial_json;
mod under_way;

use std::fmt;

use async_trait::async_trait;
use serde::Serialize;

pub use self::embedded::EmbeddedLive;
pub use self::memory::MemoryLive;
use crate::agent::content::Block;
use crate::agent::event::AnswerEvent;
use crate::agent::raw::RawJson;
use crate::ids::{ConversationKey, EntryId, PromptId};

/// Not durable; order within one epoch is the order of publication.
#[derive(Clone, Debug, PartialEq)]
pub enum LiveEvent {
    /// Something was committed: the newest event has this number.
    Committed {
        event_seq: u64,
    },
    /// A turn and its answer began; the durable `turn_start` and `message_start` come with the answer's commit.
    AnswerStarted(LiveAnswer),
    Delta {
        message_id: EntryId,
        event: AnswerEvent,
    },
    /// What was streamed of this answer is void.
    Reset {
        message_id: EntryId,
    },
    ToolUpdate(ToolUpdate),
}

#[derive(Clone, Debug, PartialEq)]
pub struct LiveAnswer {
    pub message_id: EntryId,
    pub prompt_id: PromptId,
    pub turn: u64,
    /// Whether `turn_start` is new too; a prompt's first turn has begun with its input.
    pub begins_turn: bool,
}

#[derive(Clone, Debug, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct ToolUpdate {
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

pub trait Live: Send + Sync + fmt::Debug {
    fn publish(&self, key: &ConversationKey, event: LiveEvent);

    /// Everything published from now on, and the answer under way, if there is one.
    fn subscribe(&self, key: &ConversationKey) -> (Option<Snapshot>, Box<dyn LiveReader>);
}
