//! The stores of runs: the embedded one in a temporary folder, or one with leases in heads, as in
//! Cosmos DB. Their responses can be lost.

use std::io;
use std::path::Path;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, PoisonError, RwLock};

use async_trait::async_trait;
use tempfile::TempDir;

use crate::certify::StoreKind;
use crate::clock::Timestamp;
use crate::ids::{ConversationKey, WorkerId};
use crate::store::embedded::{DATABASE_FILE, EmbeddedStore, OpenError};
use crate::store::memory::MemoryStore;
use crate::store::{
    ConversationStore, DueItem, ETag, Freshness, HeadQuery, LeaseOutcome, LeaseRequest, Partition,
    ResultPage, Selection, StoreError, StoredDocument, Write,
};

/// The database log: a killed process leaves it beside the database.
const LOG_ENDING: &str = "-wal";

/// The open store and its folder, which is deleted with its last user.
#[derive(Clone, Debug)]
enum OpenStore {
    Embedded(Arc<EmbeddedStore>, Arc<TempDir>),
    LeaseInHead(Arc<MemoryStore>),
}

/// The store that all instances of a run share.
#[derive(Debug)]
pub(super) struct RunStore {
    open_store: RwLock<OpenStore>,
    /// Number of applied batches.
    commits: AtomicU64,
    loses_responses: AtomicBool,
}

impl RunStore {
    /// # Errors
    /// A temporary folder cannot be created.
    pub(super) async fn open(store_kind: StoreKind) -> Result<Self, OpenError> {
        let open_store = match store_kind {
            StoreKind::Embedded => open_in_temp_folder(None).await?,
            StoreKind::LeaseInHead => OpenStore::LeaseInHead(Arc::new(MemoryStore::new())),
        };
        Ok(Self {
            open_store: RwLock::new(open_store),
            commits: AtomicU64::default(),
            loses_responses: AtomicBool::default(),
        })
    }

    /// Kills the process: its memory is lost, and another starts with a copy of the files. Returns
    /// false if there are none, since the store is elsewhere and continues.
    ///
    /// # Errors
    /// A temporary folder cannot be created.
    pub(super) async fn kill(&self) -> Result<bool, OpenError> {
        let OpenStore::Embedded(_, folder) = self.current() else { return Ok(false) };
        let open_store = open_in_temp_folder(Some(folder)).await?;
        *self.open_store.write().unwrap_or_else(PoisonError::into_inner) = open_store;
        Ok(true)
    }

    pub(super) fn set_losing_responses(&self, does_lose: bool) {
        self.loses_responses.store(does_lose, Ordering::SeqCst);
    }

    pub(super) fn commits(&self) -> u64 {
        self.commits.load(Ordering::SeqCst)
    }

    fn current(&self) -> OpenStore {
        self.open_store.read().unwrap_or_else(PoisonError::into_inner).clone()
    }

    fn store(&self) -> Arc<dyn ConversationStore> {
        match self.current() {
            OpenStore::Embedded(store, _) => store,
            OpenStore::LeaseInHead(store) => store,
        }
    }
}

/// Opens a store in a folder of its own, with a copy of another folder's files.
async fn open_in_temp_folder(copied_folder: Option<Arc<TempDir>>) -> Result<OpenStore, OpenError> {
    let opening = tokio::task::spawn_blocking(move || {
        let failed = |source| OpenError::Folder { folder: std::env::temp_dir(), source };
        let folder = tempfile::tempdir().map_err(failed)?;
        if let Some(copied_folder) = copied_folder {
            copy_database(copied_folder.path(), folder.path()).map_err(failed)?;
        }
        let store = EmbeddedStore::open_unsynced(folder.path())?;
        Ok(OpenStore::Embedded(Arc::new(store), Arc::new(folder)))
    });
    opening.await.unwrap_or_else(|panic| std::panic::resume_unwind(panic.into_panic()))
}

/// Copies the files while nothing writes them. A database without a log was closed.
fn copy_database(from: &Path, to: &Path) -> io::Result<()> {
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
        if self.loses_responses.load(Ordering::SeqCst) {
            return Err(StoreError::Unavailable("the response was lost".into()));
        }
        written
    }

    async fn read(
        &self,
        partition: &Partition,
        id: &str,
        freshness: Freshness,
    ) -> Result<Option<StoredDocument>, StoreError> {
        self.store().read(partition, id, freshness).await
    }

    async fn select(
        &self,
        partition: &Partition,
        selection: &Selection,
        freshness: Freshness,
    ) -> Result<Vec<StoredDocument>, StoreError> {
        self.store().select(partition, selection, freshness).await
    }

    async fn acquire_lease(&self, request: LeaseRequest<'_>) -> Result<LeaseOutcome, StoreError> {
        self.store().acquire_lease(request).await
    }

    async fn renew_lease(&self, request: LeaseRequest<'_>) -> Result<bool, StoreError> {
        self.store().renew_lease(request).await
    }

    fn lease_holder(&self, key: &ConversationKey) -> Option<(WorkerId, Timestamp)> {
        self.store().lease_holder(key)
    }

    fn has_lease_from_crash(&self, key: &ConversationKey) -> bool {
        self.store().has_lease_from_crash(key)
    }

    async fn release_lease(&self, key: &ConversationKey, worker: &WorkerId) {
        self.store().release_lease(key, worker).await;
    }

    async fn list_due(
        &self,
        at: Timestamp,
        limit: usize,
        continuation: Option<&str>,
    ) -> Result<ResultPage<DueItem>, StoreError> {
        self.store().list_due(at, limit, continuation).await
    }

    async fn list_heads(
        &self,
        query: &HeadQuery,
    ) -> Result<ResultPage<StoredDocument>, StoreError> {
        self.store().list_heads(query).await
    }
}
