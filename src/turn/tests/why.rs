//! The explanation of a conversation's state, from the first prompt until it is idle.

use std::sync::Arc;
use std::time::Duration;

use serde_json::Value;

use super::bench::{Bench, PauseProbe, Script, Steady, call, text};
use crate::clock::Clock as _;
use crate::settings::budgets::Budgets;
use crate::settings::rates::{Rate, RateLimits};
use crate::turn::admission::decide::{Decider, Said, decide};
use crate::turn::delivery::handle;
use crate::turn::money::Money;
use crate::turn::views::why::{Service, WhyView, why};
use crate::turn::{NoProbe, Probe, World};

fn says_hello(_results: usize, _said: &str) -> Vec<Value> {
    vec![text("hello")]
}

fn is_gated(results: usize, _said: &str) -> Vec<Value> {
    if results == 0 { vec![call("c1", "gated", 0)] } else { vec![text("done")] }
}

fn looks(results: usize, _said: &str) -> Vec<Value> {
    if results == 0 { vec![call("c1", "look", 0)] } else { vec![text("done")] }
}

async fn stage(script: Script) -> (Bench, World) {
    let mut bench = Bench::with(1, script);
    let world = bench.worker(Arc::new(NoProbe));
    bench.ask(&world).await;
    (bench, world)
}

async fn seen(bench: &Bench) -> WhyView {
    why(&*bench.shared, &Bench::key(), Service::Elsewhere, bench.clock.now()).await.unwrap()
}

/// Returns the state that the conversation waits for, and true if a worker has its lease.
async fn waits_for(bench: &Bench) -> (Value, bool) {
    let view = seen(bench).await;
    assert!(view.why.ends_with('.') && view.why.contains("2027-01-15T08:"), "{}", view.why);
    (serde_json::to_value(view.waits_for).unwrap(), view.claim.is_some())
}

/// Starts a delivery and drops it at the fail point.
async fn stopped_at(bench: &mut Bench, boundary: &'static str) {
    let pause = Arc::new(PauseProbe::new(boundary));
    let worker = bench.worker(pause.clone() as Arc<dyn Probe>);
    let nudge = Bench::nudge();
    tokio::select! {
        outcome = handle(&worker, &nudge) => panic!("{outcome:?}"),
        () = pause.reached.notified() => {}
    }
}

#[tokio::test(start_paused = true)]
async fn from_a_prompt_to_its_rest_the_sentence_says_where_it_stands() {
    let (mut bench, world) = stage(is_gated).await;
    assert_eq!(waits_for(&bench).await, ("nudge".into(), false));
    stopped_at(&mut bench, "model.before").await;
    assert_eq!(waits_for(&bench).await, ("model".into(), true));
    tokio::time::sleep(Duration::from_secs(66)).await;
    assert_eq!(waits_for(&bench).await, ("take_over".into(), true));
    handle(&world, &Bench::nudge()).await.unwrap();
    assert_eq!(waits_for(&bench).await, ("approval".into(), false));
    let request = bench.head().await.unwrap().requests[0].id.clone();
    let said = Said { decision: "approve".to_owned(), reason: None, value: None };
    let who = Decider::Person {
        tenant: super::bench::owner().tenant,
        user: super::bench::owner().user,
        roles: Vec::new(),
    };
    decide(&world, &Bench::key(), request.as_str(), said, &who).await.unwrap();
    assert_eq!(waits_for(&bench).await, ("nudge".into(), false));
    stopped_at(&mut bench, "tool.before").await;
    assert_eq!(waits_for(&bench).await, ("tools".into(), true));
    tokio::time::sleep(Duration::from_mins(5)).await;
    let view = seen(&bench).await;
    assert!(view.why.ends_with("That is overdue."), "{}", view.why);
    assert!(view.unblock[0].contains("rebuild-queue"), "{:?}", view.unblock);
    handle(&world, &Bench::nudge()).await.unwrap();
    assert_eq!(waits_for(&bench).await, ("outcome".into(), false), "a write had started");
    bench.run().await;
    assert_eq!(waits_for(&bench).await, ("nothing".into(), false));
}

#[tokio::test(start_paused = true)]
async fn a_failed_answer_waits_for_its_next_try_and_a_quick_owner_for_the_rate() {
    let (bench, world) = stage(says_hello).await;
    *bench.model.failures.lock().unwrap() = 1;
    handle(&world, &Bench::nudge()).await.unwrap();
    assert_eq!(waits_for(&bench).await, ("retry".into(), false));

    let rate = Rate { count: 1, period: Duration::from_mins(1) };
    let rates = RateLimits { requests: None, model_calls: Some(rate) };
    let mut bench = Bench::with(1, looks);
    bench.money = Arc::new(Money::new(&Budgets::default(), &rates));
    let world = bench.worker(Arc::new(NoProbe));
    bench.ask(&world).await;
    for _ in 0..2 {
        handle(&world, &Bench::nudge()).await.unwrap();
    }
    assert_eq!(waits_for(&bench).await, ("rate".into(), false));
    tokio::time::sleep(Duration::from_mins(2)).await;
    bench.run().await;
    assert_eq!(bench.head().await.unwrap().put_off(), None);
}

#[tokio::test(start_paused = true)]
async fn why_names_a_suspect_step_and_its_next_try() {
    let (mut bench, world) = stage(says_hello).await;
    for _ in 0..2 {
        stopped_at(&mut bench, "model.before").await;
        tokio::time::sleep(Duration::from_secs(66)).await;
    }
    handle(&world, &Bench::nudge()).await.unwrap();
    let view = seen(&bench).await;
    assert_eq!(serde_json::to_value(view.waits_for).unwrap(), "back_off");
    let retried_at = bench.clock.now().plus(Duration::from_secs(5));
    assert_eq!(
        view.why,
        format!(
            "The worker process died twice while it ran this step: the model response is pending; it is retried in isolation at {retried_at}."
        )
    );
    assert_eq!(view.due, Some(retried_at));
}

#[tokio::test(start_paused = true)]
async fn where_claims_are_kept_apart_from_heads_the_worker_is_named_all_the_same() {
    let folder = tempfile::tempdir().unwrap();
    let mut bench = Bench::with(1, looks);
    bench.use_steady(Steady::open(folder.path().to_owned()));
    let world = bench.worker(Arc::new(NoProbe));
    bench.ask(&world).await;
    handle(&world, &Bench::nudge()).await.unwrap();
    drop(world);
    // The second turn applies no input, so no commit contains its lease.
    let pause = Arc::new(PauseProbe::new("model.before"));
    let worker = bench.worker(pause.clone() as Arc<dyn Probe>);
    let nudge = Bench::nudge();
    let delivery = handle(&worker, &nudge);
    tokio::pin!(delivery);
    tokio::select! {
        outcome = &mut delivery => panic!("{outcome:?}"),
        () = pause.reached.notified() => {}
    }
    assert!(bench.head().await.unwrap().claim.is_none());
    assert_eq!(waits_for(&bench).await, ("model".into(), true));
    pause.go.notify_one();
    delivery.await.unwrap();
    assert_eq!(waits_for(&bench).await, ("nothing".into(), false));
}
