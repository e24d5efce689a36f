//! Deletion of the turn and notify queues: the recovery sweep, or an immediate rebuild, enqueues
//! exactly the pending work, and all of it completes.

use std::sync::{Arc, Mutex};
use std::time::Duration;

use async_trait::async_trait;
use serde_json::Value;

use super::bench::{Bench, PauseProbe, call, idempotency, owner, text};
use super::checks;
use crate::agent::content::Content;
use crate::agent::notice::Notice;
use crate::agent::phase::Phase;
use crate::ids::ConversationKey;
use crate::queue::{self, Queue as _};
use crate::turn::delivery::handle;
use crate::turn::notify::{Herald, Told, notify};
use crate::turn::schedules::create::{NewSchedule, create};
use crate::turn::{NoProbe, Nudge, World, sweep};

/// One conversation per kind of pending work.
const CONVERSATIONS: [&str; 8] =
    ["accepted", "midway", "person", "decided", "c", "retry", "webhook", "rest"];

/// Conversations with pending work; `schedule` stands for a schedule's nudge.
const TURNS_OWED: [&str; 6] = ["accepted", "c", "decided", "midway", "retry", "schedule"];
const NOTIFY_OWED: [&str; 1] = ["webhook"];

fn work(results: usize, said: &str) -> Vec<Value> {
    match (said, results) {
        ("look", 0) => vec![call("c1", "look", 0), call("c2", "put", 0)],
        ("ask", 0) => vec![call("c1", "gated", 0)],
        _ => vec![text("done")],
    }
}

#[derive(Debug, Default)]
struct Scribe(Mutex<Vec<String>>);

#[async_trait]
impl Herald for Scribe {
    async fn tell(&self, _key: &ConversationKey, notice: &Notice) -> Told {
        self.0.lock().unwrap().push(notice.kind.clone());
        Told::Taken
    }
}

fn nudge(id: &str) -> Nudge {
    Nudge::of(owner().key(id), None)
}

/// Returns the conversations in their states, and the worker with a webhook.
async fn stage() -> (Bench, World, Arc<Scribe>) {
    let mut bench = Bench::with(9, work);
    bench.conversations = CONVERSATIONS.map(|id| owner().key(id)).to_vec();
    let scribe = Arc::new(Scribe::default());
    let world = bench.worker(Arc::new(NoProbe));
    let with_webhook = World { herald: Some(scribe.clone()), ..bench.worker(Arc::new(NoProbe)) };
    for (id, said) in [
        ("accepted", "hi"),
        ("midway", "look"),
        ("person", "ask"),
        ("decided", "ask"),
        ("c", "look"),
        ("retry", "hi"),
        ("webhook", "hi"),
        ("rest", "hi"),
    ] {
        bench.ask_in(&world, id, said).await;
    }
    for id in ["midway", "person", "decided", "rest"] {
        handle(&world, &nudge(id)).await.unwrap();
    }
    handle(&with_webhook, &nudge("webhook")).await.unwrap();
    *bench.model.failures.lock().unwrap() = 1;
    handle(&world, &nudge("retry")).await.unwrap();
    bench.decide_one("decided").await;
    // The worker of `c` dies during a call, and a client steers.
    let pause = Arc::new(PauseProbe::new("tool.after"));
    let doomed = bench.worker(pause.clone());
    let bell = nudge("c");
    tokio::select! {
        handled = handle(&doomed, &bell) => panic!("{handled:?}"),
        () = pause.reached.notified() => {}
    }
    bench.steer(&world, "and quickly").await.unwrap();
    let tick = NewSchedule {
        id: Some("s".to_owned()),
        input: Some(Content::Text("tick".to_owned())),
        at: Some("PT1M".to_owned()),
        conversation_id: Some("rest".to_owned()),
        ..NewSchedule::default()
    };
    create(&world, &owner(), tick, &idempotency("s"), None).await.unwrap();
    (bench, with_webhook, scribe)
}

/// Returns the conversations of the queued nudges, sorted, with repetitions.
async fn rung(bench: &Bench, queue: &str) -> Vec<String> {
    let received = bench.queue.receive(queue, 32, Duration::from_secs(1)).await.unwrap();
    let named = received.iter().map(|message| {
        let nudge: Nudge = serde_json::from_str(&message.text).unwrap();
        match nudge.schedule {
            Some(_) => "schedule".to_owned(),
            None => nudge.key.conversation_id.as_str().to_owned(),
        }
    });
    let mut named: Vec<String> = named.collect();
    named.sort();
    named
}

/// Deletes both queues, waits, and runs the recovery sweep with `grace`.
async fn lose_and_bring_back(wait: Duration, grace: Duration) {
    let (mut bench, world, scribe) = stage().await;
    for lost in [queue::TURNS, queue::NOTIFY] {
        bench.queue.drop_queue(lost);
    }
    tokio::time::sleep(wait).await;
    let count = sweep::sweep(&world, grace).await.unwrap();
    assert_eq!(count, TURNS_OWED.len() + NOTIFY_OWED.len());
    // Work that falls due soon is enqueued with a delay.
    tokio::time::sleep(sweep::AHEAD).await;
    assert_eq!(rung(&bench, queue::TURNS).await, TURNS_OWED);
    assert_eq!(rung(&bench, queue::NOTIFY).await, NOTIFY_OWED);
    tokio::time::sleep(Duration::from_secs(2)).await;
    notify(&world, &nudge("webhook")).await.unwrap();
    assert_eq!(*scribe.0.lock().unwrap(), ["prompt.completed"]);
    // No further sweep is needed.
    while bench.deliver().await {}
    for (id, prompts) in
        [("accepted", 1), ("midway", 1), ("decided", 1), ("c", 1), ("retry", 1), ("rest", 2)]
    {
        let head = bench.head_of(&owner().key(id)).await.unwrap();
        assert_eq!((head.phase, head.prompts.len()), (Phase::Idle, prompts), "{id}");
    }
    bench.run().await;
    for key in bench.conversations.clone() {
        let prompts = if key.conversation_id.as_str() == "rest" { 2 } else { 1 };
        let faults = checks::faults(&bench, &key, (prompts, 0)).await;
        assert_eq!(faults, Vec::<String>::new(), "{:#?}", bench.story);
    }
    assert_eq!(
        bench.done.lock().unwrap().len(),
        5,
        "every call runs except the one that the steer skips"
    );
}

#[tokio::test(start_paused = true)]
async fn the_sweep_alone_brings_back_exactly_what_was_owed() {
    lose_and_bring_back(Duration::from_mins(3), sweep::GRACE).await;
}

#[tokio::test(start_paused = true)]
async fn a_rebuilt_queue_holds_exactly_what_was_owed() {
    lose_and_bring_back(Duration::ZERO, Duration::ZERO).await;
}
