//! Delta batch: live events of one instance for the others, as a short-lived document.

use serde::{Deserialize, Serialize};

use crate::agent::event::AnswerEvent;
use crate::agent::raw::RawJson;
use crate::clock::Timestamp;
use crate::ids::WorkerId;
use crate::live::under_way::UnderWay;
use crate::live::{LiveAnswer, LiveEvent};
use crate::store::{Document, Kind, StoreError, Stored};

/// Long enough for a reader that subscribes in the middle of a response.
const TTL_SECONDS: u32 = 120;

#[derive(Debug, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct Page {
    pub(super) from: WorkerId,
    pub(super) epoch: u64,
    /// Start time of the publisher, by the clock of `instance`. A publisher that restarts in the
    /// same epoch sorts after the first.
    pub(super) began: Timestamp,
    /// Number of the batch, from 1. A batch that could not be written leaves a gap; `partial` of a
    /// later one fills it.
    pub(super) n: u64,
    /// Events in order, none merged.
    pub(super) told: Vec<LiveEvent>,
    /// The partial response after `events`, for readers that missed a part of it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(super) so_far: Option<SoFar>,
}

/// A partial response.
#[derive(Debug, Serialize, Deserialize)]
pub(super) struct SoFar {
    answer: LiveAnswer,
    /// Events that rebuild the partial response.
    events: Vec<AnswerEvent>,
}

impl SoFar {
    pub(super) fn of(under_way: &UnderWay) -> Self {
        Self { answer: under_way.answer.clone(), events: under_way.events() }
    }

    pub(super) fn under_way(&self) -> UnderWay {
        let mut under_way = UnderWay::new(self.answer.clone());
        for event in &self.events {
            under_way.take_in(event);
        }
        under_way
    }
}

impl Page {
    pub(super) fn document(&self) -> Document {
        let id = format!("{}-{:013}-{:06}", first_id(self.epoch), self.began.0, self.n);
        Document {
            id,
            kind: Kind::Live,
            body: RawJson::of(self),
            due: None,
            created_at: None,
            state: None,
            ttl: Some(TTL_SECONDS),
        }
    }

    /// Parses a stored batch.
    ///
    /// # Errors
    /// Skip the batch: most likely another version wrote it.
    pub(super) fn of(stored: &Stored) -> Result<Self, StoreError> {
        let document = &stored.document;
        document
            .body
            .read()
            .map_err(|error| StoreError::Corrupt(format!("invalid delta batch `{}`: {error}", document.id)))
    }
}

/// Prefix of the ids of an epoch's batches, which sort in the order of writing.
pub(super) fn first_id(epoch: u64) -> String {
    format!("live-{epoch:012}")
}

/// Returns an id that sorts after this batch's id and before the next one's.
pub(super) fn behind(id: &str) -> String {
    format!("{id}.")
}
