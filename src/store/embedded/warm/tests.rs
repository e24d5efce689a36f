//! Tests that the cache always equals the file.

use super::{Known, Warm};
use crate::agent::raw::RawJson;
use crate::clock::Timestamp;
use crate::ids::{ConversationId, ConversationKey, TenantId, UserId, WorkerId};
use crate::store::embedded::{EmbeddedStore, rows};
use crate::store::{
    ClaimRequest, ConversationStore as _, Document, ETag, Freshness, HEAD_ID, Kind, Partition,
    Selection, Stored, Write,
};

const SEEDS: u64 = 8;
const STEPS: usize = 120;

fn key() -> ConversationKey {
    ConversationKey {
        tenant: TenantId::new("t"),
        user: UserId::new("ada"),
        conversation_id: ConversationId::new("c"),
    }
}

fn document(id: &str, kind: Kind, number: usize) -> Document {
    let body = RawJson::of(&serde_json::json!({ "number": number }));
    let due = number.is_multiple_of(2).then_some(Timestamp(7));
    let state = (kind == Kind::Head).then(|| "running".to_owned());
    let created_at = (kind == Kind::Head).then_some(Timestamp(3));
    Document { id: id.to_owned(), kind, body, due, created_at, state, ttl: None }
}

type Shown = (Option<Stored>, Vec<Stored>);

async fn told(store: &EmbeddedStore, selection: &Selection) -> Shown {
    let at = Partition::Conversation(key());
    let head = store.read(&at, HEAD_ID, Freshness::Latest).await.unwrap();
    (head, store.select(&at, selection, Freshness::Latest).await.unwrap())
}

async fn in_file(store: &EmbeddedStore, selection: &Selection) -> Shown {
    let (at, selection) = (Partition::Conversation(key()), selection.clone());
    let read = store.readers.run(move |connection| {
        Ok((rows::read(connection, &at, HEAD_ID)?, rows::select(connection, &at, &selection)?))
    });
    read.await.unwrap()
}

/// Returns a random write, which may conflict.
fn write(dice: &mut fastrand::Rng, number: usize, etag: Option<ETag>) -> Write {
    let id = format!("in_{}", dice.u32(0..4));
    let etag = etag.filter(|_| dice.bool());
    match dice.u32(0..8) {
        0 => Write::Create(document(HEAD_ID, Kind::Head, number)),
        1 | 2 => Write::Replace(document(HEAD_ID, Kind::Head, number), etag),
        3 | 4 => Write::Create(document(&id, Kind::Inbox, number)),
        5 => Write::Replace(document(&id, Kind::Inbox, number), None),
        6 => Write::Replace(document(&id, Kind::Receipt, number), None),
        _ => Write::Delete(if dice.u32(0..6) == 0 { HEAD_ID.to_owned() } else { id }, None),
    }
}

#[tokio::test]
async fn what_is_kept_beside_the_file_is_what_the_file_holds() {
    let mut found = 0;
    for seed in 0..SEEDS {
        let folder = tempfile::tempdir().unwrap();
        let store = EmbeddedStore::open(folder.path()).unwrap();
        let mut dice = fastrand::Rng::with_seed(seed);
        let all = Selection::all(Kind::Inbox);
        for number in 0..STEPS {
            let etag = told(&store, &all).await.0.map(|head| head.etag);
            let writes = (0..dice.usize(1..3)).map(|_| write(&mut dice, number, etag.clone()));
            let _ = store.write(&Partition::Conversation(key()), writes.collect()).await;
            if dice.bool() {
                let (key, worker) = (key(), WorkerId::new(number.to_string()));
                let (now, until) = (Timestamp(1), Timestamp(2));
                let _ = store.claim(ClaimRequest { key: &key, worker: &worker, now, until }).await;
                store.release(&key, &worker).await;
            }
            let part = Selection {
                from_id: Some("in_1".to_owned()),
                to_id: Some("in_2".to_owned()),
                ..Selection::all(Kind::Inbox)
            };
            for selection in [all.clone(), part, Selection { limit: 1, ..all.clone() }] {
                let (told, held) =
                    (told(&store, &selection).await, in_file(&store, &selection).await);
                assert_eq!(told, held, "seed {seed}, step {number}");
            }
            found += usize::from(store.warm.get(&Partition::Conversation(key())).is_some());
        }
    }
    assert!(found > STEPS, "most reads use the cache: {found}");
}

#[test]
fn what_is_written_while_it_is_read_is_not_kept() {
    let warm = Warm::default();
    let at = Partition::Conversation(key());
    let head = Stored { document: document(HEAD_ID, Kind::Head, 1), etag: ETag("1".to_owned()) };
    let read = || Ok::<_, ()>(Known::of(Some(head.clone()), Vec::new()));
    warm.read(&key(), read).unwrap();
    assert!(warm.get(&at).is_some());

    let lifted = warm.lift(&at).unwrap();
    assert!(warm.get(&at).is_none(), "its commit is in progress");
    warm.read(&key(), read).unwrap();
    assert!(warm.get(&at).is_none(), "a read during the commit may be stale");
    let replaced = Write::Replace(document(HEAD_ID, Kind::Head, 2), None);
    warm.put(lifted, std::slice::from_ref(&replaced), &[ETag("2".to_owned())]);
    assert_eq!(warm.get(&at).unwrap().head.as_ref().unwrap().etag.0, "2");

    warm.forget(&warm.lift(&at).unwrap());
    assert!(warm.get(&at).is_none(), "only the file has the state after a failed commit");
    warm.read(&key(), || {
        let lifted = warm.lift(&at).unwrap();
        warm.put(lifted, std::slice::from_ref(&replaced), &[ETag("3".to_owned())]);
        read()
    })
    .unwrap();
    assert!(warm.get(&at).is_none(), "written while it was read");
}
