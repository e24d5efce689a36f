//! Process isolation: a conversation that kills its processes fails alone; only its step is blamed.

use std::panic::AssertUnwindSafe;
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use futures_util::FutureExt as _;
use serde_json::Value;

use super::test_env::{
    DeterministicStore, HookFailPoint, PauseFailPoint, TestEnv, call, idempotency, owner, text,
};
use crate::delivery::handle;
use turnwheel_commands::abort::{AbortRequest, abort};
use turnwheel_conversation::entry::{EntryBody, PromptEnd, PromptState};
use turnwheel_conversation::head::Head;
use turnwheel_conversation::suspicion::Suspicion;
use turnwheel_platform::clock::Clock as _;
use turnwheel_platform::fail_points::{FailPoints, NoFailPoints};
use turnwheel_platform::ids::{ConversationKey, WorkerId};
use turnwheel_record::error::DeliveryOutcome;
use turnwheel_record::isolator::{IsolatedOutcome, Isolation, Isolator};
use turnwheel_record::nudge::Nudge;
use turnwheel_record::services::Services;

const NEIGHBOURS: usize = 6;
const KILLER: &str = "killer";

/// A read, a write and a text; the killer crashes during its read.
fn calls_look_and_pay(results: usize, _input: &str) -> Vec<Value> {
    match results {
        0 => vec![call("c1", "look", 0)],
        1 => vec![call("c2", "pay", 0)],
        _ => vec![text("done")],
    }
}

fn replies_hello(_results: usize, _input: &str) -> Vec<Value> {
    vec![text("hello")]
}

async fn prompt_end(env: &TestEnv, key: &ConversationKey) -> PromptEnd {
    let entries = env.entries_of(key).await;
    let mut ends = entries.into_iter().filter_map(|entry| match entry.body {
        EntryBody::PromptEnd(end) => Some(end),
        _ => None,
    });
    ends.next().expect("the prompt has ended")
}

/// Runs a killer and its neighbours, whose processes also crash at random.
async fn run_killer_and_neighbours(seed: u64, store: Option<Arc<DeterministicStore>>) -> TestEnv {
    let mut env = TestEnv::with_script(seed, calls_look_and_pay);
    env.killer_id = Some(KILLER);
    env.has_shared_process = true;
    env.crash_percent = 3;
    if let Some(store) = store {
        env.use_embedded_store(store);
    }
    let ids = (0..NEIGHBOURS).map(|number| format!("n{number}")).chain([KILLER.to_owned()]);
    env.conversations = ids.map(|id| owner().conversation_key(&id)).collect();
    for key in env.conversations.clone() {
        let services = env.new_worker(Arc::new(NoFailPoints));
        env.send_prompt_to(&services, key.conversation_id.as_str(), "go").await;
    }
    env.run_until_idle().await;
    env
}

async fn check_ends(seed: u64, env: &TestEnv) {
    for key in &env.conversations {
        let end = prompt_end(env, key).await;
        if key.conversation_id.as_str() == KILLER {
            let error = end.error.unwrap();
            assert_eq!((end.state, error.kind.as_str()), (PromptState::Failed, "poisoned"));
            let reason = "The process died three times while it ran this step alone: the call of tool `look`.";
            assert_eq!(error.message, reason);
        } else {
            let run_log = &env.run_log;
            assert_eq!(end.state, PromptState::Completed, "{seed} {key}: {end:?} {run_log:#?}");
        }
    }
    let repeated = env.executions.lock().unwrap().iter().any(|(effect, count)| {
        // The calls of the second response are writes.
        effect.contains("_5_") && *count > 1
    });
    assert!(!repeated, "{seed}: {:?}", env.executions);
}

#[tokio::test(start_paused = true)]
async fn killer_fails_alone_with_leases_in_heads() {
    for seed in 0..20 {
        let env = run_killer_and_neighbours(seed, None).await;
        check_ends(seed, &env).await;
    }
}

#[tokio::test(start_paused = true)]
async fn killer_fails_alone_in_one_restarting_process() {
    for seed in 0..3 {
        let folder = tempfile::tempdir().unwrap();
        let env = run_killer_and_neighbours(
            seed,
            Some(DeterministicStore::open(folder.path().to_owned())),
        )
        .await;
        check_ends(seed, &env).await;
    }
}

