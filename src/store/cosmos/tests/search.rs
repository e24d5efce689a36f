//! Tests of the requests and bounds of a search.

use std::sync::Arc;

use super::super::CosmosStore;
use super::super::search::{BOUNDS, SearchBounds, search};
use super::super::testing::{connect_store, start_in_process};
use super::{document, head, key};
use crate::clock::Timestamp;
use crate::ids::{ConversationId, ConversationKey, TenantId, UserId};
use crate::store::{
    ConversationStore as _, Document, DocumentKind, Partition, SearchQuery, Write, entry_id,
};
use crate::telemetry::cost_meter::{CostMeter, with_meter};

/// Creates a conversation with messages that contain "tea". The first is the oldest.
async fn begin(store: &CosmosStore, id: &str, state: &str, times: std::ops::Range<u64>) {
    let conversation_id = ConversationId::new(id);
    let at = Partition::Conversation(ConversationKey { conversation_id, ..key() });
    let head = Document { state: Some(state.to_owned()), ..head() };
    let messages = times.map(|time| Document {
        created_at: Some(Timestamp(time)),
        search_text: Some(format!("tea {time}")),
        ..document(DocumentKind::Entry, &entry_id(time), "{}")
    });
    store
        .write(&at, [head].into_iter().chain(messages).map(Write::Create).collect())
        .await
        .unwrap();
}

fn query() -> SearchQuery {
    SearchQuery {
        tenant: TenantId::new("t"),
        user: UserId::new("ada"),
        text: "tea".to_owned(),
        excluded: ConversationId::new("current"),
        limit: 3,
    }
}

/// Returns the texts, whether the search is complete, and the numbers of queries and reads.
async fn search_counted(
    store: &CosmosStore,
    bounds: SearchBounds,
) -> (Vec<String>, bool, [u32; 2]) {
    let meter = Arc::new(CostMeter::default());
    let query = query();
    let found = with_meter(Arc::clone(&meter), search(store, &query, bounds)).await.unwrap();
    let texts = found.hits.into_iter().map(|hit| hit.text).collect();
    let requests = ["cosmos.search", "cosmos.read"].map(|name| meter.total(name).requests);
    (texts, found.is_complete, requests)
}

#[tokio::test]
async fn search_costs_a_query_and_a_read_for_each_conversation() {
    let emulator = start_in_process(4);
    let store = connect_store(&emulator, Vec::new()).await;
    let (texts, is_complete, requests) = search_counted(&store, BOUNDS).await;
    assert_eq!((texts.len(), is_complete, requests), (0, true, [1, 0]));
    begin(&store, "c1", "idle", 1..50).await;
    let (texts, is_complete, requests) = search_counted(&store, BOUNDS).await;
    assert_eq!(texts, ["tea 49", "tea 48", "tea 47"]);
    assert_eq!((is_complete, requests), (true, [1, 1]));
    begin(&store, "c2", "idle", 90..91).await;
    begin(&store, "c3", "idle", 91..92).await;
    let (texts, is_complete, requests) = search_counted(&store, BOUNDS).await;
    assert_eq!(texts, ["tea 91", "tea 90", "tea 49"]);
    assert_eq!((is_complete, requests), (true, [1, 3]));
}

#[tokio::test]
async fn search_of_deleted_messages_stops_at_its_bounds() {
    let emulator = start_in_process(4);
    let store = connect_store(&emulator, Vec::new()).await;
    begin(&store, "old", "idle", 1..2).await;
    begin(&store, "gone", "deleted", 100..129).await;
    // The messages of a deleted conversation are read until they are purged.
    let (texts, is_complete, requests) = search_counted(&store, BOUNDS).await;
    assert_eq!((texts, is_complete, requests), (vec!["tea 1".to_owned()], true, [3, 2]));
    begin(&store, "gone-too", "deleted", 200..210).await;
    let (texts, is_complete, requests) = search_counted(&store, BOUNDS).await;
    assert_eq!((texts.len(), is_complete, requests), (0, false, [3, 2]));
    let cheap = SearchBounds { request_units: 1.0, ..BOUNDS };
    let (texts, is_complete, requests) = search_counted(&store, cheap).await;
    assert_eq!((texts.len(), is_complete, requests), (0, false, [1, 0]));
}
