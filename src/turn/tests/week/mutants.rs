//! Workers with deliberate errors: the simulated weeks detect each, and report few faults.

use std::sync::Arc;

use super::life::{Over, Plan, live_through};
use crate::ids::fate::Fate;
use crate::store::memory::MemoryStore;
use crate::store::{ConversationStore, ETag, StoreError};
use crate::turn::tests::bench::Altered;
use crate::turn::tests::seeds::Found;

/// Treats an indeterminate write as won.
fn trusting(store: Arc<MemoryStore>) -> Arc<dyn ConversationStore> {
    Altered::hearing(store, |answer, count| match answer {
        Err(StoreError::Unavailable(_)) => Ok(vec![ETag("believed".to_owned()); count]),
        heard => heard,
    })
}

/// Treats a conflict as a batch that was written before.
fn overbearing(store: Arc<MemoryStore>) -> Arc<dyn ConversationStore> {
    Altered::hearing(store, |answer, count| match answer {
        Err(StoreError::Conflict) => Ok(vec![ETag("claimed".to_owned()); count]),
        heard => heard,
    })
}

/// Returns the minimised run of the first week with a violation.
async fn told(mutant: fn(Arc<MemoryStore>) -> Arc<dyn ConversationStore>) -> Found {
    let run = async |seed, fate: Fate| {
        live_through(seed, &fate, &Plan::of(seed), Over::InFront(mutant)).await
    };
    for seed in 1..=30 {
        let fate = Fate::new(seed);
        if run(seed, fate.clone()).await.outcome.is_err() {
            return Box::pin(Found::of(seed, &fate.happened(), run)).await;
        }
    }
    panic!("no week detected the error");
}

#[tokio::test(start_paused = true)]
async fn a_worker_that_believes_in_lost_batches_is_found_and_told_in_three_mishaps() {
    let found = Box::pin(told(trusting)).await;
    let story = found.to_string();
    assert!((1..=3).contains(&found.mishaps.len()), "{story}");
    assert!(found.broken.contains("invariant "), "{story}");
    let is_store = |what: &str| what.contains("batch") || what.contains("the store was throttled");
    assert!(found.mishaps.iter().any(|mishap| is_store(mishap.what)), "{story}");
    assert!(story.contains(&found.mishaps[0].to_string()), "{story}");
}

#[tokio::test(start_paused = true)]
async fn a_worker_that_takes_a_conflict_for_a_success_is_found_and_told_in_three_mishaps() {
    let found = Box::pin(told(overbearing)).await;
    assert!((1..=3).contains(&found.mishaps.len()), "{found}");
    assert!(found.broken.contains("invariant "), "{found}");
}