/// Kills from outside during a step, however many, never fail its prompt.
#[tokio::test(start_paused = true)]
async fn external_kills_alone_never_fail_a_prompt() {
    let mut env = TestEnv::with_script(1, replies_hello);
    let client = env.new_worker(Arc::new(NoFailPoints));
    env.send_prompt(&client).await;
    let mut kills = 0;
    while kills < 12 {
        let pause = Arc::new(PauseFailPoint::new("model.before"));
        let mut worker = env.new_worker(pause.clone());
        worker.isolation = Isolation::Isolator(Arc::new(InProcessIsolator));
        let nudge = TestEnv::nudge();
        tokio::select! {
            outcome = handle(&worker, &nudge) => { outcome.unwrap(); }
            () = pause.reached.notified() => kills += 1,
        }
        tokio::time::sleep(Duration::from_secs(66)).await;
    }
    let head = env.head().await.unwrap();
    assert_eq!((head.suspicion.isolated_deaths, head.is_poisoned()), (0, false));
    assert_eq!(head.min_reader, 4, "an older worker would give it up");
    env.run_until_idle().await;
    assert_eq!(prompt_end(&env, &TestEnv::key()).await.state, PromptState::Completed);
}

/// Isolated process that nothing kills by itself; it ends with its parent.
#[derive(Debug)]
struct InProcessIsolator;

#[async_trait]
impl Isolator for InProcessIsolator {
    async fn run(&self, services: &Services, nudge: &Nudge, worker: &WorkerId) -> IsolatedOutcome {
        let (isolation, worker) = (Isolation::InIsolatedProcess, worker.clone());
        let child = Services { worker, isolation, ..services.clone() };
        IsolatedOutcome::Completed(Box::pin(handle(&child, nudge)).await)
    }
}

/// The delays after deaths of unproven cause grow to ten minutes, so that a step that crashes a
/// whole container rarely runs.
#[tokio::test(start_paused = true)]
async fn unproven_deaths_increase_the_retry_delay() {
    let mut env = TestEnv::with_script(1, replies_hello);
    let client = env.new_worker(Arc::new(NoFailPoints));
    env.send_prompt(&client).await;
    let mut delays = Vec::new();
    while delays.len() < 5 {
        let pause = Arc::new(PauseFailPoint::new("model.before"));
        let mut worker = env.new_worker(pause.clone());
        worker.isolation = Isolation::Isolator(Arc::new(InProcessIsolator));
        let nudge = TestEnv::nudge();
        tokio::select! {
            outcome = handle(&worker, &nudge) => {
                outcome.unwrap();
                let head = env.head().await.unwrap();
                let retry_at = head.suspicion.retry_at.unwrap();
                assert_eq!((head.due, head.lease), (Some(retry_at), None));
                delays.push(env.clock.now().until(retry_at).as_secs());
                let early = handle(&worker, &nudge).await.unwrap();
                assert_eq!(early, DeliveryOutcome::NoWork, "a nudge does not shorten the wait");
                tokio::time::sleep(env.clock.now().until(retry_at)).await;
            }
            () = pause.reached.notified() => tokio::time::sleep(Duration::from_secs(66)).await,
        }
    }
    assert_eq!(delays, [5, 30, 120, 600, 600]);
}

/// Runs the step and dies during the model call.
#[derive(Debug)]
struct DyingIsolator;

#[async_trait]
impl Isolator for DyingIsolator {
    async fn run(&self, services: &Services, nudge: &Nudge, worker: &WorkerId) -> IsolatedOutcome {
        let pause = Arc::new(PauseFailPoint::new("model.before"));
        let (isolation, worker) = (Isolation::InIsolatedProcess, worker.clone());
        let probe: Arc<dyn FailPoints> = pause.clone();
        let child = Services { fail_points: probe, worker, isolation, ..services.clone() };
        tokio::select! {
            outcome = Box::pin(handle(&child, nudge)) => panic!("{outcome:?}"),
            () = pause.reached.notified() => IsolatedOutcome::ProcessDied("killed".to_owned()),
        }
    }
}

async fn make_step_suspect(env: &mut TestEnv) -> Head {
    let client = env.new_worker(Arc::new(NoFailPoints));
    env.send_prompt(&client).await;
    for _ in 0..2 {
        let pause = Arc::new(PauseFailPoint::new("model.before"));
        let worker = env.new_worker(pause.clone());
        let nudge = TestEnv::nudge();
        pause.kill(handle(&worker, &nudge)).await;
        tokio::time::sleep(Duration::from_secs(66)).await;
    }
    handle(&client, &TestEnv::nudge()).await.unwrap();
    let head = env.head().await.unwrap();
    assert!(head.is_suspect());
    head
}

