//! Watch document of a conversation: lists instances whose readers need live events.
//!
//! It has at most two entries, for any number of instances: each publisher finds at least one other
//! instance. An instance that finds two others adds nothing.

use std::time::Duration;

use serde::{Deserialize, Serialize};

use crate::agent::raw::RawJson;
use crate::clock::Timestamp;
use crate::ids::WorkerId;
use crate::store::{
    ConversationStore, Document, ETag, Freshness, Kind, Partition, StoreError, Write,
};

const WATCH_ID: &str = "watch";
/// Lifetime of an entry without renewal.
pub(super) const LASTS: Duration = Duration::from_secs(30);
/// Time before its expiry at which an entry is renewed.
const RENEWED_BEFORE: Duration = Duration::from_secs(12);
/// Delay after a failed renewal.
const TRY_AGAIN: Duration = Duration::from_secs(2);
const TTL_SECONDS: u32 = 60;
const PLACES_MAX: usize = 2;

#[derive(Debug, Default, Serialize, Deserialize)]
struct Watch {
    places: Vec<Place>,
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(super) struct Place {
    pub(super) instance: WorkerId,
    pub(super) until: Timestamp,
}

async fn read(
    store: &dyn ConversationStore,
    partition: &Partition,
) -> Result<Option<(ETag, Watch)>, StoreError> {
    let Some(stored) = store.read(partition, WATCH_ID, Freshness::Any).await? else {
        return Ok(None);
    };
    // A document of another version counts as empty.
    Ok(Some((stored.etag, stored.document.body.read().unwrap_or_default())))
}

/// Returns the watchers except this instance: one point read.
///
/// # Errors
/// Assume no watchers and check again later.
pub(super) async fn others(
    store: &dyn ConversationStore,
    partition: &Partition,
    me: &WorkerId,
    now: Timestamp,
) -> Result<Vec<Place>, StoreError> {
    let watch = read(store, partition).await?.map(|(_, watch)| watch).unwrap_or_default();
    Ok(watch.others(me, now))
}

impl Watch {
    /// Returns the other live watchers, the one with the latest expiry first.
    fn others(self, me: &WorkerId, now: Timestamp) -> Vec<Place> {
        let mut places = self.places;
        places.retain(|place| place.until > now && place.instance != *me);
        places.sort_by_key(|place| std::cmp::Reverse(place.until));
        places
    }
}

/// This instance's own entry in the watch of one conversation.
#[derive(Debug, Default)]
pub(super) struct Post {
    renew_at: Option<Timestamp>,
    /// The document that this instance wrote last.
    known: Option<(ETag, Watch)>,
}

impl Post {
    /// Adds or renews the entry when that is due: one write, and a read if another instance wrote
    /// the document.
    pub(super) async fn keep(
        &mut self,
        store: &dyn ConversationStore,
        partition: &Partition,
        me: &WorkerId,
        now: Timestamp,
    ) {
        if self.renew_at.is_some_and(|at| at > now) {
            return;
        }
        self.renew_at = match self.renew(store, partition, me, now).await {
            Ok(renew_at) => Some(renew_at),
            // Another instance wrote the document; the next poll reads it.
            Err(StoreError::Conflict) => None,
            Err(error) => {
                tracing::debug!(%error, "watch renewal failed");
                Some(now.plus(TRY_AGAIN))
            }
        };
    }

    async fn renew(
        &mut self,
        store: &dyn ConversationStore,
        partition: &Partition,
        me: &WorkerId,
        now: Timestamp,
    ) -> Result<Timestamp, StoreError> {
        let found = match self.known.take() {
            Some(known) => Some(known),
            None => read(store, partition).await?,
        };
        let (etag, watch) = match found {
            Some((etag, watch)) => (Some(etag), watch),
            None => (None, Watch::default()),
        };
        let mut places = watch.others(me, now);
        let lasting = now.plus(RENEWED_BEFORE);
        if let Some(last) = places.get(PLACES_MAX - 1).filter(|place| place.until > lasting) {
            return Ok(last.until.minus(RENEWED_BEFORE));
        }
        places.truncate(PLACES_MAX - 1);
        places.push(Place { instance: me.clone(), until: now.plus(LASTS) });
        let watch = Watch { places };
        let document = Document {
            id: WATCH_ID.to_owned(),
            kind: Kind::Watch,
            body: RawJson::of(&watch),
            due: None,
            created_at: None,
            state: None,
            ttl: Some(TTL_SECONDS),
        };
        let write = match etag {
            Some(etag) => Write::Replace(document, Some(etag)),
            None => Write::Create(document),
        };
        let etags = store.write(partition, vec![write]).await?;
        self.known = etags.into_iter().next().map(|etag| (etag, watch));
        Ok(now.plus(LASTS).minus(RENEWED_BEFORE))
    }
}
