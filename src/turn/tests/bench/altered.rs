//! A store that writes something else than it is told, or whose answers are heard wrong.

use std::fmt;
use std::sync::Arc;

use async_trait::async_trait;

use crate::clock::Timestamp;
use crate::ids::{ConversationKey, WorkerId};
use crate::store::{
    ClaimRequest, Claimed, ConversationStore, Document, ETag, Freshness, HeadQuery, Owed, Page,
    Partition, Selection, StoreError, Stored, Write,
};

type Written = Result<Vec<ETag>, StoreError>;

pub(in crate::turn::tests) struct Altered {
    inner: Arc<dyn ConversationStore>,
    alter: fn(Document) -> Document,
    /// What is heard of a batch of so many writes.
    hear: fn(Written, usize) -> Written,
}

impl Altered {
    pub(super) fn writing(
        inner: Arc<dyn ConversationStore>,
        alter: fn(Document) -> Document,
    ) -> Arc<dyn ConversationStore> {
        Arc::new(Self { inner, alter, hear: |answer, _| answer })
    }

    pub(in crate::turn::tests) fn hearing(
        inner: Arc<dyn ConversationStore>,
        hear: fn(Written, usize) -> Written,
    ) -> Arc<dyn ConversationStore> {
        Arc::new(Self { inner, alter: |document| document, hear })
    }
}

impl fmt::Debug for Altered {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Altered({:?})", self.inner)
    }
}

#[async_trait]
impl ConversationStore for Altered {
    async fn write(
        &self,
        partition: &Partition,
        writes: Vec<Write>,
    ) -> Result<Vec<ETag>, StoreError> {
        let writes = writes.into_iter().map(|write| match write {
            Write::Create(document) => Write::Create((self.alter)(document)),
            Write::Replace(document, etag) => Write::Replace((self.alter)(document), etag),
            delete @ Write::Delete(..) => delete,
        });
        let writes: Vec<Write> = writes.collect();
        let count = writes.len();
        (self.hear)(self.inner.write(partition, writes).await, count)
    }

    async fn read(
        &self,
        partition: &Partition,
        id: &str,
        freshness: Freshness,
    ) -> Result<Option<Stored>, StoreError> {
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
        self.inner.due(at, limit, continuation).await
    }

    async fn heads(&self, query: &HeadQuery) -> Result<Page<Stored>, StoreError> {
        self.inner.heads(query).await
    }
}
