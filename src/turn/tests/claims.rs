//! Leases: one worker at a time, renewed while work runs, given up before another worker may take
//! over.

use std::sync::Arc;
use std::time::Duration;

use serde_json::{Value, json};
use tokio::time::Instant;

use super::bench::{Bench, HookProbe, PauseProbe, call, text};
use crate::agent::entry::EntryBody;
use crate::agent::message::Message;
use crate::agent::phase::Phase;
use crate::clock::Clock as _;
use crate::extensions::{Block, CallAhead, Extension, HookError};
use crate::queue::{self, Queue as _};
use crate::store::memory::{Faults, MemoryStore};
use crate::store::{Partition, Write};
use crate::turn::admission::patch::patch_conversation;
use crate::turn::claiming::CLAIM;
use crate::turn::delivery::{Handled, TurnError, handle};
use crate::turn::{NoProbe, record};

const BROKEN: Faults = Faults {
    throttled: 0.0,
    unavailable_before: 1.0,
    unavailable_reads: 1.0,
    conflict: 0.0,
    conflict_after: 0.0,
    unavailable_after: 0.0,
    unavailable_late: 0.0,
    stale_reads: 0.0,
    short_pages: 0.0,
    step_aside: 0.0,
};

fn says_hello(_results: usize, _said: &str) -> Vec<Value> {
    vec![text("hello")]
}

fn looks_once(results: usize, _said: &str) -> Vec<Value> {
    if results == 0 { vec![call("c1", "look", 0)] } else { vec![text("done")] }
}

fn pays_once(results: usize, _said: &str) -> Vec<Value> {
    if results == 0 { vec![call("c1", "pay", 0)] } else { vec![text("done")] }
}

async fn answers_on_record(bench: &Bench) -> u32 {
    let entries = bench.entries().await;
    let is_answer = |entry: &&crate::agent::entry::Entry| {
        matches!(entry.body.message(), Some(Message::Assistant(_)))
    };
    u32::try_from(entries.iter().filter(is_answer).count()).unwrap()
}

#[tokio::test(start_paused = true)]
async fn what_another_worker_took_in_meanwhile_is_not_taken_in_again() {
    let mut bench = Bench::with(1, says_hello);
    let pause = Arc::new(PauseProbe::new("take-in.before"));
    let slow = bench.worker(pause.clone());
    let quick = bench.worker(Arc::new(NoProbe));
    bench.ask(&quick).await;
    let nudge = Bench::nudge();
    let (was_slow, ()) = tokio::join!(handle(&slow, &nudge), async {
        pause.reached.notified().await;
        assert_eq!(handle(&quick, &nudge).await.unwrap(), Handled::Worked);
        pause.go.notify_one();
    });
    assert!(matches!(was_slow, Err(TurnError::ClaimLost { .. })), "{was_slow:?}");
    let begun = bench.entries().await;
    let begun = begun.iter().filter(|entry| matches!(entry.body, EntryBody::Prompt(_))).count();
    assert_eq!((begun, *bench.model.answers.lock().unwrap()), (1, 1));
}

#[tokio::test(start_paused = true)]
async fn a_patch_between_look_and_claim_costs_nothing() {
    let mut bench = Bench::with(2, says_hello);
    let pause = Arc::new(PauseProbe::new("take-in.before"));
    let worker = bench.worker(pause.clone());
    let client = bench.worker(Arc::new(NoProbe));
    bench.ask(&client).await;
    let nudge = Bench::nudge();
    let (handled, ()) = tokio::join!(handle(&worker, &nudge), async {
        pause.reached.notified().await;
        let patch = json!({"name": "renamed"});
        let key = super::bench::idempotency("patch");
        patch_conversation(&client, &Bench::key(), patch.as_object().unwrap(), &key, |_| true)
            .await
            .unwrap();
        pause.go.notify_one();
    });
    assert_eq!(handled.unwrap(), Handled::Worked);
    let head = bench.head().await.unwrap();
    assert_eq!((head.phase, head.name.as_deref()), (Phase::Idle, Some("renamed")));
}

