//! Tests of the embedded store: group commit, durability and disk errors.

use std::cell::RefCell;
use std::fs;
use std::path::Path;
use std::sync::{Arc, mpsc};

use futures_util::future::join_all;
use rusqlite::Connection;

use super::{DATABASE_FILE, EmbeddedStore, OpenError};
use crate::store::contract::assert_store_contract;
use crate::store::{
    ConversationStore, Document, DocumentKind, Freshness, Partition, Selection, StoreError, Write,
    entry_id,
};
use turnwheel_platform::ids::{ConversationId, ConversationKey, TenantId, UserId};
use turnwheel_test_support::captured_log::CapturedLog;

thread_local! {
    /// Log lines of a writer thread: a log is captured by thread.
    static WRITER_LOG: RefCell<Option<CapturedLog>> = const { RefCell::new(None) };
}

fn open(folder: &Path) -> EmbeddedStore {
    EmbeddedStore::open(folder).unwrap()
}

fn conversation(number: usize) -> Partition {
    Partition::Conversation(ConversationKey {
        tenant: TenantId::new("t"),
        user: UserId::new("ada"),
        conversation_id: ConversationId::new(format!("c{number}")),
    })
}

fn entry(seq: u64, bytes: usize) -> Write {
    Write::Create(Document::new(entry_id(seq), DocumentKind::Entry, &"x".repeat(bytes), None))
}

async fn entry_ids(store: &EmbeddedStore, at: &Partition) -> Vec<String> {
    let found =
        store.select(at, &Selection::all(DocumentKind::Entry), Freshness::Latest).await.unwrap();
    found.into_iter().map(|stored| stored.document.id).collect()
}

/// Blocks the writer until the returned sender is dropped.
fn block_writer(store: &EmbeddedStore) -> mpsc::Sender<()> {
    let (blocked_sender, blocked) = mpsc::channel();
    let (release, release_receiver) = mpsc::channel();
    store.writer.run_on_connection(move |_| {
        blocked_sender.send(()).unwrap();
        let _ = release_receiver.recv();
    });
    blocked.recv().unwrap();
    release
}

#[tokio::test(flavor = "multi_thread")]
async fn embedded_store_passes_contract() {
    let folder = tempfile::tempdir().unwrap();
    let store = Arc::new(open(folder.path()));
    assert_store_contract(async || Arc::clone(&store) as Arc<dyn ConversationStore>).await;
}

#[tokio::test]
async fn waiting_batches_share_one_fsync() {
    const WRITERS: usize = 64;
    let folder = tempfile::tempdir().unwrap();
    let store = open(folder.path());
    let release = block_writer(&store);
    let partitions: Vec<_> = (0..WRITERS).map(conversation).collect();
    let writes = partitions.iter().map(|at| store.write(at, vec![entry(1, 100)]));
    // All batches are sent before the first result: each future sends at its first poll.
    let release = async move { drop(release) };
    let (answers, ()) = futures_util::join!(join_all(writes), release);
    assert!(answers.iter().all(Result::is_ok));
    assert_eq!(store.commit_count(), 1, "{WRITERS} writers, one fsync");
}

#[tokio::test]
async fn batches_of_one_conversation_never_share_transaction() {
    let folder = tempfile::tempdir().unwrap();
    let store = open(folder.path());
    let release = block_writer(&store);
    let (one, other) = (conversation(1), conversation(2));
    let scope = Partition::Scope(TenantId::new("t"));
    let account = |id: &str| Write::Create(Document::new(id, DocumentKind::Scope, &1, None));
    let (first, second, third, fourth, fifth, sixth, ()) = futures_util::join!(
        store.write(&one, vec![entry(1, 1)]),
        store.write(&one, vec![entry(1, 2)]),
        store.write(&one, vec![entry(2, 1)]),
        store.write(&other, vec![entry(1, 1)]),
        store.write(&scope, vec![account("a")]),
        store.write(&scope, vec![account("b")]),
        async move { drop(release) },
    );
    assert!(first.is_ok() && third.is_ok() && fourth.is_ok() && fifth.is_ok() && sixth.is_ok());
    assert!(matches!(second, Err(StoreError::Conflict)), "batches keep their order");
    // The second transaction held only the rejected batch, so it was rolled back.
    assert_eq!(store.commit_count(), 2);
}

