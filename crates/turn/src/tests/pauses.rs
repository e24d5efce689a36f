//! Pauses by the operator: paused work is kept and not started, costs next to nothing, and
//! continues after the pause.

use std::sync::Arc;
use std::time::Duration;

use serde_json::{Value, json};

use super::test_env::{
    DeterministicStore, LoggedRequests as _, RequestLogStore, Script, TestEnv, call, idempotency,
    text,
};
use crate::delivery::handle;
use crate::sweep;
use turnwheel_commands::abort::{AbortRequest, abort};
use turnwheel_conversation::entry::{EntryBody, PromptState};
use turnwheel_conversation::phase::{CallState, Phase};
use turnwheel_platform::clock::Clock as _;
use turnwheel_platform::fail_points::NoFailPoints;
use turnwheel_platform::settings::pauses::{Pauses, parse};
use turnwheel_queries::why::{ServiceStatus, WaitsFor, explain_conversation};
use turnwheel_record::error::DeliveryOutcome;

fn calls_look(results: usize, _input: &str) -> Vec<Value> {
    if results == 0 { vec![call("c1", "look", 0)] } else { vec![text("done")] }
}

fn calls_look_and_put(results: usize, _input: &str) -> Vec<Value> {
    if results == 0 {
        vec![call("c1", "look", 0), call("c2", "put", 0)]
    } else {
        vec![text("done")]
    }
}

pub(super) fn parse_pauses(on: &str) -> Arc<Pauses> {
    Arc::new(parse(on).unwrap())
}

/// Passes `minutes` of virtual time, with sweeps and deliveries.
async fn pass_minutes(env: &mut TestEnv, minutes: u32) {
    for _ in 0..minutes {
        while env.deliver().await {}
        tokio::time::sleep(Duration::from_mins(1)).await;
        env.run_sweep().await;
    }
    while env.deliver().await {}
}

/// Returns the environment after one hour in which the accepted prompt was paused.
async fn env_after_paused_hour(on: &str, script: Script) -> TestEnv {
    let mut env = TestEnv::with_script(1, script);
    env.pauses = parse_pauses(on);
    let services = env.new_worker(Arc::new(NoFailPoints));
    env.send_prompt(&services).await;
    // Usage is posted to the ledger 10 minutes after a response.
    pass_minutes(&mut env, 15).await;
    let commits = env.store.commit_count();
    pass_minutes(&mut env, 45).await;
    assert_eq!(env.store.commit_count(), commits, "after the first delivery nothing is written");
    env
}

async fn wait_state(env: &TestEnv) -> (WaitsFor, String) {
    let view = explain_conversation(
        &*env.worker_store,
        &TestEnv::key(),
        ServiceStatus::Remote,
        env.clock.now(),
    )
    .await
    .unwrap();
    (view.waits_for, view.why)
}

/// Entries of a prompt that was never paused.
async fn entries_without_pause(script: Script) -> Vec<Value> {
    let mut env = TestEnv::with_script(1, script);
    let services = env.new_worker(Arc::new(NoFailPoints));
    env.send_prompt(&services).await;
    env.run_until_idle().await;
    env.normalised_entries().await
}

#[tokio::test(start_paused = true)]
async fn paused_agent_calls_no_model_until_resumed() {
    for on in ["agent:clerk", "*"] {
        let mut env = env_after_paused_hour(on, calls_look).await;
        assert_eq!(*env.model.calls.lock().unwrap(), 0);
        let head = env.head().await.unwrap();
        assert_eq!(
            (head.leases_without_progress, head.lease.is_none(), head.min_reader),
            (0, true, 3)
        );
        let (waits_for, why) = wait_state(&env).await;
        assert_eq!(waits_for, WaitsFor::Paused);
        assert!(
            why.contains("paused by TURNWHEEL_PAUSED: the conversation's work has been kept pending since 2027-01-15T08:00:"),
            "{why}"
        );
        env.pauses = Arc::default();
        let before = env.clock.now();
        pass_minutes(&mut env, 2).await;
        assert_eq!(env.normalised_entries().await, entries_without_pause(calls_look).await, "{on}");
        let head = env.head().await.unwrap();
        assert_eq!((head.pause, head.min_reader), (None, 1));
        assert!(
            before.until(head.updated_at) <= Duration::from_secs(90),
            "the recovery sweep resumes it"
        );
    }
}

#[tokio::test(start_paused = true)]
async fn paused_tool_call_waits_without_starting() {
    let mut env = env_after_paused_hour("tool:look", calls_look).await;
    assert_eq!(*env.model.calls.lock().unwrap(), 1);
    assert!(env.executions.lock().unwrap().is_empty());
    let entries = env.entries().await;
    let is_started = |body: &EntryBody| matches!(body, EntryBody::ToolStarted(_));
    assert!(!entries.iter().any(|entry| is_started(&entry.body)), "no intent is recorded");
    let (waits_for, why) = wait_state(&env).await;
    assert_eq!(waits_for, WaitsFor::Paused);
    assert!(why.starts_with("The tool `look` is paused"), "{why}");
    env.pauses = Arc::default();
    pass_minutes(&mut env, 2).await;
    assert_eq!(env.normalised_entries().await, entries_without_pause(calls_look).await);
    assert_eq!(env.executions.lock().unwrap().len(), 1);
}

