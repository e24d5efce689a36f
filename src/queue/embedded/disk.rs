//! The file of the queues whose messages are users' only copy.
//!
//! It holds what must outlive the process: texts, delays and how often each was received. Who holds a message does not.

use std::path::{Path, PathBuf};
use std::sync::{Mutex, MutexGuard, PoisonError};

use rusqlite::{Connection, params};

use super::super::QueueError;
use crate::clock::Timestamp;

/// Raised with the shape of the table; a newer file is refused.
const VERSION: i64 = 1;

#[derive(Debug, thiserror::Error)]
enum OpenError {
    #[error("could not make the folder of the queue file {path}")]
    Folder { path: PathBuf, source: std::io::Error },
    #[error(
        "could not open the queue file {path}: stop the other process that uses it, or move the file away (it holds prompts that were not taken in yet)"
    )]
    File { path: PathBuf, source: rusqlite::Error },
    #[error(
        "the queue file {path} was written by a newer version ({version}; this one knows {VERSION}): use that version"
    )]
    Newer { path: PathBuf, version: i64 },
}

impl From<OpenError> for QueueError {
    fn from(error: OpenError) -> Self {
        Self::Unavailable(Box::new(error))
    }
}

impl From<rusqlite::Error> for QueueError {
    fn from(error: rusqlite::Error) -> Self {
        Self::Unavailable(Box::new(error))
    }
}

/// One message as it is kept.
pub(super) struct Row {
    pub(super) queue: String,
    pub(super) id: String,
    pub(super) text: String,
    pub(super) inserted_at: Timestamp,
    /// As it was sent; a receive hides a message in memory only.
    pub(super) visible_at: Timestamp,
    pub(super) dequeue_count: u32,
}

/// Blocks: never called on an async thread.
#[derive(Debug)]
pub(super) struct Disk(Mutex<Connection>);

impl Disk {
    /// The file, made when it does not exist, and all that it holds, in the order in which it was sent.
    pub(super) fn open(path: &Path) -> Result<(Self, Vec<Row>), QueueError> {
        if let Some(folder) = path.parent() {
            std::fs::create_dir_all(folder)
                .map_err(|source| OpenError::Folder { path: path.to_owned(), source })?;
        }
        let failed = |source| OpenError::File { path: path.to_owned(), source };
        let connection = Connection::open(path).map_err(failed)?;
        prepare(&connection).map_err(failed)?;
        let version =
            connection.query_row("PRAGMA user_version", [], |row| row.get(0)).map_err(failed)?;
        if version > VERSION {
            return Err(OpenError::Newer { path: path.to_owned(), version }.into());
        }
        if version < VERSION {
            create(&connection).map_err(failed)?;
        }
        let rows = rows(&connection).map_err(failed)?;
        Ok((Self(Mutex::new(connection)), rows))
    }

    pub(super) fn insert(&self, row: &Row) -> Result<(), QueueError> {
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

    /// How often each of these has been received by now.
    pub(super) fn count(&self, counts: &[(String, u32)]) -> Result<(), QueueError> {
        let mut connection = self.connection();
        let transaction = connection.transaction()?;
        for (id, dequeue_count) in counts {
            // Two receives may come here in another order than they happened.
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

    fn connection(&self) -> MutexGuard<'_, Connection> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Exclusive: a second process is told at once instead of delivering the same prompts.
fn prepare(connection: &Connection) -> rusqlite::Result<()> {
    connection.busy_timeout(std::time::Duration::ZERO)?;
    connection.pragma_update(None, "locking_mode", "EXCLUSIVE")?;
    connection.pragma_update_and_check(None, "journal_mode", "WAL", |_| Ok(()))?;
    connection.pragma_update(None, "synchronous", "FULL")?;
    // A deleted prompt is not readable in the file.
    connection.pragma_update(None, "secure_delete", "ON")
}

fn create(connection: &Connection) -> rusqlite::Result<()> {
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
         PRAGMA user_version = {VERSION};
         COMMIT;"
    ))
}

fn rows(connection: &Connection) -> rusqlite::Result<Vec<Row>> {
    connection
        .prepare(
            "SELECT queue, id, text, inserted_at, visible_at, dequeue_count
             FROM messages ORDER BY number",
        )?
        .query_map([], |row| {
            Ok(Row {
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
impl Disk {
    pub(super) fn pragma(&self, name: &str) -> String {
        let read = |row: &rusqlite::Row<'_>| row.get::<_, rusqlite::types::Value>(0);
        format!("{:?}", self.connection().pragma_query_value(None, name, read).unwrap())
    }

    /// Every write fails from now on.
    pub(super) fn break_it(&self) {
        self.connection().pragma_update(None, "query_only", "ON").unwrap();
    }
}
