//! Pauses by the operator: paused work is kept and not started, costs next to nothing, and
//! continues after the pause.

use std::sync::Arc;
use std::time::Duration;

use serde_json::{Value, json};

use super::bench::{Bench, Counting, Script, Steady, call, idempotency, text};
use crate::agent::entry::{EntryBody, PromptState};
use crate::agent::phase::{CallState, Phase};
use crate::clock::Clock as _;
use crate::settings::brakes::{Brakes, parse};
use crate::turn::admission::stop::{AbortRequest, abort};
use crate::turn::delivery::{Handled, handle};
use crate::turn::views::why::{Service, WaitsFor, why};
use crate::turn::{NoProbe, sweep};

fn looks(results: usize, _said: &str) -> Vec<Value> {
    if results == 0 { vec![call("c1", "look", 0)] } else { vec![text("done")] }
}

fn looks_and_puts(results: usize, _said: &str) -> Vec<Value> {
    if results == 0 {
        vec![call("c1", "look", 0), call("c2", "put", 0)]
    } else {
        vec![text("done")]
    }
}

fn brakes(on: &str) -> Arc<Brakes> {
    Arc::new(parse(on).unwrap())
}

/// Passes `minutes` of virtual time, with sweeps and deliveries.
async fn pass(bench: &mut Bench, minutes: u32) {
    for _ in 0..minutes {
        while bench.deliver().await {}
        tokio::time::sleep(Duration::from_mins(1)).await;
        bench.sweep().await;
    }
    while bench.deliver().await {}
}

/// Returns the environment after one hour in which the accepted prompt was paused.
async fn an_hour_of(on: &str, script: Script) -> Bench {
    let mut bench = Bench::with(1, script);
    bench.brakes = brakes(on);
    let world = bench.worker(Arc::new(NoProbe));
    bench.ask(&world).await;
    // Usage is posted to the ledger 10 minutes after a response.
    pass(&mut bench, 15).await;
    let commits = bench.store.commits();
    pass(&mut bench, 45).await;
    assert_eq!(bench.store.commits(), commits, "after the first delivery nothing is written");
    bench
}

async fn waits_for(bench: &Bench) -> (WaitsFor, String) {
    let view =
        why(&*bench.shared, &Bench::key(), Service::Elsewhere, bench.clock.now()).await.unwrap();
    (view.waits_for, view.why)
}

/// Entries of a prompt that was never paused.
async fn unhindered(script: Script) -> Vec<Value> {
    let mut bench = Bench::with(1, script);
    let world = bench.worker(Arc::new(NoProbe));
    bench.ask(&world).await;
    bench.run().await;
    bench.normal().await
}

#[tokio::test(start_paused = true)]
async fn a_paused_agent_is_asked_nothing_and_goes_on_when_it_is_let_go() {
    for on in ["agent:clerk", "*"] {
        let mut bench = an_hour_of(on, looks).await;
        assert_eq!(*bench.model.answers.lock().unwrap(), 0);
        let head = bench.head().await.unwrap();
        assert_eq!((head.claims, head.claim.is_none(), head.min_reader), (0, true, 3));
        let (waits_for, why) = waits_for(&bench).await;
        assert_eq!(waits_for, WaitsFor::Paused);
        assert!(
            why.contains("paused by TURNWHEEL_PAUSED: the conversation's work has been kept pending since 2027-01-15T08:00:"),
            "{why}"
        );
        bench.brakes = Arc::default();
        let before = bench.clock.now();
        pass(&mut bench, 2).await;
        assert_eq!(bench.normal().await, unhindered(looks).await, "{on}");
        let head = bench.head().await.unwrap();
        assert_eq!((head.brake, head.min_reader), (None, 1));
        assert!(before.until(head.updated_at) <= Duration::from_secs(90), "the recovery sweep resumes it");
    }
}

#[tokio::test(start_paused = true)]
async fn a_call_of_a_paused_tool_is_not_begun_and_the_prompt_waits_for_it() {
    let mut bench = an_hour_of("tool:look", looks).await;
    assert_eq!(*bench.model.answers.lock().unwrap(), 1);
    assert!(bench.done.lock().unwrap().is_empty());
    let entries = bench.entries().await;
    let is_started = |body: &EntryBody| matches!(body, EntryBody::ToolStarted(_));
    assert!(!entries.iter().any(|entry| is_started(&entry.body)), "no intent is recorded");
    let (waits_for, why) = waits_for(&bench).await;
    assert_eq!(waits_for, WaitsFor::Paused);
    assert!(why.starts_with("The tool `look` is paused"), "{why}");
    bench.brakes = Arc::default();
    pass(&mut bench, 2).await;
    assert_eq!(bench.normal().await, unhindered(looks).await);
    assert_eq!(bench.done.lock().unwrap().len(), 1);
}

