//! Leases: one worker at a time, renewed while work runs, given up before another worker may take
//! over.

use std::sync::Arc;
use std::time::Duration;

use serde_json::{Value, json};
use tokio::time::Instant;

use super::test_env::{HookFailPoint, PauseFailPoint, TestEnv, call, text};
use crate::delivery::handle;
use turnwheel_commands::patch::patch_conversation;
use turnwheel_conversation::entry::EntryBody;
use turnwheel_conversation::message::Message;
use turnwheel_conversation::phase::Phase;
use turnwheel_extensions::{Extension, HookContext, HookError, PendingToolCall, ToolCallDecision};
use turnwheel_platform::clock::Clock as _;
use turnwheel_platform::fail_points::NoFailPoints;
use turnwheel_record::documents;
use turnwheel_record::error::{DeliveryOutcome, TurnError};
use turnwheel_record::lease::LEASE_DURATION;
use turnwheel_storage::queue::{self, Queue as _};
use turnwheel_storage::store::memory::{MemoryStore, StoreFaults};
use turnwheel_storage::store::{Partition, Write};

fn replies_hello(_results: usize, _input: &str) -> Vec<Value> {
    vec![text("hello")]
}

fn calls_look_once(results: usize, _input: &str) -> Vec<Value> {
    if results == 0 { vec![call("c1", "look", 0)] } else { vec![text("done")] }
}

fn pays_once(results: usize, _input: &str) -> Vec<Value> {
    if results == 0 { vec![call("c1", "pay", 0)] } else { vec![text("done")] }
}

async fn count_responses(env: &TestEnv) -> u32 {
    let entries = env.entries().await;
    let is_answer = |entry: &&turnwheel_conversation::entry::Entry| {
        matches!(entry.body.message(), Some(Message::Assistant(_)))
    };
    u32::try_from(entries.iter().filter(is_answer).count()).unwrap()
}

#[tokio::test(start_paused = true)]
async fn inbox_item_is_applied_once_by_two_workers() {
    let mut env = TestEnv::with_script(1, replies_hello);
    let pause = Arc::new(PauseFailPoint::new("pending-work.before"));
    let slow = env.new_worker(pause.clone());
    let quick = env.new_worker(Arc::new(NoFailPoints));
    env.send_prompt(&quick).await;
    let nudge = TestEnv::nudge();
    let (slow_result, ()) = tokio::join!(handle(&slow, &nudge), async {
        pause.reached.notified().await;
        assert_eq!(handle(&quick, &nudge).await.unwrap(), DeliveryOutcome::Worked);
        pause.resume.notify_one();
    });
    assert!(matches!(slow_result, Err(TurnError::LeaseLost { .. })), "{slow_result:?}");
    let begun = env.entries().await;
    let begun = begun.iter().filter(|entry| matches!(entry.body, EntryBody::Prompt(_))).count();
    assert_eq!((begun, *env.model.calls.lock().unwrap()), (1, 1));
}

#[tokio::test(start_paused = true)]
async fn patch_between_read_and_lease_commit_is_kept() {
    let mut env = TestEnv::with_script(2, replies_hello);
    let pause = Arc::new(PauseFailPoint::new("pending-work.before"));
    let worker = env.new_worker(pause.clone());
    let client = env.new_worker(Arc::new(NoFailPoints));
    env.send_prompt(&client).await;
    let nudge = TestEnv::nudge();
    let (handled, ()) = tokio::join!(handle(&worker, &nudge), async {
        pause.reached.notified().await;
        let patch = json!({"name": "renamed"});
        let key = super::test_env::idempotency("patch");
        patch_conversation(&client, &TestEnv::key(), patch.as_object().unwrap(), &key, |_| true)
            .await
            .unwrap();
        pause.resume.notify_one();
    });
    assert_eq!(handled.unwrap(), DeliveryOutcome::Worked);
    let head = env.head().await.unwrap();
    assert_eq!((head.phase, head.name.as_deref()), (Phase::Idle, Some("renamed")));
}

