//! Contract tests of batches: atomicity and version conditions.

use futures_util::future::join_all;

use super::{
    create, create_conversation, create_in_inbox, document, due_at, entry, fresh_conversation,
    fresh_tenant, head, key_of, read_latest,
};
use crate::store::{
    BATCH_BYTES_MAX, BATCH_OPERATIONS_MAX, ConversationStore, Document, DocumentKind, ETag,
    Freshness, Partition, Selection, StoreError, Write, entry_id, events_id,
};
use turnwheel_conversation::head::HEAD_BYTES_MAX;
use turnwheel_platform::clock::Timestamp;

type Store<'a> = &'a dyn ConversationStore;

async fn is_conflict(store: Store<'_>, at: &Partition, writes: Vec<Write>) -> bool {
    matches!(store.write(at, writes).await, Err(StoreError::Conflict))
}

async fn is_too_large(store: Store<'_>, at: &Partition, writes: Vec<Write>) -> bool {
    matches!(store.write(at, writes).await, Err(StoreError::TooLarge(_)))
}

pub(super) async fn created_documents_read_back_unchanged(store: Store<'_>) {
    let key = key_of(&fresh_tenant(), "ada", "c1");
    let at = Partition::Conversation(key.clone());
    let odd = document(
        DocumentKind::Notification,
        "n_1",
        r#"{"big":123456789012345678901,"text":"ü\u0000'\""}"#,
    );
    let documents = vec![head(&key, 7, "running", None), entry(1), due_at(odd, 41), entry(2)];
    let writes = documents.iter().cloned().map(Write::Create).collect();
    let etags = store.write(&at, writes).await.unwrap();
    assert_eq!(etags.len(), documents.len());
    for (document, etag) in documents.into_iter().zip(etags) {
        let stored = read_latest(store, &at, &document.id).await.unwrap();
        assert_eq!(stored.document, document);
        assert_eq!(stored.etag, etag);
    }
    let digits = read_latest(store, &at, "n_1").await.unwrap().document.body;
    assert!(digits.text().contains("123456789012345678901"), "numbers keep their digits");
    assert!(read_latest(store, &at, "n_2").await.is_none());
    assert!(store.write(&at, Vec::new()).await.unwrap().is_empty(), "an empty batch");
}

pub(super) async fn create_conflicts_when_id_exists(store: Store<'_>) {
    let at = fresh_conversation();
    create(store, &at, entry(1)).await;
    assert!(is_conflict(store, &at, vec![Write::Create(entry(1))]).await);
    let receipt = document(DocumentKind::Receipt, &entry_id(1), "{}");
    assert!(is_conflict(store, &at, vec![Write::Create(receipt)]).await, "of any kind");
    assert_eq!(read_latest(store, &at, &entry_id(1)).await.unwrap().document, entry(1));
}

pub(super) async fn replace_requires_matching_etag(store: Store<'_>) {
    let at = fresh_conversation();
    let version = |number: u64| document(DocumentKind::Receipt, "in_1", &number.to_string());
    assert!(is_conflict(store, &at, vec![Write::Replace(version(0), None)]).await, "no document");
    let first = create(store, &at, version(1)).await;
    let second =
        store.write(&at, vec![Write::Replace(version(2), Some(first.clone()))]).await.unwrap();
    assert_ne!(second, vec![first.clone()]);
    assert!(is_conflict(store, &at, vec![Write::Replace(version(3), Some(first))]).await, "old");
    let strange = Some(ETag("\"strange\"".to_owned()));
    assert!(is_conflict(store, &at, vec![Write::Replace(version(3), strange)]).await);
    assert_eq!(read_latest(store, &at, "in_1").await.unwrap().document, version(2));
    store.write(&at, vec![Write::Replace(version(4), None)]).await.unwrap();
    assert_eq!(read_latest(store, &at, "in_1").await.unwrap().document, version(4));
}

pub(super) async fn delete_requires_matching_etag(store: Store<'_>) {
    let at = fresh_conversation();
    let delete = |etag: Option<ETag>| vec![Write::Delete(entry_id(1), etag)];
    assert!(is_conflict(store, &at, delete(None)).await, "no document");
    let first = create(store, &at, entry(1)).await;
    let second = store.write(&at, vec![Write::Replace(entry(1), None)]).await.unwrap();
    assert!(is_conflict(store, &at, delete(Some(first))).await, "old");
    let answer = store.write(&at, delete(second.into_iter().next())).await.unwrap();
    assert_eq!(answer, vec![ETag(String::new())]);
    assert!(read_latest(store, &at, &entry_id(1)).await.is_none());
    create(store, &at, entry(1)).await;
    store.write(&at, delete(None)).await.unwrap();
    assert!(read_latest(store, &at, &entry_id(1)).await.is_none());
}