#[tokio::test]
async fn conflicting_batch_does_not_affect_its_group() {
    let folder = tempfile::tempdir().unwrap();
    let store = open(folder.path());
    let partitions: Vec<_> = (0..3).map(conversation).collect();
    store.write(&partitions[1], vec![entry(2, 1)]).await.unwrap();
    let release = block_writer(&store);
    let writes = partitions.iter().map(|at| store.write(at, vec![entry(1, 1), entry(2, 1)]));
    let (answers, ()) = futures_util::join!(join_all(writes), async move { drop(release) });
    assert!(answers[0].is_ok() && answers[2].is_ok());
    assert!(matches!(answers[1], Err(StoreError::Conflict)));
    assert_eq!(store.commit_count(), 2);
    assert_eq!(entry_ids(&store, &partitions[0]).await.len(), 2);
    assert_eq!(entry_ids(&store, &partitions[1]).await, [entry_id(2)]);
}

#[tokio::test]
async fn checkpoint_runs_when_log_is_long() {
    let folder = tempfile::tempdir().unwrap();
    let store = open(folder.path());
    for seq in 1..=30 {
        store.write(&conversation(1), vec![entry(seq, 400_000)]).await.unwrap();
    }
    assert_eq!(store.commit_count(), 30);
    // The last checkpoint may still run after the last write has returned; earlier ones are done.
    assert!((1..=4).contains(&store.checkpoint_count()), "{}", store.checkpoint_count());
    assert_eq!(entry_ids(&store, &conversation(1)).await.len(), 30);
}

#[tokio::test]
async fn failed_commit_is_reported_to_all_callers() {
    let folder = tempfile::tempdir().unwrap();
    let store = open(folder.path());
    store.writer.run_on_connection(|connection| connection.commit_hook(Some(|| true)).unwrap());
    let release = block_writer(&store);
    let partitions: Vec<_> = (0..3).map(conversation).collect();
    let writes = partitions.iter().map(|at| store.write(at, vec![entry(1, 1)]));
    let (answers, ()) = futures_util::join!(join_all(writes), async move { drop(release) });
    assert!(answers.iter().all(|answer| matches!(answer, Err(StoreError::Unavailable(_)))));
    store
        .writer
        .run_on_connection(|connection| connection.commit_hook(None::<fn() -> bool>).unwrap());
    for at in &partitions {
        store.write(at, vec![entry(1, 1)]).await.unwrap();
    }
}

#[tokio::test]
async fn open_transaction_is_rolled_back_by_next_commit() {
    let folder = tempfile::tempdir().unwrap();
    let store = open(folder.path());
    let at = conversation(1);
    // The state after a COMMIT that could not reach the disk.
    store
        .writer
        .run_on_connection(|connection| connection.execute_batch("BEGIN IMMEDIATE").unwrap());
    let answer = store.write(&at, vec![entry(1, 1)]).await;
    assert!(matches!(answer, Err(StoreError::Unavailable(_))), "{answer:?}");
    store.write(&at, vec![entry(1, 1)]).await.unwrap();
    assert_eq!(entry_ids(&store, &at).await, [entry_id(1)]);
}

#[tokio::test]
async fn full_disk_fails_writes_until_space_returns() {
    let folder = tempfile::tempdir().unwrap();
    let store = open(folder.path());
    let limit = |pages: u32| {
        store.writer.run_on_connection(move |connection| {
            connection.pragma_update_and_check(None, "max_page_count", pages, |_| Ok(())).unwrap();
        });
    };
    store.write(&conversation(1), vec![entry(1, 10)]).await.unwrap();
    limit(20);
    let answer = store.write(&conversation(1), vec![entry(2, 10), entry(3, 900_000)]).await;
    assert!(matches!(answer, Err(StoreError::Unavailable(_))), "{answer:?}");
    assert_eq!(entry_ids(&store, &conversation(1)).await, [entry_id(1)], "nothing half written");
    limit(1_000_000);
    store.write(&conversation(1), vec![entry(2, 10), entry(3, 900_000)]).await.unwrap();
}

