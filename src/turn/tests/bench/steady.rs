//! The embedded store under virtual time: while its disk works, time stands still.

use std::path::PathBuf;
use std::sync::Arc;

use async_trait::async_trait;
use tokio::runtime::Handle;
use tokio::sync::Semaphore;
use tokio::task::spawn_blocking;

use crate::clock::Timestamp;
use crate::ids::{ConversationKey, WorkerId};
use crate::store::embedded::EmbeddedStore;
use crate::store::{
    ClaimRequest, Claimed, ConversationStore, ETag, Freshness, HeadQuery, Owed, Page, Partition,
    Selection, StoreError, Stored, Write,
};

/// Writes at the same time; all of them are over when all places are free.
const PLACES: u32 = 64;

#[derive(Debug)]
pub(in crate::turn::tests) struct Steady {
    folder: PathBuf,
    store: Arc<EmbeddedStore>,
    places: Arc<Semaphore>,
}

impl Steady {
    pub(in crate::turn::tests) fn open(folder: PathBuf) -> Arc<Self> {
        let store = Arc::new(EmbeddedStore::open(&folder).unwrap());
        Arc::new(Self { folder, store, places: Arc::new(Semaphore::new(PLACES as usize)) })
    }

    /// As after the end of its process: what was on its way to the disk has arrived.
    pub(super) async fn reopen(this: Arc<Self>) -> Arc<Self> {
        let places = Arc::clone(&this.places);
        let _all = places.acquire_many(PLACES).await.unwrap();
        let folder = this.folder.clone();
        assert_eq!(Arc::strong_count(&this.store), 1, "somebody holds the old store");
        drop(this);
        Self::open(folder)
    }

    pub(in crate::turn::tests) fn fsyncs(&self) -> u64 {
        self.store.commits() + self.store.checkpoints()
    }
}

#[async_trait]
impl ConversationStore for Steady {
    async fn write(
        &self,
        partition: &Partition,
        writes: Vec<Write>,
    ) -> Result<Vec<ETag>, StoreError> {
        let place = Arc::clone(&self.places).acquire_owned().await.unwrap();
        let (store, partition) = (Arc::clone(&self.store), partition.clone());
        // A blocking task: the runtime does not move its clock while one runs.
        let written = spawn_blocking(move || {
            let answer = Handle::current().block_on(store.write(&partition, writes));
            drop(store);
            drop(place);
            answer
        });
        written.await.unwrap()
    }

    async fn read(
        &self,
        partition: &Partition,
        id: &str,
        freshness: Freshness,
    ) -> Result<Option<Stored>, StoreError> {
        self.store.read(partition, id, freshness).await
    }

    async fn select(
        &self,
        partition: &Partition,
        selection: &Selection,
        freshness: Freshness,
    ) -> Result<Vec<Stored>, StoreError> {
        self.store.select(partition, selection, freshness).await
    }

    async fn claim(&self, request: ClaimRequest<'_>) -> Result<Claimed, StoreError> {
        self.store.claim(request).await
    }

    async fn renew(&self, request: ClaimRequest<'_>) -> Result<bool, StoreError> {
        self.store.renew(request).await
    }

    fn holder(&self, key: &ConversationKey) -> Option<(WorkerId, Timestamp)> {
        self.store.holder(key)
    }

    async fn release(&self, key: &ConversationKey, worker: &WorkerId) {
        self.store.release(key, worker).await;
    }

    async fn due(
        &self,
        at: Timestamp,
        limit: usize,
        continuation: Option<&str>,
    ) -> Result<Page<Owed>, StoreError> {
        self.store.due(at, limit, continuation).await
    }

    async fn heads(&self, query: &HeadQuery) -> Result<Page<Stored>, StoreError> {
        self.store.heads(query).await
    }
}
