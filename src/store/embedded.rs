//! The store of one machine: SQLite in a folder that one process holds.
//!
//! Commits that wait at the same time share one transaction and one fsync; claims live in memory and die with the
//! process.

mod claims;
mod leases_file;
mod lock;
mod readers;
mod rows;
mod schema;
mod warm;
mod writer;

use std::path::{Path, PathBuf};
use std::sync::Arc;

use async_trait::async_trait;

use crate::clock::Timestamp;
use crate::ids::{ConversationKey, WorkerId};
use crate::store::embedded::claims::Claims;
use crate::store::embedded::leases_file::LeasesFile;
use crate::store::embedded::lock::FolderLock;
use crate::store::embedded::readers::Readers;
use crate::store::embedded::schema::Outlives;
use crate::store::embedded::warm::{Known, Warm};
use crate::store::embedded::writer::Writer;
use crate::store::{
    ClaimRequest, Claimed, ConversationStore, ETag, Freshness, HEAD_ID, HeadQuery, Kind, Owed,
    Page, Partition, Selection, StoreError, Stored, Write, check, place,
};

/// The database inside the data folder.
pub const DATABASE_FILE: &str = "conversations.db";

/// Which conversations are under way, for the next process.
const LEASES_FILE: &str = "leases";

/// The field order is the order of closing: reading, then writing, and only then may another process begin.
#[derive(Debug)]
pub struct EmbeddedStore {
    claims: Arc<Claims>,
    warm: Arc<Warm>,
    readers: Arc<Readers>,
    writer: Writer,
    lock: FolderLock,
}

/// Why a data folder was not opened.
#[derive(Debug, thiserror::Error)]
pub enum OpenError {
    /// One folder, one process. `note` is what the other one left, such as its address; empty when it left nothing.
    #[error("the data folder {} is in use by another process{}", folder.display(), noted(note))]
    InUse { folder: PathBuf, note: String },
    #[error("the data folder {} cannot be used: does it exist on a local disk, and may this user write there?", folder.display())]
    Folder { folder: PathBuf, source: std::io::Error },
    /// Nothing was changed.
    #[error(
        "{} has schema {found}, and this version knows up to {known}: start the newer version that wrote it, or take another folder",
        file.display()
    )]
    Newer { file: PathBuf, found: i64, known: i64 },
    /// Nothing was changed.
    #[error("{} belongs to another program: take another folder", file.display())]
    Foreign { file: PathBuf },
    #[error(
        "{} cannot be opened: if the disk is full, free some; if the file is damaged, restore a copy of the folder, or move it away to begin anew",
        file.display()
    )]
    Database { file: PathBuf, source: Box<dyn std::error::Error + Send + Sync> },
}

fn noted(note: &str) -> String {
    if note.is_empty() { String::new() } else { format!(": {note}") }
}

impl EmbeddedStore {
    /// Creates the folder when there is none. Blocks: call it at start.
    ///
    /// # Errors
    /// The folder is held, is not writable, or holds what this version cannot read: tell the person, and stop.
    pub fn open(folder: &Path) -> Result<Self, OpenError> {
        Self::open_for(folder, Outlives::PowerCut)
    }

    /// As [`Self::open`], for who throws the folder away: nothing waits for the disk.
    ///
    /// # Errors
    /// As of [`Self::open`].
    pub fn open_unsynced(folder: &Path) -> Result<Self, OpenError> {
        Self::open_for(folder, Outlives::Process)
    }

    fn open_for(folder: &Path, outlives: Outlives) -> Result<Self, OpenError> {
        let lock = FolderLock::take(folder)?;
        let file = folder.join(DATABASE_FILE);
        let (connection, generation) = schema::open(&file, outlives)?;
        let warm = Arc::<Warm>::default();
        let claims = Arc::new(Claims::over(LeasesFile::open(&folder.join(LEASES_FILE))));
        let kept = (Arc::clone(&warm), Arc::clone(&claims));
        let writer = Writer::start(connection, generation, kept)
            .map_err(|source| OpenError::Database { file: file.clone(), source })?;
        let readers = Arc::new(Readers::new(file));
        Ok(Self { claims, warm, readers, writer, lock })
    }

    /// What another process is told when it finds the folder in use: one line, such as the address to speak to.
    ///
    /// # Errors
    /// The note could not be written; the store works without it.
    pub fn set_lock_note(&self, text: &str) -> std::io::Result<()> {
        self.lock.set_note(text)
    }

    /// The process ends as it should: turns that it cuts off were not killed by their step.
    pub fn forget_leases(&self) {
        self.claims.forget();
    }

