//! The stores of runs: the embedded one in a temporary folder, or one with leases in heads, as in
//! Cosmos DB. Their responses can be lost.

use std::io;
use std::path::Path;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, PoisonError, RwLock};

use async_trait::async_trait;
use tempfile::TempDir;

use crate::certify::Kept;
use crate::clock::Timestamp;
use crate::ids::{ConversationKey, WorkerId};
use crate::store::embedded::{DATABASE_FILE, EmbeddedStore, OpenError};
use crate::store::memory::MemoryStore;
use crate::store::{
    ClaimRequest, Claimed, ConversationStore, ETag, Freshness, HeadQuery, Owed, Page, Partition,
    Selection, StoreError, Stored, Write,
};

/// The database log: a killed process leaves it beside the database.
const LOG_ENDING: &str = "-wal";

/// The open store and its folder, which is deleted with its last user.
#[derive(Clone, Debug)]
enum Place {
    Folder(Arc<EmbeddedStore>, Arc<TempDir>),
    Heads(Arc<MemoryStore>),
}

/// The store that all instances of a run share.
#[derive(Debug)]
pub(super) struct RunStore {
    place: RwLock<Place>,
    /// Number of applied batches.
    commits: AtomicU64,
    loses_answers: AtomicBool,
}

impl RunStore {
    /// # Errors
    /// A temporary folder cannot be created.
    pub(super) async fn open(kept: Kept) -> Result<Self, OpenError> {
        let place = match kept {
            Kept::Folder => opened(None).await?,
            Kept::Heads => Place::Heads(Arc::new(MemoryStore::new())),
        };
        Ok(Self {
            place: RwLock::new(place),
            commits: AtomicU64::default(),
            loses_answers: AtomicBool::default(),
        })
    }

    /// Kills the process: its memory is lost, and another starts with a copy of the files. Returns
    /// false if there are none, since the store is elsewhere and continues.
    ///
    /// # Errors
    /// A temporary folder cannot be created.
    pub(super) async fn kill(&self) -> Result<bool, OpenError> {
        let Place::Folder(_, folder) = self.now() else { return Ok(false) };
        let place = opened(Some(folder)).await?;
        *self.place.write().unwrap_or_else(PoisonError::into_inner) = place;
        Ok(true)
    }

    pub(super) fn lose_answers(&self, does_lose: bool) {
        self.loses_answers.store(does_lose, Ordering::SeqCst);
    }

    pub(super) fn commits(&self) -> u64 {
        self.commits.load(Ordering::SeqCst)
    }

    fn now(&self) -> Place {
        self.place.read().unwrap_or_else(PoisonError::into_inner).clone()
    }

    fn store(&self) -> Arc<dyn ConversationStore> {
        match self.now() {
            Place::Folder(store, _) => store,
            Place::Heads(store) => store,
        }
    }
}

/// Opens a store in a folder of its own, with a copy of another folder's files.
async fn opened(like: Option<Arc<TempDir>>) -> Result<Place, OpenError> {
    let opening = tokio::task::spawn_blocking(move || {
        let failed = |source| OpenError::Folder { folder: std::env::temp_dir(), source };
        let folder = tempfile::tempdir().map_err(failed)?;
        if let Some(like) = like {
            copy(like.path(), folder.path()).map_err(failed)?;
        }
        let store = EmbeddedStore::open_unsynced(folder.path())?;
        Ok(Place::Folder(Arc::new(store), Arc::new(folder)))
    });
    opening.await.unwrap_or_else(|panic| std::panic::resume_unwind(panic.into_panic()))
}

/// Copies the files while nothing writes them. A database without a log was closed.
fn copy(from: &Path, to: &Path) -> io::Result<()> {
    std::fs::copy(from.join(DATABASE_FILE), to.join(DATABASE_FILE))?;
    let log = format!("{DATABASE_FILE}{LOG_ENDING}");
    match std::fs::copy(from.join(&log), to.join(&log)) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => Err(error),
        Ok(_) | Err(_) => Ok(()),
    }
}

#[async_trait]
impl ConversationStore for RunStore {
    async fn write(
        &self,
        partition: &Partition,
        writes: Vec<Write>,
    ) -> Result<Vec<ETag>, StoreError> {
        let written = self.store().write(partition, writes).await;
        if written.is_ok() {
            self.commits.fetch_add(1, Ordering::SeqCst);
        }
        if self.loses_answers.load(Ordering::SeqCst) {
            return Err(StoreError::Unavailable("the response was lost".into()));
        }
        written
    }

    async fn read(
        &self,
        partition: &Partition,
        id: &str,
        freshness: Freshness,
    ) -> Result<Option<Stored>, StoreError> {
        self.store().read(partition, id, freshness).await
    }

    async fn select(
        &self,
        partition: &Partition,
        selection: &Selection,
        freshness: Freshness,
    ) -> Result<Vec<Stored>, StoreError> {
        self.store().select(partition, selection, freshness).await
    }

    async fn claim(&self, request: ClaimRequest<'_>) -> Result<Claimed, StoreError> {
        self.store().claim(request).await
    }

    async fn renew(&self, request: ClaimRequest<'_>) -> Result<bool, StoreError> {
        self.store().renew(request).await
    }

    fn holder(&self, key: &ConversationKey) -> Option<(WorkerId, Timestamp)> {
        self.store().holder(key)
    }

    async fn release(&self, key: &ConversationKey, worker: &WorkerId) {
        self.store().release(key, worker).await;
    }

    async fn due(
        &self,
        at: Timestamp,
        limit: usize,
        continuation: Option<&str>,
    ) -> Result<Page<Owed>, StoreError> {
        self.store().due(at, limit, continuation).await
    }

    async fn heads(&self, query: &HeadQuery) -> Result<Page<Stored>, StoreError> {
        self.store().heads(query).await
    }
}
