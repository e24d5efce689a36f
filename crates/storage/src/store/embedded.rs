//! The embedded store: SQLite in a data folder that one process locks.
//!
//! Commits that wait at the same time share one transaction and one fsync. Leases are in memory
//! and end with the process.

mod cache;
mod file_identity;
mod leases;
mod leases_file;
mod lock;
mod readers;
mod rows;
mod schema;
mod writer;

use std::fmt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use async_trait::async_trait;

use crate::store::embedded::cache::{CachedConversation, ConversationCache};
use crate::store::embedded::file_identity::FileIdentity;
use crate::store::embedded::leases::Leases;
use crate::store::embedded::leases_file::LeasesFile;
use crate::store::embedded::lock::FolderLock;
use crate::store::embedded::readers::Readers;
use crate::store::embedded::schema::Durability;
use crate::store::embedded::writer::Writer;
use crate::store::{
    ConversationStore, DocumentKind, DueItem, ETag, Freshness, HEAD_ID, HeadQuery, LeaseOutcome,
    LeaseRequest, Partition, ResultPage, SearchHits, SearchQuery, Selection, StoreError,
    StoredDocument, Write, cursor, validate,
};
use turnwheel_platform::clock::Timestamp;
use turnwheel_platform::ids::{ConversationKey, WorkerId};

/// The database inside the data folder.
pub const DATABASE_FILE: &str = "conversations.db";

/// The file that records the leased conversations for the next process.
const LEASES_FILE: &str = "leases";

/// The field order is the closing order: readers, writer, then the lock, so that another process
/// opens the folder only after the last write.
pub struct EmbeddedStore {
    leases: Arc<Leases>,
    cache: Arc<ConversationCache>,
    readers: Arc<Readers>,
    writer: Writer,
    lock: FolderLock,
}

impl fmt::Debug for EmbeddedStore {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("EmbeddedStore").finish_non_exhaustive()
    }
}

/// Errors of opening a data folder.
#[derive(Debug, thiserror::Error)]
pub enum OpenError {
    /// Another process has locked the folder. `note` is the note of that process, such as its
    /// address, or empty.
    #[error("the data folder {} is in use by another process{}", folder.display(), note_suffix(note))]
    InUse { folder: PathBuf, note: String },
    #[error("the data folder {} cannot be used: put it on a local disk where this user may write", folder.display())]
    Folder { folder: PathBuf, source: std::io::Error },
    /// Nothing was changed.
    #[error(
        "{} has schema {found}, but this version supports at most {known}: start the newer version that wrote it, or use another folder",
        file.display()
    )]
    Newer { file: PathBuf, found: i64, known: i64 },
    /// Nothing was changed.
    #[error("{} belongs to another program: use another folder", file.display())]
    Foreign { file: PathBuf },
    /// Nothing was changed.
    #[error(
        "{} is {}, but {} beside it belongs to a store with conversations: restore the file or a copy of the folder, or move the folder away to start empty",
        file.display(), if *is_missing { "missing" } else { "empty" }, other.display()
    )]
    Lost { file: PathBuf, is_missing: bool, other: PathBuf },
    #[error(
        "{} cannot be opened: if the disk is full, free some space; if the file is damaged, restore a copy of the folder, or move the folder away to start empty",
        file.display()
    )]
    Database { file: PathBuf, source: Box<dyn std::error::Error + Send + Sync> },
}

fn note_suffix(note: &str) -> String {
    if note.is_empty() { String::new() } else { format!(": {note}") }
}

/// Files and folders beside the database that are created after it: with one of them an empty database
/// is no new one.
const LATER_FILES: [&str; 3] = ["artifacts", "queue.sqlite", LEASES_FILE];

/// # Errors
/// The database is empty or missing beside files of a store.
fn check_not_lost(folder: &Path, file: &Path) -> Result<(), OpenError> {
    let bytes = std::fs::metadata(file).map(|metadata| metadata.len()).ok();
    if bytes.is_some_and(|bytes| bytes > 0) {
        return Ok(());
    }
    match LATER_FILES.iter().map(|name| folder.join(name)).find(|other| other.exists()) {
        Some(other) => {
            Err(OpenError::Lost { file: file.to_owned(), is_missing: bytes.is_none(), other })
        }
        None => Ok(()),
    }
}