#[tokio::test]
async fn full_disk_is_logged_as_an_error() {
    let folder = tempfile::tempdir().unwrap();
    let store = open(folder.path());
    store.writer.run_on_connection(|connection| {
        WRITER_LOG.set(Some(CapturedLog::start()));
        connection.pragma_update_and_check(None, "max_page_count", 20, |_| Ok(())).unwrap();
    });
    let answer = store.write(&conversation(1), vec![entry(1, 900_000)]).await;
    assert!(matches!(answer, Err(StoreError::Unavailable(_))), "{answer:?}");
    let (sender, receiver) = mpsc::channel();
    store.writer.run_on_connection(move |_| {
        sender.send(WRITER_LOG.take().unwrap().text()).unwrap();
    });
    let text = receiver.recv().unwrap();
    let line = "ERROR store transaction failed error=database or disk is full batches=1 count=1";
    assert!(text.contains(line), "{text}");
}

#[tokio::test]
async fn etags_stay_valid_after_reopen() {
    let folder = tempfile::tempdir().unwrap();
    let at = conversation(1);
    let store = open(folder.path());
    let etag = store.write(&at, vec![entry(1, 10)]).await.unwrap().remove(0);
    drop(store);
    let store = open(folder.path());
    let Write::Create(document) = entry(1, 20) else { unreachable!() };
    let replaced = store.write(&at, vec![Write::Replace(document, Some(etag.clone()))]).await;
    let replaced = replaced.unwrap().remove(0);
    assert_ne!(replaced, etag);
    store.write(&at, vec![Write::Delete(entry_id(1), Some(replaced.clone()))]).await.unwrap();
    drop(store);
    let store = open(folder.path());
    store.write(&at, vec![entry(1, 10)]).await.unwrap();
    for old in [etag, replaced] {
        let answer = store.write(&at, vec![Write::Delete(entry_id(1), Some(old))]).await;
        assert!(matches!(answer, Err(StoreError::Conflict)), "an ETag of a deleted document");
    }
}

/// Simulates a crash: copies the files of a running store with the log cut at many lengths, because
/// any prefix of the log may have reached the disk.
#[tokio::test]
async fn crash_keeps_every_committed_batch_whole() {
    let folder = tempfile::tempdir().unwrap();
    let store = open(folder.path());
    let log = format!("{DATABASE_FILE}-wal");
    let mut lengths = Vec::new();
    for number in 0..12 {
        let writes = vec![entry(2 * number + 1, 3_000), entry(2 * number + 2, 3_000)];
        store.write(&conversation(1), writes).await.unwrap();
        lengths.push(fs::metadata(folder.path().join(&log)).unwrap().len());
    }
    assert_eq!(store.checkpoint_count(), 0, "only the log has grown");
    let longest = *lengths.last().unwrap();
    let step = usize::try_from(longest / 40).unwrap();
    for cut in (0..=longest).step_by(step).chain(lengths.iter().copied()) {
        let copy = tempfile::tempdir().unwrap();
        fs::copy(folder.path().join(DATABASE_FILE), copy.path().join(DATABASE_FILE)).unwrap();
        let bytes = fs::read(folder.path().join(&log)).unwrap();
        fs::write(copy.path().join(&log), &bytes[..usize::try_from(cut).unwrap()]).unwrap();
        let Ok(reopened) = EmbeddedStore::open(copy.path()) else { panic!("cut at {cut}") };
        let found = entry_ids(&reopened, &conversation(1)).await;
        let answered = lengths.iter().filter(|length| **length <= cut).count();
        assert_eq!(found.len(), 2 * answered, "cut at {cut} of {lengths:?}");
        reopened.write(&conversation(1), vec![entry(99, 1)]).await.unwrap();
    }
}

