//! Parallel tool calls: their cost, their order, and their recovery after a crash.

use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use async_trait::async_trait;
use serde_json::{Value, json};
use tokio::sync::Notify;
use tokio::time::Instant;

use super::invariant_checks::violation_lines;
use super::store_requests::{handle_next_nudge, queued_nudges};
use super::test_env::{
    LoggedRequests as _, PauseFailPoint, RequestLogStore, Script, TestEnv, call, text,
};
use crate::delivery::handle;
use turnwheel_conversation::content::joined_text;
use turnwheel_conversation::entry::PromptState;
use turnwheel_conversation::event::EventBody;
use turnwheel_conversation::head::State;
use turnwheel_conversation::message::Message;
use turnwheel_conversation::phase::Phase;
use turnwheel_extensions::{
    CallBlock, Extension, HookContext, HookError, PendingToolCall, ToolCallDecision,
};
use turnwheel_platform::fail_points::{FailPoints, NoFailPoints};
use turnwheel_record::services::Services;
use turnwheel_storage::queue::{self, Queue as _};
use turnwheel_storage::store::{DocumentKind, Partition};

/// Calls with the ids c0, c1, …; each takes the given number of seconds.
fn nap_calls(seconds: &[usize]) -> Vec<Value> {
    let naps = seconds.iter().enumerate();
    naps.map(|(number, seconds)| call(&format!("c{number}"), "nap", *seconds)).collect()
}

fn three_naps(results: usize, _input: &str) -> Vec<Value> {
    if results == 0 { nap_calls(&[30, 10, 20]) } else { vec![text("done")] }
}

/// Calls that end before the lease has to be renewed.
pub(super) fn three_short_naps(results: usize, _input: &str) -> Vec<Value> {
    if results == 0 { nap_calls(&[3, 1, 2]) } else { vec![text("done")] }
}

pub(super) async fn new_env(
    most: u32,
    script: Script,
) -> (TestEnv, Services, Arc<RequestLogStore>) {
    let mut env = TestEnv::with_script(1, script);
    env.enable_parallel_calls(most);
    let counting = RequestLogStore::wrap(env.store.clone());
    env.worker_store = counting.clone();
    let services = env.new_worker(Arc::new(NoFailPoints));
    env.send_prompt(&services).await;
    (env, services, counting)
}

/// Ids of the calls in the order of their ends, and in the order of their result entries.
pub(super) async fn end_and_result_order(env: &TestEnv) -> (Vec<String>, Vec<String>) {
    let events = env.events().await;
    let ends = events.iter().filter_map(|event| match &event.body {
        EventBody::ToolExecutionEnd(end) => Some(end.tool_call_id.clone()),
        _ => None,
    });
    let entries = env.entries().await;
    let results = entries.iter().filter_map(|entry| match entry.body.message() {
        Some(Message::ToolResult(result)) => Some(result.tool_call_id.clone()),
        _ => None,
    });
    (ends.collect(), results.collect())
}

pub(super) async fn result_texts(env: &TestEnv) -> Vec<String> {
    let entries = env.entries().await;
    let results = entries.iter().filter_map(|entry| match entry.body.message() {
        Some(Message::ToolResult(result)) => Some(joined_text(&result.content)),
        _ => None,
    });
    results.collect()
}

