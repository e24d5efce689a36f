//! Contract tests of the count of inbox changes in the head.

use std::ops::Range;

use futures_util::future::join_all;

use super::{
    create, create_conversation, document, fresh_conversation, fresh_tenant, head, key_of,
    read_latest,
};
use crate::store::{
    ConversationStore, Document, DocumentKind, HEAD_ID, Partition, StoreError, StoredDocument,
    Write,
};
use turnwheel_conversation::head::Lease;
use turnwheel_platform::clock::Timestamp;
use turnwheel_platform::ids::WorkerId;

type Store<'a> = &'a dyn ConversationStore;

async fn read_head(store: Store<'_>, at: &Partition) -> StoredDocument {
    read_latest(store, at, HEAD_ID).await.unwrap()
}

/// Creates an item and counts it.
async fn accept(
    store: Store<'_>,
    at: &Partition,
    id: &str,
    due: Option<u64>,
) -> Result<(), StoreError> {
    let count = Write::CountInboxChange { due: due.map(Timestamp), room: None };
    store.write(at, vec![create_item(id), count]).await.map(|_| ())
}

/// As [`accept`], if the count is in that range.
async fn accept_in(
    store: Store<'_>,
    at: &Partition,
    id: &str,
    room: Range<u32>,
) -> Result<(), StoreError> {
    let count = Write::CountInboxChange { due: None, room: Some(room) };
    store.write(at, vec![create_item(id), count]).await.map(|_| ())
}

fn create_item(id: &str) -> Write {
    Write::Create(document(DocumentKind::Inbox, id, "{}"))
}

pub(super) async fn commit_that_has_not_seen_an_item_loses(store: Store<'_>) {
    let at = create_conversation(store).await;
    let before = read_head(store, &at).await;
    accept(store, &at, "in_1", Some(50)).await.unwrap();
    let stale = Write::Replace(before.document.clone(), Some(before.etag.clone()));
    assert!(matches!(store.write(&at, vec![stale]).await, Err(StoreError::Conflict)));
    let after = read_head(store, &at).await;
    assert_ne!(after.etag, before.etag);
    assert_eq!(after.document.inbox_count, Some(1));
    assert_eq!(after.document.due, Some(Timestamp(50)));
    // The body and the other members are as the last commit wrote them.
    let unchanged = Document { due: None, inbox_count: Some(0), ..after.document.clone() };
    assert_eq!(unchanged, before.document);
    let count = Write::CountInboxChange { due: None, room: None };
    let etags = store.write(&at, vec![count]).await.unwrap();
    let counted = read_head(store, &at).await;
    assert_eq!(etags, std::slice::from_ref(&counted.etag));
    assert_eq!(counted.document.inbox_count, Some(2));
    let reset = Document { inbox_count: Some(0), due: None, ..counted.document };
    store.write(&at, vec![Write::Replace(reset, Some(counted.etag))]).await.unwrap();
    assert_eq!(read_head(store, &at).await.document.inbox_count, Some(0));
}

pub(super) async fn head_is_due_for_the_earliest_change(store: Store<'_>) {
    let at = create_conversation(store).await;
    for (id, due, expected) in [
        ("in_1", None, None),
        ("in_2", Some(70), Some(70)),
        ("in_3", Some(90), Some(70)),
        ("in_4", None, Some(70)),
        ("in_5", Some(60), Some(60)),
    ] {
        accept(store, &at, id, due).await.unwrap();
        assert_eq!(read_head(store, &at).await.document.due, expected.map(Timestamp), "{id}");
    }
}

/// The worker with the lease sees the item; after its death the conversation is due anyway.
pub(super) async fn lease_in_the_head_keeps_its_time(store: Store<'_>) {
    let key = key_of(&fresh_tenant(), "ada", "c1");
    let at = Partition::Conversation(key.clone());
    let lease = Lease { worker: WorkerId::new("w1"), epoch: 1, until: Timestamp(60_000) };
    let leased = head(&key, 1, "running", Some(&lease));
    create(store, &at, Document { due: Some(Timestamp(65_000)), ..leased }).await;
    accept(store, &at, "in_1", Some(10)).await.unwrap();
    let head = read_head(store, &at).await.document;
    assert_eq!((head.due, head.inbox_count), (Some(Timestamp(65_000)), Some(1)));
}

pub(super) async fn unknown_count_stays_unknown(store: Store<'_>) {
    let key = key_of(&fresh_tenant(), "ada", "c1");
    let at = Partition::Conversation(key.clone());
    let earlier = Document { inbox_count: None, ..head(&key, 1, "idle", None) };
    create(store, &at, earlier).await;
    let before = read_head(store, &at).await;
    accept(store, &at, "in_1", Some(10)).await.unwrap();
    let after = read_head(store, &at).await;
    assert_eq!((after.document.inbox_count, after.document.due), (None, Some(Timestamp(10))));
    assert_ne!(after.etag, before.etag);
}

