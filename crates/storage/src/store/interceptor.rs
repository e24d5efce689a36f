//! Decorator that lets an interceptor see, reject and change store requests.
//!
//! The interceptor gets each request first; a request that it rejects is not forwarded. It can
//! change the writes of a batch and the result of a batch.

use std::fmt;
use std::sync::{Arc, PoisonError, RwLock};

use async_trait::async_trait;

use crate::store::{
    ConversationStore, DueItem, ETag, Freshness, HeadQuery, LeaseOutcome, LeaseRequest, Partition,
    ResultPage, SearchHits, SearchQuery, Selection, StoreError, StoredDocument, Write,
};
use turnwheel_platform::clock::Timestamp;
use turnwheel_platform::ids::{ConversationKey, WorkerId};

/// A request to the store.
#[derive(Debug)]
pub enum StoreRequest<'a> {
    Write(&'a Partition, &'a [Write]),
    /// One document, by its id.
    Read(&'a Partition, &'a str, Freshness),
    Select(&'a Selection),
    AcquireLease,
    ListDue,
    ListHeads,
    Search,
}

/// The result of a forwarded batch.
pub type WriteResult = Result<Vec<ETag>, StoreError>;

pub trait StoreInterceptor: fmt::Debug + Send + Sync {
    /// Returns the failure of the request before it is sent.
    ///
    /// # Errors
    /// The simulated failure of the request.
    fn before_request(&self, _request: &StoreRequest<'_>) -> Result<(), StoreError> {
        Ok(())
    }

    fn alter_writes(&self, writes: Vec<Write>) -> Vec<Write> {
        writes
    }

    /// Returns the result that the caller gets for a batch of `_count` writes.
    ///
    /// # Errors
    /// The simulated failure of the write.
    fn alter_result(&self, written: WriteResult, _count: usize) -> WriteResult {
        written
    }
}

/// A store whose requests pass an interceptor, except lease renewals and releases.
#[derive(Debug)]
pub struct InterceptedStore<W> {
    inner: RwLock<Arc<dyn ConversationStore>>,
    pub interceptor: W,
}

impl<W> InterceptedStore<W> {
    pub fn new(inner: Arc<dyn ConversationStore>, interceptor: W) -> Self {
        Self { inner: RwLock::new(inner), interceptor }
    }

    /// Forwards later requests to another store.
    pub fn replace(&self, inner: Arc<dyn ConversationStore>) {
        *self.inner.write().unwrap_or_else(PoisonError::into_inner) = inner;
    }

    fn inner(&self) -> Arc<dyn ConversationStore> {
        Arc::clone(&self.inner.read().unwrap_or_else(PoisonError::into_inner))
    }
}

#[async_trait]
impl<W: StoreInterceptor> ConversationStore for InterceptedStore<W> {
    async fn write(
        &self,
        partition: &Partition,
        writes: Vec<Write>,
    ) -> Result<Vec<ETag>, StoreError> {
        self.interceptor.before_request(&StoreRequest::Write(partition, &writes))?;
        let writes = self.interceptor.alter_writes(writes);
        let count = writes.len();
        self.interceptor.alter_result(self.inner().write(partition, writes).await, count)
    }

    async fn read(
        &self,
        partition: &Partition,
        id: &str,
        freshness: Freshness,
    ) -> Result<Option<StoredDocument>, StoreError> {
        self.interceptor.before_request(&StoreRequest::Read(partition, id, freshness))?;
        self.inner().read(partition, id, freshness).await
    }

    async fn select(
        &self,
        partition: &Partition,
        selection: &Selection,
        freshness: Freshness,
    ) -> Result<Vec<StoredDocument>, StoreError> {
        self.interceptor.before_request(&StoreRequest::Select(selection))?;
        self.inner().select(partition, selection, freshness).await
    }

    async fn acquire_lease(&self, request: LeaseRequest<'_>) -> Result<LeaseOutcome, StoreError> {
        self.interceptor.before_request(&StoreRequest::AcquireLease)?;
        self.inner().acquire_lease(request).await
    }

    async fn renew_lease(&self, request: LeaseRequest<'_>) -> Result<bool, StoreError> {
        self.inner().renew_lease(request).await
    }

    fn lease_holder(&self, key: &ConversationKey) -> Option<(WorkerId, Timestamp)> {
        self.inner().lease_holder(key)
    }

    fn has_lease_from_crash(&self, key: &ConversationKey) -> bool {
        self.inner().has_lease_from_crash(key)
    }

    fn is_of_one_process(&self) -> bool {
        self.inner().is_of_one_process()
    }

    fn has_leases_in_heads(&self) -> bool {
        self.inner().has_leases_in_heads()
    }

    async fn release_lease(&self, key: &ConversationKey, worker: &WorkerId) {
        self.inner().release_lease(key, worker).await;
    }

    async fn list_due(
        &self,
        at: Timestamp,
        limit: usize,
        continuation: Option<&str>,
    ) -> Result<ResultPage<DueItem>, StoreError> {
        self.interceptor.before_request(&StoreRequest::ListDue)?;
        self.inner().list_due(at, limit, continuation).await
    }

    async fn list_heads(
        &self,
        query: &HeadQuery,
    ) -> Result<ResultPage<StoredDocument>, StoreError> {
        self.interceptor.before_request(&StoreRequest::ListHeads)?;
        self.inner().list_heads(query).await
    }

    async fn search(&self, query: &SearchQuery) -> Result<SearchHits, StoreError> {
        self.interceptor.before_request(&StoreRequest::Search)?;
        self.inner().search(query).await
    }
}
