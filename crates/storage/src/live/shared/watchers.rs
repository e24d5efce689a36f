//! Watch document of a conversation: lists instances whose readers need live events.
//!
//! It has at most two entries, for any number of instances: each publisher finds at least one other
//! instance. An instance that finds two others adds nothing.

use std::time::Duration;

use serde::{Deserialize, Serialize};

use crate::store::{
    ConversationStore, Document, DocumentKind, ETag, Freshness, Partition, StoreError, Write,
};
use turnwheel_platform::clock::Timestamp;
use turnwheel_platform::ids::WorkerId;

const WATCH_ID: &str = "watch";
/// Lifetime of an entry without renewal.
pub(super) const WATCH_DURATION: Duration = Duration::from_secs(30);
/// Time before its expiry at which an entry is renewed.
const RENEWAL_MARGIN: Duration = Duration::from_secs(12);
/// Delay after a failed renewal.
const RETRY_DELAY: Duration = Duration::from_secs(2);
const TTL_SECONDS: u32 = 60;
const WATCHERS_MAX: usize = 2;

#[derive(Debug, Default, Serialize, Deserialize)]
struct WatcherList {
    #[serde(rename = "places")]
    watchers: Vec<Watcher>,
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(super) struct Watcher {
    pub(super) instance: WorkerId,
    pub(super) until: Timestamp,
}

async fn read_watchers(
    store: &dyn ConversationStore,
    partition: &Partition,
) -> Result<Option<(ETag, WatcherList)>, StoreError> {
    let Some(stored) = store.read(partition, WATCH_ID, Freshness::Any).await? else {
        return Ok(None);
    };
    // A document of another version counts as empty.
    Ok(Some((stored.etag, stored.document.body.read().unwrap_or_default())))
}

/// Returns the watchers except this instance: one point read.
///
/// # Errors
/// Check again soon; until then the earlier watchers count.
pub(super) async fn find_other_watchers(
    store: &dyn ConversationStore,
    partition: &Partition,
    instance: &WorkerId,
    now: Timestamp,
) -> Result<Vec<Watcher>, StoreError> {
    let watch = read_watchers(store, partition).await?.map(|(_, watch)| watch).unwrap_or_default();
    Ok(watch.into_others(instance, now))
}

impl WatcherList {
    /// Returns the other live watchers, the one with the latest expiry first.
    fn into_others(self, instance: &WorkerId, now: Timestamp) -> Vec<Watcher> {
        let mut watchers = self.watchers;
        watchers.retain(|place| place.until > now && place.instance != *instance);
        watchers.sort_by_key(|place| std::cmp::Reverse(place.until));
        watchers
    }
}

/// This instance's own entry in the watch of one conversation.
#[derive(Debug, Default)]
pub(super) struct WatchLease {
    renew_at: Option<Timestamp>,
    /// The document that this instance wrote last.
    last_written: Option<(ETag, WatcherList)>,
}

impl WatchLease {
    /// Adds or renews the entry when that is due: one write, and a read if another instance wrote
    /// the document.
    pub(super) async fn renew_if_due(
        &mut self,
        store: &dyn ConversationStore,
        partition: &Partition,
        instance: &WorkerId,
        now: Timestamp,
    ) {
        // A later time was set before the wall clock was set back.
        if self.renew_at.is_some_and(|at| at > now && at < now.plus(WATCH_DURATION)) {
            return;
        }
        self.renew_at = match self.renew(store, partition, instance, now).await {
            Ok(renew_at) => Some(renew_at),
            // Another instance wrote the document; the next poll reads it.
            Err(StoreError::Conflict) => None,
            Err(error) => {
                tracing::debug!(%error, "watch renewal failed");
                Some(now.plus(RETRY_DELAY))
            }
        };
    }

    async fn renew(
        &mut self,
        store: &dyn ConversationStore,
        partition: &Partition,
        instance: &WorkerId,
        now: Timestamp,
    ) -> Result<Timestamp, StoreError> {
        let found = match self.last_written.take() {
            Some(known) => Some(known),
            None => read_watchers(store, partition).await?,
        };
        let (etag, watch) = match found {
            Some((etag, watch)) => (Some(etag), watch),
            None => (None, WatcherList::default()),
        };
        let mut watchers = watch.into_others(instance, now);
        let renewal_time = now.plus(RENEWAL_MARGIN);
        if let Some(last) =
            watchers.get(WATCHERS_MAX - 1).filter(|place| place.until > renewal_time)
        {
            return Ok(last.until.minus(RENEWAL_MARGIN));
        }
        watchers.truncate(WATCHERS_MAX - 1);
        watchers.push(Watcher { instance: instance.clone(), until: now.plus(WATCH_DURATION) });
        let watch = WatcherList { watchers };
        let document = Document {
            ttl: Some(TTL_SECONDS),
            ..Document::new(WATCH_ID, DocumentKind::Watch, &watch, None)
        };
        let write = match etag {
            Some(etag) => Write::Replace(document, Some(etag)),
            None => Write::Create(document),
        };
        let etags = store.write(partition, vec![write]).await?;
        self.last_written = etags.into_iter().next().map(|etag| (etag, watch));
        Ok(now.plus(WATCH_DURATION).minus(RENEWAL_MARGIN))
    }
}
