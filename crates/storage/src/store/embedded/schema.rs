//! The database file: schema, migrations and connection settings.

use std::error::Error;
use std::path::Path;
use std::time::Duration;

use rusqlite::config::DbConfig;
use rusqlite::{Connection, OpenFlags, TransactionBehavior};

use crate::store::embedded::OpenError;

/// "Turn" in ASCII: identifies our databases, also for the `file` command.
const APPLICATION_ID: i64 = 0x5475_726e;

/// Migrations from schema `n` to `n + 1`. Append only.
///
/// Version 1: the key columns of a scope are its tenant and two empty strings. Queries by kind scan
/// the primary key for entries and events, which are most of a conversation; the rare kinds have
/// an index. Each commit rewrites the row of the head, so `due` is the only indexed column that
/// changes with it. Rows have a rowid, so that long bodies are not part of the key's tree. Without
/// a rowid the file was 25 % larger, a commit wrote 50 % more pages, and SQLite did not use
/// `documents_rare`.
///
/// Version 2: adds the time to live, which this store keeps but does not enforce.
///
/// Version 3: the index of the rare kinds compares the names one by one. With `NOT IN` each row
/// write built a table of the four names, which took a fifth of its time.
///
/// Version 4: the text that a search compares. The index has every column that a search reads, so
/// that it reads no row.
///
/// Version 5: heads count the changes of their inbox, and no inbox document is due by itself. The
/// count of an older head is unknown, and a head whose inbox was due is due now.
///
/// Version 6: an events document can contain the entries of its commit, so entries are found by the
/// last one in a document. The rows of entries have no `last_entry`: a migration that writes it would
/// copy every body.
const MIGRATIONS: &[&str] = &[
    "
    CREATE TABLE meta (name TEXT PRIMARY KEY, value INTEGER NOT NULL) STRICT, WITHOUT ROWID;
    CREATE TABLE documents (
        tenant TEXT NOT NULL,
        user TEXT NOT NULL,
        conversation TEXT NOT NULL,
        id TEXT NOT NULL,
        kind TEXT NOT NULL,
        version INTEGER NOT NULL,
        due INTEGER,
        created_at INTEGER,
        state TEXT,
        body TEXT NOT NULL,
        PRIMARY KEY (tenant, user, conversation, id)
    ) STRICT;
    CREATE INDEX documents_due ON documents (due, tenant, user, conversation, id, kind)
        WHERE due IS NOT NULL;
    CREATE INDEX documents_rare ON documents (tenant, user, conversation, kind, id)
        WHERE kind NOT IN ('entry', 'events', 'head', 'scope');
    CREATE INDEX heads_of_tenant ON documents (tenant, created_at, conversation, user)
        WHERE kind = 'head';
    CREATE INDEX heads_of_user ON documents (tenant, user, created_at, conversation)
        WHERE kind = 'head';
",
    "ALTER TABLE documents ADD COLUMN ttl INTEGER;",
    "
    DROP INDEX documents_rare;
    CREATE INDEX documents_rare ON documents (tenant, user, conversation, kind, id)
        WHERE kind <> 'entry' AND kind <> 'events' AND kind <> 'head' AND kind <> 'scope';
",
    "
    ALTER TABLE documents ADD COLUMN search_text TEXT;
    ALTER TABLE documents ADD COLUMN excerpt TEXT;
    CREATE INDEX documents_searched
        ON documents (tenant, user, created_at, conversation, id, search_text, excerpt)
        WHERE search_text IS NOT NULL;
",
    "
    ALTER TABLE documents ADD COLUMN inbox_count INTEGER;
    UPDATE documents SET due = 0
        WHERE id = 'head' AND EXISTS (
            SELECT 1 FROM documents AS waiting
            WHERE waiting.tenant = documents.tenant AND waiting.user = documents.user
                AND waiting.conversation = documents.conversation
                AND waiting.kind = 'inbox' AND waiting.due IS NOT NULL);
    UPDATE documents SET due = NULL WHERE kind = 'inbox' AND due IS NOT NULL;
",
    "
    ALTER TABLE documents ADD COLUMN last_entry TEXT;
    CREATE INDEX documents_with_entries
        ON documents (tenant, user, conversation, ifnull(last_entry, id))
        WHERE kind = 'entry' OR last_entry IS NOT NULL;
",
];

