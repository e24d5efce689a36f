//! Measures the store's cost of a tool round: makes the requests of one in the doctor's own
//! conversation, then deletes its documents.

use std::ops::Range;
use std::sync::Arc;
use std::time::Duration;

use serde_json::json;

use turnwheel_platform::clock::Timestamp;
use turnwheel_platform::ids::{ConversationId, ConversationKey, TenantId, UserId, WorkerId};
use turnwheel_platform::telemetry::cost_meter::{CostMeter, MeteredCost, with_meter};
use turnwheel_storage::store::{
    ConversationStore, Document, DocumentKind, ETag, HEAD_ID, LeaseRequest, Partition, StoreError,
    Write, entry_id, events_id,
};

/// Bytes of a typical head, and of a short message, call or result.
const HEAD_BYTES: usize = 1_500;
const ENTRY_BYTES: usize = 1_000;
/// Bytes of the events of a commit.
const EVENTS_BYTES: usize = 500;

/// Makes the four requests of a tool round: acquiring the lease, and the commits of the lease, of
/// the model response and of the result.
///
/// # Errors
/// The store rejects a request; documents may then remain, in a conversation that no list shows.
pub(crate) async fn measure_round_cost(
    store: &dyn ConversationStore,
    fresh: &str,
    now: Timestamp,
) -> Result<MeteredCost, StoreError> {
    let key = ConversationKey {
        tenant: TenantId::new("turnwheel-doctor"),
        user: UserId::new("doctor"),
        conversation_id: ConversationId::new(fresh),
    };
    let partition = Partition::Conversation(key.clone());
    let created = store.write(&partition, vec![Write::Create(head_document(now))]).await?;
    let meter = Arc::new(CostMeter::default());
    let round = async {
        let worker = WorkerId::new(fresh);
        let until = now.plus(Duration::from_mins(1));
        store
            .acquire_lease(LeaseRequest { key: &key, worker: &worker, now, until, expired: None })
            .await?;
        let mut etag = first_etag(created);
        // The lease; the response with its started call; the result.
        for entries in [0..0, 1..3, 3..4] {
            let mut writes = vec![Write::Replace(head_document(now), etag.clone())];
            if !entries.is_empty() {
                writes.push(Write::Create(commit_document(&entries)));
            }
            etag = first_etag(store.write(&partition, writes).await?);
        }
        store.release_lease(&key, &worker).await;
        Ok(())
    };
    let outcome: Result<(), StoreError> = with_meter(Arc::clone(&meter), round).await;
    outcome?;
    let ids = [HEAD_ID.to_owned(), events_id(1), events_id(3)];
    store.write(&partition, ids.map(|id| Write::Delete(id, None)).into()).await?;
    Ok(meter.total(""))
}

fn first_etag(etags: Vec<ETag>) -> Option<ETag> {
    etags.into_iter().next()
}

/// A head that no list shows and that has no pending work.
fn head_document(now: Timestamp) -> Document {
    Document {
        created_at: Some(now),
        state: Some("deleted".to_owned()),
        ..new_document(HEAD_ID.to_owned(), DocumentKind::Head, HEAD_BYTES)
    }
}

/// The events of a commit, with the entries.
fn commit_document(entries: &Range<u64>) -> Document {
    let bytes = EVENTS_BYTES + ENTRY_BYTES * entries.clone().count();
    Document {
        last_entry: Some(entry_id(entries.end - 1)),
        ..new_document(events_id(entries.start), DocumentKind::Events, bytes)
    }
}

fn new_document(id: String, kind: DocumentKind, bytes: usize) -> Document {
    let body = json!({"madeBy": "turnwheel doctor", "text": "x".repeat(bytes)});
    Document::new(id, kind, &body, None)
}

#[cfg(test)]
mod tests {
    use super::*;
    use turnwheel_storage::store::{Freshness, Selection};

    #[tokio::test]
    async fn round_cost_is_measured_and_documents_deleted() {
        let emulator = turnwheel_storage::store::cosmos::testing::start_in_process(1);
        let store =
            turnwheel_storage::store::cosmos::testing::connect_store(&emulator, Vec::new()).await;
        let cost = measure_round_cost(&store, "c1", Timestamp(1)).await.unwrap();
        assert_eq!(cost.requests, 4);
        assert!(cost.request_units > 4.0, "{cost:?}");
        let partition = Partition::Conversation(ConversationKey {
            tenant: TenantId::new("turnwheel-doctor"),
            user: UserId::new("doctor"),
            conversation_id: ConversationId::new("c1"),
        });
        assert_eq!(store.read(&partition, HEAD_ID, Freshness::Latest).await.unwrap(), None);
        for kind in [DocumentKind::Entry, DocumentKind::Events] {
            let remaining =
                store.select(&partition, &Selection::all(kind), Freshness::Latest).await;
            assert_eq!(remaining.unwrap(), []);
        }
    }
}
