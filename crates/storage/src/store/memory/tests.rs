//! Tests of the in-memory store and its injected faults.

use std::sync::Arc;

use super::{MemoryStore, StoreFaults};
use crate::store::contract::assert_store_contract;
use crate::store::{
    ConversationStore, Document, DocumentKind, Freshness, Partition, StoreError, Write,
};
use turnwheel_platform::ids::TenantId;

fn scope() -> Partition {
    Partition::Scope(TenantId::new("t"))
}

fn value(number: u64) -> Document {
    Document::new("value", DocumentKind::Scope, &number, None)
}

fn always(set: impl FnOnce(&mut StoreFaults)) -> MemoryStore {
    let mut faults = StoreFaults::default();
    set(&mut faults);
    MemoryStore::with_faults(1, faults)
}

async fn create(store: &MemoryStore) -> Result<(), StoreError> {
    store.write(&scope(), vec![Write::Create(value(1))]).await.map(|_| ())
}

#[tokio::test]
async fn memory_store_passes_contract() {
    assert_store_contract(async || Arc::new(MemoryStore::new()) as Arc<dyn ConversationStore>)
        .await;
}

#[tokio::test]
async fn memory_store_passes_contract_with_short_pages() {
    let faults = StoreFaults { yield_to_others: 0.5, short_pages: 0.5, ..StoreFaults::default() };
    assert_store_contract(async || {
        Arc::new(MemoryStore::with_faults(7, faults)) as Arc<dyn ConversationStore>
    })
    .await;
}

#[tokio::test]
async fn throttled_store_rejects_following_operations() {
    let store = always(|faults| faults.throttled = 1.0);
    assert!(matches!(create(&store).await, Err(StoreError::Unavailable(_))));
    // Reads start no new throttling.
    let mut refused = 0;
    while store.read(&scope(), "value", Freshness::Latest).await.is_err() {
        refused += 1;
    }
    assert!(refused < 6, "{refused} more operations were rejected");
    assert!(create(&store).await.is_err());
    store.set_faults(StoreFaults::default());
    create(&store).await.unwrap();
}

#[tokio::test]
async fn lost_response_leaves_batch_outcome_unknown() {
    let before = always(|faults| faults.unavailable_before = 1.0);
    assert!(matches!(create(&before).await, Err(StoreError::Unavailable(_))));
    assert_eq!(before.documents(&scope()).len(), 0);

    let after = always(|faults| faults.unavailable_after = 1.0);
    assert!(matches!(create(&after).await, Err(StoreError::Unavailable(_))));
    assert_eq!(after.documents(&scope()).len(), 1);
}

#[tokio::test]
async fn conflict_leaves_batch_outcome_unknown() {
    let refused = always(|faults| faults.conflict = 1.0);
    assert!(matches!(create(&refused).await, Err(StoreError::Conflict)));
    assert_eq!(refused.documents(&scope()).len(), 0);

    let resent = always(|faults| faults.conflict_after = 1.0);
    assert!(matches!(create(&resent).await, Err(StoreError::Conflict)));
    assert_eq!(resent.documents(&scope()).len(), 1);
}

#[tokio::test]
async fn delayed_batch_is_applied_later() {
    let store = always(|faults| faults.unavailable_late = 1.0);
    assert!(matches!(create(&store).await, Err(StoreError::Unavailable(_))));
    store.set_faults(StoreFaults::default());
    assert_eq!(store.commit_count(), 0);
    for _ in 0..20 {
        store.read(&scope(), "value", Freshness::Latest).await.unwrap();
    }
    assert_eq!(store.commit_count(), 1);
    assert!(matches!(create(&store).await, Err(StoreError::Conflict)));
}

#[tokio::test]
async fn only_any_freshness_reads_are_stale() {
    let store = always(|faults| faults.stale_reads = 1.0);
    for number in 0..50 {
        let write = if number == 0 {
            Write::Create(value(number))
        } else {
            Write::Replace(value(number), None)
        };
        store.write(&scope(), vec![write]).await.unwrap();
        let latest = store.read(&scope(), "value", Freshness::Latest).await.unwrap().unwrap();
        assert_eq!(latest.document, value(number));
        let lagging = store.read(&scope(), "value", Freshness::Any).await.unwrap();
        assert_ne!(lagging.map(|stored| stored.document), Some(value(number)));
    }
    assert_eq!(store.history(&scope(), "value").len(), 50);
}

#[tokio::test]
async fn same_seed_injects_same_faults() {
    let faults = StoreFaults { conflict: 0.3, unavailable_after: 0.3, ..StoreFaults::default() };
    let run = async |seed| {
        let store = MemoryStore::with_faults(seed, faults);
        let mut outcomes = String::new();
        for _ in 0..40 {
            outcomes += match store.write(&scope(), vec![Write::Create(value(1))]).await {
                Ok(_) => "o",
                Err(StoreError::Conflict) => "c",
                Err(_) => "u",
            };
            if let Ok(Some(_)) = store.read(&scope(), "value", Freshness::Latest).await {
                let _ = store.write(&scope(), vec![Write::Delete("value".to_owned(), None)]).await;
            }
        }
        outcomes
    };
    let first = run(3).await;
    assert_eq!(first, run(3).await);
    assert_ne!(first, run(4).await);
    assert!(first.contains('o') && first.contains('c') && first.contains('u'), "{first}");
}
