//! Tests of the Cosmos store on the emulator.

mod connecting;
mod due_scan;
mod responses;
mod search;

use std::sync::Arc;

use azure_core::http::Request;
use azure_data_cosmos_driver::in_memory_emulator::RequestObserver;

use super::CosmosStore;
use super::testing::{account, connect_store, start_in_process, start_on_socket};
use crate::store::contract::assert_store_contract;
use crate::store::{
    ConversationStore, Document, DocumentKind, ETag, Freshness, HEAD_ID, HeadQuery, Partition,
    Selection, StoreError, Write, entry_id,
};
use turnwheel_json::raw::RawJson;
use turnwheel_platform::clock::Timestamp;
use turnwheel_platform::ids::{ConversationId, ConversationKey, TenantId, UserId};

fn key() -> ConversationKey {
    ConversationKey {
        tenant: TenantId::new("t"),
        user: UserId::new("ada"),
        conversation_id: ConversationId::new("c1"),
    }
}

fn at() -> Partition {
    Partition::Conversation(key())
}

fn document(kind: DocumentKind, id: &str, body: &str) -> Document {
    let body = RawJson::from_text(body).unwrap();
    Document { body, ..Document::new(id, kind, &(), None) }
}

fn head() -> Document {
    let head = document(DocumentKind::Head, HEAD_ID, r#"{"seq":0}"#);
    Document { created_at: Some(Timestamp(1)), state: Some("idle".to_owned()), ..head }
}

#[tokio::test]
async fn cosmos_store_passes_contract() {
    let emulator = start_in_process(4);
    let store = Arc::new(connect_store(&emulator, Vec::new()).await);
    assert_store_contract(async || Arc::clone(&store) as Arc<dyn ConversationStore>).await;
}

#[tokio::test]
async fn cosmos_store_passes_contract_over_socket() {
    let host = start_on_socket(4);
    let store = Arc::new(CosmosStore::connect(&account(&host.emulator), None).await.unwrap());
    assert_store_contract(async || Arc::clone(&store) as Arc<dyn ConversationStore>).await;
}

#[tokio::test]
async fn bodies_read_back_unchanged() {
    let emulator = start_in_process(1);
    let store = connect_store(&emulator, Vec::new()).await;
    let deep = format!(r#"{{"a":{}1{}}}"#, "[".repeat(300), "]".repeat(300));
    let bodies = [
        r#"{"a":1.0,"b":1e400,"c":1152921504606846977,"d":-0,"e":0.10,"f":1E5}"#,
        r#"{"a":12345678901234567890123.4500}"#,
        r#"{"z":1,"a":[0.5,-2,9007199254740992],"text":"ü✓ \"quoted\" \\ \n"}"#,
        r#"{"lone":"\ud800","nul":"\u0000"}"#,
        r#"{"id":"mine","_etag":"mine","tenant":"mine","kind":"mine"}"#,
        r#"{"twice":1,"twice":2}"#,
        r#""text""#,
        "null",
        "[]",
        &deep,
    ];
    let entries = bodies.iter().zip(1..);
    let entries = entries.map(|(body, seq)| document(DocumentKind::Entry, &entry_id(seq), body));
    store.write(&at(), entries.map(Write::Create).collect()).await.unwrap();
    let all =
        store.select(&at(), &Selection::all(DocumentKind::Entry), Freshness::Any).await.unwrap();
    assert_eq!(all.len(), bodies.len());
    for (stored, body) in all.iter().zip(bodies) {
        let read = store.read(&at(), &stored.document.id, Freshness::Any).await.unwrap().unwrap();
        assert_eq!(stored.document.body.text(), body);
        assert_eq!(read.document.body.text(), body);
        assert_eq!(read.etag, stored.etag, "a list and a read return the same ETag");
    }
}

#[tokio::test]
async fn oversized_escaped_batch_is_rejected_before_sending() {
    let emulator = start_in_process(1);
    let store = connect_store(&emulator, Vec::new()).await;
    // In a JSON string, each quote takes two bytes.
    let quotes = |count: usize| format!("[{}0]", r#""","#.repeat(count));
    let fits = document(DocumentKind::Entry, "a", &quotes(200_000));
    store.write(&at(), vec![Write::Create(fits)]).await.unwrap();
    let heavy = document(DocumentKind::Entry, "b", &quotes(450_000));
    let answer = store.write(&at(), vec![Write::Create(heavy)]).await;
    assert!(matches!(answer, Err(StoreError::TooLarge(_))), "{answer:?}");
}

#[tokio::test]
async fn last_page_has_no_continuation() {
    let emulator = start_in_process(4);
    let store = connect_store(&emulator, Vec::new()).await;
    let query = HeadQuery {
        tenant: TenantId::new("t"),
        user: Some(UserId::new("ada")),
        state: None,
        limit: 10,
        continuation: None,
    };
    store.write(&at(), vec![Write::Create(head())]).await.unwrap();
    let page = store.list_heads(&query).await.unwrap();
    assert_eq!((page.items.len(), page.continuation), (1, None));
    let forged = Some(crate::store::cursor::encode(
        &(&query.tenant, &query.user, &query.state),
        &"c1.bm90IGEgdG9rZW4",
    ));
    let answer = store.list_heads(&HeadQuery { continuation: forged, ..query }).await;
    assert!(matches!(answer, Err(StoreError::Invalid(_))), "{answer:?}");
}

/// The users of a tenant are in all physical partitions.
#[tokio::test]
async fn list_of_a_tenant_is_in_order_across_physical_partitions() {
    let emulator = start_in_process(8);
    let store = connect_store(&emulator, Vec::new()).await;
    for (tenant, number) in [("t", 0..40_u64), ("t2", 100..110)]
        .into_iter()
        .flat_map(|(tenant, numbers)| numbers.map(move |number| (tenant, number)))
    {
        let key = ConversationKey {
            tenant: TenantId::new(tenant),
            user: UserId::new(format!("u{}", number * 7 % 40)),
            conversation_id: ConversationId::new(format!("c{number}")),
        };
        let head = Document { created_at: Some(Timestamp(number)), ..head() };
        store.write(&Partition::Conversation(key), vec![Write::Create(head)]).await.unwrap();
    }
    let mut query = HeadQuery {
        tenant: TenantId::new("t"),
        user: None,
        state: None,
        limit: 7,
        continuation: None,
    };
    let mut found = Vec::new();
    loop {
        let page = store.list_heads(&query).await.unwrap();
        found.extend(page.items.iter().filter_map(|head| Some(head.document.created_at?.0)));
        query.continuation = page.continuation;
        if query.continuation.is_none() {
            break;
        }
    }
    assert_eq!(found, (0..40).rev().collect::<Vec<_>>());
}

/// Records the consistency strategy of each document request.
#[derive(Debug, Default)]
struct ConsistencyRecorder(std::sync::Mutex<Vec<Option<String>>>);

impl RequestObserver for ConsistencyRecorder {
    fn on_request(&self, request: &Request) {
        if request.url().path().contains("/docs") {
            let name = "x-ms-cosmos-read-consistency-strategy".into();
            let strategy = request.headers().get_optional_str(&name).map(ToOwned::to_owned);
            self.0.lock().unwrap().push(strategy);
        }
    }
}

#[tokio::test]
async fn only_latest_reads_use_quorum() {
    let recorder = Arc::new(ConsistencyRecorder::default());
    let emulator =
        start_in_process(1).observed_by(Arc::clone(&recorder) as Arc<dyn RequestObserver>);
    let store = connect_store(&emulator, Vec::new()).await;
    store.write(&at(), vec![Write::Create(head())]).await.unwrap();
    recorder.0.lock().unwrap().clear();
    store.read(&at(), HEAD_ID, Freshness::Latest).await.unwrap();
    store.select(&at(), &Selection::all(DocumentKind::Inbox), Freshness::Latest).await.unwrap();
    let decided = std::mem::take(&mut *recorder.0.lock().unwrap());
    assert_eq!(decided, vec![Some("LatestCommitted".to_owned()); 2]);
    store.read(&at(), HEAD_ID, Freshness::Any).await.unwrap();
    store.select(&at(), &Selection::all(DocumentKind::Entry), Freshness::Any).await.unwrap();
    assert_eq!(*recorder.0.lock().unwrap(), [None, None]);
}

fn etag(text: &str) -> ETag {
    ETag(text.to_owned())
}

#[tokio::test]
async fn inbox_counts_use_heads_of_latest_version() {
    let emulator = start_in_process(1);
    let store = connect_store(&emulator, Vec::new()).await;
    store.write(&at(), vec![Write::Create(head())]).await.unwrap();
    for (freshness, is_kept) in [(Freshness::Any, false), (Freshness::Latest, true)] {
        store.read(&at(), HEAD_ID, freshness).await.unwrap().unwrap();
        assert_eq!(store.recent_heads.get(&key()).is_some(), is_kept, "{freshness:?}");
    }
}
