//! Process isolation: a conversation that kills its processes fails alone; only its step is blamed.

use std::panic::AssertUnwindSafe;
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use futures_util::FutureExt as _;
use serde_json::Value;

use super::bench::{Bench, HookProbe, PauseProbe, Steady, call, idempotency, owner, text};
use crate::agent::entry::{EntryBody, PromptEnd, PromptState};
use crate::agent::head::Head;
use crate::agent::suspicion::Suspicion;
use crate::clock::Clock as _;
use crate::ids::{ConversationKey, WorkerId};
use crate::turn::admission::stop::{AbortRequest, abort};
use crate::turn::delivery::{Handled, handle};
use crate::turn::isolation::{Isolated, Isolator};
use crate::turn::{Isolation, NoProbe, Nudge, Probe, World};

const NEIGHBOURS: usize = 6;
const KILLER: &str = "killer";

/// A read, a write and a text; the killer crashes during its read.
fn looks_and_pays(results: usize, _said: &str) -> Vec<Value> {
    match results {
        0 => vec![call("c1", "look", 0)],
        1 => vec![call("c2", "pay", 0)],
        _ => vec![text("done")],
    }
}

fn says_hello(_results: usize, _said: &str) -> Vec<Value> {
    vec![text("hello")]
}

async fn end_of(bench: &Bench, key: &ConversationKey) -> PromptEnd {
    let entries = bench.entries_of(key).await;
    let mut ends = entries.into_iter().filter_map(|entry| match entry.body {
        EntryBody::PromptEnd(end) => Some(end),
        _ => None,
    });
    ends.next().expect("the prompt has ended")
}

/// Runs a killer and its neighbours, whose processes also crash at random.
async fn neighbourhood(seed: u64, steady: Option<Arc<Steady>>) -> Bench {
    let mut bench = Bench::with(seed, looks_and_pays);
    bench.killer = Some(KILLER);
    bench.shares_processes = true;
    bench.crash_in_a_hundred = 3;
    if let Some(steady) = steady {
        bench.use_steady(steady);
    }
    let ids = (0..NEIGHBOURS).map(|number| format!("n{number}")).chain([KILLER.to_owned()]);
    bench.conversations = ids.map(|id| owner().key(&id)).collect();
    for key in bench.conversations.clone() {
        let world = bench.worker(Arc::new(NoProbe));
        bench.ask_in(&world, key.conversation_id.as_str(), "go").await;
    }
    bench.run().await;
    bench
}

async fn check(seed: u64, bench: &Bench) {
    for key in &bench.conversations {
        let end = end_of(bench, key).await;
        if key.conversation_id.as_str() == KILLER {
            let error = end.error.unwrap();
            assert_eq!((end.state, error.kind.as_str()), (PromptState::Failed, "poisoned"));
            let reason = "The process died three times while it ran this step alone: the call of tool `look`.";
            assert_eq!(error.message, reason);
        } else {
            let story = &bench.story;
            assert_eq!(end.state, PromptState::Completed, "{seed} {key}: {end:?} {story:#?}");
        }
    }
    let repeated = bench.done.lock().unwrap().iter().any(|(effect, count)| {
        // The calls of the second response are writes.
        effect.contains("_5_") && *count > 1
    });
    assert!(!repeated, "{seed}: {:?}", bench.done);
}

#[tokio::test(start_paused = true)]
async fn killer_fails_alone_among_workers_with_leases_in_heads() {
    for seed in 0..20 {
        let bench = neighbourhood(seed, None).await;
        check(seed, &bench).await;
    }
}

#[tokio::test(start_paused = true)]
async fn killer_fails_alone_in_one_process_that_restarts() {
    for seed in 0..3 {
        let folder = tempfile::tempdir().unwrap();
        let bench = neighbourhood(seed, Some(Steady::open(folder.path().to_owned()))).await;
        check(seed, &bench).await;
    }
}

