//! Tests of those invariants in `docs/architecture.md` that need a test of their own.

use std::sync::Arc;
use std::time::Duration;

use serde_json::{Value, json};

use super::test_env::{
    DeterministicStore, PauseFailPoint, TestEnv, call, idempotency, owner, rejecting_sender, text,
};
use crate::delivery::handle;
use turnwheel_commands::prompt::{FirstPromptRequest, begin_conversation};
use turnwheel_conversation::entry::EntryBody;
use turnwheel_conversation::message::Message;
use turnwheel_platform::fail_points::NoFailPoints;
use turnwheel_record::contract::CommandError;
use turnwheel_record::idempotency::Idempotency;
use turnwheel_storage::store::{DocumentKind, Freshness, Partition, Selection};

const ROUNDS: usize = 10;

fn calls_look_many_times(results: usize, _input: &str) -> Vec<Value> {
    if results < ROUNDS { vec![call("c1", "look", results)] } else { vec![text("done")] }
}

fn pays_once(results: usize, _input: &str) -> Vec<Value> {
    if results == 0 { vec![call("c1", "pay", 0)] } else { vec![text("done")] }
}

#[tokio::test(start_paused = true)]
async fn invariant_01_accepted_means_kept() {
    let mut env = TestEnv::with_script(1, pays_once);
    let services = env.new_worker(Arc::new(NoFailPoints));
    let begin = async |key: &Idempotency| {
        let request = FirstPromptRequest {
            conversation_id: Some("c".to_owned()),
            input: Some(serde_json::from_value(json!("go")).unwrap()),
            ..FirstPromptRequest::default()
        };
        begin_conversation(&services, &owner(), request, key, &rejecting_sender()).await
    };
    let key = idempotency("one");
    let first = begin(&key).await.unwrap();
    let partition = Partition::Conversation(TestEnv::key());
    let all = Selection::all(DocumentKind::Inbox);
    let inbox = services.store.select(&partition, &all, Freshness::Latest).await;
    assert_eq!(inbox.unwrap().len(), 1, "the item is stored before the response");
    let other = Idempotency { body_hash: "other".to_owned(), ..key.clone() };
    for _ in 0..2 {
        let again = begin(&key).await.unwrap();
        assert_eq!((again.body.as_ref(), again.is_replayed), (first.body.as_ref(), true));
        assert!(matches!(begin(&other).await, Err(CommandError::KeyReused)));
        // In the second iteration the prompt has ended.
        env.run_until_idle().await;
    }
}

#[tokio::test(start_paused = true)]
async fn invariant_04_response_is_committed_before_tools_start() {
    let mut env = TestEnv::with_script(4, pays_once);
    let client = env.new_worker(Arc::new(NoFailPoints));
    env.send_prompt(&client).await;
    let pause = Arc::new(PauseFailPoint::new("tool.before"));
    let worker = env.new_worker(pause.clone());
    let nudge = TestEnv::nudge();
    pause.kill(handle(&worker, &nudge)).await;
    let entries = env.entries().await;
    let is_answer = |entry: &turnwheel_conversation::entry::Entry| {
        matches!(entry.body.message(), Some(Message::Assistant(_)))
    };
    assert!(entries.iter().any(is_answer));
    assert!(
        matches!(entries.last().unwrap().body, EntryBody::ToolStarted(_)),
        "the intent is recorded"
    );
    // That worker is dead. Its write was never sent, but other workers cannot know.
    env.run_until_idle().await;
    assert_eq!(*env.model.calls.lock().unwrap(), 2, "the response is not billed again");
}

#[tokio::test(start_paused = true)]
async fn invariant_14_cost_is_linear() {
    let mut env = TestEnv::with_script(14, calls_look_many_times);
    let services = env.new_worker(Arc::new(NoFailPoints));
    env.send_prompt(&services).await;
    env.run_until_idle().await;
    for number in 0..22 {
        env.queue_prompt(&services, &TestEnv::key(), &format!("prompt {number}")).await.unwrap();
        env.run_until_idle().await;
    }
    let partition = Partition::Conversation(TestEnv::key());
    let mut heads = Vec::new();
    for stored in env.store.documents(&partition) {
        let history = env.store.history(&partition, &stored.document.id);
        match stored.document.kind {
            DocumentKind::Entry | DocumentKind::Events => {
                assert_eq!(history.len(), 1, "{} was written again", stored.document.id);
            }
            DocumentKind::Head => heads = history,
            _ => {}
        }
    }
    let sizes = heads.iter().flatten().map(|stored| stored.document.body.text().len());
    let largest = sizes.max().unwrap();
    assert!(largest < 8 * 1024, "the head grew to {largest} bytes");
}

#[tokio::test(start_paused = true)]
async fn tool_round_costs_at_most_three_fsyncs() {
    let folder = tempfile::tempdir().unwrap();
    let mut env = TestEnv::with_script(15, calls_look_many_times);
    let store = DeterministicStore::open(folder.path().to_owned());
    env.use_embedded_store(store.clone());
    *env.model.response_time.lock().unwrap() = Duration::from_millis(1);
    let services = env.new_worker(Arc::new(NoFailPoints));
    env.send_prompt(&services).await;
    let before = store.fsyncs();
    env.run_until_idle().await;
    let fsyncs = store.fsyncs() - before;
    // One more commit applies the prompt, and one stores the last response.
    let per_round = (fsyncs - 2).div_ceil(ROUNDS as u64);
    assert!(per_round <= 3, "{fsyncs} fsyncs for {ROUNDS} rounds");
    assert!(fsyncs >= 2 * ROUNDS as u64, "too few fsyncs were counted: {fsyncs}");
}