impl EmbeddedStore {
    /// Opens the store, and creates the folder if it does not exist. Blocks: call it at start-up.
    ///
    /// # Errors
    /// The folder is locked, is not writable, or has files that this version cannot read: show the
    /// error to the operator and do not start.
    pub fn open(folder: &Path) -> Result<Self, OpenError> {
        Self::open_with(folder, Durability::PowerCut)
    }

    /// Like [`Self::open`], for temporary folders: commits do not wait for the disk.
    ///
    /// # Errors
    /// See [`Self::open`].
    pub fn open_unsynced(folder: &Path) -> Result<Self, OpenError> {
        Self::open_with(folder, Durability::Process)
    }

    fn open_with(folder: &Path, durability: Durability) -> Result<Self, OpenError> {
        let lock = FolderLock::acquire(folder)?;
        let file = folder.join(DATABASE_FILE);
        check_not_lost(folder, &file)?;
        let (connection, generation) = schema::open_writer(&file, durability)?;
        let identity = FileIdentity::read(file.clone());
        let cache = Arc::<ConversationCache>::default();
        let leases = Arc::new(Leases::new(LeasesFile::open(&folder.join(LEASES_FILE))));
        let (own_cache, own_leases) = (Arc::clone(&cache), Arc::clone(&leases));
        let writer = Writer::start(connection, generation, identity, own_cache, own_leases)
            .map_err(|source| OpenError::Database { file: file.clone(), source })?;
        let readers = Arc::new(Readers::new(file));
        Ok(Self { leases, cache, readers, writer, lock })
    }

    /// Sets the note that another process shows when it finds the folder locked: one line, such as
    /// the address of this process.
    ///
    /// # Errors
    /// The note could not be written: continue, the store works without it.
    pub fn set_lock_note(&self, text: &str) -> std::io::Result<()> {
        self.lock.set_note(text)
    }

    /// Discards the lease records on a clean stop: a turn that the stop interrupts does not count
    /// as a crash of its step.
    pub fn discard_leases(&self) {
        self.leases.clear_file();
    }

    /// Number of transactions with writes since the store was opened: one fsync each.
    pub fn commit_count(&self) -> u64 {
        self.writer.counters().commits()
    }

    /// Reads head and inbox from the file and caches them.
    async fn read_through_cache(
        &self,
        key: &ConversationKey,
    ) -> Result<Arc<CachedConversation>, StoreError> {
        let (cache, key) = (Arc::clone(&self.cache), key.clone());
        let read = move |connection: &rusqlite::Connection| {
            cache.read_through(&key, || {
                let partition = Partition::Conversation(key.clone());
                // In this order: an inbox read before its head could hold items that the head has
                // already applied.
                let head = rows::read(connection, &partition, HEAD_ID)?;
                let inbox =
                    rows::select(connection, &partition, &Selection::all(DocumentKind::Inbox))?;
                Ok(CachedConversation::new(head, inbox))
            })
        };
        self.readers.run_read(read).await
    }

    /// Number of checkpoints since the store was opened. Each costs three fsyncs: two at once and
    /// one when the log restarts.
    pub fn checkpoint_count(&self) -> u64 {
        self.writer.counters().checkpoints()
    }
}

#[async_trait]
impl ConversationStore for EmbeddedStore {
    async fn write(
        &self,
        partition: &Partition,
        writes: Vec<Write>,
    ) -> Result<Vec<ETag>, StoreError> {
        validate::batch(partition, &writes)?;
        if writes.is_empty() {
            return Ok(Vec::new());
        }
        self.writer.write(partition.clone(), writes).await
    }