/// Capacity of each connection's statement cache; there are fewer statements.
const STATEMENTS_MAX: usize = 32;
/// Size to which the log is truncated when it restarts.
const LOG_BYTES_MAX: i64 = 16 * 1024 * 1024;
/// Page cache of a read connection, in KiB (SQLite marks the unit by the negative sign). The
/// operating system caches the file too.
const READER_CACHE_SIZE: i64 = -512;
/// Busy timeout. Only one process writes and readers never lock, so a longer wait is pointless.
const BUSY_TIMEOUT: Duration = Duration::from_secs(5);

/// The failure that a committed transaction survives.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Durability {
    PowerCut,
    Process,
}

/// Opens the write connection. Also returns a number that increases with each opening.
pub(super) fn open_writer(
    file: &Path,
    durability: Durability,
) -> Result<(Connection, u32), OpenError> {
    let failed = |source: rusqlite::Error| OpenError::Database {
        file: file.to_owned(),
        source: source.into(),
    };
    let mut connection = Connection::open(file).map_err(failed)?;
    let application: i64 = read_pragma(&connection, "application_id").map_err(failed)?;
    let found: i64 = read_pragma(&connection, "user_version").map_err(failed)?;
    let tables: i64 = connection
        .query_row("SELECT count(*) FROM sqlite_schema", (), |row| row.get(0))
        .map_err(failed)?;
    if application != APPLICATION_ID && (application, found, tables) != (0, 0, 0) {
        return Err(OpenError::Foreign { file: file.to_owned() });
    }
    let known = i64::try_from(MIGRATIONS.len()).unwrap_or(i64::MAX);
    if found > known {
        return Err(OpenError::Newer { file: file.to_owned(), found, known });
    }
    configure_writer(&connection, durability)
        .map_err(|source| OpenError::Database { file: file.to_owned(), source })?;
    migrate(&mut connection, found).map_err(failed)?;
    let generation = next_generation(&connection).map_err(failed)?;
    Ok((connection, generation))
}

/// Opens a read-only connection, which sees every completed commit.
pub(super) fn open_reader(file: &Path) -> rusqlite::Result<Connection> {
    let flags = OpenFlags::SQLITE_OPEN_READ_ONLY | OpenFlags::SQLITE_OPEN_NO_MUTEX;
    let connection = Connection::open_with_flags(file, flags)?;
    connection.busy_timeout(BUSY_TIMEOUT)?;
    connection.pragma_update(None, "cache_size", READER_CACHE_SIZE)?;
    configure_statements(&connection)?;
    Ok(connection)
}

/// Prepares each statement once. Without the query planner stability guarantee, SQLite plans by
/// bound values (a LIMIT is enough) and plans again at each binding, which took three quarters of
/// the time of an inbox read.
fn configure_statements(connection: &Connection) -> rusqlite::Result<()> {
    connection.set_prepared_statement_cache_capacity(STATEMENTS_MAX);
    connection.set_db_config(DbConfig::SQLITE_DBCONFIG_ENABLE_QPSG, true)?;
    Ok(())
}

fn configure_writer(
    connection: &Connection,
    durability: Durability,
) -> Result<(), Box<dyn Error + Send + Sync>> {
    connection.busy_timeout(BUSY_TIMEOUT)?;
    configure_statements(connection)?;
    // Deleted and replaced content is overwritten: free pages keep nothing of a deleted user.
    connection.pragma_update(None, "secure_delete", "ON")?;
    // Check the result: a file system without shared memory returns another mode.
    let mode: String = connection.query_row("PRAGMA journal_mode = WAL", (), |row| row.get(0))?;
    if mode != "wal" {
        return Err(format!(
            "the file system does not support WAL (journal mode {mode}): use a local disk"
        )
        .into());
    }
    if durability == Durability::Process {
        connection.pragma_update(None, "synchronous", "OFF")?;
        return Ok(());
    }
    connection.pragma_update(None, "synchronous", "FULL")?;
    // macOS: fsync alone does not reach the disk. Elsewhere these do nothing.
    connection.pragma_update(None, "fullfsync", true)?;
    connection.pragma_update(None, "checkpoint_fullfsync", true)?;
    connection.pragma_update_and_check(None, "journal_size_limit", LOG_BYTES_MAX, |_| Ok(()))?;
    Ok(())
}

