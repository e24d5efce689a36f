//! A store whose books do not answer.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use async_trait::async_trait;

use crate::clock::Timestamp;
use crate::ids::{ConversationKey, WorkerId};
use crate::store::{
    ClaimRequest, Claimed, ConversationStore, ETag, Freshness, HeadQuery, Owed, Page, Partition,
    Selection, StoreError, Stored, Write,
};

/// While it is shut.
#[derive(Debug)]
pub(super) struct Shut {
    pub(super) inner: Arc<dyn ConversationStore>,
    pub(super) is_shut: AtomicBool,
}

impl Shut {
    fn check(&self, partition: &Partition) -> Result<(), StoreError> {
        let is_shut = self.is_shut.load(Ordering::SeqCst);
        if is_shut && matches!(partition, Partition::Scope(_)) {
            return Err(StoreError::Unavailable("shut".into()));
        }
        Ok(())
    }
}

#[async_trait]
impl ConversationStore for Shut {
    async fn write(
        &self,
        partition: &Partition,
        writes: Vec<Write>,
    ) -> Result<Vec<ETag>, StoreError> {
        self.check(partition)?;
        self.inner.write(partition, writes).await
    }

    async fn read(
        &self,
        partition: &Partition,
        id: &str,
        freshness: Freshness,
    ) -> Result<Option<Stored>, StoreError> {
        self.check(partition)?;
        self.inner.read(partition, id, freshness).await
    }

    async fn select(
        &self,
        partition: &Partition,
        selection: &Selection,
        freshness: Freshness,
    ) -> Result<Vec<Stored>, StoreError> {
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