pub(super) async fn etag_is_never_reused(store: Store<'_>) {
    let at = fresh_conversation();
    let first = create(store, &at, entry(1)).await;
    store.write(&at, vec![Write::Delete(entry_id(1), None)]).await.unwrap();
    let second = create(store, &at, entry(1)).await;
    assert_ne!(first, second);
    assert!(is_conflict(store, &at, vec![Write::Delete(entry_id(1), Some(first))]).await);
}

pub(super) async fn conflicting_batch_writes_nothing(store: Store<'_>) {
    let at = fresh_conversation();
    let etag = create(store, &at, entry(1)).await;
    store.write(&at, vec![Write::Replace(entry(1), Some(etag.clone()))]).await.unwrap();
    let before = read_latest(store, &at, &entry_id(1)).await.unwrap();
    let refused = Write::Replace(document(DocumentKind::Entry, &entry_id(1), "0"), Some(etag));
    let good = [
        Write::Create(entry(2)),
        Write::Replace(document(DocumentKind::Entry, &entry_id(1), "9"), Some(before.etag.clone())),
    ];
    let [one, two] = good;
    for writes in [
        vec![one.clone(), two.clone(), refused.clone()],
        vec![refused, one.clone()],
        vec![one, two, Write::Create(entry(1))],
    ] {
        assert!(is_conflict(store, &at, writes).await);
        let all = store
            .select(&at, &Selection::all(DocumentKind::Entry), Freshness::Latest)
            .await
            .unwrap();
        assert_eq!(all, vec![before.clone()]);
    }
}

pub(super) async fn identical_batch_conflicts_when_resent(store: Store<'_>) {
    let key = key_of(&fresh_tenant(), "ada", "c1");
    let at = Partition::Conversation(key.clone());
    let etag = create(store, &at, head(&key, 1, "idle", None)).await;
    let batch = vec![
        Write::Replace(head(&key, 1, "running", None), Some(etag)),
        Write::Create(document(DocumentKind::Events, &events_id(1), "[]")),
    ];
    store.write(&at, batch.clone()).await.unwrap();
    let won = read_latest(store, &at, "head").await.unwrap();
    assert!(is_conflict(store, &at, batch).await);
    assert_eq!(read_latest(store, &at, "head").await.unwrap(), won);
}