/// Kills from outside during a step, however many, never fail its prompt.
#[tokio::test(start_paused = true)]
async fn kills_from_outside_alone_never_fail_a_prompt() {
    let mut bench = Bench::with(1, says_hello);
    let client = bench.worker(Arc::new(NoProbe));
    bench.ask(&client).await;
    let mut kills = 0;
    while kills < 12 {
        let pause = Arc::new(PauseProbe::new("model.before"));
        let mut worker = bench.worker(pause.clone());
        worker.isolation = Isolation::By(Arc::new(Here));
        let nudge = Bench::nudge();
        tokio::select! {
            outcome = handle(&worker, &nudge) => { outcome.unwrap(); }
            () = pause.reached.notified() => kills += 1,
        }
        tokio::time::sleep(Duration::from_secs(66)).await;
    }
    let head = bench.head().await.unwrap();
    assert_eq!((head.suspicion.isolated_deaths, head.is_hopeless()), (0, false));
    assert_eq!(head.min_reader, 4, "an older worker would give it up");
    bench.run().await;
    assert_eq!(end_of(&bench, &Bench::key()).await.state, PromptState::Completed);
}

/// Isolated process that nothing kills by itself; it ends with its parent.
#[derive(Debug)]
struct Here;

#[async_trait]
impl Isolator for Here {
    async fn run(&self, world: &World, nudge: &Nudge, worker: &WorkerId) -> Isolated {
        let (isolation, worker) = (Isolation::Inside, worker.clone());
        let child = World { worker, isolation, ..world.clone() };
        Isolated::Ended(Box::pin(handle(&child, nudge)).await)
    }
}

/// The delays after deaths of unproven cause grow to ten minutes, so that a step that crashes a
/// whole container rarely runs.
#[tokio::test(start_paused = true)]
async fn unproven_deaths_delay_the_next_try_more_and_more() {
    let mut bench = Bench::with(1, says_hello);
    let client = bench.worker(Arc::new(NoProbe));
    bench.ask(&client).await;
    let mut delays = Vec::new();
    while delays.len() < 5 {
        let pause = Arc::new(PauseProbe::new("model.before"));
        let mut worker = bench.worker(pause.clone());
        worker.isolation = Isolation::By(Arc::new(Here));
        let nudge = Bench::nudge();
        tokio::select! {
            outcome = handle(&worker, &nudge) => {
                outcome.unwrap();
                let head = bench.head().await.unwrap();
                let retry_at = head.suspicion.retry_at.unwrap();
                assert_eq!((head.due, head.claim), (Some(retry_at), None));
                delays.push(bench.clock.now().until(retry_at).as_secs());
                let early = handle(&worker, &nudge).await.unwrap();
                assert_eq!(early, Handled::Nothing, "a nudge does not shorten the wait");
                tokio::time::sleep(bench.clock.now().until(retry_at)).await;
            }
            () = pause.reached.notified() => tokio::time::sleep(Duration::from_secs(66)).await,
        }
    }
    assert_eq!(delays, [5, 30, 120, 600, 600]);
}

/// Runs the step and dies during the model call.
#[derive(Debug)]
struct Dying;

#[async_trait]
impl Isolator for Dying {
    async fn run(&self, world: &World, nudge: &Nudge, worker: &WorkerId) -> Isolated {
        let pause = Arc::new(PauseProbe::new("model.before"));
        let (isolation, worker) = (Isolation::Inside, worker.clone());
        let probe: Arc<dyn Probe> = pause.clone();
        let child = World { probe, worker, isolation, ..world.clone() };
        tokio::select! {
            outcome = Box::pin(handle(&child, nudge)) => panic!("{outcome:?}"),
            () = pause.reached.notified() => Isolated::Died("killed".to_owned()),
        }
    }
}

