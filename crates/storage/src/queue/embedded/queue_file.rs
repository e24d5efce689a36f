//! The file of the queues that hold users' only copy.
//!
//! It stores texts, delays and receive counts. Pop receipts are in memory only.

use std::path::{Path, PathBuf};
use std::sync::{Mutex, MutexGuard, PoisonError};

use rusqlite::wal::CheckpointMode;
use rusqlite::{Connection, params};

use super::super::QueueError;
use turnwheel_platform::clock::Timestamp;

/// Version of the table; files of newer versions are rejected.
const FILE_VERSION: i64 = 1;

#[derive(Debug, thiserror::Error)]
enum QueueFileError {
    #[error("could not create the folder of the queue file {path}")]
    Folder { path: PathBuf, source: std::io::Error },
    #[error(
        "could not open the queue file {path}: stop the other process that uses it, or move the file away (it holds prompts that are not yet accepted)"
    )]
    File { path: PathBuf, source: rusqlite::Error },
    #[error(
        "the queue file {path} was written by a newer version ({version}; this one supports {FILE_VERSION}): use that version"
    )]
    Newer { path: PathBuf, version: i64 },
}

impl From<QueueFileError> for QueueError {
    fn from(error: QueueFileError) -> Self {
        Self::Unavailable(Box::new(error))
    }
}

impl From<rusqlite::Error> for QueueError {
    fn from(error: rusqlite::Error) -> Self {
        Self::Unavailable(Box::new(error))
    }
}

/// One stored message.
pub(super) struct MessageRow {
    pub(super) queue: String,
    pub(super) id: String,
    pub(super) text: String,
    pub(super) inserted_at: Timestamp,
    /// Set at the send; a receive hides a message in memory only.
    pub(super) visible_at: Timestamp,
    pub(super) dequeue_count: u32,
}

/// The queue file. Its methods block: do not call them on an async thread.
#[derive(Debug)]
pub(super) struct QueueFile(Mutex<Connection>);

impl QueueFile {
    /// Opens the file, creates it if it does not exist, and returns all messages in the order of
    /// their sends.
    pub(super) fn open(path: &Path) -> Result<(Self, Vec<MessageRow>), QueueError> {
        if let Some(folder) = path.parent() {
            std::fs::create_dir_all(folder)
                .map_err(|source| QueueFileError::Folder { path: path.to_owned(), source })?;
        }
        let failed = |source| QueueFileError::File { path: path.to_owned(), source };
        let connection = Connection::open(path).map_err(failed)?;
        configure(&connection).map_err(failed)?;
        let version =
            connection.query_row("PRAGMA user_version", [], |row| row.get(0)).map_err(failed)?;
        if version > FILE_VERSION {
            return Err(QueueFileError::Newer { path: path.to_owned(), version }.into());
        }
        if version < FILE_VERSION {
            create_table(&connection).map_err(failed)?;
        }
        let rows = read_rows(&connection).map_err(failed)?;
        Ok((Self(Mutex::new(connection)), rows))
    }

    pub(super) fn insert(&self, row: &MessageRow) -> Result<(), QueueError> {
        self.connection()
            .prepare_cached(
                "INSERT INTO messages (queue, id, text, inserted_at, visible_at, dequeue_count)
                 VALUES (?1, ?2, ?3, ?4, ?5, ?6)",
            )?
            .execute(params![
                row.queue,
                row.id,
                row.text,
                signed(row.inserted_at),
                signed(row.visible_at),
                row.dequeue_count
            ])?;
        Ok(())
    }

    /// Stores the receive counts of messages.
    pub(super) fn set_dequeue_counts(&self, counts: &[(String, u32)]) -> Result<(), QueueError> {
        let mut connection = self.connection();
        let transaction = connection.transaction()?;
        for (id, dequeue_count) in counts {
            // Two receives may be stored in another order than they happened.
            transaction
                .prepare_cached(
                    "UPDATE messages SET dequeue_count = max(dequeue_count, ?2) WHERE id = ?1",
                )?
                .execute(params![id, dequeue_count])?;
        }
        Ok(transaction.commit()?)
    }

    pub(super) fn delete(&self, id: &str) -> Result<(), QueueError> {
        self.connection().prepare_cached("DELETE FROM messages WHERE id = ?1")?.execute([id])?;
        Ok(())
    }

    /// Empties the log, which still has the texts of deleted messages. If this fails, the next call tries
    /// again.
    pub(super) fn empty_log(&self) {
        let mode = CheckpointMode::TRUNCATE;
        if let Err(error) = self.connection().wal_checkpoint_v2(None::<&str>, mode) {
            tracing::warn!(%error, "queue checkpoint failed");
        }
    }

    fn connection(&self) -> MutexGuard<'_, Connection> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Locks the file exclusively: a second process fails at once instead of delivering the same
/// prompts.
fn configure(connection: &Connection) -> rusqlite::Result<()> {
    connection.busy_timeout(std::time::Duration::ZERO)?;
    connection.pragma_update(None, "locking_mode", "EXCLUSIVE")?;
    connection.pragma_update_and_check(None, "journal_mode", "WAL", |_| Ok(()))?;
    connection.pragma_update(None, "synchronous", "FULL")?;
    // Deleted prompts are overwritten in the file.
    connection.pragma_update(None, "secure_delete", "ON")
}

fn create_table(connection: &Connection) -> rusqlite::Result<()> {
    connection.execute_batch(&format!(
        "BEGIN IMMEDIATE;
         CREATE TABLE IF NOT EXISTS messages (
             number INTEGER PRIMARY KEY AUTOINCREMENT,
             queue TEXT NOT NULL,
             id TEXT NOT NULL UNIQUE,
             text TEXT NOT NULL,
             inserted_at INTEGER NOT NULL,
             visible_at INTEGER NOT NULL,
             dequeue_count INTEGER NOT NULL
         ) STRICT;
         PRAGMA user_version = {FILE_VERSION};
         COMMIT;"
    ))
}

fn read_rows(connection: &Connection) -> rusqlite::Result<Vec<MessageRow>> {
    connection
        .prepare(
            "SELECT queue, id, text, inserted_at, visible_at, dequeue_count
             FROM messages ORDER BY number",
        )?
        .query_map([], |row| {
            Ok(MessageRow {
                queue: row.get(0)?,
                id: row.get(1)?,
                text: row.get(2)?,
                inserted_at: Timestamp(row.get::<_, i64>(3)?.unsigned_abs()),
                visible_at: Timestamp(row.get::<_, i64>(4)?.unsigned_abs()),
                dequeue_count: row.get(5)?,
            })
        })?
        .collect()
}

fn signed(time: Timestamp) -> i64 {
    i64::try_from(time.0).unwrap_or(i64::MAX)
}

#[cfg(test)]
impl QueueFile {
    pub(super) fn pragma(&self, name: &str) -> String {
        let read = |row: &rusqlite::Row<'_>| row.get::<_, rusqlite::types::Value>(0);
        format!("{:?}", self.connection().pragma_query_value(None, name, read).unwrap())
    }

    /// Makes every later write fail.
    pub(super) fn fail_writes(&self) {
        self.connection().pragma_update(None, "query_only", "ON").unwrap();
    }
}
