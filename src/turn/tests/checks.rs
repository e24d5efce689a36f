//! Checks the invariants of one conversation; returns one line per violation.

use super::bench::Bench;
use crate::ids::ConversationKey;
use crate::store::{Freshness, Kind, Partition, Selection};
use crate::turn::invariants::{Rest, broken};

/// Returns the violations, given the expected numbers of prompts and of held inputs.
pub(super) async fn faults(
    bench: &Bench,
    key: &ConversationKey,
    (accepted, held): (usize, usize),
) -> Vec<String> {
    let (head, entries) = (bench.head_of(key).await.unwrap(), bench.entries_of(key).await);
    let done = bench.done.lock().unwrap().clone();
    let rest = Rest {
        head: &head,
        entries: &entries,
        events: &bench.events_of(key).await,
        inbox: (count(bench, key, Kind::Inbox).await, held),
        accepted,
        done: &done,
        is_write: &|tool| !matches!(tool, "look" | "put" | "nap"),
    };
    broken(&rest).iter().map(|broken| format!("{key}: {broken}")).collect()
}

async fn count(bench: &Bench, key: &ConversationKey, kind: Kind) -> usize {
    let partition = Partition::Conversation(key.clone());
    let found = bench.shared.select(&partition, &Selection::all(kind), Freshness::Latest).await;
    found.unwrap().len()
}