    async fn read(
        &self,
        partition: &Partition,
        id: &str,
        _freshness: Freshness,
    ) -> Result<Option<StoredDocument>, StoreError> {
        validate::partition(partition)?;
        validate::document_id(id)?;
        if id == HEAD_ID
            && let Some(known) = self.cache.get(partition)
        {
            return Ok(known.head.clone());
        }
        let (partition, id) = (partition.clone(), id.to_owned());
        self.readers.run_read(move |connection| rows::read(connection, &partition, &id)).await
    }

    async fn select(
        &self,
        partition: &Partition,
        selection: &Selection,
        _freshness: Freshness,
    ) -> Result<Vec<StoredDocument>, StoreError> {
        validate::partition(partition)?;
        if selection.kind == DocumentKind::Inbox
            && let Some(known) = self.cache.get(partition)
        {
            return Ok(known.inbox(selection));
        }
        let (partition, selection) = (partition.clone(), selection.clone());
        self.readers
            .run_read(move |connection| rows::select(connection, &partition, &selection))
            .await
    }

    async fn acquire_lease(&self, request: LeaseRequest<'_>) -> Result<LeaseOutcome, StoreError> {
        validate::conversation(request.key)?;
        // First the lease, then the head: a head read earlier could be older than the last commit
        // of the previous lease holder.
        if let Err(until) = self.leases.acquire(&request) {
            return Ok(LeaseOutcome::Leased { until });
        }
        let found = match self.cache.get(&Partition::Conversation(request.key.clone())) {
            Some(known) => Ok(known),
            None => self.read_through_cache(request.key).await,
        };
        match found.map(|known| known.head.clone()) {
            Ok(Some(head)) => Ok(LeaseOutcome::Available { head, is_acquired: true }),
            Ok(None) => {
                self.leases.release(request.key, request.worker);
                Ok(LeaseOutcome::Missing)
            }
            Err(error) => {
                self.leases.release(request.key, request.worker);
                Err(error)
            }
        }
    }

    async fn renew_lease(&self, request: LeaseRequest<'_>) -> Result<bool, StoreError> {
        if self.leases.renew(&request) { Ok(true) } else { Err(StoreError::Conflict) }
    }

    fn lease_holder(&self, key: &ConversationKey) -> Option<(WorkerId, Timestamp)> {
        self.leases.holder(key)
    }

    fn has_lease_from_crash(&self, key: &ConversationKey) -> bool {
        self.leases.had_at_crash(key)
    }

    fn is_of_one_process(&self) -> bool {
        true
    }

    async fn release_lease(&self, key: &ConversationKey, worker: &WorkerId) {
        self.leases.release(key, worker);
    }

    async fn list_due(
        &self,
        at: Timestamp,
        limit: usize,
        continuation: Option<&str>,
    ) -> Result<ResultPage<DueItem>, StoreError> {
        let after = cursor::parse_due_cursor(at, continuation)?;
        self.readers.run_read(move |connection| rows::list_due(connection, at, limit, &after)).await
    }

    async fn list_heads(
        &self,
        query: &HeadQuery,
    ) -> Result<ResultPage<StoredDocument>, StoreError> {
        let after = cursor::parse_head_cursor(query)?;
        let query = query.clone();
        self.readers.run_read(move |connection| rows::list_heads(connection, &query, &after)).await
    }

    async fn search(&self, query: &SearchQuery) -> Result<SearchHits, StoreError> {
        validate::search(query)?;
        let query = query.clone();
        self.readers.run_read(move |connection| rows::search(connection, &query)).await
    }
}

/// Maps an SQLite error to the store error on which the caller acts.
fn store_error(error: impl Into<Arc<rusqlite::Error>>) -> StoreError {
    use rusqlite::ErrorCode::{DatabaseCorrupt, NotADatabase};

    let error: Arc<rusqlite::Error> = error.into();
    match error.sqlite_error_code() {
        Some(DatabaseCorrupt | NotADatabase) => StoreError::Corrupt(error.to_string()),
        _ => StoreError::Unavailable(Box::new(error)),
    }
}

fn unavailable(why: impl Into<Box<dyn std::error::Error + Send + Sync>>) -> StoreError {
    StoreError::Unavailable(why.into())
}

#[cfg(test)]
mod tests;
