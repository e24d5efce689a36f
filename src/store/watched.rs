//! Test decorator that lets an interceptor see, reject and change store requests.
//!
//! The interceptor gets each request first; a request that it rejects is not forwarded. It can
//! change the writes of a batch and the result of a batch.

use std::fmt;
use std::sync::Arc;

use async_trait::async_trait;

use crate::clock::Timestamp;
use crate::ids::{ConversationKey, WorkerId};
use crate::store::{
    ClaimRequest, Claimed, ConversationStore, ETag, Freshness, HeadQuery, Owed, Page, Partition,
    Selection, StoreError, Stored, Write,
};

/// A request to the store.
#[derive(Debug)]
pub(crate) enum Asked<'a> {
    Write(&'a Partition, &'a [Write]),
    /// One document, by its id.
    Read(&'a Partition, &'a str),
    Select(&'a Selection),
    Claim,
    Due,
    Heads,
}

/// The result of a forwarded batch.
pub(crate) type Written = Result<Vec<ETag>, StoreError>;

pub(crate) trait Watch: fmt::Debug + Send + Sync {
    fn asked(&self, _asked: &Asked<'_>) -> Result<(), StoreError> {
        Ok(())
    }

    fn altered(&self, writes: Vec<Write>) -> Vec<Write> {
        writes
    }

    /// Returns the result that the caller gets for a batch of `_count` writes.
    fn heard(&self, written: Written, _count: usize) -> Written {
        written
    }
}

/// A store whose requests pass an interceptor, except lease renewals and releases.
#[derive(Debug)]
pub(crate) struct Watched<W> {
    pub(crate) inner: Arc<dyn ConversationStore>,
    pub(crate) watch: W,
}

#[async_trait]
impl<W: Watch> ConversationStore for Watched<W> {
    async fn write(
        &self,
        partition: &Partition,
        writes: Vec<Write>,
    ) -> Result<Vec<ETag>, StoreError> {
        self.watch.asked(&Asked::Write(partition, &writes))?;
        let writes = self.watch.altered(writes);
        let count = writes.len();
        self.watch.heard(self.inner.write(partition, writes).await, count)
    }

    async fn read(
        &self,
        partition: &Partition,
        id: &str,
        freshness: Freshness,
    ) -> Result<Option<Stored>, StoreError> {
        self.watch.asked(&Asked::Read(partition, id))?;
        self.inner.read(partition, id, freshness).await
    }

    async fn select(
        &self,
        partition: &Partition,
        selection: &Selection,
        freshness: Freshness,
    ) -> Result<Vec<Stored>, StoreError> {
        self.watch.asked(&Asked::Select(selection))?;
        self.inner.select(partition, selection, freshness).await
    }

    async fn claim(&self, request: ClaimRequest<'_>) -> Result<Claimed, StoreError> {
        self.watch.asked(&Asked::Claim)?;
        self.inner.claim(request).await
    }

    async fn renew(&self, request: ClaimRequest<'_>) -> Result<bool, StoreError> {
        self.inner.renew(request).await
    }

    fn holder(&self, key: &ConversationKey) -> Option<(WorkerId, Timestamp)> {
        self.inner.holder(key)
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
        self.watch.asked(&Asked::Due)?;
        self.inner.due(at, limit, continuation).await
    }

    async fn heads(&self, query: &HeadQuery) -> Result<Page<Stored>, StoreError> {
        self.watch.asked(&Asked::Heads)?;
        self.inner.heads(query).await
    }
}
