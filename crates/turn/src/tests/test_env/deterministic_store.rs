//! The embedded store under virtual time: virtual time stops during disk I/O, so that a run with
//! one seed is always the same.

use std::path::PathBuf;
use std::sync::Arc;

use async_trait::async_trait;
use tokio::runtime::Handle;

use turnwheel_platform::clock::Timestamp;
use turnwheel_platform::ids::{ConversationKey, WorkerId};
use turnwheel_storage::store::embedded::EmbeddedStore;
use turnwheel_storage::store::{
    ConversationStore, DueItem, ETag, Freshness, HeadQuery, LeaseOutcome, LeaseRequest, Partition,
    ResultPage, SearchHits, SearchQuery, Selection, StoreError, StoredDocument, Write,
};

/// Blocks until `work` is done: results of threads in varying order would make each run different.
fn block_on<T: Send>(work: impl Future<Output = T> + Send) -> T {
    let runtime = Handle::current();
    std::thread::scope(|scope| scope.spawn(|| runtime.block_on(work)).join().unwrap())
}

#[derive(Debug)]
pub(crate) struct DeterministicStore {
    folder: PathBuf,
    store: EmbeddedStore,
}

impl DeterministicStore {
    pub(crate) fn open(folder: PathBuf) -> Arc<Self> {
        let store = EmbeddedStore::open(&folder).unwrap();
        Arc::new(Self { folder, store })
    }

    /// Reopens the store as after the end of its process; pending writes have reached the disk.
    pub(super) fn reopen(this: Arc<Self>) -> Arc<Self> {
        let Self { folder, store } =
            Arc::into_inner(this).expect("the old store has no other owner");
        drop(store);
        Self::open(folder)
    }

    pub(crate) fn fsyncs(&self) -> u64 {
        self.store.commit_count() + self.store.checkpoint_count()
    }
}

#[async_trait]
impl ConversationStore for DeterministicStore {
    async fn write(
        &self,
        partition: &Partition,
        writes: Vec<Write>,
    ) -> Result<Vec<ETag>, StoreError> {
        // Other tasks run first, as during a slow write.
        tokio::task::yield_now().await;
        block_on(self.store.write(partition, writes))
    }

    async fn read(
        &self,
        partition: &Partition,
        id: &str,
        freshness: Freshness,
    ) -> Result<Option<StoredDocument>, StoreError> {
        block_on(self.store.read(partition, id, freshness))
    }

    async fn select(
        &self,
        partition: &Partition,
        selection: &Selection,
        freshness: Freshness,
    ) -> Result<Vec<StoredDocument>, StoreError> {
        block_on(self.store.select(partition, selection, freshness))
    }

    async fn acquire_lease(&self, request: LeaseRequest<'_>) -> Result<LeaseOutcome, StoreError> {
        block_on(self.store.acquire_lease(request))
    }

    async fn renew_lease(&self, request: LeaseRequest<'_>) -> Result<bool, StoreError> {
        block_on(self.store.renew_lease(request))
    }

    fn lease_holder(&self, key: &ConversationKey) -> Option<(WorkerId, Timestamp)> {
        self.store.lease_holder(key)
    }

    fn has_lease_from_crash(&self, key: &ConversationKey) -> bool {
        self.store.has_lease_from_crash(key)
    }

    async fn release_lease(&self, key: &ConversationKey, worker: &WorkerId) {
        block_on(self.store.release_lease(key, worker));
    }

    async fn list_due(
        &self,
        at: Timestamp,
        limit: usize,
        continuation: Option<&str>,
    ) -> Result<ResultPage<DueItem>, StoreError> {
        block_on(self.store.list_due(at, limit, continuation))
    }

    async fn list_heads(
        &self,
        query: &HeadQuery,
    ) -> Result<ResultPage<StoredDocument>, StoreError> {
        block_on(self.store.list_heads(query))
    }

    async fn search(&self, query: &SearchQuery) -> Result<SearchHits, StoreError> {
        block_on(self.store.search(query))
    }
}
