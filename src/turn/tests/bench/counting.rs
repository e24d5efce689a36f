//! A store that notes each request by name and order, and hands it on.

use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Mutex};

use async_trait::async_trait;

use crate::clock::Timestamp;
use crate::ids::{ConversationKey, WorkerId};
use crate::store::{
    ClaimRequest, Claimed, ConversationStore, ETag, Freshness, HeadQuery, Owed, Page, Partition,
    Selection, StoreError, Stored, Write,
};

#[derive(Debug)]
pub(in crate::turn::tests) struct Counting {
    inner: Arc<dyn ConversationStore>,
    requests: Mutex<Vec<String>>,
    /// Looks whether a prompt is to be stopped. They come by the second and not by the step, so they are counted apart.
    looks: AtomicU32,
}

impl Counting {
    pub(in crate::turn::tests) fn before(inner: Arc<dyn ConversationStore>) -> Arc<Self> {
        Arc::new(Self { inner, requests: Mutex::default(), looks: AtomicU32::default() })
    }

    /// Since it was asked last, a line each.
    pub(in crate::turn::tests) fn told(&self) -> String {
        std::mem::take(&mut *self.requests.lock().unwrap()).join("\n")
    }

    /// Since the beginning.
    pub(in crate::turn::tests) fn looks(&self) -> u32 {
        self.looks.load(Ordering::SeqCst)
    }

    fn note(&self, request: String) {
        self.requests.lock().unwrap().push(request);
    }
}

/// Kinds in the order of the batch; `2 entry` for two in a row.
fn batch(writes: &[Write]) -> String {
    let mut runs: Vec<(usize, String)> = Vec::new();
    for write in writes {
        let name = match write {
            Write::Replace(document, _) if document.kind.as_str() == "inbox" => {
                "inbox (left waiting)".to_owned()
            }
            Write::Replace(document, _) if document.kind.as_str() == "scope" => {
                "scope (changed)".to_owned()
            }
            Write::Create(document) | Write::Replace(document, _) => {
                document.kind.as_str().to_owned()
            }
            Write::Delete(..) => "delete".to_owned(),
        };
        match runs.last_mut() {
            Some((count, last)) if *last == name => *count += 1,
            _ => runs.push((1, name)),
        }
    }
    let runs = runs.iter().map(|(count, name)| match count {
        1 => name.clone(),
        _ => format!("{count} {name}"),
    });
    runs.collect::<Vec<_>>().join(", ")
}

#[async_trait]
impl ConversationStore for Counting {
    async fn write(
        &self,
        partition: &Partition,
        writes: Vec<Write>,
    ) -> Result<Vec<ETag>, StoreError> {
        self.note(format!("write {}", batch(&writes)));
        self.inner.write(partition, writes).await
    }

    async fn read(
        &self,
        partition: &Partition,
        id: &str,
        freshness: Freshness,
    ) -> Result<Option<Stored>, StoreError> {
        if id.starts_with("stop-") {
            self.looks.fetch_add(1, Ordering::SeqCst);
            return self.inner.read(partition, id, freshness).await;
        }
        let what = if id.starts_with("ev-") || id == "head" { id } else { "item" };
        self.note(format!("read {what}"));
        self.inner.read(partition, id, freshness).await
    }

    async fn select(
        &self,
        partition: &Partition,
        selection: &Selection,
        freshness: Freshness,
    ) -> Result<Vec<Stored>, StoreError> {
        self.note(format!("select {}", selection.kind.as_str()));
        self.inner.select(partition, selection, freshness).await
    }

    async fn claim(&self, request: ClaimRequest<'_>) -> Result<Claimed, StoreError> {
        self.note("claim (head and inbox)".to_owned());
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
        self.note("due".to_owned());
        self.inner.due(at, limit, continuation).await
    }

    async fn heads(&self, query: &HeadQuery) -> Result<Page<Stored>, StoreError> {
        self.note("heads".to_owned());
        self.inner.heads(query).await
    }
}
