//! The embedded store under virtual time: virtual time stops during disk I/O, so that a run with
//! one seed is always the same.

use std::path::PathBuf;
use std::sync::Arc;

use async_trait::async_trait;
use tokio::runtime::Handle;

use crate::clock::Timestamp;
use crate::ids::{ConversationKey, WorkerId};
use crate::store::embedded::EmbeddedStore;
use crate::store::{
    ClaimRequest, Claimed, ConversationStore, ETag, Freshness, HeadQuery, Owed, Page, Partition,
    Selection, StoreError, Stored, Write,
};

/// Blocks until `work` is done: results of threads in varying order would make each run different.
fn at_once<T: Send>(work: impl Future<Output = T> + Send) -> T {
    let runtime = Handle::current();
    std::thread::scope(|scope| scope.spawn(|| runtime.block_on(work)).join().unwrap())
}

#[derive(Debug)]
pub(in crate::turn::tests) struct Steady {
    folder: PathBuf,
    store: EmbeddedStore,
}

impl Steady {
    pub(in crate::turn::tests) fn open(folder: PathBuf) -> Arc<Self> {
        let store = EmbeddedStore::open(&folder).unwrap();
        Arc::new(Self { folder, store })
    }

    /// Reopens the store as after the end of its process; pending writes have reached the disk.
    pub(super) fn reopen(this: Arc<Self>) -> Arc<Self> {
        let Self { folder, store } = Arc::into_inner(this).expect("the old store has no other owner");
        drop(store);
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
        // Other tasks run first, as during a slow write.
        tokio::task::yield_now().await;
        at_once(self.store.write(partition, writes))
    }

    async fn read(
        &self,
        partition: &Partition,
        id: &str,
        freshness: Freshness,
    ) -> Result<Option<Stored>, StoreError> {
        at_once(self.store.read(partition, id, freshness))
    }

    async fn select(
        &self,
        partition: &Partition,
        selection: &Selection,
        freshness: Freshness,
    ) -> Result<Vec<Stored>, StoreError> {
        at_once(self.store.select(partition, selection, freshness))
    }

    async fn claim(&self, request: ClaimRequest<'_>) -> Result<Claimed, StoreError> {
        at_once(self.store.claim(request))
    }

    async fn renew(&self, request: ClaimRequest<'_>) -> Result<bool, StoreError> {
        at_once(self.store.renew(request))
    }

    fn holder(&self, key: &ConversationKey) -> Option<(WorkerId, Timestamp)> {
        self.store.holder(key)
    }

    fn has_died_with(&self, key: &ConversationKey) -> bool {
        self.store.has_died_with(key)
    }

    async fn release(&self, key: &ConversationKey, worker: &WorkerId) {
        at_once(self.store.release(key, worker));
    }

    async fn due(
        &self,
        at: Timestamp,
        limit: usize,
        continuation: Option<&str>,
    ) -> Result<Page<Owed>, StoreError> {
        at_once(self.store.due(at, limit, continuation))
    }

    async fn heads(&self, query: &HeadQuery) -> Result<Page<Stored>, StoreError> {
        at_once(self.store.heads(query))
    }
}