#[tokio::test(start_paused = true)]
async fn three_parallel_calls_cost_four_commits() {
    let (env, services, counting) = new_env(8, three_naps).await;
    let began = Instant::now();
    insta::assert_snapshot!(handle_next_nudge(&env, &services, &counting).await, @r"
    lease (head)
    select inbox
    write head, entry, commit, receipt
    write head, commit
    write head, commit
    write head, commit
    write head, commit
    ");
    assert_eq!(began.elapsed().as_secs(), 30);
    let (ends, results) = end_and_result_order(&env).await;
    assert_eq!(ends, ["c1", "c2", "c0"]);
    assert_eq!(results, ["c0", "c1", "c2"]);
    assert_eq!(result_texts(&env).await, ["30", "10", "20"]);
    assert_eq!(queued_nudges(&env).await, 1);
}

fn equal_naps(results: usize, _input: &str) -> Vec<Value> {
    if results == 0 { nap_calls(&[5, 5, 5, 5]) } else { vec![text("done")] }
}

#[tokio::test(start_paused = true)]
async fn calls_ending_together_share_a_commit() {
    let (env, services, counting) = new_env(8, equal_naps).await;
    insta::assert_snapshot!(handle_next_nudge(&env, &services, &counting).await, @r"
    lease (head)
    select inbox
    write head, entry, commit, receipt
    write head, commit
    write head, commit
    ");
    assert_eq!(end_and_result_order(&env).await.1, ["c0", "c1", "c2", "c3"]);
}

#[tokio::test(start_paused = true)]
async fn concurrency_limit_starts_next_call_in_result_commit() {
    let (env, services, counting) = new_env(2, equal_naps).await;
    let began = Instant::now();
    insta::assert_snapshot!(handle_next_nudge(&env, &services, &counting).await, @r"
    lease (head)
    select inbox
    write head, entry, commit, receipt
    write head, commit
    write head, commit
    write head, commit
    ");
    assert_eq!(began.elapsed().as_secs(), 10, "two calls run at a time");
}

fn calls_gated_nap_and_missing(results: usize, _input: &str) -> Vec<Value> {
    match results {
        0 => vec![call("c0", "gated", 0), call("c1", "nap", 5), call("c2", "nope", 0)],
        _ => vec![text("done")],
    }
}

#[tokio::test(start_paused = true)]
async fn calls_run_while_another_waits_for_approval() {
    let (mut env, services, counting) = new_env(8, calls_gated_nap_and_missing).await;
    handle_next_nudge(&env, &services, &counting).await;
    let head = env.head().await.unwrap();
    assert_eq!((head.state(), head.lease), (State::WaitingForApproval, None));
    assert_eq!(end_and_result_order(&env).await.0, ["c2", "c1"]);
    assert_eq!(queued_nudges(&env).await, 0, "a wait sends no nudge");
    env.decide_requests().await;
    // Another worker, which has to read the buffered results.
    let other = env.new_worker(Arc::new(NoFailPoints));
    handle_next_nudge(&env, &other, &counting).await;
    assert_eq!(end_and_result_order(&env).await.1, ["c0", "c1", "c2"]);
    env.run_until_idle().await;
    assert_eq!(violation_lines(&env, &TestEnv::key(), (1, 0)).await, Vec::<String>::new());
}

pub(super) async fn handle_nudge_if_any(env: &TestEnv, services: &Services) -> bool {
    let received = env.queue.receive(queue::TURNS, 1, Duration::from_mins(1)).await.unwrap();
    let Some(message) = received.into_iter().next() else { return false };
    handle(services, &serde_json::from_str(&message.text).unwrap()).await.unwrap();
    env.queue.delete(queue::TURNS, &message.id, &message.pop_receipt).await.unwrap();
    true
}

fn wires_twice(results: usize, _input: &str) -> Vec<Value> {
    match results {
        0 => vec![call("c0", "wire", 7), call("c1", "wire", 7), call("c2", "wire", 8)],
        _ => vec![text("done")],
    }
}

/// `wire` loses half of its responses: ten conversations include one whose first call loses it.
#[tokio::test(start_paused = true)]
async fn equal_write_waits_while_first_outcome_is_unknown() {
    let mut lost = 0;
    for seed in 0..10 {
        let mut env = TestEnv::with_script(seed, wires_twice);
        env.enable_parallel_calls(8);
        let services = env.new_worker(Arc::new(NoFailPoints));
        env.send_prompt(&services).await;
        while handle_nudge_if_any(&env, &services).await {}
        let head = env.head().await.unwrap();
        let Phase::Calls { calls, .. } = &head.phase else { continue };
        let asked = head.requests.iter().filter_map(|request| request.call);
        if asked.map(|call| call.index).any(|index| index == 0) {
            lost += 1;
            assert_eq!(calls[1].attempts, 0, "the equal write does not start");
            assert!(calls[2].attempts == 1, "the different write starts");
        }
    }
    assert!(lost > 0, "no tool response was lost");
}

fn long_naps(results: usize, _input: &str) -> Vec<Value> {
    if results == 0 { nap_calls(&[150, 140, 145]) } else { vec![text("done")] }
}

#[tokio::test(start_paused = true)]
async fn lease_is_renewed_while_calls_run() {
    let mut env = TestEnv::with_script(1, long_naps);
    env.enable_parallel_calls(8);
    let services = env.new_worker(Arc::new(NoFailPoints));
    env.send_prompt(&services).await;
    let other = env.new_worker(Arc::new(NoFailPoints));
    let (nudge, over) = (TestEnv::nudge(), Notify::new());
    let other_worker = async {
        let mut tries = 0;
        while tokio::time::timeout(Duration::from_secs(7), over.notified()).await.is_err() {
            handle(&other, &nudge).await.unwrap();
            tries += 1;
        }
        tries
    };
    let worked = async {
        let handled = handle(&services, &nudge).await;
        over.notify_one();
        handled
    };
    let (handled, tries) = tokio::join!(worked, other_worker);
    handled.unwrap();
    assert!(tries > 15);
    assert!(env.executions.lock().unwrap().values().all(|times| *times == 1), "each ran once");
    assert_eq!(end_and_result_order(&env).await.0, ["c1", "c2", "c0"]);
}

fn naps_longer_than_turn(results: usize, _input: &str) -> Vec<Value> {
    match results {
        0 => nap_calls(&[100, 50, 6]),
        _ => vec![text("done")],
    }
}

#[tokio::test(start_paused = true)]
async fn call_without_enough_time_starts_in_next_delivery() {
    let (env, services, counting) = new_env(2, naps_longer_than_turn).await;
    // After 50 s a call may take 240 s, and the turn ends after 300 s.
    handle_next_nudge(&env, &services, &counting).await;
    assert_eq!(end_and_result_order(&env).await.0, ["c1", "c0"]);
    assert_eq!(queued_nudges(&env).await, 1);
    handle_next_nudge(&env, &services, &counting).await;
    assert_eq!(end_and_result_order(&env).await.0, ["c1", "c0", "c2"]);
}

fn three_unequal_naps(results: usize, _input: &str) -> Vec<Value> {
    if results == 0 { nap_calls(&[10, 20, 5]) } else { vec![text("done")] }
}

#[tokio::test(start_paused = true)]
async fn steer_skips_unstarted_calls_and_follows_the_results() {
    let (env, services, _) = new_env(2, three_unequal_naps).await;
    let nudge = TestEnv::nudge();
    let (handled, ()) = tokio::join!(handle(&services, &nudge), async {
        tokio::time::sleep(Duration::from_secs(3)).await;
        env.steer(&services, "stop that").await.unwrap();
    });
    handled.unwrap();
    let skipped = "Skipped due to queued user message.";
    assert_eq!(result_texts(&env).await, ["10", "20", skipped]);
    let entries = env.entries().await;
    let last = entries.iter().rev().find_map(|entry| entry.body.message());
    assert_eq!(last.unwrap().role(), "user", "the steer follows the results");
    let partition = Partition::Conversation(TestEnv::key());
    let documents = env.store.documents(&partition);
    let receipts = documents.iter().filter(|stored| stored.document.kind == DocumentKind::Receipt);
    let with_skipped_calls = receipts.map(|stored| stored.document.body.to_value());
    let with_skipped_calls =
        with_skipped_calls.filter(|receipt| !receipt["skippedCalls"].is_null()).collect::<Vec<_>>();
    let [receipt] = with_skipped_calls.as_slice() else { panic!("{with_skipped_calls:#?}") };
    assert_eq!(receipt["ranCalls"], json!(["c0", "c1"]));
    assert_eq!(receipt["skippedCalls"], json!(["c2"]));
}

/// Stops its worker for good at the fail point with the given number.
#[derive(Debug)]
struct NthFailPoint {
    left: AtomicU32,
    fail_point: Mutex<Option<&'static str>>,
    reached: Notify,
}

#[async_trait]
impl FailPoints for NthFailPoint {
    async fn hit(&self, fail_point: &'static str) {
        if self.left.fetch_sub(1, Ordering::SeqCst) == 0 {
            *self.fail_point.lock().unwrap() = Some(fail_point);
            self.reached.notify_one();
            std::future::pending::<()>().await;
        }
    }
}

fn calls_each_effect(results: usize, _input: &str) -> Vec<Value> {
    match results {
        0 => vec![
            call("c0", "look", 0),
            call("c1", "put", 1),
            call("c2", "pay", 2),
            call("c3", "nap", 0),
        ],
        _ => vec![text("done")],
    }
}

#[tokio::test(start_paused = true)]
async fn crash_during_parallel_calls_loses_and_duplicates_nothing() {
    let mut fail_points = std::collections::BTreeSet::new();
    for number in 0.. {
        let mut env = TestEnv::with_script(u64::from(number), calls_each_effect);
        env.enable_parallel_calls(3);
        let client = env.new_worker(Arc::new(NoFailPoints));
        env.send_prompt(&client).await;
        let nth = Arc::new(NthFailPoint {
            left: AtomicU32::new(number),
            fail_point: Mutex::default(),
            reached: Notify::new(),
        });
        let victim = env.new_worker(nth.clone());
        let nudge = TestEnv::nudge();
        let is_over = tokio::select! {
            handled = handle(&victim, &nudge) => { handled.unwrap(); true }
            () = nth.reached.notified() => false,
        };
        env.run_until_idle().await;
        let at = *nth.fail_point.lock().unwrap();
        assert_eq!(
            violation_lines(&env, &TestEnv::key(), (1, 0)).await,
            Vec::<String>::new(),
            "killed at {at:?}"
        );
        assert_eq!(
            end_and_result_order(&env).await.1,
            ["c0", "c1", "c2", "c3"],
            "killed at {at:?}"
        );
        assert_eq!(result_texts(&env).await[3], "0", "killed at {at:?}");
        assert!(*env.model.calls.lock().unwrap() <= 3, "killed at {at:?}");
        fail_points.extend(at);
        if is_over {
            break;
        }
    }
    for needed in [
        "pending-work.after",
        "response.before",
        "response.after",
        "tool.before",
        "tool.after",
        "result.before",
        "result.after",
    ] {
        assert!(fail_points.contains(needed), "{needed} was never hit: {fail_points:?}");
    }
}

#[derive(Debug)]
struct TerminatingExtension;

#[async_trait]
impl Extension for TerminatingExtension {
    fn name(&self) -> &'static str {
        "ends"
    }

    async fn before_tool_call(
        &self,
        _cx: &HookContext,
        _call: &PendingToolCall<'_>,
    ) -> Result<ToolCallDecision, HookError> {
        let reason = Some("That is all.".to_owned());
        Ok(ToolCallDecision::Block(CallBlock { reason, terminate: true }))
    }
}

#[tokio::test(start_paused = true)]
async fn calls_blocked_by_extension_may_end_the_prompt() {
    let (env, mut services, counting) = new_env(8, calls_each_effect).await;
    services.extensions = vec![Arc::new(TerminatingExtension)];
    handle_next_nudge(&env, &services, &counting).await;
    assert_eq!(result_texts(&env).await, ["That is all."; 4]);
    assert_eq!(env.head().await.unwrap().prompts[0].state, PromptState::Completed);
    assert_eq!(*env.model.calls.lock().unwrap(), 1, "the model is not called again");
}

fn pays_three_times(results: usize, _input: &str) -> Vec<Value> {
    match results {
        0 => vec![call("c0", "pay", 0), call("c1", "pay", 1), call("c2", "pay", 2)],
        _ => vec![text("done")],
    }
}

#[tokio::test(start_paused = true)]
async fn each_unknown_outcome_has_its_own_request() {
    let mut env = TestEnv::with_script(3, pays_three_times);
    env.enable_parallel_calls(8);
    let client = env.new_worker(Arc::new(NoFailPoints));
    env.send_prompt(&client).await;
    let pause = Arc::new(PauseFailPoint::new("tool.after"));
    let victim = env.new_worker(pause.clone());
    let nudge = TestEnv::nudge();
    pause.kill(handle(&victim, &nudge)).await;
    tokio::time::sleep(Duration::from_secs(70)).await;
    let other = env.new_worker(Arc::new(NoFailPoints));
    handle(&other, &nudge).await.unwrap();
    let head = env.head().await.unwrap();
    assert_eq!(head.requests.len(), 3);
    assert_eq!(head.indeterminate_writes.len(), 3);
    env.run_until_idle().await;
    assert!(env.executions.lock().unwrap().values().eq([&1, &1, &1]), "each was paid once");
    assert_eq!(end_and_result_order(&env).await.1, ["c0", "c1", "c2"]);
}

#[tokio::test(start_paused = true)]
async fn uncommitted_results_reach_next_worker_as_late_results() {
    let mut env = TestEnv::with_script(7, pays_three_times);
    env.enable_parallel_calls(8);
    super::leases::lose_lease_before_results(&mut env).await;
    assert!(env.executions.lock().unwrap().values().eq([&1, &1, &1]), "each was paid once");
    assert!(!env.has_outcome_request, "the results are known: {:#?}", env.run_log);
}

#[tokio::test(start_paused = true)]
async fn slow_commit_delays_no_parallel_call() {
    let mut env = TestEnv::with_script(1, three_naps);
    env.enable_parallel_calls(8);
    let client = env.new_worker(Arc::new(NoFailPoints));
    env.send_prompt(&client).await;
    let pause = Arc::new(PauseFailPoint::new("result.before"));
    let worker = env.new_worker(pause.clone());
    let began = Instant::now();
    let nudge = TestEnv::nudge();
    let (handled, ()) = tokio::join!(handle(&worker, &nudge), async {
        pause.reached.notified().await;
        // The first result's commit blocks until all calls have ended.
        tokio::time::sleep(Duration::from_secs(25)).await;
        pause.resume.notify_one();
    });
    handled.unwrap();
    assert_eq!(began.elapsed().as_secs(), 35);
    // c1 alone, and then the calls that have ended meanwhile in one commit.
    assert_eq!(end_and_result_order(&env).await.0, ["c1", "c0", "c2"]);
}