#[tokio::test(start_paused = true)]
async fn a_patch_while_the_model_answers_changes_what_comes_after_and_loses_nothing() {
    let mut bench = Bench::with(3, pays_once);
    let client = bench.worker(Arc::new(NoProbe));
    let pause = Arc::new(PauseProbe::new("model.after"));
    let worker = bench.worker(pause.clone());
    bench.ask(&client).await;
    let nudge = Bench::nudge();
    let (handled, ()) = tokio::join!(handle(&worker, &nudge), async {
        pause.reached.notified().await;
        let patch = json!({"settings": {"model": "another"}});
        let key = super::bench::idempotency("patch");
        patch_conversation(&client, &Bench::key(), patch.as_object().unwrap(), &key, |_| true)
            .await
            .unwrap();
        pause.go.notify_one();
    });
    assert_eq!(handled.unwrap(), Handled::Worked);
    bench.run().await;
    assert_eq!(*bench.model.answers.lock().unwrap(), 2, "no response is billed twice");
    assert!(bench.done.lock().unwrap().values().eq([&1]));
    let entries = bench.entries().await;
    assert!(entries.iter().any(|entry| matches!(entry.body, EntryBody::ModelChange(_))));
}

#[tokio::test(start_paused = true)]
async fn an_inline_turn_past_its_half_is_renewed_and_not_let_go() {
    let mut bench = Bench::with(4, looks_once);
    *bench.model.span.lock().unwrap() = Duration::from_secs(110);
    let world = bench.worker(Arc::new(NoProbe));
    bench.ask(&world).await;
    let patch = json!({"settings": {"continuation": "inline"}});
    let key = super::bench::idempotency("patch");
    patch_conversation(&world, &Bench::key(), patch.as_object().unwrap(), &key, |_| true)
        .await
        .unwrap();
    bench.run().await;
    let paid = *bench.model.answers.lock().unwrap();
    assert_eq!((paid, answers_on_record(&bench).await), (2, 2), "{:#?}", bench.story);
}

#[tokio::test(start_paused = true)]
async fn who_cannot_renew_stops_before_another_may_take_over() {
    for script in [says_hello, pays_once] {
        let mut bench = Bench::with(5, script);
        let client = bench.worker(Arc::new(NoProbe));
        bench.ask(&client).await;
        let store = bench.store.clone();
        let probe = HookProbe("model.before", move || store.set_faults(BROKEN));
        let worker = bench.worker(Arc::new(probe));
        *bench.model.span.lock().unwrap() = Duration::from_mins(4);
        let began = Instant::now();
        let handled = handle(&worker, &Bench::nudge()).await;
        assert!(handled.is_err(), "{handled:?}");
        let took = began.elapsed();
        assert!(took <= Duration::from_secs(51), "the worker continued for {took:?}");
        assert!(took >= Duration::from_secs(45), "the worker stopped after {took:?}");
        bench.store.set_faults(Faults::default());
        *bench.model.span.lock().unwrap() = Duration::from_secs(1);
        bench.run().await;
    }
}

#[tokio::test(start_paused = true)]
async fn a_tool_has_its_whole_time_when_its_intent_was_slow_to_commit() {
    let mut bench = Bench::with(6, pays_once);
    let client = bench.worker(Arc::new(NoProbe));
    bench.ask(&client).await;
    let store = bench.store.clone();
    let pause = Arc::new(PauseProbe::new("answer.before"));
    let worker = bench.worker(pause.clone());
    let nudge = Bench::nudge();
    let (handled, ()) = tokio::join!(handle(&worker, &nudge), async {
        pause.reached.notified().await;
        store.set_faults(BROKEN);
        pause.go.notify_one();
        tokio::time::sleep(Duration::from_secs(35)).await;
        store.set_faults(Faults::default());
    });
    assert_eq!(handled.unwrap(), Handled::Worked);
    let head = bench.head().await.unwrap();
    assert!(head.requests.is_empty(), "the outcome is known");
    assert!(matches!(head.phase, Phase::Model { .. }));
}

/// Sleeps for the given time before each call.
#[derive(Debug)]
struct Slow(Duration);

#[async_trait::async_trait]
impl Extension for Slow {
    fn name(&self) -> &'static str {
        "slow"
    }

    async fn before_tool_call(&self, _call: &CallAhead<'_>) -> Result<Option<Block>, HookError> {
        tokio::time::sleep(self.0).await;
        Ok(None)
    }
}

