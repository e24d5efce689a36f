//! The invariants of a conversation on the bench, as lines.

use super::bench::Bench;
use crate::ids::ConversationKey;
use crate::store::{Freshness, Kind, Partition, Selection};
use crate::turn::invariants::{Rest, broken};

/// What is wrong with a conversation in which so many prompts were to begin and so many inputs are held; empty: nothing.
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