#[tokio::test(start_paused = true)]
async fn third_isolated_death_fails_the_prompt() {
    let mut env = TestEnv::with_script(1, replies_hello);
    make_step_suspect(&mut env).await;
    let mut worker = env.new_worker(Arc::new(NoFailPoints));
    worker.isolation = Isolation::Isolator(Arc::new(DyingIsolator));
    for (deaths, delay) in [(1, Some(5)), (2, Some(30)), (3, None)] {
        let now = env.clock.now();
        let retry_at = env.head().await.unwrap().suspicion.retry_at;
        tokio::time::sleep(retry_at.map_or(Duration::ZERO, |at| now.until(at))).await;
        handle(&worker, &TestEnv::nudge()).await.unwrap();
        let head = env.head().await.unwrap();
        let waits = head.suspicion.retry_at.map(|at| env.clock.now().until(at).as_secs());
        assert_eq!((head.suspicion.isolated_deaths, waits), (deaths, delay));
        assert!(head.lease.is_none(), "no lease of a dead worker remains");
    }
    handle(&worker, &TestEnv::nudge()).await.unwrap();
    let error = prompt_end(&env, &TestEnv::key()).await.error.unwrap();
    assert_eq!(
        error.message,
        "The process died three times while it ran this step alone: the model call."
    );
    let head = env.head().await.unwrap();
    assert_eq!(
        (head.leases_without_progress, head.suspicion, head.min_reader),
        (0, Suspicion::default(), 1)
    );
}

#[tokio::test(start_paused = true)]
async fn completed_isolated_step_is_no_longer_suspect() {
    let mut env = TestEnv::with_script(1, replies_hello);
    let head = make_step_suspect(&mut env).await;
    let wait = env.clock.now().until(head.suspicion.retry_at.unwrap());
    tokio::time::sleep(wait).await;
    let mut worker = env.new_worker(Arc::new(NoFailPoints));
    worker.isolation = Isolation::Isolator(Arc::new(InProcessIsolator));
    handle(&worker, &TestEnv::nudge()).await.unwrap();
    let head = env.head().await.unwrap();
    assert_eq!(
        (head.leases_without_progress, head.suspicion, head.min_reader),
        (0, Suspicion::default(), 1)
    );
    assert_eq!(prompt_end(&env, &TestEnv::key()).await.state, PromptState::Completed);
}

#[tokio::test(start_paused = true)]
async fn suspect_prompt_is_aborted_without_another_attempt() {
    let mut env = TestEnv::with_script(1, replies_hello);
    make_step_suspect(&mut env).await;
    let mut worker = env.new_worker(Arc::new(NoFailPoints));
    worker.isolation = Isolation::Isolator(Arc::new(DyingIsolator));
    let key = idempotency("stop");
    abort(&worker, &TestEnv::key(), AbortRequest::default(), &key).await.unwrap();
    handle(&worker, &TestEnv::nudge()).await.unwrap();
    assert_eq!(prompt_end(&env, &TestEnv::key()).await.state, PromptState::Aborted);
}

/// If a program cannot start another process, a suspect step runs after the other turns of its
/// process.
#[tokio::test(start_paused = true)]
async fn step_running_alone_is_blamed_without_child_process() {
    let mut env = TestEnv::with_script(1, replies_hello);
    make_step_suspect(&mut env).await;
    let mut deaths = 0;
    for _ in 0..20 {
        let pause = Arc::new(PauseFailPoint::new("model.before"));
        let worker = env.new_worker(pause.clone());
        let nudge = TestEnv::nudge();
        tokio::select! {
            outcome = handle(&worker, &nudge) => { outcome.unwrap(); }
            () = pause.reached.notified() => {
                assert!(env.head().await.unwrap().suspicion.is_running_alone);
                deaths += 1;
            }
        }
        tokio::time::sleep(Duration::from_mins(2)).await;
    }
    assert_eq!(deaths, 3);
    let error = prompt_end(&env, &TestEnv::key()).await.error.unwrap();
    assert_eq!(error.kind, "poisoned");
}

#[tokio::test(start_paused = true)]
async fn suspect_step_waits_for_other_turns_in_process() {
    let mut env = TestEnv::with_script(1, replies_hello);
    let head = make_step_suspect(&mut env).await;
    tokio::time::sleep(env.clock.now().until(head.suspicion.retry_at.unwrap())).await;
    let worker = env.new_worker(Arc::new(NoFailPoints));
    let Isolation::Isolator(isolator) = worker.isolation.clone() else { panic!() };
    let other_turn = isolator.acquire_shared().await;
    let nudge = TestEnv::nudge();
    let began = env.clock.monotonic();
    assert_eq!(handle(&worker, &nudge).await.unwrap(), DeliveryOutcome::NoWork);
    let waited = env.clock.monotonic().saturating_sub(began);
    assert_eq!(waited.as_secs(), 20, "the wait is bounded");
    drop(other_turn);
    assert_eq!(handle(&worker, &nudge).await.unwrap(), DeliveryOutcome::Worked);
    assert_eq!(prompt_end(&env, &TestEnv::key()).await.state, PromptState::Completed);
}

