//! Ports of an isolated turn: the parent process executes every call.

use std::collections::HashMap;
use std::io::Write as _;
use std::ops::Range;
use std::os::unix::net::UnixStream;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use async_trait::async_trait;
use bytes::Bytes;
use serde::de::DeserializeOwned;
use tokio::sync::{oneshot, watch};

use super::protocol::{
    ArtifactCall, BoxedError, ChildMessage, LeaseParams, PortReply, PortRequest, WireStoreError,
    duration_ms, encode_frame,
};
use turnwheel_json::raw::RawJson;
use turnwheel_platform::clock::Timestamp;
use turnwheel_platform::ids::{ArtifactId, ConversationKey, WorkerId};
use turnwheel_platform::shutdown::Shutdown;
use turnwheel_storage::artifacts::{ArtifactError, ArtifactMetadata, ArtifactScope, Artifacts};
use turnwheel_storage::live::{EmbeddedLive, Live, LiveEvent, LiveReader, Snapshot};
use turnwheel_storage::queue::{Queue, QueueError, QueueMessage};
use turnwheel_storage::store::{
    ConversationStore, DueItem, ETag, Freshness, HeadQuery, LeaseOutcome, LeaseRequest, Partition,
    ResultPage, SearchHits, SearchQuery, Selection, StoreError, StoredDocument, Write,
};

/// Connection to the parent process.
#[derive(Debug)]
pub(super) struct ParentConnection {
    socket: Mutex<UnixStream>,
    pending_calls: Mutex<HashMap<u64, oneshot::Sender<(RawJson, Bytes)>>>,
    next_call_id: AtomicU64,
    /// Live events for readers in this process.
    live: EmbeddedLive,
    /// Begun by the parent, with the times that it has left.
    pub(super) shutdown: Shutdown,
}

impl ParentConnection {
    pub(super) fn new(socket: UnixStream) -> Arc<Self> {
        Arc::new(Self {
            socket: Mutex::new(socket),
            pending_calls: Mutex::default(),
            next_call_id: AtomicU64::default(),
            live: EmbeddedLive::default(),
            shutdown: Shutdown::default(),
        })
    }

    /// Sends a message. An error is only logged: this process exits when its parent is gone.
    pub(super) fn send(&self, message: &ChildMessage, bytes: &[u8]) {
        let sent = encode_frame(message, bytes).and_then(|frame| {
            self.socket.lock().unwrap_or_else(PoisonError::into_inner).write_all(&frame)
        });
        if let Err(error) = sent {
            tracing::error!(error = %error, "message to the parent process not sent");
        }
    }

    pub(super) fn deliver_reply(&self, reply: PortReply, bytes: Bytes) {
        let sender =
            self.pending_calls.lock().unwrap_or_else(PoisonError::into_inner).remove(&reply.id);
        if let Some(sender) = sender {
            // The caller may have been cancelled in the meantime.
            let _ = sender.send((reply.result, bytes));
        }
    }

    /// `unavailable` makes the error of a missing or invalid reply.
    async fn call<T: DeserializeOwned, F: DeserializeOwned>(
        &self,
        request: PortRequest,
        bytes: &[u8],
        unavailable: impl FnOnce(BoxedError) -> F,
    ) -> Result<(T, Bytes), F> {
        let id = self.next_call_id.fetch_add(1, Ordering::Relaxed);
        let (sender, reply) = oneshot::channel();
        self.pending_calls.lock().unwrap_or_else(PoisonError::into_inner).insert(id, sender);
        self.send(&ChildMessage::Call { id, request: Box::new(request) }, bytes);
        let Ok((result, bytes)) = reply.await else {
            return Err(unavailable("the parent process has exited".into()));
        };
        match result.read::<Result<T, F>>() {
            Ok(result) => result.map(|value| (value, bytes)),
            Err(error) => {
                Err(unavailable(format!("invalid reply of the parent process: {error}").into()))
            }
        }
    }

    async fn call_store<T: DeserializeOwned>(&self, request: PortRequest) -> Result<T, StoreError> {
        let unavailable = |source| WireStoreError(StoreError::Unavailable(source));
        let reply = self.call(request, b"", unavailable).await;
        reply.map(|(value, _)| value).map_err(|error| error.0)
    }

    async fn call_artifacts<T: DeserializeOwned>(
        &self,
        scope: &ArtifactScope,
        call: ArtifactCall,
        bytes: &[u8],
    ) -> Result<(T, Bytes), ArtifactError> {
        let request = PortRequest::Artifacts { scope: scope.clone(), call };
        self.call(request, bytes, ArtifactError::Unavailable).await
    }
}

fn lease_params(request: &LeaseRequest<'_>) -> LeaseParams {
    LeaseParams {
        key: request.key.clone(),
        worker: request.worker.clone(),
        now: request.now,
        until: request.until,
        expired: request.expired,
    }
}

#[async_trait]
impl ConversationStore for ParentConnection {
    async fn write(
        &self,
        partition: &Partition,
        writes: Vec<Write>,
    ) -> Result<Vec<ETag>, StoreError> {
        self.call_store(PortRequest::Write { partition: partition.clone(), writes }).await
    }

    async fn read(
        &self,
        partition: &Partition,
        id: &str,
        freshness: Freshness,
    ) -> Result<Option<StoredDocument>, StoreError> {
        let (partition, id) = (partition.clone(), id.to_owned());
        self.call_store(PortRequest::Read { partition, id, freshness }).await
    }