#[tokio::test(start_paused = true)]
async fn unrelated_pause_has_no_effect() {
    let mut env = TestEnv::with_script(1, calls_look);
    env.pauses = parse_pauses("agent:other,tool:pay");
    let services = env.new_worker(Arc::new(NoFailPoints));
    env.send_prompt(&services).await;
    env.run_until_idle().await;
    assert_eq!(env.normalised_entries().await, entries_without_pause(calls_look).await);
}

#[tokio::test(start_paused = true)]
async fn parallel_calls_run_beside_a_paused_call() {
    let mut env = TestEnv::with_script(1, calls_look_and_put);
    env.enable_parallel_calls(4);
    env.pauses = parse_pauses("tool:look");
    let services = env.new_worker(Arc::new(NoFailPoints));
    env.send_prompt(&services).await;
    pass_minutes(&mut env, 10).await;
    let Phase::Calls { calls, .. } = env.head().await.unwrap().phase else {
        panic!("the calls are not pending")
    };
    assert_eq!(calls.iter().map(CallState::is_done).collect::<Vec<_>>(), [false, true]);
    assert_eq!(wait_state(&env).await.0, WaitsFor::Paused);
    env.pauses = Arc::default();
    pass_minutes(&mut env, 2).await;
    assert_eq!(env.head().await.unwrap().phase, Phase::Idle);
    assert_eq!(env.executions.lock().unwrap().len(), 2);
}

#[tokio::test(start_paused = true)]
async fn paused_prompt_can_be_aborted() {
    for on in ["agent:clerk", "tool:look"] {
        let mut env = env_after_paused_hour(on, calls_look).await;
        let services = env.new_worker(Arc::new(NoFailPoints));
        let stop = idempotency("stop");
        abort(&services, &TestEnv::key(), AbortRequest::default(), &stop).await.unwrap();
        assert_eq!(wait_state(&env).await.0, WaitsFor::Nudge, "the abort waits for a worker");
        while env.deliver().await {}
        let head = env.head().await.unwrap();
        assert_eq!(head.prompts.last().unwrap().state, PromptState::Aborted, "{on}");
        assert_eq!((head.phase, head.pause), (Phase::Idle, None));
    }
}

#[tokio::test(start_paused = true)]
async fn restarts_do_not_count_against_paused_work() {
    let folder = tempfile::tempdir().unwrap();
    let mut env = TestEnv::with_script(1, calls_look);
    env.use_embedded_store(DeterministicStore::open(folder.path().to_owned()));
    for on in ["tool:look", "agent:clerk"] {
        env.pauses = parse_pauses(on);
        let services = env.new_worker(Arc::new(NoFailPoints));
        if env.head().await.is_none() {
            env.send_prompt(&services).await;
        }
        // The worker shares ownership of the store, which is closed and reopened.
        drop(services);
        for _ in 0..7 {
            pass_minutes(&mut env, 2).await;
            env.restart_process().await;
        }
        assert_eq!(env.head().await.unwrap().leases_without_progress, 0, "{on}");
        assert_eq!(wait_state(&env).await.0, WaitsFor::Paused, "{on}");
    }
    env.pauses = Arc::default();
    env.restart_process().await;
    env.run_until_idle().await;
    assert_eq!(env.normalised_entries().await, entries_without_pause(calls_look).await);
}

#[tokio::test(start_paused = true)]
async fn check_of_paused_conversation_is_one_store_request() {
    let mut env = TestEnv::with_script(1, calls_look);
    env.pauses = parse_pauses("agent:clerk");
    let counting = RequestLogStore::wrap(env.store.clone());
    env.worker_store = counting.clone();
    let services = env.new_worker(Arc::new(NoFailPoints));
    env.send_prompt(&services).await;
    handle(&services, &TestEnv::nudge()).await.unwrap();
    tokio::time::sleep(Duration::from_mins(3)).await;
    counting.take_requests();
    assert_eq!(
        sweep::sweep(&services, sweep::GRACE_PERIOD).await.unwrap(),
        1,
        "each sweep enqueues it"
    );
    assert_eq!(counting.take_requests(), "due");
    assert_eq!(handle(&services, &TestEnv::nudge()).await.unwrap(), DeliveryOutcome::NoWork);
    assert_eq!(counting.take_requests(), "lease (head)");
}

#[tokio::test(start_paused = true)]
async fn prompts_queued_during_pause_complete_after_it() {
    let mut env = env_after_paused_hour("agent:clerk", calls_look).await;
    let services = env.new_worker(Arc::new(NoFailPoints));
    for input in ["second", "third"] {
        let answer = env.queue_prompt(&services, &TestEnv::key(), input).await.unwrap();
        assert_eq!(answer.status, 202);
    }
    pass_minutes(&mut env, 3).await;
    assert_eq!(*env.model.calls.lock().unwrap(), 0);
    assert_eq!(env.head().await.unwrap().waiting_items, 2);
    assert_eq!(json!(wait_state(&env).await.0), json!("paused"));
    env.pauses = Arc::default();
    env.run_until_idle().await;
    let prompts = env.head().await.unwrap().prompts;
    assert!(prompts.iter().all(|span| span.state == PromptState::Completed));
    assert_eq!(prompts.len(), 3);
}
