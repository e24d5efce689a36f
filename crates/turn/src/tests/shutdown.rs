//! The end of a process: turns are given back, and writes get their time.

mod definitions;
mod undrained_inbox;
mod unleased_calls;

use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use serde_json::Value;
use tokio::time::Instant;

use super::call_approval::{handle_nudges, only_request};
use super::parallel_calls::result_texts;
use super::test_env::{Script, TestEnv, call, text};
use crate::delivery::handle;
use turnwheel_conversation::event::EventKind;
use turnwheel_conversation::phase::Phase;
use turnwheel_conversation::request::RequestKind;
use turnwheel_extensions::{Extension, HookContext, HookError, RunChanges, StartingRun};
use turnwheel_platform::fail_points::NoFailPoints;
use turnwheel_platform::shutdown::StopTimes;
use turnwheel_record::services::Services;
use turnwheel_storage::queue::{self, Queue as _};

const TIMES: StopTimes =
    StopTimes { repeatable: Duration::from_secs(4), writes: Duration::from_secs(9) };

fn replies(_results: usize, _input: &str) -> Vec<Value> {
    vec![text("hello")]
}

fn studies(results: usize, _input: &str) -> Vec<Value> {
    match results {
        0 => vec![call("c1", "study", 0), call("c2", "pay", 0)],
        _ => vec![text("done")],
    }
}

fn brews(results: usize, _input: &str) -> Vec<Value> {
    match results {
        0 => vec![call("c1", "brew", 0), call("c2", "pay", 0)],
        _ => vec![text("done")],
    }
}

async fn env_with(script: Script) -> (TestEnv, Services) {
    let mut env = TestEnv::with_script(41, script);
    let worker = env.new_worker(Arc::new(NoFailPoints));
    env.send_prompt(&worker).await;
    (env, worker)
}

/// Handles the nudge while the process ends after one second. Returns the time from then on.
async fn handle_while_process_ends(worker: &Services, times: StopTimes) -> Duration {
    let nudge = TestEnv::nudge();
    let ends = async {
        tokio::time::sleep(Duration::from_secs(1)).await;
        worker.shutdown.begin(times);
        Instant::now()
    };
    let (handled, ended) = tokio::join!(Box::pin(handle(worker, &nudge)), ends);
    handled.unwrap();
    ended.elapsed()
}

/// Nothing blocks another worker, and no death is counted.
async fn assert_given_back(env: &TestEnv) {
    let head = env.head().await.unwrap();
    assert_eq!((&head.lease, head.leases_without_progress), (&None, 0));
    assert!(head.suspicion.is_blank());
    assert!(env.queue.length(queue::TURNS).await.unwrap() > 0, "another worker is woken");
}

#[tokio::test(start_paused = true)]
async fn model_call_is_given_back() {
    let (mut env, worker) = env_with(replies).await;
    *env.model.response_time.lock().unwrap() = Duration::from_mins(1);
    assert_eq!(handle_while_process_ends(&worker, TIMES).await, Duration::from_secs(4));
    assert_given_back(&env).await;
    let events = env.events().await;
    assert!(events.iter().any(|event| event.body.kind() == EventKind::MessageReset));

    *env.model.response_time.lock().unwrap() = Duration::from_millis(100);
    let next = env.new_worker(Arc::new(NoFailPoints));
    handle_nudges(&env, &next).await;
    assert_eq!(env.head().await.unwrap().phase, Phase::Idle);
    assert_eq!(*env.model.calls.lock().unwrap(), 2);
}

#[tokio::test(start_paused = true)]
async fn response_in_time_is_committed_and_no_call_begins() {
    let (env, worker) = env_with(studies).await;
    *env.model.response_time.lock().unwrap() = Duration::from_secs(3);
    assert_eq!(handle_while_process_ends(&worker, TIMES).await, Duration::from_secs(2));
    assert_given_back(&env).await;
    assert!(env.executions.lock().unwrap().is_empty());
    assert!(matches!(env.head().await.unwrap().phase, Phase::Calls { .. }));
}

#[tokio::test(start_paused = true)]
async fn repeatable_call_is_given_back_and_repeated() {
    let (mut env, worker) = env_with(studies).await;
    assert_eq!(handle_while_process_ends(&worker, TIMES).await, Duration::from_secs(4));
    assert_given_back(&env).await;
    let next = env.new_worker(Arc::new(NoFailPoints));
    handle_nudges(&env, &next).await;
    assert_eq!(result_texts(&env).await, ["study done", "pay done"]);
    let executions: Vec<u32> = env.executions.lock().unwrap().values().copied().collect();
    assert_eq!(executions, [2, 1], "the read was repeated, the write was not");
}

#[tokio::test(start_paused = true)]
async fn write_under_way_becomes_a_question_at_its_deadline() {
    let (env, worker) = env_with(brews).await;
    assert_eq!(handle_while_process_ends(&worker, TIMES).await, Duration::from_secs(9));
    let request = only_request(&env).await;
    assert_eq!(request.kind, RequestKind::Outcome);
    let head = env.head().await.unwrap();
    assert_eq!((&head.lease, head.leases_without_progress), (&None, 0));
    assert_eq!(env.executions.lock().unwrap().len(), 1, "the second call did not begin");
}

#[tokio::test(start_paused = true)]
async fn write_that_ends_in_time_is_committed() {
    let (env, worker) = env_with(brews).await;
    let times = StopTimes { writes: Duration::from_secs(210), ..TIMES };
    handle_while_process_ends(&worker, times).await;
    assert_given_back(&env).await;
    assert_eq!(result_texts(&env).await, ["brew done"]);
    assert_eq!(env.executions.lock().unwrap().len(), 1, "the second call did not begin");
    assert_eq!(*env.model.calls.lock().unwrap(), 1);
}

/// Its hook before a run does not end.
#[derive(Debug)]
struct HangingStart;

#[async_trait]
impl Extension for HangingStart {
    fn name(&self) -> &'static str {
        "hangs"
    }

    async fn before_agent_start(
        &self,
        _cx: &HookContext,
        _run: &StartingRun<'_>,
    ) -> Result<RunChanges, HookError> {
        std::future::pending().await
    }
}

/// The worker has no lease yet, and only the inbox has the prompt.
#[tokio::test(start_paused = true)]
async fn hook_before_the_first_commit_is_given_back() {
    let (mut env, mut worker) = env_with(replies).await;
    worker.extensions = vec![Arc::new(HangingStart)];
    env.queue.drop_queue(queue::TURNS);
    // Before the time-out of the hook.
    let times = StopTimes { repeatable: Duration::from_secs(2), ..TIMES };
    assert_eq!(handle_while_process_ends(&worker, times).await, times.repeatable);
    assert_given_back(&env).await;
    assert_eq!(*env.model.calls.lock().unwrap(), 0);

    let next = env.new_worker(Arc::new(NoFailPoints));
    handle_nudges(&env, &next).await;
    assert_eq!(env.head().await.unwrap().phase, Phase::Idle);
    assert_eq!(*env.model.calls.lock().unwrap(), 1);
}