    /// Transactions that wrote something since the store was opened: one fsync each.
    pub fn commits(&self) -> u64 {
        self.writer.counters().commits()
    }

    /// Head and inbox from the file, kept from now on.
    async fn read_open(&self, key: &ConversationKey) -> Result<Arc<Known>, StoreError> {
        let (warm, key) = (Arc::clone(&self.warm), key.clone());
        let read = move |connection: &rusqlite::Connection| {
            warm.read(&key, || {
                let partition = Partition::Conversation(key.clone());
                // In this order: an inbox read before its head could hold what the head has taken in.
                let head = rows::read(connection, &partition, HEAD_ID)?;
                let inbox = rows::select(connection, &partition, &Selection::all(Kind::Inbox))?;
                Ok(Known::of(head, inbox))
            })
        };
        self.readers.run(read).await
    }

    /// Times the log was moved into the database since the store was opened: three fsyncs each, two then and one when
    /// the log begins anew.
    pub fn checkpoints(&self) -> u64 {
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
        check::batch(partition, &writes)?;
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
    ) -> Result<Option<Stored>, StoreError> {
        check::partition(partition)?;
        check::document_id(id)?;
        if id == HEAD_ID
            && let Some(known) = self.warm.get(partition)
        {
            return Ok(known.head.clone());
        }
        let (partition, id) = (partition.clone(), id.to_owned());
        self.readers.run(move |connection| rows::read(connection, &partition, &id)).await
    }

    async fn select(
        &self,
        partition: &Partition,
        selection: &Selection,
        _freshness: Freshness,
    ) -> Result<Vec<Stored>, StoreError> {
        check::partition(partition)?;
        if selection.kind == Kind::Inbox
            && let Some(known) = self.warm.get(partition)
        {
            return Ok(known.inbox(selection));
        }
        let (partition, selection) = (partition.clone(), selection.clone());
        self.readers.run(move |connection| rows::select(connection, &partition, &selection)).await
    }

    async fn claim(&self, request: ClaimRequest<'_>) -> Result<Claimed, StoreError> {
        check::conversation(request.key)?;
        // First the claim, then the head: read before, it could be older than the last commit of the one who gave up.
        if let Err(until) = self.claims.take(&request) {
            return Ok(Claimed::Held { until });
        }
        let all = Selection::all(Kind::Inbox);
        let found = match self.warm.get(&Partition::Conversation(request.key.clone())) {
            Some(known) => Ok(known),
            None => self.read_open(request.key).await,
        };
        let found = found.map(|known| known.head.clone().map(|head| (head, known.inbox(&all))));
        match found {
            Ok(Some((head, inbox))) => Ok(Claimed::Free { head, inbox, is_settled: true }),
            Ok(None) => {
                self.claims.release(request.key, request.worker);
                Ok(Claimed::Missing)
            }
            Err(error) => {
                self.claims.release(request.key, request.worker);
                Err(error)
            }
        }
    }

    async fn renew(&self, request: ClaimRequest<'_>) -> Result<bool, StoreError> {
        if self.claims.renew(&request) { Ok(true) } else { Err(StoreError::Conflict) }
    }

    fn holder(&self, key: &ConversationKey) -> Option<(WorkerId, Timestamp)> {
        self.claims.holder(key)
    }

    fn has_died_with(&self, key: &ConversationKey) -> bool {
        self.claims.had(key)
    }

    async fn release(&self, key: &ConversationKey, worker: &WorkerId) {
        self.claims.release(key, worker);
    }

    async fn due(
        &self,
        at: Timestamp,
        limit: usize,
        continuation: Option<&str>,
    ) -> Result<Page<Owed>, StoreError> {
        let after = place::due_place(at, continuation)?;
        self.readers.run(move |connection| rows::due(connection, at, limit, &after)).await
    }

    async fn heads(&self, query: &HeadQuery) -> Result<Page<Stored>, StoreError> {
        let after = place::heads_place(query)?;
        let query = query.clone();
        self.readers.run(move |connection| rows::heads(connection, &query, &after)).await
    }
}

/// What SQLite says, by what the caller does about it.
fn store_error(error: impl Into<Arc<rusqlite::Error>>) -> StoreError {
    use rusqlite::ErrorCode::{DatabaseCorrupt, NotADatabase};

    let error: Arc<rusqlite::Error> = error.into();
    match error.sqlite_error_code() {
        Some(DatabaseCorrupt | NotADatabase) => StoreError::Corrupt(error.to_string()),
        _ => StoreError::Unavailable(Box::new(error)),
    }
}

fn unavailable(why: &'static str) -> StoreError {
    StoreError::Unavailable(why.into())
}

#[cfg(test)]
mod tests;
