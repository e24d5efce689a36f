//! Tests that the cache always equals the file.

use super::{CachedConversation, ConversationCache};
use crate::store::embedded::{EmbeddedStore, rows};
use crate::store::{
    ConversationStore as _, Document, DocumentKind, ETag, Freshness, HEAD_ID, LeaseRequest,
    Partition, Selection, StoredDocument, Write,
};
use turnwheel_platform::clock::Timestamp;
use turnwheel_platform::ids::{ConversationId, ConversationKey, TenantId, UserId, WorkerId};

const SEEDS: u64 = 8;
const STEPS: usize = 120;

fn key() -> ConversationKey {
    ConversationKey {
        tenant: TenantId::new("t"),
        user: UserId::new("ada"),
        conversation_id: ConversationId::new("c"),
    }
}

fn document(id: &str, kind: DocumentKind, number: usize) -> Document {
    let body = serde_json::json!({ "number": number });
    let due = number.is_multiple_of(2).then_some(Timestamp(7));
    let state = (kind == DocumentKind::Head).then(|| "running".to_owned());
    let created_at = (kind == DocumentKind::Head).then_some(Timestamp(3));
    let inbox_count = (kind == DocumentKind::Head && !number.is_multiple_of(3)).then_some(0);
    Document { created_at, state, inbox_count, ..Document::new(id, kind, &body, due) }
}

type HeadAndInbox = (Option<StoredDocument>, Vec<StoredDocument>);

async fn read_from_store(store: &EmbeddedStore, selection: &Selection) -> HeadAndInbox {
    let at = Partition::Conversation(key());
    let head = store.read(&at, HEAD_ID, Freshness::Latest).await.unwrap();
    (head, store.select(&at, selection, Freshness::Latest).await.unwrap())
}

async fn read_from_file(store: &EmbeddedStore, selection: &Selection) -> HeadAndInbox {
    let (at, selection) = (Partition::Conversation(key()), selection.clone());
    let read = store.readers.run_read(move |connection| {
        Ok((rows::read(connection, &at, HEAD_ID)?, rows::select(connection, &at, &selection)?))
    });
    read.await.unwrap()
}

/// Returns a random write, which may conflict.
fn random_write(rng: &mut fastrand::Rng, number: usize, etag: Option<ETag>) -> Write {
    let id = format!("in_{}", rng.u32(0..4));
    let etag = etag.filter(|_| rng.bool());
    match rng.u32(0..8) {
        0 => Write::Create(document(HEAD_ID, DocumentKind::Head, number)),
        1 | 2 => Write::Replace(document(HEAD_ID, DocumentKind::Head, number), etag),
        3 | 4 => Write::Create(document(&id, DocumentKind::Inbox, number)),
        5 => Write::Replace(document(&id, DocumentKind::Inbox, number), None),
        6 => Write::Replace(document(&id, DocumentKind::Receipt, number), None),
        _ => Write::Delete(if rng.u32(0..6) == 0 { HEAD_ID.to_owned() } else { id }, None),
    }
}

#[tokio::test]
async fn cache_equals_file_after_random_writes() {
    let mut found = 0;
    for seed in 0..SEEDS {
        let folder = tempfile::tempdir().unwrap();
        let store = EmbeddedStore::open(folder.path()).unwrap();
        let mut rng = fastrand::Rng::with_seed(seed);
        let all = Selection::all(DocumentKind::Inbox);
        for number in 0..STEPS {
            let etag = read_from_store(&store, &all).await.0.map(|head| head.etag);
            let writes = (0..rng.usize(1..3)).map(|_| random_write(&mut rng, number, etag.clone()));
            let mut writes: Vec<Write> = writes.collect();
            if rng.bool() {
                writes.push(Write::CountInboxChange { due: Some(Timestamp(5)), room: None });
            }
            let _ = store.write(&Partition::Conversation(key()), writes).await;
            if rng.bool() {
                let (key, worker) = (key(), WorkerId::new(number.to_string()));
                let (now, until) = (Timestamp(1), Timestamp(2));
                let _ = store
                    .acquire_lease(LeaseRequest {
                        key: &key,
                        worker: &worker,
                        now,
                        until,
                        expired: None,
                    })
                    .await;
                store.release_lease(&key, &worker).await;
            }
            let part = Selection {
                from_id: Some("in_1".to_owned()),
                to_id: Some("in_2".to_owned()),
                ..Selection::all(DocumentKind::Inbox)
            };
            for selection in [all.clone(), part, Selection { limit: 1, ..all.clone() }] {
                let (from_store, from_file) = (
                    read_from_store(&store, &selection).await,
                    read_from_file(&store, &selection).await,
                );
                assert_eq!(from_store, from_file, "seed {seed}, step {number}");
            }
            found += usize::from(store.cache.get(&Partition::Conversation(key())).is_some());
        }
    }
    assert!(found > STEPS, "most reads use the cache: {found}");
}

#[test]
fn conversation_written_during_read_is_not_cached() {
    let cache = ConversationCache::default();
    let at = Partition::Conversation(key());
    let head = StoredDocument {
        document: document(HEAD_ID, DocumentKind::Head, 1),
        etag: ETag("1".to_owned()),
    };
    let read = || Ok::<_, ()>(CachedConversation::new(Some(head.clone()), Vec::new()));
    cache.read_through(&key(), read).unwrap();
    assert!(cache.get(&at).is_some());

    let taken = cache.take_for_commit(&at).unwrap();
    assert!(cache.get(&at).is_none(), "its commit is in progress");
    cache.read_through(&key(), read).unwrap();
    assert!(cache.get(&at).is_none(), "a read during the commit may be stale");
    let replaced = Write::Replace(document(HEAD_ID, DocumentKind::Head, 2), None);
    cache.restore_after_commit(taken, std::slice::from_ref(&replaced), &[ETag("2".to_owned())]);
    assert_eq!(cache.get(&at).unwrap().head.as_ref().unwrap().etag.0, "2");

    cache.discard_after_failure(&cache.take_for_commit(&at).unwrap());
    assert!(cache.get(&at).is_none(), "only the file has the state after a failed commit");
    cache
        .read_through(&key(), || {
            let taken = cache.take_for_commit(&at).unwrap();
            cache.restore_after_commit(
                taken,
                std::slice::from_ref(&replaced),
                &[ETag("3".to_owned())],
            );
            read()
        })
        .unwrap();
    assert!(cache.get(&at).is_none(), "written while it was read");
}