    async fn select(
        &self,
        partition: &Partition,
        selection: &Selection,
        freshness: Freshness,
    ) -> Result<Vec<StoredDocument>, StoreError> {
        let (partition, selection) = (partition.clone(), selection.clone());
        self.call_store(PortRequest::Select { partition, selection, freshness }).await
    }

    async fn acquire_lease(&self, request: LeaseRequest<'_>) -> Result<LeaseOutcome, StoreError> {
        self.call_store(PortRequest::AcquireLease(lease_params(&request))).await
    }

    async fn renew_lease(&self, request: LeaseRequest<'_>) -> Result<bool, StoreError> {
        self.call_store(PortRequest::RenewLease(lease_params(&request))).await
    }

    async fn release_lease(&self, key: &ConversationKey, worker: &WorkerId) {
        let request = PortRequest::ReleaseLease { key: key.clone(), worker: worker.clone() };
        if let Err(error) = self.call_store::<()>(request).await {
            tracing::debug!(error = %error, "lease release by the parent process failed or is unknown");
        }
    }

    async fn list_due(
        &self,
        at: Timestamp,
        limit: usize,
        continuation: Option<&str>,
    ) -> Result<ResultPage<DueItem>, StoreError> {
        let continuation = continuation.map(ToOwned::to_owned);
        self.call_store(PortRequest::Due { at, limit, continuation }).await
    }

    async fn list_heads(
        &self,
        query: &HeadQuery,
    ) -> Result<ResultPage<StoredDocument>, StoreError> {
        self.call_store(PortRequest::Heads(query.clone())).await
    }

    async fn search(&self, query: &SearchQuery) -> Result<SearchHits, StoreError> {
        self.call_store(PortRequest::Search(query.clone())).await
    }
}

/// Only [`Queue::send`] works: a turn sends messages and receives none.
#[async_trait]
impl Queue for ParentConnection {
    async fn send(&self, queue: &str, text: String, delay: Duration) -> Result<(), QueueError> {
        let request =
            PortRequest::Send { queue: queue.to_owned(), text, delay_ms: duration_ms(delay) };
        self.call(request, b"", QueueError::Unavailable).await.map(|((), _)| ())
    }

    async fn receive(
        &self,
        _queue: &str,
        _count_max: usize,
        _hide: Duration,
    ) -> Result<Vec<QueueMessage>, QueueError> {
        Err(unsupported())
    }

    async fn renew(
        &self,
        _queue: &str,
        _id: &str,
        _pop_receipt: &str,
        _hide: Duration,
    ) -> Result<String, QueueError> {
        Err(unsupported())
    }

    async fn delete(&self, _queue: &str, _id: &str, _receipt: &str) -> Result<(), QueueError> {
        Err(unsupported())
    }

    async fn length(&self, _queue: &str) -> Result<u64, QueueError> {
        Err(unsupported())
    }

    fn arrivals(&self, _queue: &str) -> Option<watch::Receiver<u64>> {
        None
    }
}

fn unsupported() -> QueueError {
    QueueError::Unavailable("an isolated process reads no queue".into())
}

#[async_trait]
impl Artifacts for ParentConnection {
    async fn put(
        &self,
        scope: &ArtifactScope,
        facts: &ArtifactMetadata,
        bytes: Bytes,
    ) -> Result<(), ArtifactError> {
        self.call_artifacts::<()>(scope, ArtifactCall::Put(facts.clone()), &bytes).await?;
        Ok(())
    }

    async fn metadata(
        &self,
        scope: &ArtifactScope,
        id: &ArtifactId,
    ) -> Result<ArtifactMetadata, ArtifactError> {
        Ok(self.call_artifacts(scope, ArtifactCall::Facts(id.clone()), b"").await?.0)
    }

    async fn get(
        &self,
        scope: &ArtifactScope,
        id: &ArtifactId,
        range: Option<Range<u64>>,
    ) -> Result<Bytes, ArtifactError> {
        let call = ArtifactCall::Get { id: id.clone(), range };
        Ok(self.call_artifacts::<()>(scope, call, b"").await?.1)
    }

    async fn list(&self, scope: &ArtifactScope) -> Result<Vec<ArtifactMetadata>, ArtifactError> {
        Ok(self.call_artifacts(scope, ArtifactCall::List, b"").await?.0)
    }

    async fn delete_all(&self, scope: &ArtifactScope) -> Result<(), ArtifactError> {
        self.call_artifacts::<()>(scope, ArtifactCall::DeleteAll, b"").await?;
        Ok(())
    }
}

impl Live for ParentConnection {
    fn publish(&self, key: &ConversationKey, event: LiveEvent) {
        let epoch = match &event {
            LiveEvent::ToolUpdate(update) => Some(update.epoch),
            LiveEvent::Committed { .. }
            | LiveEvent::ResponseStarted(_)
            | LiveEvent::Delta { .. }
            | LiveEvent::Reset { .. } => None,
            // A turn does not publish these events.
            LiveEvent::Deleted | LiveEvent::Snapshot(_) => return,
        };
        self.live.publish(key, event.clone());
        self.send(&ChildMessage::Publish { key: key.clone(), event: Box::new(event), epoch }, b"");
    }

    fn subscribe(&self, key: &ConversationKey) -> (Option<Snapshot>, Box<dyn LiveReader>) {
        self.live.subscribe(key)
    }
}
