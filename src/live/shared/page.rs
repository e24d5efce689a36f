//! A page: what one instance tells the others at once, as a document that is soon forgotten.

use serde::{Deserialize, Serialize};

use crate::agent::event::AnswerEvent;
use crate::agent::raw::RawJson;
use crate::clock::Timestamp;
use crate::ids::WorkerId;
use crate::live::under_way::UnderWay;
use crate::live::{LiveAnswer, LiveEvent};
use crate::store::{Document, Kind, StoreError, Stored};

/// Long enough for who begins to read in the middle of an answer.
const TTL_SECONDS: u32 = 120;

#[derive(Debug, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct Page {
    pub(super) from: WorkerId,
    pub(super) epoch: u64,
    /// When its relay began, by the clock of `from`: one that begins anew in the same epoch comes behind the first.
    pub(super) began: Timestamp,
    /// From 1; a number is left out when its page could not be written, and `so_far` makes up for it.
    pub(super) n: u64,
    /// In order, none merged.
    pub(super) told: Vec<LiveEvent>,
    /// The answer under way behind `told`: for who has missed a part of it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(super) so_far: Option<SoFar>,
}

/// An answer as far as it has got.
#[derive(Debug, Serialize, Deserialize)]
pub(super) struct SoFar {
    answer: LiveAnswer,
    /// What leads there.
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

    /// # Errors
    /// Another version wrote it, most likely: pass it over.
    pub(super) fn of(stored: &Stored) -> Result<Self, StoreError> {
        let document = &stored.document;
        document
            .body
            .read()
            .map_err(|error| StoreError::Corrupt(format!("the page `{}`: {error}", document.id)))
    }
}

/// Ids of an epoch's pages begin with it, and sort in the order of writing.
pub(super) fn first_id(epoch: u64) -> String {
    format!("live-{epoch:012}")
}

/// Behind that page's id and before the next one's.
pub(super) fn behind(id: &str) -> String {
    format!("{id}.")
}