pub(super) async fn missing_and_deleted_conversations_accept_nothing(store: Store<'_>) {
    let missing = fresh_conversation();
    assert!(matches!(accept(store, &missing, "in_1", None).await, Err(StoreError::Conflict)));
    let key = key_of(&fresh_tenant(), "ada", "c1");
    let deleted = Partition::Conversation(key.clone());
    create(store, &deleted, head(&key, 1, "deleted", None)).await;
    assert!(matches!(accept(store, &deleted, "in_1", None).await, Err(StoreError::Conflict)));
    for at in [&missing, &deleted] {
        assert!(read_latest(store, at, "in_1").await.is_none());
    }
    let at = create_conversation(store).await;
    accept(store, &at, "in_1", None).await.unwrap();
    assert!(matches!(accept(store, &at, "in_1", None).await, Err(StoreError::Conflict)));
    assert_eq!(read_head(store, &at).await.document.inbox_count, Some(1), "counted once");
}

pub(super) async fn inbox_document_without_count_is_rejected(store: Store<'_>) {
    let at = create_conversation(store).await;
    let item = || document(DocumentKind::Inbox, "in_1", "{}");
    let count = || Write::CountInboxChange { due: None, room: None };
    let fresh = read_head(store, &at).await.document;
    let scope = Partition::Scope(fresh_tenant());
    for (at, writes) in [
        (&at, vec![Write::Create(item())]),
        (&at, vec![Write::Replace(item(), None)]),
        (&at, vec![Write::Create(item()), count(), count()]),
        (&at, vec![Write::Create(item()), Write::Replace(fresh, None), count()]),
        (&at, vec![Write::Create(Document { inbox_count: Some(1), ..item() }), count()]),
        (&at, vec![Write::CountInboxChange { due: Some(Timestamp(u64::MAX)), room: None }]),
        (&scope, vec![count()]),
    ] {
        let refused = store.write(at, writes).await;
        assert!(matches!(refused, Err(StoreError::Invalid(_))), "{refused:?}");
    }
}

pub(super) async fn concurrent_changes_are_all_counted(store: Store<'_>) {
    const SENDERS: u32 = 6;
    let at = create_conversation(store).await;
    let send = async |number: u32| {
        let id = format!("in_{number}");
        // A store that reads and replaces the head gives up after some attempts.
        while let Err(error) = accept(store, &at, &id, Some(9)).await {
            assert!(matches!(error, StoreError::Conflict), "{error}");
        }
    };
    join_all((0..SENDERS).map(send)).await;
    assert_eq!(read_head(store, &at).await.document.inbox_count, Some(SENDERS));
}

pub(super) async fn concurrent_changes_stay_within_their_room(store: Store<'_>) {
    const ROOM: Range<u32> = 0..4;
    let at = create_conversation(store).await;
    let send = async |number: u32| {
        let id = format!("in_{number}");
        // A store that reads and replaces the head gives up after some attempts.
        while let Err(error) = accept_in(store, &at, &id, ROOM).await {
            assert!(matches!(error, StoreError::Conflict), "{error}");
            let count = read_head(store, &at).await.document.inbox_count;
            if count == Some(ROOM.end) {
                return false;
            }
        }
        true
    };
    let accepted = join_all((0..9).map(send)).await;
    assert_eq!(accepted.iter().filter(|is_accepted| **is_accepted).count(), 4);
    assert_eq!(read_head(store, &at).await.document.inbox_count, Some(ROOM.end));
    for (number, is_accepted) in accepted.into_iter().enumerate() {
        let item = read_latest(store, &at, &format!("in_{number}")).await;
        assert_eq!(item.is_some(), is_accepted, "in_{number}");
    }
}

/// A worker that counts anew leaves a lower count.
pub(super) async fn change_outside_of_its_room_is_refused(store: Store<'_>) {
    let at = create_conversation(store).await;
    for id in ["in_1", "in_2"] {
        accept(store, &at, id, None).await.unwrap();
    }
    for room in [0..2, 3..9] {
        let refused = accept_in(store, &at, "in_3", room.clone()).await;
        assert!(matches!(refused, Err(StoreError::Conflict)), "{room:?}");
    }
    assert!(read_latest(store, &at, "in_3").await.is_none());
    accept_in(store, &at, "in_3", 2..3).await.unwrap();
    assert_eq!(read_head(store, &at).await.document.inbox_count, Some(3));

    let key = key_of(&fresh_tenant(), "ada", "c1");
    let unknown = Partition::Conversation(key.clone());
    create(store, &unknown, Document { inbox_count: None, ..head(&key, 1, "idle", None) }).await;
    accept_in(store, &unknown, "in_1", 0..1).await.unwrap();
}