async fn suspect(bench: &mut Bench) -> Head {
    let client = bench.worker(Arc::new(NoProbe));
    bench.ask(&client).await;
    for _ in 0..2 {
        let pause = Arc::new(PauseProbe::new("model.before"));
        let worker = bench.worker(pause.clone());
        let nudge = Bench::nudge();
        tokio::select! {
            outcome = handle(&worker, &nudge) => panic!("{outcome:?}"),
            () = pause.reached.notified() => {}
        }
        tokio::time::sleep(Duration::from_secs(66)).await;
    }
    handle(&client, &Bench::nudge()).await.unwrap();
    let head = bench.head().await.unwrap();
    assert!(head.is_suspect());
    head
}

#[tokio::test(start_paused = true)]
async fn isolated_deaths_are_followed_at_once_and_the_third_fails_the_prompt() {
    let mut bench = Bench::with(1, says_hello);
    suspect(&mut bench).await;
    let mut worker = bench.worker(Arc::new(NoProbe));
    worker.isolation = Isolation::By(Arc::new(Dying));
    for (deaths, delay) in [(1, Some(5)), (2, Some(30)), (3, None)] {
        let now = bench.clock.now();
        let retry_at = bench.head().await.unwrap().suspicion.retry_at;
        tokio::time::sleep(retry_at.map_or(Duration::ZERO, |at| now.until(at))).await;
        handle(&worker, &Bench::nudge()).await.unwrap();
        let head = bench.head().await.unwrap();
        let waits = head.suspicion.retry_at.map(|at| bench.clock.now().until(at).as_secs());
        assert_eq!((head.suspicion.isolated_deaths, waits), (deaths, delay));
        assert!(head.claim.is_none(), "no lease of a dead worker remains");
    }
    handle(&worker, &Bench::nudge()).await.unwrap();
    let error = end_of(&bench, &Bench::key()).await.error.unwrap();
    assert_eq!(
        error.message,
        "The process died three times while it ran this step alone: the model call."
    );
    let head = bench.head().await.unwrap();
    assert_eq!((head.claims, head.suspicion, head.min_reader), (0, Suspicion::default(), 1));
}

#[tokio::test(start_paused = true)]
async fn isolated_step_that_ends_is_suspect_no_more() {
    let mut bench = Bench::with(1, says_hello);
    let head = suspect(&mut bench).await;
    let wait = bench.clock.now().until(head.suspicion.retry_at.unwrap());
    tokio::time::sleep(wait).await;
    let mut worker = bench.worker(Arc::new(NoProbe));
    worker.isolation = Isolation::By(Arc::new(Here));
    handle(&worker, &Bench::nudge()).await.unwrap();
    let head = bench.head().await.unwrap();
    assert_eq!((head.claims, head.suspicion, head.min_reader), (0, Suspicion::default(), 1));
    assert_eq!(end_of(&bench, &Bench::key()).await.state, PromptState::Completed);
}

#[tokio::test(start_paused = true)]
async fn suspect_prompt_is_aborted_without_another_try() {
    let mut bench = Bench::with(1, says_hello);
    suspect(&mut bench).await;
    let mut worker = bench.worker(Arc::new(NoProbe));
    worker.isolation = Isolation::By(Arc::new(Dying));
    let key = idempotency("stop");
    abort(&worker, &Bench::key(), AbortRequest::default(), &key).await.unwrap();
    handle(&worker, &Bench::nudge()).await.unwrap();
    assert_eq!(end_of(&bench, &Bench::key()).await.state, PromptState::Aborted);
}

/// If a program cannot start another process, a suspect step runs after the other turns of its
/// process.
#[tokio::test(start_paused = true)]
async fn step_alone_in_its_process_is_blamed_where_no_process_can_be_started() {
    let mut bench = Bench::with(1, says_hello);
    suspect(&mut bench).await;
    let mut deaths = 0;
    for _ in 0..20 {
        let pause = Arc::new(PauseProbe::new("model.before"));
        let worker = bench.worker(pause.clone());
        let nudge = Bench::nudge();
        tokio::select! {
            outcome = handle(&worker, &nudge) => { outcome.unwrap(); }
            () = pause.reached.notified() => {
                assert!(bench.head().await.unwrap().suspicion.is_alone);
                deaths += 1;
            }
        }
        tokio::time::sleep(Duration::from_mins(2)).await;
    }
    assert_eq!(deaths, 3);
    let error = end_of(&bench, &Bench::key()).await.error.unwrap();
    assert_eq!(error.kind, "poisoned");
}

