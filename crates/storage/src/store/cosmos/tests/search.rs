//! Tests of the bound of a search: no further page is read once the pages have cost that much.

use std::sync::Arc;

use super::super::SEARCH_REQUEST_UNITS_MAX;
use super::super::testing::{connect_store, start_in_process};
use super::{at, document, key};
use crate::store::cursor::PAGE_ITEMS_MAX;
use crate::store::{
    BATCH_OPERATIONS_MAX, ConversationStore as _, DocumentKind, SearchQuery, Write, entry_id,
};
use turnwheel_platform::clock::Timestamp;
use turnwheel_platform::ids::{ConversationId, ConversationKey};
use turnwheel_platform::telemetry::cost_meter::{CostMeter, with_meter};

#[tokio::test]
async fn search_reads_no_page_after_its_bound() {
    let emulator = start_in_process(1);
    let store = connect_store(&emulator, Vec::new()).await;
    // A query of these messages takes two pages. The emulator charges one unit for each.
    let count = PAGE_ITEMS_MAX as u64 + 40;
    let messages: Vec<u64> = (1..=count).collect();
    for batch in messages.chunks(BATCH_OPERATIONS_MAX) {
        let message = |time: &u64| {
            document(DocumentKind::Entry, &entry_id(*time), "{}")
                .with_search(&format!("oslo {time}"), Timestamp(*time))
        };
        store.write(&at(), batch.iter().map(message).map(Write::Create).collect()).await.unwrap();
    }
    let conversation_id = ConversationId::new("other");
    let from = ConversationKey { conversation_id, ..key() };
    let search = async |text: &str, request_units_max| {
        let meter = Arc::new(CostMeter::default());
        let query = SearchQuery::new(&from, text, 2 * PAGE_ITEMS_MAX);
        let work = store.search_within(&query, request_units_max);
        let found = with_meter(Arc::clone(&meter), work).await.unwrap();
        let newest = found.hits.first().map(|hit| hit.excerpt.clone()).unwrap_or_default();
        let requests = meter.total("cosmos.search").requests;
        (newest, found.hits.len(), found.is_complete, requests)
    };
    let newest = format!("oslo {count}");
    let all = messages.len();
    assert_eq!(search("oslo", SEARCH_REQUEST_UNITS_MAX).await, (newest.clone(), all, true, 2));
    assert_eq!(search("oslo", 1.0).await, (newest, PAGE_ITEMS_MAX, false, 1));
    // The last page may reach the bound: nothing older was left out.
    assert!(search("oslo 7", 1.0).await.2);
    assert_eq!(search("bergen", 1.0).await, (String::new(), 0, true, 1));
}