#[test]
fn locked_folder_error_shows_note() {
    let folder = tempfile::tempdir().unwrap();
    let store = open(folder.path());
    let refused = || EmbeddedStore::open(folder.path()).unwrap_err().to_string();
    assert!(refused().ends_with("is in use by another process"), "{}", refused());
    store.set_lock_note("http://127.0.0.1:7071\n").unwrap();
    let text = refused();
    assert!(text.ends_with("is in use by another process: http://127.0.0.1:7071"), "{text}");
    drop(store);
    let store = open(folder.path());
    assert!(refused().ends_with("is in use by another process"), "the old note is gone");
    drop(store);
}

#[test]
fn foreign_and_newer_files_are_rejected() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join(DATABASE_FILE);
    let refusal = || EmbeddedStore::open(folder.path()).unwrap_err();

    drop(open(folder.path()));
    Connection::open(&file).unwrap().pragma_update(None, "user_version", 1000).unwrap();
    let error = refusal();
    assert!(matches!(error, OpenError::Newer { found: 1000, .. }), "{error}");

    fs::remove_file(&file).unwrap();
    Connection::open(&file).unwrap().execute_batch("CREATE TABLE theirs (x)").unwrap();
    assert!(matches!(refusal(), OpenError::Foreign { .. }));

    fs::write(&file, "not a database, and longer than a header of one hundred bytes".repeat(20))
        .unwrap();
    assert!(matches!(refusal(), OpenError::Database { .. }));

    let under_a_file = file.join("folder");
    let error = EmbeddedStore::open(&under_a_file).unwrap_err();
    assert!(matches!(error, OpenError::Folder { .. }), "{error}");
}

#[tokio::test]
async fn damaged_document_is_reported_as_corrupt() {
    let folder = tempfile::tempdir().unwrap();
    let store = open(folder.path());
    let at = conversation(1);
    store.write(&at, vec![entry(1, 10), entry(2, 10)]).await.unwrap();
    store.writer.run_on_connection(|connection| {
        connection
            .execute_batch(
                "UPDATE documents SET body = '{\"half' WHERE id = '000000000001';
                 UPDATE documents SET kind = 'strange' WHERE id = '000000000002';",
            )
            .unwrap();
    });
    // This write waits until the writer has damaged the rows.
    store.write(&at, vec![entry(3, 1)]).await.unwrap();
    for seq in [1, 2] {
        let answer = store.read(&at, &entry_id(seq), Freshness::Latest).await;
        assert!(matches!(answer, Err(StoreError::Corrupt(_))), "{answer:?}");
    }
}

#[tokio::test]
async fn write_completes_when_caller_stops_waiting() {
    let folder = tempfile::tempdir().unwrap();
    let store = open(folder.path());
    let release = block_writer(&store);
    let at = conversation(1);
    {
        let mut write = Box::pin(store.write(&at, vec![entry(1, 1)]));
        assert!(futures_util::poll!(&mut write).is_pending());
    }
    drop(release);
    store.write(&conversation(2), vec![entry(1, 1)]).await.unwrap();
    assert_eq!(entry_ids(&store, &at).await, [entry_id(1)]);
}

#[test]
fn empty_or_missing_database_beside_files_of_a_store_is_refused() {
    for is_missing in [false, true] {
        let folder = tempfile::tempdir().unwrap();
        drop(EmbeddedStore::open(folder.path()).unwrap());
        // A new folder, also one whose first start ended early.
        drop(EmbeddedStore::open(folder.path()).unwrap());
        let database = folder.path().join(DATABASE_FILE);
        fs::create_dir(folder.path().join("artifacts")).unwrap();
        if is_missing {
            fs::remove_file(&database).unwrap();
        } else {
            fs::write(&database, "").unwrap();
        }
        let error = EmbeddedStore::open(folder.path()).unwrap_err().to_string();
        assert!(
            error.contains("artifacts beside it belongs to a store")
                && error.contains("move the folder away to start empty"),
            "{error}"
        );
        assert_eq!(database.metadata().map_or(0, |it| it.len()), 0, "nothing was changed");
    }
}