#[tokio::test(start_paused = true)]
async fn patch_during_model_call_loses_no_response() {
    let mut env = TestEnv::with_script(3, pays_once);
    let client = env.new_worker(Arc::new(NoFailPoints));
    let pause = Arc::new(PauseFailPoint::new("model.after"));
    let worker = env.new_worker(pause.clone());
    env.send_prompt(&client).await;
    let nudge = TestEnv::nudge();
    let (handled, ()) = tokio::join!(handle(&worker, &nudge), async {
        pause.reached.notified().await;
        let patch = json!({"settings": {"model": "another"}});
        let key = super::test_env::idempotency("patch");
        patch_conversation(&client, &TestEnv::key(), patch.as_object().unwrap(), &key, |_| true)
            .await
            .unwrap();
        pause.resume.notify_one();
    });
    assert_eq!(handled.unwrap(), DeliveryOutcome::Worked);
    env.run_until_idle().await;
    assert_eq!(*env.model.calls.lock().unwrap(), 2, "no response is billed twice");
    assert!(env.executions.lock().unwrap().values().eq([&1]));
    let entries = env.entries().await;
    assert!(entries.iter().any(|entry| matches!(entry.body, EntryBody::ModelChange(_))));
}

#[tokio::test(start_paused = true)]
async fn inline_turn_past_its_half_keeps_the_lease() {
    let mut env = TestEnv::with_script(4, calls_look_once);
    *env.model.response_time.lock().unwrap() = Duration::from_secs(110);
    let services = env.new_worker(Arc::new(NoFailPoints));
    env.send_prompt(&services).await;
    let patch = json!({"settings": {"continuation": "inline"}});
    let key = super::test_env::idempotency("patch");
    patch_conversation(&services, &TestEnv::key(), patch.as_object().unwrap(), &key, |_| true)
        .await
        .unwrap();
    env.run_until_idle().await;
    let paid = *env.model.calls.lock().unwrap();
    assert_eq!((paid, count_responses(&env).await), (2, 2), "{:#?}", env.run_log);
}

#[tokio::test(start_paused = true)]
async fn worker_stops_effects_before_lease_expires() {
    for script in [replies_hello, pays_once] {
        let mut env = TestEnv::with_script(5, script);
        let client = env.new_worker(Arc::new(NoFailPoints));
        env.send_prompt(&client).await;
        let store = env.store.clone();
        let probe =
            HookFailPoint("model.before", move || store.set_faults(StoreFaults::unavailable()));
        let worker = env.new_worker(Arc::new(probe));
        *env.model.response_time.lock().unwrap() = Duration::from_mins(4);
        let began = Instant::now();
        let handled = handle(&worker, &TestEnv::nudge()).await;
        assert!(handled.is_err(), "{handled:?}");
        let took = began.elapsed();
        assert!(took <= Duration::from_secs(51), "the worker continued for {took:?}");
        assert!(took >= Duration::from_secs(45), "the worker stopped after {took:?}");
        env.store.set_faults(StoreFaults::default());
        *env.model.response_time.lock().unwrap() = Duration::from_secs(1);
        env.run_until_idle().await;
    }
}

#[tokio::test(start_paused = true)]
async fn tool_has_its_full_time_after_slow_commit() {
    let mut env = TestEnv::with_script(6, pays_once);
    let client = env.new_worker(Arc::new(NoFailPoints));
    env.send_prompt(&client).await;
    let store = env.store.clone();
    let pause = Arc::new(PauseFailPoint::new("response.before"));
    let worker = env.new_worker(pause.clone());
    let nudge = TestEnv::nudge();
    let (handled, ()) = tokio::join!(handle(&worker, &nudge), async {
        pause.reached.notified().await;
        store.set_faults(StoreFaults::unavailable());
        pause.resume.notify_one();
        tokio::time::sleep(Duration::from_secs(35)).await;
        store.set_faults(StoreFaults::default());
    });
    assert_eq!(handled.unwrap(), DeliveryOutcome::Worked);
    let head = env.head().await.unwrap();
    assert!(head.requests.is_empty(), "the outcome is known");
    assert!(matches!(head.phase, Phase::Model { .. }));
}

/// Sleeps for the given time before each call.
#[derive(Debug)]
struct SlowHook(Duration);

#[async_trait::async_trait]
impl Extension for SlowHook {
    fn name(&self) -> &'static str {
        "slow"
    }

    async fn before_tool_call(
        &self,
        _cx: &HookContext,
        _call: &PendingToolCall<'_>,
    ) -> Result<ToolCallDecision, HookError> {
        tokio::time::sleep(self.0).await;
        Ok(ToolCallDecision::Allow)
    }
}

