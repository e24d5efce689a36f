//! The stores of runs: the embedded one in a folder that is thrown away, or one that keeps claims in heads as Cosmos DB does.
//! Their answers can be lost.

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

/// The log of the database: what a process that is killed leaves beside it.
const LOG_ENDING: &str = "-wal";

/// What is open, and where it lies; the folder goes with the last who uses it.
#[derive(Clone, Debug)]
enum Place {
    Folder(Arc<EmbeddedStore>, Arc<TempDir>),
    Heads(Arc<MemoryStore>),
}

/// What every instance of a run is given.
#[derive(Debug)]
pub(super) struct RunStore {
    place: RwLock<Place>,
    /// Batches that were applied.
    commits: AtomicU64,
    loses_answers: AtomicBool,
}

impl RunStore {
    /// # Errors
    /// There is no folder to be had.
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

    /// The process is killed: what it knew is gone, and another begins with the files as they lie. `false`: there are none,
    /// since the store is elsewhere and lives on.
    ///
    /// # Errors
    /// There is no folder to be had.
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

/// A store in a folder of its own, with what lies in another one.
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

/// Nobody writes meanwhile. A database without a log has been closed.
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
            return Err(StoreError::Unavailable("the answer was lost".into()));
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