#[tokio::test(start_paused = true)]
async fn suspect_step_waits_for_the_other_turns_of_its_process() {
    let mut bench = Bench::with(1, says_hello);
    let head = suspect(&mut bench).await;
    tokio::time::sleep(bench.clock.now().until(head.suspicion.retry_at.unwrap())).await;
    let worker = bench.worker(Arc::new(NoProbe));
    let Isolation::By(isolator) = worker.isolation.clone() else { panic!() };
    let other_turn = isolator.enter().await;
    let nudge = Bench::nudge();
    let began = bench.clock.monotonic();
    assert_eq!(handle(&worker, &nudge).await.unwrap(), Handled::Nothing);
    let waited = bench.clock.monotonic().saturating_sub(began);
    assert_eq!(waited.as_secs(), 20, "the wait is bounded");
    drop(other_turn);
    assert_eq!(handle(&worker, &nudge).await.unwrap(), Handled::Worked);
    assert_eq!(end_of(&bench, &Bench::key()).await.state, PromptState::Completed);
}

#[tokio::test(start_paused = true)]
async fn panics_of_a_turn_count_against_its_step() {
    let mut bench = Bench::with(1, says_hello);
    let client = bench.worker(Arc::new(NoProbe));
    bench.ask(&client).await;
    for panics in 1..=2 {
        let worker = bench.worker(Arc::new(HookProbe("model.before", || panic!("the step's"))));
        let nudge = Bench::nudge();
        let turn = AssertUnwindSafe(handle(&worker, &nudge)).catch_unwind().await;
        assert!(turn.is_err(), "the invocation fails");
        let head = bench.head().await.unwrap();
        assert_eq!((head.claims, head.claim), (panics, None), "the lease is given back at once");
        assert_eq!(head.suspicion.retry_at.is_some(), panics == 2);
    }
    bench.run().await;
    assert_eq!(end_of(&bench, &Bench::key()).await.state, PromptState::Completed);
}

/// A file watcher restarts `dev` on every save.
#[tokio::test(start_paused = true)]
async fn restarts_delay_nothing_and_count_only_turns_under_way() {
    let folder = tempfile::tempdir().unwrap();
    let mut bench = Bench::with(1, says_hello);
    bench.use_steady(Steady::open(folder.path().to_owned()));
    let waiting = owner().key("waits");
    let client = bench.worker(Arc::new(NoProbe));
    bench.ask(&client).await;
    bench.ask_in(&client, "waits", "go").await;
    drop(client);
    for restart in 1..=8 {
        let pause = Arc::new(PauseProbe::new("model.before"));
        let mut worker = bench.worker(pause.clone());
        worker.isolation = Isolation::By(Arc::new(Here));
        let nudge = Bench::nudge();
        tokio::select! {
            outcome = handle(&worker, &nudge) => panic!("{restart}: {outcome:?}"),
            () = pause.reached.notified() => {}
        }
        drop(worker);
        bench.start_again().await;
        let head = bench.head().await.unwrap();
        assert_eq!((head.claims, head.suspicion), (restart, Suspicion::default()));
        assert!(head.due.unwrap() <= bench.clock.now(), "it continues at once");
        assert_eq!(bench.head_of(&waiting).await.unwrap().claims, 0, "the waiting conversation was not tried");
    }
    bench.conversations.push(waiting);
    bench.run().await;
    for key in &bench.conversations {
        assert_eq!(end_of(&bench, key).await.state, PromptState::Completed);
    }
}