#[tokio::test(start_paused = true)]
async fn committed_lease_starts_at_commit_time() {
    let mut env = TestEnv::with_script(8, pays_once);
    let client = env.new_worker(Arc::new(NoFailPoints));
    env.send_prompt(&client).await;
    let pause = Arc::new(PauseFailPoint::new("response.after"));
    let mut worker = env.new_worker(pause.clone());
    worker.extensions = vec![Arc::new(SlowHook(Duration::from_secs(29)))];
    worker.limits.hook_timeout = Duration::from_secs(30);
    let nudge = TestEnv::nudge();
    let (handled, left) = tokio::join!(handle(&worker, &nudge), async {
        pause.reached.notified().await;
        let head = env.head().await.unwrap();
        pause.resume.notify_one();
        env.clock.now().until(head.lease.unwrap().until)
    });
    assert_eq!(handled.unwrap(), DeliveryOutcome::Worked);
    assert!(left + Duration::from_secs(1) >= LEASE_DURATION, "a new lease has only {left:?} left");
}

#[tokio::test(start_paused = true)]
async fn uncommitted_result_reaches_next_worker_as_late_result() {
    let mut env = TestEnv::with_script(7, pays_once);
    lose_lease_before_results(&mut env).await;
    assert!(env.executions.lock().unwrap().values().eq([&1]), "the call ran once");
    assert!(!env.has_outcome_request, "the result is known: {:#?}", env.run_log);
}

/// Runs a prompt whose first worker has lost its lease when it commits the results of its calls. The
/// store accepts writes.
pub(super) async fn lose_lease_before_results(env: &mut TestEnv) {
    let client = env.new_worker(Arc::new(NoFailPoints));
    env.send_prompt(&client).await;
    let pause = Arc::new(PauseFailPoint::new("result.before"));
    let worker = env.new_worker(pause.clone());
    let store = env.store.clone();
    let nudge = TestEnv::nudge();
    let (handled, ()) = tokio::join!(handle(&worker, &nudge), async {
        pause.reached.notified().await;
        take_over_lease(&store).await;
        pause.resume.notify_one();
    });
    assert!(matches!(handled, Err(TurnError::LeaseLost { .. })), "{handled:?}");
    env.run_until_idle().await;
}

/// Gives the lease to another worker, which never acts.
pub(super) async fn take_over_lease(store: &MemoryStore) {
    use turnwheel_storage::store::{ConversationStore as _, Freshness, HEAD_ID};
    let partition = Partition::Conversation(TestEnv::key());
    let stored = store.read(&partition, HEAD_ID, Freshness::Latest).await.unwrap().unwrap();
    let mut head = documents::read_head(&stored).unwrap();
    head.epoch += 1;
    head.commit_id = turnwheel_platform::ids::CommitId::new("overtaken");
    let lease = head.lease.as_mut().unwrap();
    lease.worker = turnwheel_platform::ids::WorkerId::new("another");
    lease.epoch += 1;
    let document = documents::head_document(&head).unwrap();
    store.write(&partition, vec![Write::Replace(document, Some(stored.etag))]).await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn two_deliveries_in_one_process_exclude_each_other() {
    let mut env = TestEnv::with_script(8, pays_once);
    let services = env.new_worker(Arc::new(NoFailPoints));
    env.send_prompt(&services).await;
    let nudge = TestEnv::nudge();
    let (one, two) = tokio::join!(handle(&services, &nudge), handle(&services, &nudge));
    let worked =
        [&one, &two].into_iter().filter(|handled| matches!(handled, Ok(DeliveryOutcome::Worked)));
    assert_eq!(worked.count(), 1, "{one:?} {two:?}");
    assert_eq!(*env.model.calls.lock().unwrap(), 1);
}

#[tokio::test(start_paused = true)]
async fn delivery_never_exceeds_the_host_timeout() {
    let mut env = TestEnv::with_script(9, replies_hello);
    *env.model.response_time.lock().unwrap() = Duration::from_mins(4);
    let services = env.new_worker(Arc::new(NoFailPoints));
    env.send_prompt(&services).await;
    let began = Instant::now();
    let nudge = TestEnv::nudge();
    let (handled, ()) = tokio::join!(handle(&services, &nudge), async {
        tokio::time::sleep(Duration::from_secs(10)).await;
        env.queue_prompt(&services, &TestEnv::key(), "another").await.unwrap();
    });
    assert_eq!(handled.unwrap(), DeliveryOutcome::Worked);
    assert!(began.elapsed() < Duration::from_mins(5), "{:?}", began.elapsed());
    assert!(env.queue.length(queue::TURNS).await.unwrap() > 0, "the remaining work is enqueued");
    env.run_until_idle().await;
    assert_eq!(env.head().await.unwrap().prompts.len(), 2);
}
