//! Contract tests of the search.

use super::{document, entry, fresh_tenant, key_of};
use crate::store::{
    ConversationStore, DocumentKind, Freshness, Partition, SearchHits, SearchQuery, StoreError,
    Write, entry_id,
};
use turnwheel_platform::clock::Timestamp;
use turnwheel_platform::ids::{ConversationKey, TenantId};

type Store<'a> = &'a dyn ConversationStore;

async fn add(store: Store<'_>, key: &ConversationKey, seq: u64, at: u64, text: &str) {
    let document = entry(seq).with_search(text, Timestamp(at));
    let at = Partition::Conversation(key.clone());
    store.write(&at, vec![Write::Create(document)]).await.unwrap();
}

/// Searches from a conversation that has no entries.
async fn search(store: Store<'_>, tenant: &TenantId, text: &str, limit: usize) -> SearchHits {
    let key = key_of(tenant, "ada", "other");
    store.search(&SearchQuery::new(&key, text, limit)).await.unwrap()
}

async fn excerpts(store: Store<'_>, tenant: &TenantId, text: &str) -> Vec<String> {
    let found = search(store, tenant, text, 100).await;
    found.hits.into_iter().map(|hit| hit.excerpt).collect()
}

pub(super) async fn newest_entries_with_the_text_are_found(store: Store<'_>) {
    let tenant = fresh_tenant();
    for (conversation, seq, at, text) in [
        ("c1", 1, 10, "the first trip to Oslo"),
        ("c1", 2, 40, "Oslo again"),
        ("c2", 1, 30, "a trip\n\tto OSLO"),
        ("c2", 2, 20, "Bergen"),
    ] {
        add(store, &key_of(&tenant, "ada", conversation), seq, at, text).await;
    }
    // An entry without a search text, as older versions wrote all of them.
    let at = Partition::Conversation(key_of(&tenant, "ada", "c2"));
    let body = r#"{"text":"oslo"}"#;
    let older = document(DocumentKind::Entry, &entry_id(3), body);
    store.write(&at, vec![Write::Create(older)]).await.unwrap();

    let found = search(store, &tenant, "oslo", 100).await;
    assert!(found.is_complete);
    let found: Vec<_> = found
        .hits
        .iter()
        .map(|hit| (hit.conversation_id.as_str(), hit.created_at.0, hit.excerpt.as_str()))
        .collect();
    let newest = [("c1", 40, "Oslo again"), ("c2", 30, "a trip to OSLO")];
    assert_eq!(found[..2], newest);
    assert_eq!(found[2..], [("c1", 10, "the first trip to Oslo")]);
    for limit in [1, 2] {
        assert_eq!(search(store, &tenant, "oslo", limit).await.hits.len(), limit);
    }
    assert_eq!(excerpts(store, &tenant, "to  Oslo").await.len(), 2);
    let stored = store.read(&at, &entry_id(1), Freshness::Latest).await.unwrap().unwrap();
    assert_eq!(stored.document, entry(1).with_search("a trip\n\tto OSLO", Timestamp(30)));
}

pub(super) async fn search_never_leaves_the_user_and_skips_the_conversation(store: Store<'_>) {
    let (tenant, other) = (fresh_tenant(), fresh_tenant());
    add(store, &key_of(&tenant, "ada", "c1"), 1, 1, "oslo of ada").await;
    add(store, &key_of(&tenant, "ada", "other"), 1, 2, "oslo of this conversation").await;
    add(store, &key_of(&tenant, "eve", "c1"), 1, 3, "oslo of eve").await;
    add(store, &key_of(&tenant, "ada2", "c1"), 1, 4, "oslo of ada2").await;
    add(store, &key_of(&other, "ada", "c1"), 1, 5, "oslo of another tenant").await;
    assert_eq!(excerpts(store, &tenant, "oslo").await, ["oslo of ada"]);
}

pub(super) async fn text_is_compared_literally(store: Store<'_>) {
    let tenant = fresh_tenant();
    let key = key_of(&tenant, "ada", "c1");
    let texts = ["100 % of a_b", "it's \"so\" \\ c", "ÄRGER in Łódź", "a.b*c [d] (e)"];
    for (seq, text) in (1..).zip(texts) {
        add(store, &key, seq, seq, text).await;
    }
    for (query, text) in [
        ("100 % OF", texts[0]),
        ("_", texts[0]),
        ("'s \"so\" \\", texts[1]),
        ("ärger IN łÓDŹ", texts[2]),
        ("*c [d] (", texts[3]),
    ] {
        assert_eq!(excerpts(store, &tenant, query).await, [text], "{query}");
    }
    for query in ["1%", "a%b", "arger", "a.*c", "' OR '1'='1"] {
        assert!(excerpts(store, &tenant, query).await.is_empty(), "{query}");
    }
    let long = format!("{} needle", "x".repeat(507));
    add(store, &key, 10, 10, &long).await;
    assert!(excerpts(store, &tenant, "x needl").await.is_empty(), "512 characters are compared");
    assert_eq!(excerpts(store, &tenant, "x need").await, ["x".repeat(101)]);
}

pub(super) async fn replaced_and_deleted_entries_are_not_found(store: Store<'_>) {
    let tenant = fresh_tenant();
    let key = key_of(&tenant, "ada", "c1");
    for seq in 1..=3 {
        add(store, &key, seq, seq, &format!("oslo {seq}")).await;
    }
    let at = Partition::Conversation(key);
    let changes = vec![
        Write::Delete(entry_id(1), None),
        Write::Replace(entry(2), None),
        Write::Replace(entry(3).with_search("bergen", Timestamp(3)), None),
    ];
    store.write(&at, changes).await.unwrap();
    assert!(excerpts(store, &tenant, "oslo").await.is_empty());
    assert_eq!(excerpts(store, &tenant, "bergen").await, ["bergen"]);
}

pub(super) async fn invalid_searches_are_rejected(store: Store<'_>) {
    let tenant = fresh_tenant();
    let key = key_of(&tenant, "ada", "c1");
    for query in [
        SearchQuery::new(&key, " \n", 1),
        SearchQuery::new(&key, "oslo", 0),
        SearchQuery::new(&key_of(&tenant, "a/b", "c1"), "oslo", 1),
    ] {
        let found = store.search(&query).await;
        assert!(matches!(found, Err(StoreError::Invalid(_))), "{found:?}");
    }
    let receipt = document(DocumentKind::Receipt, "in_1", "{}").with_search("oslo", Timestamp(1));
    let written = store.write(&Partition::Conversation(key), vec![Write::Create(receipt)]).await;
    assert!(matches!(written, Err(StoreError::Invalid(_))), "{written:?}");
}