pub(super) async fn batch_rejects_excess_operations_and_bytes(store: Store<'_>) {
    let at = fresh_conversation();
    let many = |count: usize| (1..).map(entry).map(Write::Create).take(count).collect::<Vec<_>>();
    assert!(is_too_large(store, &at, many(BATCH_OPERATIONS_MAX + 1)).await);
    store.write(&at, many(BATCH_OPERATIONS_MAX)).await.unwrap();
    let wide = |id: &str, bytes: usize| {
        let body = format!("\"{}\"", "x".repeat(bytes - id.len() - 2));
        Write::Create(document(DocumentKind::Entry, id, &body))
    };
    let half = BATCH_BYTES_MAX / 2;
    assert!(is_too_large(store, &at, vec![wide("a", half), wide("b", half + 1)]).await);
    assert!(read_latest(store, &at, "a").await.is_none());
    store.write(&at, vec![wide("a", half), wide("b", half)]).await.unwrap();
    let key = key_of(&fresh_tenant(), "ada", "c1");
    let mut heavy = head(&key, 1, "idle", None);
    let body = format!(r#"{{"x":"{}"}}"#, "x".repeat(HEAD_BYTES_MAX));
    heavy.body = turnwheel_json::raw::RawJson::from_text(body).unwrap();
    let at = Partition::Conversation(key);
    assert!(is_too_large(store, &at, vec![Write::Create(heavy)]).await);
}

pub(super) async fn invalid_requests_are_rejected_with_reason(store: Store<'_>) {
    let tenant = fresh_tenant();
    let at = |user: &str, conversation: &str| {
        Partition::Conversation(key_of(&tenant, user, conversation))
    };
    let good = at("ada", "c1");
    let Partition::Conversation(key) = &good else { unreachable!() };
    let fine = head(key, 1, "idle", None);
    let refused = [
        (&good, document(DocumentKind::Entry, "a/b", "1")),
        (&good, document(DocumentKind::Entry, "", "1")),
        (&good, document(DocumentKind::Scope, "a", "1")),
        (&good, document(DocumentKind::Head, "a", "1")),
        (&good, document(DocumentKind::Entry, "head", "1")),
        (&good, Document { created_at: None, ..fine.clone() }),
        (&good, Document { state: None, ..fine.clone() }),
        (&good, Document { due: Some(Timestamp(u64::MAX)), ..fine.clone() }),
        (&good, Document { ttl: Some(60), ..fine.clone() }),
        (&good, Document { ttl: Some(60), ..entry(1) }),
        (&good, Document { ttl: None, ..document(DocumentKind::Live, "a", "1") }),
        (&good, Document { ttl: Some(0), ..document(DocumentKind::Live, "a", "1") }),
        (&good, Document { ttl: Some(1 << 31), ..document(DocumentKind::Watch, "a", "1") }),
        (&at("a b", "c1"), entry(1)),
        (&at("ada", "../c1"), entry(1)),
        (&at("ada", &"c".repeat(129)), entry(1)),
        (
            &Partition::Scope(turnwheel_platform::ids::TenantId::new("")),
            document(DocumentKind::Scope, "a", "1"),
        ),
        (&Partition::Scope(tenant.clone()), entry(1)),
    ];
    for (at, document) in refused {
        let id = document.id.clone();
        let answer = store.write(at, vec![Write::Create(document)]).await;
        assert!(matches!(answer, Err(StoreError::Invalid(_))), "{at:?} {id}: {answer:?}");
    }
    let answer = store.read(&good, "a?b", Freshness::Latest).await;
    let text = answer.unwrap_err().to_string();
    assert!(text.contains("document id \"a?b\" is not 1 to 255 of"), "{text}");
    let answer =
        store.select(&at("ä", "c"), &Selection::all(DocumentKind::Entry), Freshness::Any).await;
    assert!(matches!(answer, Err(StoreError::Invalid(_))));
}

pub(super) async fn receipt_replaces_inbox_item(store: Store<'_>) {
    let at = create_conversation(store).await;
    let etag = create_in_inbox(store, &at, "in_1").await;
    let receipt = document(DocumentKind::Receipt, "in_1", r#"{"outcome":"taken"}"#);
    store.write(&at, vec![Write::Replace(receipt.clone(), Some(etag))]).await.unwrap();
    let of_kind = async |kind| {
        let found = store.select(&at, &Selection::all(kind), Freshness::Latest).await.unwrap();
        found.into_iter().map(|stored| stored.document).collect::<Vec<_>>()
    };
    assert_eq!(of_kind(DocumentKind::Inbox).await, vec![]);
    assert_eq!(of_kind(DocumentKind::Receipt).await, vec![receipt]);
}

/// Checks no deletion: the store decides when an expired document goes.
pub(super) async fn time_to_live_is_stored(store: Store<'_>) {
    let at = fresh_conversation();
    let watch =
        |ttl: u32| Document { ttl: Some(ttl), ..document(DocumentKind::Watch, "watch", "{}") };
    let etag = create(store, &at, watch(600)).await;
    assert_eq!(read_latest(store, &at, "watch").await.unwrap().document, watch(600));
    store.write(&at, vec![Write::Replace(watch(900), Some(etag))]).await.unwrap();
    assert_eq!(read_latest(store, &at, "watch").await.unwrap().document, watch(900));
    let deltas: Vec<_> =
        (1..4).map(|n| document(DocumentKind::Live, &format!("live-{n}"), "[]")).collect();
    for document in &deltas {
        create(store, &at, document.clone()).await;
    }
    let tail =
        Selection { from_id: Some("live-2".to_owned()), ..Selection::all(DocumentKind::Live) };
    let found = store.select(&at, &tail, Freshness::Latest).await.unwrap();
    assert_eq!(found.into_iter().map(|it| it.document).collect::<Vec<_>>(), deltas[1..]);
    let watches =
        store.select(&at, &Selection::all(DocumentKind::Watch), Freshness::Latest).await.unwrap();
    assert_eq!(watches.len(), 1);
}

pub(super) async fn concurrent_increments_are_not_lost(store: Store<'_>) {
    const WRITERS: u64 = 20;
    let at = fresh_conversation();
    let counter = |count: u64| document(DocumentKind::Notification, "counter", &count.to_string());
    create(store, &at, counter(0)).await;
    let increment = async |_| {
        loop {
            let stored = read_latest(store, &at, "counter").await.unwrap();
            let count: u64 = stored.document.body.read().unwrap();
            let write = Write::Replace(counter(count + 1), Some(stored.etag));
            match store.write(&at, vec![write]).await {
                Ok(_) => return,
                Err(StoreError::Conflict) => {}
                Err(error) => panic!("{error}"),
            }
        }
    };
    join_all((0..WRITERS).map(increment)).await;
    let stored = read_latest(store, &at, "counter").await.unwrap();
    assert_eq!(stored.document.body.read::<u64>().unwrap(), WRITERS);
}
