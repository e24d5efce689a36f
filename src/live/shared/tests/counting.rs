//! A store that counts what is asked of it.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};

use async_trait::async_trait;

use crate::clock::Timestamp;
use crate::ids::{ConversationKey, WorkerId};
use crate::store::memory::MemoryStore;
use crate::store::{
    ClaimRequest, Claimed, ConversationStore, ETag, Freshness, HeadQuery, Owed, Page, Partition,
    Selection, StoreError, Stored, Write,
};

#[derive(Debug)]
pub(super) struct CountingStore {
    inner: Arc<MemoryStore>,
    counts: Mutex<Counts>,
}

/// Requests by what they are: `read head`, `select live`, `write watch`.
#[derive(Clone, Debug, Default, PartialEq)]
pub(super) struct Counts(BTreeMap<String, usize>);

impl Counts {
    pub(super) fn total(&self) -> usize {
        self.0.values().sum()
    }

    pub(super) fn of(&self, what: &str) -> usize {
        self.0.get(what).copied().unwrap_or(0)
    }
}

impl CountingStore {
    pub(super) fn new(inner: Arc<MemoryStore>) -> Self {
        Self { inner, counts: Mutex::default() }
    }

    pub(super) fn counts(&self) -> Counts {
        self.counts.lock().unwrap().clone()
    }

    /// What was asked since those were counted.
    pub(super) fn since(&self, before: &Counts) -> Counts {
        let mut now = self.counts();
        for (what, count) in &mut now.0 {
            *count -= before.of(what);
        }
        now.0.retain(|_, count| *count > 0);
        now
    }

    fn count(&self, what: String) {
        *self.counts.lock().unwrap().0.entry(what).or_default() += 1;
    }
}

#[async_trait]
impl ConversationStore for CountingStore {
    async fn write(
        &self,
        partition: &Partition,
        writes: Vec<Write>,
    ) -> Result<Vec<ETag>, StoreError> {
        let kind = match writes.first() {
            Some(Write::Create(document) | Write::Replace(document, _)) => document.kind.as_str(),
            Some(Write::Delete(..)) | None => "nothing",
        };
        self.count(format!("write {kind}"));
        self.inner.write(partition, writes).await
    }

    async fn read(
        &self,
        partition: &Partition,
        id: &str,
        freshness: Freshness,
    ) -> Result<Option<Stored>, StoreError> {
        self.count(format!("read {id}"));
        self.inner.read(partition, id, freshness).await
    }

    async fn select(
        &self,
        partition: &Partition,
        selection: &Selection,
        freshness: Freshness,
    ) -> Result<Vec<Stored>, StoreError> {
        self.count(format!("select {}", selection.kind.as_str()));
        self.inner.select(partition, selection, freshness).await
    }

    async fn claim(&self, request: ClaimRequest<'_>) -> Result<Claimed, StoreError> {
        self.inner.claim(request).await
    }

    async fn renew(&self, request: ClaimRequest<'_>) -> Result<bool, StoreError> {
        self.inner.renew(request).await
    }

    async fn release(&self, key: &ConversationKey, worker: &WorkerId) {
        self.inner.release(key, worker).await;
    }

    async fn due(
        &self,
        at: Timestamp,
        limit: usize,
        continuation: Option<&str>,
    ) -> Result<Page<Owed>, StoreError> {
        self.inner.due(at, limit, continuation).await
    }

    async fn heads(&self, query: &HeadQuery) -> Result<Page<Stored>, StoreError> {
        self.inner.heads(query).await
    }
}
