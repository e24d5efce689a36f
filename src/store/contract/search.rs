//! Contract tests of the search of a user's messages.

use super::{create, document, entry, fresh_tenant, head, key_of, read_latest};
use crate::clock::Timestamp;
use crate::ids::{ConversationId, TenantId, UserId};
use crate::store::{
    ConversationStore, Document, DocumentKind, Partition, SearchHit, SearchQuery, SearchResult,
    StoreError, Write, entry_id,
};

type Store<'a> = &'a dyn ConversationStore;

/// A user message, as the driver writes it.
fn message(seq: u64, at: u64, text: &str) -> Document {
    let (created_at, search_text) = (Some(Timestamp(at)), Some(text.to_owned()));
    Document { created_at, search_text, ..entry(seq) }
}

/// Creates a conversation with messages: their times and texts.
async fn begin(store: Store<'_>, path: (&TenantId, &str, &str), messages: &[(u64, &str)]) {
    let (tenant, user, id) = path;
    let key = key_of(tenant, user, id);
    let mut writes = vec![Write::Create(head(&key, 1, "idle", None))];
    let messages = messages.iter().zip(1..);
    writes.extend(messages.map(|((at, text), seq)| Write::Create(message(seq, *at, text))));
    store.write(&Partition::Conversation(key), writes).await.unwrap();
}

fn query(tenant: &TenantId, text: &str) -> SearchQuery {
    SearchQuery {
        tenant: tenant.clone(),
        user: UserId::new("ada"),
        text: text.to_owned(),
        excluded: ConversationId::new("current"),
        limit: 3,
    }
}

async fn search(store: Store<'_>, query: &SearchQuery) -> SearchResult {
    store.search(query).await.unwrap()
}

async fn find_texts(store: Store<'_>, query: &SearchQuery) -> Vec<String> {
    let found = search(store, query).await;
    assert!(found.is_complete);
    found.hits.into_iter().map(|hit| hit.text).collect()
}

pub(super) async fn search_returns_newest_hits_up_to_limit(store: Store<'_>) {
    let tenant = fresh_tenant();
    begin(store, (&tenant, "ada", "c1"), &[(10, "tea one"), (40, "tea four"), (45, "milk")]).await;
    begin(store, (&tenant, "ada", "c2"), &[(30, "green tea"), (50, "five teas")]).await;
    begin(store, (&tenant, "ada", "current"), &[(60, "tea in this conversation")]).await;
    let found = search(store, &query(&tenant, "tea")).await;
    let hit = |conversation: &str, seq, at, text: &str| SearchHit {
        conversation: ConversationId::new(conversation),
        id: entry_id(seq),
        at: Timestamp(at),
        text: text.to_owned(),
    };
    let expected = [
        hit("c2", 2, 50, "five teas"),
        hit("c1", 2, 40, "tea four"),
        hit("c2", 1, 30, "green tea"),
    ];
    assert_eq!(found, SearchResult { hits: expected.into(), is_complete: true });
    for (limit, count) in [(0, 0), (1, 1), (4, 4), (9, 4)] {
        let texts = find_texts(store, &SearchQuery { limit, ..query(&tenant, "tea") }).await;
        assert_eq!(texts.len(), count, "{limit}");
    }
    assert!(find_texts(store, &query(&tenant, "coffee")).await.is_empty());
    let excluded = ConversationId::new("c2");
    let texts = find_texts(store, &SearchQuery { excluded, ..query(&tenant, "tea") }).await;
    assert_eq!(texts, ["tea in this conversation", "tea four", "tea one"]);
}

pub(super) async fn search_is_bound_to_user_and_tenant(store: Store<'_>) {
    let (tenant, other_tenant) = (fresh_tenant(), fresh_tenant());
    begin(store, (&tenant, "ada", "c1"), &[(1, "my tea")]).await;
    for (tenant, user) in [(&tenant, "bob"), (&tenant, "ada2"), (&other_tenant, "ada")] {
        begin(store, (tenant, user, "c1"), &[(2, "tea of others")]).await;
        begin(store, (tenant, user, "c2"), &[(3, "more tea of others")]).await;
    }
    assert_eq!(find_texts(store, &query(&tenant, "tea")).await, ["my tea"]);
    let nobody = SearchQuery { user: UserId::new("ad"), ..query(&tenant, "tea") };
    assert!(find_texts(store, &nobody).await.is_empty());
}

