//! The watch: one document of a conversation that names instances whose readers want to be told.
//!
//! It has two places, however many instances watch: whoever looks finds at least one that is not its own. An instance that
//! finds two others there has nothing to add.

use std::time::Duration;

use serde::{Deserialize, Serialize};

use crate::agent::raw::RawJson;
use crate::clock::Timestamp;
use crate::ids::WorkerId;
use crate::store::{
    ConversationStore, Document, ETag, Freshness, Kind, Partition, StoreError, Write,
};

const WATCH_ID: &str = "watch";
/// How long a place lasts unless it is renewed.
pub(super) const LASTS: Duration = Duration::from_secs(30);
/// How long before its end a place is renewed.
const RENEWED_BEFORE: Duration = Duration::from_secs(12);
/// Between tries when the store did not take it.
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
    // What another version wrote is nobody's place.
    Ok(Some((stored.etag, stored.document.body.read().unwrap_or_default())))
}

/// Who watches but this instance: one point read.
///
/// # Errors
/// As the store's: nobody is told for a while.
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
    /// The one that lasts longest first.
    fn others(self, me: &WorkerId, now: Timestamp) -> Vec<Place> {
        let mut places = self.places;
        places.retain(|place| place.until > now && place.instance != *me);
        places.sort_by_key(|place| std::cmp::Reverse(place.until));
        places
    }
}

/// This instance's own place in the watch of one conversation.
#[derive(Debug, Default)]
pub(super) struct Post {
    renew_at: Option<Timestamp>,
    /// As this instance wrote it last.
    known: Option<(ETag, Watch)>,
}

impl Post {
    /// Takes or renews the place when its time has come: one write, and a read when somebody else was there too.
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
            // Somebody else wrote: the next look reads what.
            Err(StoreError::Conflict) => None,
            Err(error) => {
                tracing::debug!(%error, "the watch was not renewed");
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
