//! Measures the store's cost of a tool round: makes the requests of one in the doctor's own
//! conversation, then deletes its documents.

use std::sync::Arc;
use std::time::Duration;

use serde_json::json;

use crate::agent::raw::RawJson;
use crate::clock::Timestamp;
use crate::ids::{ConversationId, ConversationKey, TenantId, UserId, WorkerId};
use crate::store::{
    ClaimRequest, ConversationStore, Document, ETag, HEAD_ID, Kind, Partition, StoreError, Write,
    entry_id, events_id,
};
use crate::telemetry::meter::{Cost, Meter, metered};

/// Bytes of a typical head, and of a short message, call or result.
const HEAD_BYTES: usize = 1_500;
const ENTRY_BYTES: usize = 1_000;

/// Makes the four requests of a tool round: acquiring the lease, and the commits of the lease, of
/// the model response and of the result.
///
/// # Errors
/// The store rejects a request; documents may then remain, in a conversation that no list shows.
pub async fn price_of_a_round(
    store: &dyn ConversationStore,
    fresh: &str,
    now: Timestamp,
) -> Result<Cost, StoreError> {
    let key = ConversationKey {
        tenant: TenantId::new("turnwheel-doctor"),
        user: UserId::new("doctor"),
        conversation_id: ConversationId::new(fresh),
    };
    let partition = Partition::Conversation(key.clone());
    let created = store.write(&partition, vec![Write::Create(head(now))]).await?;
    let meter = Arc::new(Meter::default());
    let round = async {
        let worker = WorkerId::new(fresh);
        let until = now.plus(Duration::from_mins(1));
        store.claim(ClaimRequest { key: &key, worker: &worker, now, until }).await?;
        let mut etag = first(created);
        for (number, seqs) in [(0, 0..0), (1, 1..3), (3, 3..4)] {
            let mut writes = vec![Write::Replace(head(now), etag.clone())];
            writes.extend(
                seqs.clone()
                    .map(|seq| Write::Create(document(entry_id(seq), Kind::Entry, ENTRY_BYTES))),
            );
            if !seqs.is_empty() {
                let events = document(events_id(number), Kind::Events, ENTRY_BYTES / 2);
                writes.push(Write::Create(events));
            }
            etag = first(store.write(&partition, writes).await?);
        }
        store.release(&key, &worker).await;
        Ok(())
    };
    let outcome: Result<(), StoreError> = metered(Arc::clone(&meter), round).await;
    outcome?;
    let ids = [HEAD_ID.to_owned(), events_id(1), events_id(3)];
    let ids = ids.into_iter().chain((1..4).map(entry_id));
    store.write(&partition, ids.map(|id| Write::Delete(id, None)).collect()).await?;
    Ok(meter.total(""))
}

fn first(etags: Vec<ETag>) -> Option<ETag> {
    etags.into_iter().next()
}

/// A head that no list shows and that has no pending work.
fn head(now: Timestamp) -> Document {
    Document {
        created_at: Some(now),
        state: Some("deleted".to_owned()),
        ..document(HEAD_ID.to_owned(), Kind::Head, HEAD_BYTES)
    }
}

fn document(id: String, kind: Kind, bytes: usize) -> Document {
    let body = RawJson::of(&json!({"madeBy": "turnwheel doctor", "text": "x".repeat(bytes)}));
    Document { id, kind, body, due: None, created_at: None, state: None, ttl: None }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::store::{Freshness, Selection};

    #[tokio::test]
    async fn a_round_is_priced_and_nothing_is_left() {
        let emulator = crate::store::cosmos::testing::in_process(1);
        let store = crate::store::cosmos::testing::store(&emulator, Vec::new()).await;
        let cost = price_of_a_round(&store, "c1", Timestamp(1)).await.unwrap();
        assert_eq!(cost.requests, 4);
        assert!(cost.request_units > 4.0, "{cost:?}");
        let partition = Partition::Conversation(ConversationKey {
            tenant: TenantId::new("turnwheel-doctor"),
            user: UserId::new("doctor"),
            conversation_id: ConversationId::new("c1"),
        });
        assert_eq!(store.read(&partition, HEAD_ID, Freshness::Latest).await.unwrap(), None);
        for kind in [Kind::Entry, Kind::Events] {
            let left = store.select(&partition, &Selection::all(kind), Freshness::Latest).await;
            assert_eq!(left.unwrap(), []);
        }
    }
}