pub(super) async fn search_excludes_deleted_conversations(store: Store<'_>) {
    let tenant = fresh_tenant();
    begin(store, (&tenant, "ada", "c1"), &[(1, "tea one"), (9, "tea nine")]).await;
    begin(store, (&tenant, "ada", "c2"), &[(5, "tea five")]).await;
    let key = key_of(&tenant, "ada", "c1");
    let at = Partition::Conversation(key.clone());
    let deleted = Write::Replace(head(&key, 1, "deleted", None), None);
    store.write(&at, vec![deleted]).await.unwrap();
    assert_eq!(find_texts(store, &query(&tenant, "tea")).await, ["tea five"]);
    // A purge ends with the head.
    let purge = ["head".to_owned(), entry_id(1), entry_id(2)].map(|id| Write::Delete(id, None));
    store.write(&at, purge.into()).await.unwrap();
    assert_eq!(find_texts(store, &query(&tenant, "tea")).await, ["tea five"]);
    begin(store, (&tenant, "ada", "c1"), &[(20, "new tea")]).await;
    assert_eq!(find_texts(store, &query(&tenant, "tea")).await, ["new tea", "tea five"]);
}

pub(super) async fn search_takes_every_character_literally(store: Store<'_>) {
    let tenant = fresh_tenant();
    let texts = [
        "100% sure",
        "snake_case",
        "she said \"hi\"",
        "it's",
        r"c:\temp",
        "a*b?c[d]",
        "grüße aus köln",
        "東京 駅",
        "two\nlines",
        "; drop table documents",
    ];
    let messages: Vec<(u64, &str)> = (1..).zip(texts).collect();
    begin(store, (&tenant, "ada", "c1"), &messages).await;
    for (text, expected) in [
        ("%", 0),
        ("_", 1),
        ("\"", 2),
        ("'", 3),
        (r"\", 4),
        ("*b?c[", 5),
        ("ÜSSE", usize::MAX),
        ("üße", 6),
        ("京 駅", 7),
        ("two\nlines", 8),
        ("; drop table", 9),
        ("s%e", usize::MAX),
        ("snake.case", usize::MAX),
    ] {
        let found = find_texts(store, &query(&tenant, text)).await;
        let expected: Vec<&str> = texts.get(expected).copied().into_iter().collect();
        assert_eq!(found, expected, "{text}");
    }
}

pub(super) async fn search_counts_copies_once(store: Store<'_>) {
    let tenant = fresh_tenant();
    for id in ["c1", "fork1", "fork2", "fork3", "fork4"] {
        begin(store, (&tenant, "ada", id), &[(7, "tea seven"), (8, "tea eight")]).await;
    }
    begin(store, (&tenant, "ada", "c2"), &[(6, "tea six"), (5, "tea six")]).await;
    let all = SearchQuery { limit: 9, ..query(&tenant, "tea") };
    let texts = find_texts(store, &all).await;
    assert_eq!(texts, ["tea eight", "tea seven", "tea six", "tea six"]);
}

pub(super) async fn search_ignores_documents_without_search_text(store: Store<'_>) {
    let tenant = fresh_tenant();
    begin(store, (&tenant, "ada", "c1"), &[(1, "tea")]).await;
    let at = Partition::Conversation(key_of(&tenant, "ada", "c1"));
    create(store, &at, document(DocumentKind::Entry, &entry_id(2), r#"{"text":"old tea"}"#)).await;
    assert_eq!(find_texts(store, &query(&tenant, "tea")).await, ["tea"]);
    // Reads return the entry alone.
    let read = read_latest(store, &at, &entry_id(1)).await.unwrap().document;
    assert_eq!((read.body.text(), read.search_text), (r#"{"seq":1}"#, None));
    let texts = [(DocumentKind::Inbox, "in_1"), (DocumentKind::Receipt, "in_2")];
    let refused = texts.map(|(kind, id)| message_of(document(kind, id, "{}")));
    let timeless = Document { created_at: None, ..message(3, 1, "tea") };
    for document in refused.into_iter().chain([timeless]) {
        let answer = store.write(&at, vec![Write::Create(document)]).await;
        assert!(matches!(answer, Err(StoreError::Invalid(_))), "{answer:?}");
    }
    let empty = store.search(&query(&tenant, "")).await;
    assert!(matches!(empty, Err(StoreError::Invalid(_))), "{empty:?}");
    let foreign = store.search(&query(&TenantId::new("a/b"), "tea")).await;
    assert!(matches!(foreign, Err(StoreError::Invalid(_))), "{foreign:?}");
}

fn message_of(document: Document) -> Document {
    let Document { created_at, search_text, .. } = message(1, 1, "tea");
    Document { created_at, search_text, ..document }
}
