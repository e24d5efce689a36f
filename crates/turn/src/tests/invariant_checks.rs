//! Checks the invariants of one conversation; returns one line per violation.

use super::test_env::TestEnv;
use crate::invariants::{IdleConversation, find_violations};
use turnwheel_platform::ids::ConversationKey;
use turnwheel_storage::store::{DocumentKind, Freshness, Partition, Selection};

/// Returns the violations, given the expected numbers of prompts and of held inputs.
pub(super) async fn violation_lines(
    env: &TestEnv,
    key: &ConversationKey,
    (accepted, held): (usize, usize),
) -> Vec<String> {
    let (head, entries) = (env.head_of(key).await.unwrap(), env.entries_of(key).await);
    let done = env.executions.lock().unwrap().clone();
    let rest = IdleConversation {
        head: &head,
        entries: &entries,
        events: &env.events_of(key).await,
        inbox: (count_documents(env, key, DocumentKind::Inbox).await, held),
        accepted,
        sent_effects: &done,
        is_write: &|tool| !matches!(tool, "look" | "put" | "nap" | "tally"),
    };
    find_violations(&rest).iter().map(|broken| format!("{key}: {broken}")).collect()
}

async fn count_documents(env: &TestEnv, key: &ConversationKey, kind: DocumentKind) -> usize {
    let partition = Partition::Conversation(key.clone());
    let found = env.worker_store.select(&partition, &Selection::all(kind), Freshness::Latest).await;
    found.unwrap().len()
}