#[tokio::test(start_paused = true)]
async fn panic_counts_against_its_step() {
    let mut env = TestEnv::with_script(1, replies_hello);
    let client = env.new_worker(Arc::new(NoFailPoints));
    env.send_prompt(&client).await;
    for panics in 1..=2 {
        let worker =
            env.new_worker(Arc::new(HookFailPoint("model.before", || panic!("the step's"))));
        let nudge = TestEnv::nudge();
        let turn = AssertUnwindSafe(handle(&worker, &nudge)).catch_unwind().await;
        assert!(turn.is_err(), "the invocation fails");
        let head = env.head().await.unwrap();
        assert_eq!(
            (head.leases_without_progress, head.lease),
            (panics, None),
            "the lease is given back at once"
        );
        assert_eq!(head.suspicion.retry_at.is_some(), panics == 2);
    }
    env.run_until_idle().await;
    assert_eq!(prompt_end(&env, &TestEnv::key()).await.state, PromptState::Completed);
}

/// A file watcher restarts `dev` on every save. A step during which the process dies again and again
/// waits longer each time, as with leases in heads.
#[tokio::test(start_paused = true)]
async fn restarts_count_only_running_turns_and_delay_repeated_ones() {
    let folder = tempfile::tempdir().unwrap();
    let mut env = TestEnv::with_script(1, replies_hello);
    env.use_embedded_store(DeterministicStore::open(folder.path().to_owned()));
    let waiting = owner().conversation_key("waits");
    let client = env.new_worker(Arc::new(NoFailPoints));
    env.send_prompt(&client).await;
    env.send_prompt_to(&client, "waits", "go").await;
    drop(client);
    let mut waits = Vec::new();
    for restart in 1..=8 {
        let pause = Arc::new(PauseFailPoint::new("model.before"));
        let mut worker = env.new_worker(pause.clone());
        worker.isolation = Isolation::Isolator(Arc::new(InProcessIsolator));
        let nudge = TestEnv::nudge();
        pause.kill(handle(&worker, &nudge)).await;
        drop(worker);
        env.restart_process().await;
        let head = env.head().await.unwrap();
        assert_eq!(head.leases_without_progress, restart);
        let wait = env.clock.now().until(head.due.unwrap());
        waits.push(wait.as_secs());
        tokio::time::sleep(wait).await;
        assert_eq!(
            env.head_of(&waiting).await.unwrap().leases_without_progress,
            0,
            "the waiting conversation was not tried"
        );
    }
    assert_eq!(waits, [0, 0, 0, 0, 5, 30, 120, 600]);
    env.conversations.push(waiting);
    env.run_until_idle().await;
    for key in &env.conversations {
        assert_eq!(prompt_end(&env, key).await.state, PromptState::Completed);
    }
}

/// Only the step with the most deaths is blamed for the death of a process with several turns.
#[tokio::test(start_paused = true)]
async fn neighbours_of_a_killer_are_not_blamed_at_restarts() {
    let folder = tempfile::tempdir().unwrap();
    let mut env = TestEnv::with_script(1, replies_hello);
    env.use_embedded_store(DeterministicStore::open(folder.path().to_owned()));
    let neighbour = owner().conversation_key("neighbour");
    let client = env.new_worker(Arc::new(NoFailPoints));
    env.send_prompt(&client).await;
    env.send_prompt_to(&client, "neighbour", "go").await;
    drop(client);
    let mut deaths = Vec::new();
    for with_neighbour in [true, false, true, true] {
        let keys = [Some(TestEnv::key()), Some(neighbour.clone()).filter(|_| with_neighbour)];
        for key in keys.into_iter().flatten() {
            let pause = Arc::new(PauseFailPoint::new("model.before"));
            let mut worker = env.new_worker(pause.clone());
            worker.isolation = Isolation::Isolator(Arc::new(InProcessIsolator));
            let nudge = Nudge::for_conversation(key, None);
            pause.kill(handle(&worker, &nudge)).await;
        }
        env.restart_process().await;
        let killer = env.head().await.unwrap();
        let other = env.head_of(&neighbour).await.unwrap();
        deaths.push((killer.leases_without_progress, other.leases_without_progress));
        assert_eq!(other.suspicion, Suspicion::default());
    }
    assert_eq!(deaths, [(1, 1), (2, 1), (3, 1), (4, 1)]);
}
