//! For tests: a store that tells of each request before it hands it on, and hands on nothing that is refused. What is written,
//! and what is heard of it, can be something else on the way.

use std::fmt;
use std::sync::Arc;

use async_trait::async_trait;

use crate::clock::Timestamp;
use crate::ids::{ConversationKey, WorkerId};
use crate::store::{
    ClaimRequest, Claimed, ConversationStore, ETag, Freshness, HeadQuery, Owed, Page, Partition,
    Selection, StoreError, Stored, Write,
};

/// What is asked of it.
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

/// What is known of a batch once it was handed on.
pub(crate) type Written = Result<Vec<ETag>, StoreError>;

pub(crate) trait Watch: fmt::Debug + Send + Sync {
    fn asked(&self, _asked: &Asked<'_>) -> Result<(), StoreError> {
        Ok(())
    }

    fn altered(&self, writes: Vec<Write>) -> Vec<Write> {
        writes
    }

    /// What is heard of a batch of so many writes.
    fn heard(&self, written: Written, _count: usize) -> Written {
        written
    }
}

/// Renewals and releases are not told.
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
