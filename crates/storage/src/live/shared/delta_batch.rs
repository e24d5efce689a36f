//! Delta batch: live events of one instance for the others, as a short-lived document.

use serde::{Deserialize, Serialize};

use crate::live::partial_response::PartialResponse;
use crate::live::{LiveEvent, LiveResponse};
use crate::store::{Document, DocumentKind, StoreError, StoredDocument};
use turnwheel_conversation::event::AssistantMessageEvent;
use turnwheel_platform::clock::Timestamp;
use turnwheel_platform::ids::WorkerId;

/// Long enough for a reader that subscribes in the middle of a response.
const TTL_SECONDS: u32 = 120;

#[derive(Debug, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct DeltaBatch {
    #[serde(rename = "from")]
    pub(super) instance: WorkerId,
    pub(super) epoch: u64,
    /// Start time of the publisher, by the clock of `instance`. A publisher that restarts in the
    /// same epoch sorts after the first.
    #[serde(rename = "began")]
    pub(super) started_at: Timestamp,
    /// Number of the batch, from 1. A batch that could not be written leaves a gap; `partial` of a
    /// later one fills it.
    #[serde(rename = "n")]
    pub(super) number: u64,
    /// Events in order, none merged.
    #[serde(rename = "told")]
    pub(super) events: Vec<LiveEvent>,
    /// The partial response after `events`, for readers that missed a part of it and for those that
    /// come after earlier batches have expired.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[serde(rename = "soFar")]
    pub(super) partial: Option<StoredPartialResponse>,
}

/// A partial response.
#[derive(Debug, Serialize, Deserialize)]
pub(super) struct StoredPartialResponse {
    #[serde(rename = "answer")]
    response: LiveResponse,
    /// Events that rebuild the partial response.
    events: Vec<AssistantMessageEvent>,
}

impl StoredPartialResponse {
    pub(super) fn from_partial(partial: &PartialResponse) -> Self {
        Self { response: partial.response.clone(), events: partial.to_events() }
    }

    pub(super) fn to_partial(&self) -> PartialResponse {
        let mut partial = PartialResponse::new(self.response.clone());
        for event in &self.events {
            partial.apply(event);
        }
        partial
    }
}

impl DeltaBatch {
    pub(super) fn to_document(&self) -> Document {
        let id = format!("{}-{:013}-{:06}", id_prefix(self.epoch), self.started_at.0, self.number);
        Document { ttl: Some(TTL_SECONDS), ..Document::new(id, DocumentKind::Live, self, None) }
    }

    /// Parses a stored batch.
    ///
    /// # Errors
    /// Skip the batch: most likely another version wrote it.
    pub(super) fn from_stored(stored: &StoredDocument) -> Result<Self, StoreError> {
        let document = &stored.document;
        document.body.read().map_err(|error| {
            StoreError::Corrupt(format!("invalid delta batch `{}`: {error}", document.id))
        })
    }
}

/// Prefix of the ids of an epoch's batches, which sort in the order of writing.
pub(super) fn id_prefix(epoch: u64) -> String {
    format!("live-{epoch:012}")
}

/// Returns an id that sorts after this batch's id and before the next one's.
pub(super) fn id_after(id: &str) -> String {
    format!("{id}.")
}
