//! Store requests of a turn, one by one: on Cosmos each costs money and milliseconds, so these
//! tests pin them.

use std::sync::Arc;
use std::time::Duration;

use serde_json::{Value, json};

use super::bench::{Bench, Counting, PauseProbe, Script, call, idempotency, text};
use crate::agent::phase::Phase;
use crate::queue::{self, Queue as _};
use crate::store::cosmos::testing::{in_process, store};
use crate::telemetry::meter::{Meter, metered};
use crate::turn::admission::patch::patch_conversation;
use crate::turn::delivery::{Handled, TurnError, handle};
use crate::turn::{NoProbe, World, sweep};

pub(super) fn says_hello(_results: usize, _said: &str) -> Vec<Value> {
    vec![text("hello")]
}

pub(super) fn looks_twice(results: usize, _said: &str) -> Vec<Value> {
    if results < 2 { vec![call("c1", "look", results)] } else { vec![text("done")] }
}

pub(super) fn is_gated(results: usize, _said: &str) -> Vec<Value> {
    if results == 0 { vec![call("c1", "gated", 0)] } else { vec![text("done")] }
}

/// Returns an environment that records store requests, one worker, and an accepted prompt.
pub(super) async fn stage(script: Script) -> (Bench, World, Arc<Counting>) {
    let mut bench = Bench::with(1, script);
    let counting = Counting::before(bench.store.clone());
    bench.shared = counting.clone();
    let world = bench.worker(Arc::new(NoProbe));
    bench.ask(&world).await;
    (bench, world, counting)
}

/// Handles the waiting nudge as the host does; returns the store requests of the delivery.
pub(super) async fn turn(bench: &Bench, world: &World, counting: &Counting) -> String {
    counting.told();
    let received = bench.queue.receive(queue::TURNS, 1, Duration::from_mins(1)).await.unwrap();
    let message = received.into_iter().next().expect("no nudge is queued");
    let nudge = serde_json::from_str(&message.text).unwrap();
    assert_eq!(handle(world, &nudge).await.unwrap(), Handled::Worked);
    bench.queue.delete(queue::TURNS, &message.id, &message.pop_receipt).await.unwrap();
    counting.told()
}

pub(super) async fn bells(bench: &Bench) -> u64 {
    bench.queue.length(queue::TURNS).await.unwrap()
}

