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

use super::wire::{
    ArtifactCall, ArtifactFault, FromChild, Lease, QueueFault, Reply, Request, StoreFault,
    Unreadable, encode, span_ms,
};
use crate::agent::raw::RawJson;
use crate::artifacts::{ArtifactError, ArtifactFacts, Artifacts, Shelf};
use crate::clock::Timestamp;
use crate::ids::{ArtifactId, ConversationKey, WorkerId};
use crate::live::{EmbeddedLive, Live, LiveEvent, LiveReader, Snapshot};
use crate::queue::{Queue, QueueError, Received};
use crate::store::{
    ClaimRequest, Claimed, ConversationStore, ETag, Freshness, HeadQuery, Owed, Page, Partition,
    Selection, StoreError, Stored, Write,
};

/// Connection to the parent process.
#[derive(Debug)]
pub(super) struct Parent {
    socket: Mutex<UnixStream>,
    waiting: Mutex<HashMap<u64, oneshot::Sender<(RawJson, Bytes)>>>,
    calls: AtomicU64,
    /// Live events for readers in this process.
    live: EmbeddedLive,
}

impl Parent {
    pub(super) fn over(socket: UnixStream) -> Arc<Self> {
        Arc::new(Self {
            socket: Mutex::new(socket),
            waiting: Mutex::default(),
            calls: AtomicU64::default(),
            live: EmbeddedLive::default(),
        })
    }

    /// Sends a message. An error is only logged: this process exits when its parent is gone.
    pub(super) fn send(&self, message: &FromChild, bytes: &[u8]) {
        let sent = encode(message, bytes).and_then(|frame| {
            self.socket.lock().unwrap_or_else(PoisonError::into_inner).write_all(&frame)
        });
        if let Err(error) = sent {
            tracing::error!(error = %error, "message to the parent process not sent");
        }
    }

    pub(super) fn take(&self, reply: Reply, bytes: Bytes) {
        let waiting = self.waiting.lock().unwrap_or_else(PoisonError::into_inner).remove(&reply.id);
        if let Some(waiting) = waiting {
            // The caller may have been cancelled in the meantime.
            let _ = waiting.send((reply.result, bytes));
        }
    }

    async fn call<T, F>(&self, request: Request, bytes: &[u8]) -> Result<(T, Bytes), F>
    where
        T: DeserializeOwned,
        F: DeserializeOwned + Unreadable,
    {
        let id = self.calls.fetch_add(1, Ordering::Relaxed);
        let (sender, reply) = oneshot::channel();
        self.waiting.lock().unwrap_or_else(PoisonError::into_inner).insert(id, sender);
        self.send(&FromChild::Call { id, request: Box::new(request) }, bytes);
        let Ok((result, bytes)) = reply.await else {
            return Err(F::unreadable("the parent process has exited".to_owned()));
        };
        match result.read::<Result<T, F>>() {
            Ok(result) => result.map(|value| (value, bytes)),
            Err(error) => Err(F::unreadable(format!("invalid reply of the parent process: {error}"))),
        }
    }

    async fn store<T: DeserializeOwned>(&self, request: Request) -> Result<T, StoreError> {
        Ok(self.call::<T, StoreFault>(request, b"").await?.0)
    }

    async fn artifacts<T: DeserializeOwned>(
        &self,
        shelf: &Shelf,
        call: ArtifactCall,
        bytes: &[u8],
    ) -> Result<(T, Bytes), ArtifactError> {
        let request = Request::Artifacts { shelf: shelf.clone(), call };
        Ok(self.call::<T, ArtifactFault>(request, bytes).await?)
    }
}

fn lease(request: &ClaimRequest<'_>) -> Lease {
    Lease {
        key: request.key.clone(),
        worker: request.worker.clone(),
        now: request.now,
        until: request.until,
    }
}

#[async_trait]
impl ConversationStore for Parent {
    async fn write(
        &self,
        partition: &Partition,
        writes: Vec<Write>,
    ) -> Result<Vec<ETag>, StoreError> {
        self.store(Request::Write { partition: partition.clone(), writes }).await
    }

    async fn read(
        &self,
        partition: &Partition,
        id: &str,
        freshness: Freshness,
    ) -> Result<Option<Stored>, StoreError> {
        let (partition, id) = (partition.clone(), id.to_owned());
        self.store(Request::Read { partition, id, freshness }).await
    }

    async fn select(
        &self,
        partition: &Partition,
        selection: &Selection,
        freshness: Freshness,
    ) -> Result<Vec<Stored>, StoreError> {
        let (partition, selection) = (partition.clone(), selection.clone());
        self.store(Request::Select { partition, selection, freshness }).await
    }