#[tokio::test(start_paused = true)]
async fn a_brake_on_another_agent_or_tool_holds_nobody() {
    let mut bench = Bench::with(1, looks);
    bench.brakes = brakes("agent:other,tool:pay");
    let world = bench.worker(Arc::new(NoProbe));
    bench.ask(&world).await;
    bench.run().await;
    assert_eq!(bench.normal().await, unhindered(looks).await);
}

#[tokio::test(start_paused = true)]
async fn calls_beside_a_paused_one_run_and_it_waits_alone() {
    let mut bench = Bench::with(1, looks_and_puts);
    bench.run_calls_at_once(4);
    bench.brakes = brakes("tool:look");
    let world = bench.worker(Arc::new(NoProbe));
    bench.ask(&world).await;
    pass(&mut bench, 10).await;
    let Phase::Calls { calls, .. } = bench.head().await.unwrap().phase else {
        panic!("the calls are not pending")
    };
    assert_eq!(calls.iter().map(CallState::is_done).collect::<Vec<_>>(), [false, true]);
    assert_eq!(waits_for(&bench).await.0, WaitsFor::Paused);
    bench.brakes = Arc::default();
    pass(&mut bench, 2).await;
    assert_eq!(bench.head().await.unwrap().phase, Phase::Idle);
    assert_eq!(bench.done.lock().unwrap().len(), 2);
}

#[tokio::test(start_paused = true)]
async fn what_is_paused_can_be_stopped() {
    for on in ["agent:clerk", "tool:look"] {
        let mut bench = an_hour_of(on, looks).await;
        let world = bench.worker(Arc::new(NoProbe));
        let stop = idempotency("stop");
        abort(&world, &Bench::key(), AbortRequest::default(), &stop).await.unwrap();
        assert_eq!(waits_for(&bench).await.0, WaitsFor::Nudge, "the abort waits for a worker");
        while bench.deliver().await {}
        let head = bench.head().await.unwrap();
        assert_eq!(head.prompts.last().unwrap().state, PromptState::Aborted, "{on}");
        assert_eq!((head.phase, head.brake), (Phase::Idle, None));
    }
}

#[tokio::test(start_paused = true)]
async fn starting_again_and_again_is_no_failed_try_of_what_is_paused() {
    let folder = tempfile::tempdir().unwrap();
    let mut bench = Bench::with(1, looks);
    bench.use_steady(Steady::open(folder.path().to_owned()));
    for on in ["tool:look", "agent:clerk"] {
        bench.brakes = brakes(on);
        let world = bench.worker(Arc::new(NoProbe));
        if bench.head().await.is_none() {
            bench.ask(&world).await;
        }
        // The worker shares ownership of the store, which is closed and reopened.
        drop(world);
        for _ in 0..7 {
            pass(&mut bench, 2).await;
            bench.start_again().await;
        }
        assert_eq!(bench.head().await.unwrap().claims, 0, "{on}");
        assert_eq!(waits_for(&bench).await.0, WaitsFor::Paused, "{on}");
    }
    bench.brakes = Arc::default();
    bench.start_again().await;
    bench.run().await;
    assert_eq!(bench.normal().await, unhindered(looks).await);
}

#[tokio::test(start_paused = true)]
async fn a_look_at_what_is_paused_is_one_request() {
    let mut bench = Bench::with(1, looks);
    bench.brakes = brakes("agent:clerk");
    let counting = Counting::before(bench.store.clone());
    bench.shared = counting.clone();
    let world = bench.worker(Arc::new(NoProbe));
    bench.ask(&world).await;
    handle(&world, &Bench::nudge()).await.unwrap();
    tokio::time::sleep(Duration::from_mins(3)).await;
    counting.told();
    assert_eq!(sweep::sweep(&world, sweep::GRACE).await.unwrap(), 1, "each sweep enqueues it");
    assert_eq!(counting.told(), "due");
    assert_eq!(handle(&world, &Bench::nudge()).await.unwrap(), Handled::Nothing);
    assert_eq!(counting.told(), "lease (head and inbox)");
}

#[tokio::test(start_paused = true)]
async fn what_comes_in_meanwhile_is_kept_and_answered_afterwards() {
    let mut bench = an_hour_of("agent:clerk", looks).await;
    let world = bench.worker(Arc::new(NoProbe));
    for said in ["second", "third"] {
        let answer = bench.queue_up(&world, &Bench::key(), said).await.unwrap();
        assert_eq!(answer.status, 202);
    }
    pass(&mut bench, 3).await;
    assert_eq!(*bench.model.answers.lock().unwrap(), 0);
    assert_eq!(bench.head().await.unwrap().waiting, 2);
    assert_eq!(json!(waits_for(&bench).await.0), json!("paused"));
    bench.brakes = Arc::default();
    bench.run().await;
    let prompts = bench.head().await.unwrap().prompts;
    assert!(prompts.iter().all(|span| span.state == PromptState::Completed));
    assert_eq!(prompts.len(), 3);
}