#[tokio::test(start_paused = true)]
async fn a_prompt_without_tools_costs_five_requests() {
    let (bench, world, counting) = stage(says_hello).await;
    insta::assert_snapshot!(counting.told(), @r"
    write receipt
    read item
    write inbox, head
    ");
    insta::assert_snapshot!(turn(&bench, &world, &counting).await, @r"
    lease (head and inbox)
    write head, 2 entry, events, receipt
    select inbox
    write head, 2 entry, events
    select inbox
    ");
    assert_eq!(bells(&bench).await, 0);
    bench.queue_up(&world, &Bench::key(), "again").await.unwrap();
    insta::assert_snapshot!(counting.told(), @r"
    read head
    read item
    select inbox
    read head
    write inbox
    ");
    insta::assert_snapshot!(turn(&bench, &world, &counting).await, @r"
    lease (head and inbox)
    write head, 2 entry, events, receipt
    select inbox
    write head, 2 entry, events
    select inbox
    ");
}

#[tokio::test(start_paused = true)]
async fn a_tool_round_on_a_warm_worker_costs_six_requests_and_one_nudge() {
    let (bench, world, counting) = stage(looks_twice).await;
    turn(&bench, &world, &counting).await;
    assert_eq!(bells(&bench).await, 1);
    insta::assert_snapshot!(turn(&bench, &world, &counting).await, @r"
    lease (head and inbox)
    write head
    select inbox
    write head, 2 entry, events
    select inbox
    write head, entry, events
    ");
    assert_eq!(bells(&bench).await, 1, "one nudge is enqueued");
    insta::assert_snapshot!(turn(&bench, &world, &counting).await, @r"
    lease (head and inbox)
    write head
    select inbox
    write head, 2 entry, events
    select inbox
    ");
    assert_eq!(bells(&bench).await, 0);
}

#[tokio::test(start_paused = true)]
async fn on_cosmos_a_tool_round_is_those_six_requests() {
    let emulator = in_process(1);
    let mut bench = Bench::with(1, looks_twice);
    let counting = Counting::before(Arc::new(store(&emulator, Vec::new()).await));
    bench.shared = counting.clone();
    let world = bench.worker(Arc::new(NoProbe));
    bench.ask(&world).await;
    turn(&bench, &world, &counting).await;
    let meter = Arc::new(Meter::default());
    metered(Arc::clone(&meter), turn(&bench, &world, &counting)).await;
    let costs = meter.costs();
    let sent: Vec<_> = costs.iter().map(|(operation, cost)| (*operation, cost.requests)).collect();
    assert_eq!(sent, [("cosmos.claim", 1), ("cosmos.select", 2), ("cosmos.write", 3)]);
    assert!(costs.values().all(|cost| cost.request_units > 0.0), "{costs:?}");
}

#[tokio::test(start_paused = true)]
async fn a_cold_worker_reads_the_entries_once_more() {
    let (mut bench, world, counting) = stage(looks_twice).await;
    turn(&bench, &world, &counting).await;
    let cold = bench.worker(Arc::new(NoProbe));
    insta::assert_snapshot!(turn(&bench, &cold, &counting).await, @r"
    lease (head and inbox)
    write head
    select entry
    select inbox
    write head, 2 entry, events
    select inbox
    write head, entry, events
    ");
}

#[tokio::test(start_paused = true)]
async fn an_inline_tool_round_costs_four_requests() {
    let (bench, world, counting) = stage(looks_twice).await;
    let patch = json!({"settings": {"continuation": "inline"}});
    let key = idempotency("patch");
    patch_conversation(&world, &Bench::key(), patch.as_object().unwrap(), &key, |_| true)
        .await
        .unwrap();
    insta::assert_snapshot!(turn(&bench, &world, &counting).await, @r"
    lease (head and inbox)
    write head, 2 entry, events, receipt
    select inbox
    write head, 2 entry, events
    select inbox
    write head, entry, events
    select inbox
    write head, 2 entry, events
    select inbox
    write head, entry, events
    select inbox
    write head, 2 entry, events
    select inbox
    ");
    assert_eq!(bells(&bench).await, 0);
}

#[tokio::test(start_paused = true)]
async fn an_approval_costs_one_turn_more_and_waits_for_free() {
    let (mut bench, world, counting) = stage(is_gated).await;
    insta::assert_snapshot!(turn(&bench, &world, &counting).await, @r"
    lease (head and inbox)
    write head, 2 entry, events, receipt
    select inbox
    write head, 2 entry, events
    select inbox
    ");
    assert_eq!(bells(&bench).await, 0, "a wait sends no nudge");
    bench.decide().await;
    insta::assert_snapshot!(counting.told(), @r"
    read head
    read head
    read item
    select entry
    write inbox
    ");
    insta::assert_snapshot!(turn(&bench, &world, &counting).await, @r"
    lease (head and inbox)
    write head, 2 entry, events, receipt
    select inbox
    write head, entry, events
    select inbox
    write head, 2 entry, events
    select inbox
    ");
}

#[tokio::test(start_paused = true)]
async fn what_comes_too_late_or_twice_costs_one_request() {
    let (bench, world, counting) = stage(says_hello).await;
    turn(&bench, &world, &counting).await;
    assert_eq!(handle(&world, &Bench::nudge()).await.unwrap(), Handled::Nothing);
    insta::assert_snapshot!(counting.told(), @"lease (head and inbox)");
    sweep::sweep(&world, sweep::GRACE).await.unwrap();
    insta::assert_snapshot!(counting.told(), @"due");
}

#[tokio::test(start_paused = true)]
async fn a_lost_race_for_the_claim_costs_two_reads() {
    let (mut bench, quick, counting) = stage(says_hello).await;
    let pause = Arc::new(PauseProbe::new("take-in.before"));
    let slow = bench.worker(pause.clone());
    let nudge = Bench::nudge();
    let (was_slow, ()) = tokio::join!(handle(&slow, &nudge), async {
        pause.reached.notified().await;
        handle(&quick, &nudge).await.unwrap();
        counting.told();
        pause.go.notify_one();
    });
    assert!(matches!(was_slow, Err(TurnError::ClaimLost { .. })), "{was_slow:?}");
    insta::assert_snapshot!(counting.told(), @r"
    write head, 2 entry, events, receipt
    read head
    read ev-000000000001
    ");
}

#[tokio::test(start_paused = true)]
async fn a_patch_in_the_middle_costs_one_read_and_the_commit_again() {
    let (mut bench, client, counting) = stage(says_hello).await;
    let pause = Arc::new(PauseProbe::new("model.after"));
    let worker = bench.worker(pause.clone());
    let nudge = Bench::nudge();
    let (handled, ()) = tokio::join!(handle(&worker, &nudge), async {
        pause.reached.notified().await;
        let patch = json!({"name": "renamed"});
        let key = idempotency("patch");
        patch_conversation(&client, &Bench::key(), patch.as_object().unwrap(), &key, |_| true)
            .await
            .unwrap();
        counting.told();
        pause.go.notify_one();
    });
    assert_eq!(handled.unwrap(), Handled::Worked);
    insta::assert_snapshot!(counting.told(), @r"
    select inbox
    write head, 2 entry, events
    read head
    write head, 2 entry, events
    select inbox
    ");
    let head = bench.head().await.unwrap();
    assert_eq!((head.phase, head.name.as_deref()), (Phase::Idle, Some("renamed")));
}

#[tokio::test(start_paused = true)]
async fn what_comes_in_during_a_round_is_seen_by_the_delivery_that_the_round_rings_for() {
    let (mut bench, client, counting) = stage(looks_twice).await;
    let pause = Arc::new(PauseProbe::new("result.after"));
    let worker = bench.worker(pause.clone());
    let nudge = Bench::nudge();
    bench.queue.drop_queue(queue::TURNS);
    let (handled, ()) = tokio::join!(handle(&worker, &nudge), async {
        pause.reached.notified().await;
        // The lease is released, but its nudge is not yet sent.
        bench.queue_up(&client, &Bench::key(), "and this").await.unwrap();
        bench.queue.drop_queue(queue::TURNS);
        pause.go.notify_one();
    });
    assert_eq!(handled.unwrap(), Handled::Worked);
    assert_eq!(bells(&bench).await, 1);
    let told = turn(&bench, &client, &counting).await;
    assert!(told.contains("inbox (left waiting)"), "the delivery did not read the item: {told}");
    bench.run().await;
    assert_eq!(bench.head().await.unwrap().prompts.len(), 2);
}