    async fn claim(&self, request: ClaimRequest<'_>) -> Result<Claimed, StoreError> {
        self.store(Request::Claim(lease(&request))).await
    }

    async fn renew(&self, request: ClaimRequest<'_>) -> Result<bool, StoreError> {
        self.store(Request::Renew(lease(&request))).await
    }

    async fn release(&self, key: &ConversationKey, worker: &WorkerId) {
        let request = Request::Release { key: key.clone(), worker: worker.clone() };
        if let Err(error) = self.store::<()>(request).await {
            tracing::debug!(error = %error, "lease release by the parent process failed or is unknown");
        }
    }

    async fn due(
        &self,
        at: Timestamp,
        limit: usize,
        continuation: Option<&str>,
    ) -> Result<Page<Owed>, StoreError> {
        let continuation = continuation.map(ToOwned::to_owned);
        self.store(Request::Due { at, limit, continuation }).await
    }

    async fn heads(&self, query: &HeadQuery) -> Result<Page<Stored>, StoreError> {
        self.store(Request::Heads(query.clone())).await
    }
}

/// Only [`Queue::send`] works: a turn sends messages and receives none.
#[async_trait]
impl Queue for Parent {
    async fn send(&self, queue: &str, text: String, delay: Duration) -> Result<(), QueueError> {
        let request = Request::Send { queue: queue.to_owned(), text, delay_ms: span_ms(delay) };
        self.call::<(), QueueFault>(request, b"").await?;
        Ok(())
    }

    async fn receive(
        &self,
        _queue: &str,
        _count_max: usize,
        _hide: Duration,
    ) -> Result<Vec<Received>, QueueError> {
        Err(not_here())
    }

    async fn renew(
        &self,
        _queue: &str,
        _id: &str,
        _pop_receipt: &str,
        _hide: Duration,
    ) -> Result<String, QueueError> {
        Err(not_here())
    }

    async fn delete(&self, _queue: &str, _id: &str, _receipt: &str) -> Result<(), QueueError> {
        Err(not_here())
    }

    async fn length(&self, _queue: &str) -> Result<u64, QueueError> {
        Err(not_here())
    }

    fn arrivals(&self, _queue: &str) -> Option<watch::Receiver<u64>> {
        None
    }
}

fn not_here() -> QueueError {
    QueueError::Unavailable("an isolated process reads no queue".into())
}

#[async_trait]
impl Artifacts for Parent {
    async fn put(
        &self,
        shelf: &Shelf,
        facts: &ArtifactFacts,
        bytes: Bytes,
    ) -> Result<(), ArtifactError> {
        self.artifacts::<()>(shelf, ArtifactCall::Put(facts.clone()), &bytes).await?;
        Ok(())
    }

    async fn facts(&self, shelf: &Shelf, id: &ArtifactId) -> Result<ArtifactFacts, ArtifactError> {
        Ok(self.artifacts(shelf, ArtifactCall::Facts(id.clone()), b"").await?.0)
    }

    async fn get(
        &self,
        shelf: &Shelf,
        id: &ArtifactId,
        range: Option<Range<u64>>,
    ) -> Result<Bytes, ArtifactError> {
        let call = ArtifactCall::Get { id: id.clone(), range };
        Ok(self.artifacts::<()>(shelf, call, b"").await?.1)
    }

    async fn list(&self, shelf: &Shelf) -> Result<Vec<ArtifactFacts>, ArtifactError> {
        Ok(self.artifacts(shelf, ArtifactCall::List, b"").await?.0)
    }

    async fn delete_all(&self, shelf: &Shelf) -> Result<(), ArtifactError> {
        self.artifacts::<()>(shelf, ArtifactCall::DeleteAll, b"").await?;
        Ok(())
    }
}

impl Live for Parent {
    fn publish(&self, key: &ConversationKey, event: LiveEvent) {
        let epoch = match &event {
            LiveEvent::ToolUpdate(update) => Some(update.epoch),
            LiveEvent::Committed { .. }
            | LiveEvent::AnswerStarted(_)
            | LiveEvent::Delta { .. }
            | LiveEvent::Reset { .. } => None,
            // A turn does not publish these events.
            LiveEvent::Gone | LiveEvent::SoFar(_) => return,
        };
        self.live.publish(key, event.clone());
        self.send(&FromChild::Publish { key: key.clone(), event: Box::new(event), epoch }, b"");
    }

    fn subscribe(&self, key: &ConversationKey) -> (Option<Snapshot>, Box<dyn LiveReader>) {
        self.live.subscribe(key)
    }
}