#[test]
fn missing_database_beside_leases_is_refused() {
    let folder = tempfile::tempdir().unwrap();
    drop(EmbeddedStore::open(folder.path()).unwrap());
    let database = folder.path().join(DATABASE_FILE);
    fs::remove_file(&database).unwrap();
    let error = EmbeddedStore::open(folder.path()).unwrap_err();
    assert!(matches!(error, OpenError::Lost { is_missing: true, .. }), "{error}");
    assert!(error.to_string().contains("leases beside it belongs to a store"), "{error}");
    assert!(!database.exists(), "nothing was changed");
}

#[tokio::test]
async fn store_of_a_deleted_folder_takes_no_writes() {
    let folder = tempfile::tempdir().unwrap();
    let store = EmbeddedStore::open(folder.path()).unwrap();
    let partition = Partition::Scope(TenantId::new("t"));
    let document = |id: &str| {
        Document::new(id, DocumentKind::Scope, &serde_json::json!({"text": "secret words"}), None)
    };
    store.write(&partition, vec![Write::Create(document("one"))]).await.unwrap();
    fs::remove_dir_all(folder.path()).unwrap();
    let error = store.write(&partition, vec![Write::Create(document("two"))]).await.unwrap_err();
    let text = turnwheel_platform::error_chain::error_chain(&error);
    assert!(text.contains("was deleted while the service ran"), "{text}");
}

#[tokio::test]
async fn deleted_entries_leave_no_text_in_the_files() {
    let folder = tempfile::tempdir().unwrap();
    let store = EmbeddedStore::open(folder.path()).unwrap();
    let partition = Partition::Conversation(ConversationKey {
        tenant: TenantId::new("t"),
        user: UserId::new("u"),
        conversation_id: ConversationId::new("c"),
    });
    let text = "a very particular sentence ".repeat(400);
    let ids: Vec<String> = (1..=20).map(entry_id).collect();
    for id in &ids {
        let body = serde_json::json!({"text": text});
        let entry = Document::new(id.clone(), DocumentKind::Entry, &body, None);
        store.write(&partition, vec![Write::Create(entry)]).await.unwrap();
    }
    let deletions = ids.iter().map(|id| Write::Delete(id.clone(), None)).collect();
    store.write(&partition, deletions).await.unwrap();
    // Another write waits until the checkpoint is done.
    let other = Document::new("x", DocumentKind::Receipt, &serde_json::json!({}), None);
    store.write(&partition, vec![Write::Create(other)]).await.unwrap();
    assert_no_text_is_left(folder.path());
}

fn assert_no_text_is_left(folder: &Path) {
    for file in fs::read_dir(folder).unwrap() {
        let path = file.unwrap().path();
        let bytes = fs::read(&path).unwrap_or_default();
        let found = bytes.windows(15).any(|part| part == b"very particular");
        assert!(!found, "{}", path.display());
    }
}

/// The deletion of one note replaces the document of all notes.
#[tokio::test]
async fn deleted_user_documents_leave_no_text_in_the_files() {
    let folder = tempfile::tempdir().unwrap();
    let store = open(folder.path());
    let partition = Partition::User { tenant: TenantId::new("t"), user: UserId::new("ada") };
    let note = |id: &str, text: &str| {
        Document::new(id, DocumentKind::Scope, &serde_json::json!({"text": text}), None)
    };
    let text = "a very particular note ".repeat(400);
    let removals = [
        ("memory", Write::Replace(note("memory", ""), None)),
        ("profile", Write::Delete("profile".to_owned(), None)),
    ];
    for (seq, (id, removal)) in (1..).zip(removals) {
        store.write(&partition, vec![Write::Create(note(id, &text))]).await.unwrap();
        store.write(&partition, vec![removal]).await.unwrap();
        // Another write waits until the checkpoint is done.
        store.write(&conversation(1), vec![entry(seq, 10)]).await.unwrap();
        assert_no_text_is_left(folder.path());
    }
}