fn migrate(connection: &mut Connection, found: i64) -> rusqlite::Result<()> {
    let done = usize::try_from(found).unwrap_or(0);
    if done < MIGRATIONS.len() {
        // One transaction for all: the first start waits for the disk once.
        let transaction = connection.transaction_with_behavior(TransactionBehavior::Immediate)?;
        for migration in MIGRATIONS.iter().skip(done) {
            transaction.execute_batch(migration)?;
        }
        transaction.pragma_update(None, "application_id", APPLICATION_ID)?;
        let known = i64::try_from(MIGRATIONS.len()).unwrap_or(i64::MAX);
        transaction.pragma_update(None, "user_version", known)?;
        transaction.commit()?;
    }
    Ok(())
}

fn next_generation(connection: &Connection) -> rusqlite::Result<u32> {
    connection.query_row(
        "INSERT INTO meta (name, value) VALUES ('generation', 1)
         ON CONFLICT (name) DO UPDATE SET value = value + 1 RETURNING value",
        (),
        |row| row.get(0),
    )
}

fn read_pragma(connection: &Connection, name: &str) -> rusqlite::Result<i64> {
    connection.pragma_query_value(None, name, |row| row.get(0))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::store::embedded::{DATABASE_FILE, EmbeddedStore};
    use crate::store::{
        ConversationStore as _, DocumentKind, Freshness, HEAD_ID, Partition, Selection, Write,
    };
    use turnwheel_platform::clock::Timestamp;
    use turnwheel_platform::ids::{ConversationId, ConversationKey, TenantId, UserId};

    #[tokio::test]
    async fn first_schema_file_is_migrated() {
        let folder = tempfile::tempdir().unwrap();
        let old = Connection::open(folder.path().join(DATABASE_FILE)).unwrap();
        old.execute_batch(MIGRATIONS[0]).unwrap();
        old.pragma_update(None, "application_id", APPLICATION_ID).unwrap();
        old.pragma_update(None, "user_version", 1).unwrap();
        old.execute_batch(
            "INSERT INTO documents (tenant, user, conversation, id, kind, version, body)
             VALUES ('t', 'ada', 'c1', 'head', 'head', 6, '{}'),
                 ('t', 'ada', 'c2', 'head', 'head', 8, '{}'),
                 ('t', 'ada', 'c1', 'in_1', 'inbox', 7, '{}'),
                 ('t', 'ada', 'c2', 'in_2', 'inbox', 9, '{}'),
                 ('t', 'ada', 'c1', '000000000001', 'entry', 10, '{}');
             UPDATE documents SET due = 5 WHERE id = 'in_1'",
        )
        .unwrap();
        drop(old);

        let store = EmbeddedStore::open(folder.path()).unwrap();
        let at = Partition::Conversation(ConversationKey {
            tenant: TenantId::new("t"),
            user: UserId::new("ada"),
            conversation_id: ConversationId::new("c1"),
        });
        let found = store.read(&at, "in_1", Freshness::Latest).await.unwrap().unwrap();
        assert_eq!((found.document.kind, found.document.ttl), (DocumentKind::Inbox, None));
        let entries =
            store.select(&at, &Selection::entries(1, 1), Freshness::Latest).await.unwrap();
        assert_eq!(entries.len(), 1);
        // The head is due for an item that was due, and its inbox must be read.
        let due = store.list_due(Timestamp(9), 9, None).await.unwrap().items;
        let due: Vec<_> = due.iter().map(|item| (item.partition.clone(), &*item.id)).collect();
        assert_eq!(due, [(at.clone(), HEAD_ID)]);
        let head = store.read(&at, HEAD_ID, Freshness::Latest).await.unwrap().unwrap();
        assert_eq!(head.document.inbox_count, None);
        let watch = crate::store::Document {
            id: "watch".to_owned(),
            kind: DocumentKind::Watch,
            ttl: Some(30),
            ..found.document.clone()
        };
        let replaced = Write::Replace(found.document, Some(found.etag));
        let count = Write::CountInboxChange { due: None, room: None };
        store.write(&at, vec![replaced, Write::Create(watch.clone()), count]).await.unwrap();
        let kept = store.read(&at, "watch", Freshness::Latest).await.unwrap().unwrap();
        assert_eq!(kept.document, watch);
    }
}