#[tokio::test(start_paused = true)]
async fn the_claim_that_a_commit_writes_begins_with_the_commit_however_long_it_was_prepared() {
    let mut bench = Bench::with(8, pays_once);
    let client = bench.worker(Arc::new(NoProbe));
    bench.ask(&client).await;
    let pause = Arc::new(PauseProbe::new("answer.after"));
    let mut worker = bench.worker(pause.clone());
    worker.extensions = vec![Arc::new(Slow(Duration::from_secs(29)))];
    worker.limits.hook = Duration::from_secs(30);
    let nudge = Bench::nudge();
    let (handled, left) = tokio::join!(handle(&worker, &nudge), async {
        pause.reached.notified().await;
        let head = bench.head().await.unwrap();
        pause.go.notify_one();
        bench.clock.now().until(head.claim.unwrap().until)
    });
    assert_eq!(handled.unwrap(), Handled::Worked);
    assert!(left + Duration::from_secs(1) >= CLAIM, "a new lease has only {left:?} left");
}

#[tokio::test(start_paused = true)]
async fn a_result_that_could_not_be_committed_is_kept_for_the_next_worker() {
    let mut bench = Bench::with(7, pays_once);
    let client = bench.worker(Arc::new(NoProbe));
    bench.ask(&client).await;
    // Another worker holds the lease when the result is committed; the store accepts writes.
    let pause = Arc::new(PauseProbe::new("result.before"));
    let worker = bench.worker(pause.clone());
    let store = bench.store.clone();
    let nudge = Bench::nudge();
    let (handled, ()) = tokio::join!(handle(&worker, &nudge), async {
        pause.reached.notified().await;
        overtake(&store).await;
        pause.go.notify_one();
    });
    assert!(matches!(handled, Err(TurnError::ClaimLost { .. })), "{handled:?}");
    bench.run().await;
    assert!(bench.done.lock().unwrap().values().eq([&1]), "the call ran once");
    assert!(!bench.was_asked_for_outcome, "the result is known: {:#?}", bench.story);
}

/// Gives the lease to another worker, which never acts.
pub(super) async fn overtake(store: &MemoryStore) {
    use crate::store::{ConversationStore as _, Freshness, HEAD_ID};
    let partition = Partition::Conversation(Bench::key());
    let stored = store.read(&partition, HEAD_ID, Freshness::Latest).await.unwrap().unwrap();
    let mut head = record::read_head(&stored).unwrap();
    head.epoch += 1;
    head.commit_id = crate::ids::CommitId::new("overtaken");
    let claim = head.claim.as_mut().unwrap();
    claim.worker = crate::ids::WorkerId::new("another");
    claim.epoch += 1;
    let document = record::head_document(&head).unwrap();
    store.write(&partition, vec![Write::Replace(document, Some(stored.etag))]).await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn two_deliveries_of_one_process_are_two_workers() {
    let mut bench = Bench::with(8, pays_once);
    let world = bench.worker(Arc::new(NoProbe));
    bench.ask(&world).await;
    let nudge = Bench::nudge();
    let (one, two) = tokio::join!(handle(&world, &nudge), handle(&world, &nudge));
    let worked = [&one, &two].into_iter().filter(|handled| matches!(handled, Ok(Handled::Worked)));
    assert_eq!(worked.count(), 1, "{one:?} {two:?}");
    assert_eq!(*bench.model.answers.lock().unwrap(), 1);
}

#[tokio::test(start_paused = true)]
async fn one_nudge_never_outlasts_the_hosts_patience() {
    let mut bench = Bench::with(9, says_hello);
    *bench.model.span.lock().unwrap() = Duration::from_mins(4);
    let world = bench.worker(Arc::new(NoProbe));
    bench.ask(&world).await;
    let began = Instant::now();
    let nudge = Bench::nudge();
    let (handled, ()) = tokio::join!(handle(&world, &nudge), async {
        tokio::time::sleep(Duration::from_secs(10)).await;
        bench.queue_up(&world, &Bench::key(), "another").await.unwrap();
    });
    assert_eq!(handled.unwrap(), Handled::Worked);
    assert!(began.elapsed() < Duration::from_mins(5), "{:?}", began.elapsed());
    assert!(bench.queue.length(queue::TURNS).await.unwrap() > 0, "the remaining work is enqueued");
    bench.run().await;
    assert_eq!(bench.head().await.unwrap().prompts.len(), 2);
}
