//! The stores of runs: the embedded one in a temporary folder, or one with leases in heads, as in
//! Cosmos DB. Their responses can be lost.

use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use tempfile::TempDir;

use crate::StoreKind;
use turnwheel_storage::store::embedded::{DATABASE_FILE, EmbeddedStore, OpenError};
use turnwheel_storage::store::interceptor::{InterceptedStore, StoreInterceptor, WriteResult};
use turnwheel_storage::store::memory::MemoryStore;
use turnwheel_storage::store::{ConversationStore, StoreError};

/// The database log: a killed process leaves it beside the database.
const LOG_ENDING: &str = "-wal";

/// Counts the applied batches, and loses responses on request.
#[derive(Debug, Default)]
struct ResponseLoss {
    commits: AtomicU64,
    is_active: AtomicBool,
}

impl StoreInterceptor for ResponseLoss {
    fn alter_result(&self, written: WriteResult, _count: usize) -> WriteResult {
        if written.is_ok() {
            self.commits.fetch_add(1, Ordering::SeqCst);
        }
        if self.is_active.load(Ordering::SeqCst) {
            return Err(StoreError::Unavailable("the response was lost".into()));
        }
        written
    }
}

/// The store that all instances of a run share.
pub(super) struct RunStore {
    store: Arc<InterceptedStore<ResponseLoss>>,
    /// The folder of the embedded store.
    folder: Option<TempDir>,
}

impl RunStore {
    /// # Errors
    /// A temporary folder cannot be created.
    pub(super) async fn open(store_kind: StoreKind) -> Result<Self, OpenError> {
        let (store, folder): (Arc<dyn ConversationStore>, _) = match store_kind {
            StoreKind::Embedded => {
                let (store, folder) = open_in_temp_folder(None).await?;
                (Arc::new(store), Some(folder))
            }
            StoreKind::LeaseInHead => (Arc::new(MemoryStore::new()), None),
        };
        let store = Arc::new(InterceptedStore::new(store, ResponseLoss::default()));
        Ok(Self { store, folder })
    }

    /// Kills the process: its memory is lost, and another starts with a copy of the files. Returns
    /// false if there are none, since the store is elsewhere and continues.
    ///
    /// # Errors
    /// A temporary folder cannot be created.
    pub(super) async fn kill(&mut self) -> Result<bool, OpenError> {
        let Some(folder) = &self.folder else { return Ok(false) };
        let (store, folder) = open_in_temp_folder(Some(folder.path().to_owned())).await?;
        self.store.replace(Arc::new(store));
        self.folder = Some(folder);
        Ok(true)
    }

    pub(super) fn set_losing_responses(&self, does_lose: bool) {
        self.store.interceptor.is_active.store(does_lose, Ordering::SeqCst);
    }

    pub(super) fn commits(&self) -> u64 {
        self.store.interceptor.commits.load(Ordering::SeqCst)
    }

    /// The store as instances use it.
    pub(super) fn instance_store(&self) -> Arc<dyn ConversationStore> {
        Arc::clone(&self.store) as _
    }
}

/// Opens a store in a folder of its own, with a copy of another folder's files.
async fn open_in_temp_folder(
    copied_folder: Option<PathBuf>,
) -> Result<(EmbeddedStore, TempDir), OpenError> {
    let opening = tokio::task::spawn_blocking(move || {
        let failed = |source| OpenError::Folder { folder: std::env::temp_dir(), source };
        let folder = tempfile::tempdir().map_err(failed)?;
        if let Some(copied_folder) = copied_folder {
            copy_database(&copied_folder, folder.path()).map_err(failed)?;
        }
        Ok((EmbeddedStore::open_unsynced(folder.path())?, folder))
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
