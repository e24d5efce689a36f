//! Parallel tool calls: their cost, their order, and their recovery after a crash.

use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use async_trait::async_trait;
use serde_json::{Value, json};
use tokio::sync::Notify;
use tokio::time::Instant;

use super::bench::{Bench, Counting, PauseProbe, Script, call, text};
use super::checks::faults;
use super::economy::{bells, turn};
use crate::agent::content::joined_text;
use crate::agent::entry::PromptState;
use crate::agent::event::EventBody;
use crate::agent::head::State;
use crate::agent::message::Message;
use crate::agent::phase::Phase;
use crate::extensions::{Block, CallAhead, Extension, HookError};
use crate::queue::{self, Queue as _};
use crate::store::{Kind, Partition};
use crate::turn::delivery::{TurnError, handle};
use crate::turn::{NoProbe, Probe, World};

/// Calls with the ids c0, c1, …; each takes the given number of seconds.
fn naps(seconds: &[usize]) -> Vec<Value> {
    let naps = seconds.iter().enumerate();
    naps.map(|(number, seconds)| call(&format!("c{number}"), "nap", *seconds)).collect()
}

fn three_naps(results: usize, _said: &str) -> Vec<Value> {
    if results == 0 { naps(&[30, 10, 20]) } else { vec![text("done")] }
}

/// Calls that end before the lease has to be renewed.
pub(super) fn three_short_naps(results: usize, _said: &str) -> Vec<Value> {
    if results == 0 { naps(&[3, 1, 2]) } else { vec![text("done")] }
}

pub(super) async fn stage(most: u32, script: Script) -> (Bench, World, Arc<Counting>) {
    let mut bench = Bench::with(1, script);
    bench.run_calls_at_once(most);
    let counting = Counting::before(bench.store.clone());
    bench.shared = counting.clone();
    let world = bench.worker(Arc::new(NoProbe));
    bench.ask(&world).await;
    (bench, world, counting)
}

/// Ids of the calls in the order of their ends, and in the order of their result entries.
async fn order(bench: &Bench) -> (Vec<String>, Vec<String>) {
    let events = bench.events().await;
    let ends = events.iter().filter_map(|event| match &event.body {
        EventBody::ToolExecutionEnd(end) => Some(end.tool_call_id.clone()),
        _ => None,
    });
    let entries = bench.entries().await;
    let results = entries.iter().filter_map(|entry| match entry.body.message() {
        Some(Message::ToolResult(result)) => Some(result.tool_call_id.clone()),
        _ => None,
    });
    (ends.collect(), results.collect())
}

pub(super) async fn texts(bench: &Bench) -> Vec<String> {
    let entries = bench.entries().await;
    let results = entries.iter().filter_map(|entry| match entry.body.message() {
        Some(Message::ToolResult(result)) => Some(joined_text(&result.content)),
        _ => None,
    });
    results.collect()
}

#[tokio::test(start_paused = true)]
async fn three_calls_cost_four_commits_and_take_as_long_as_the_longest() {
    let (bench, world, counting) = stage(8, three_naps).await;
    let began = Instant::now();
    insta::assert_snapshot!(turn(&bench, &world, &counting).await, @r"
    lease (head and inbox)
    write head, 2 entry, events, receipt
    select inbox
    write head, 4 entry, events
    read head
    select inbox
    write head, entry, events
    read head
    read head
    select inbox
    write head, entry, events
    read head
    read head
    select inbox
    write head, 3 entry, events
    ");
    assert_eq!(began.elapsed().as_secs(), 30);
    let (ends, results) = order(&bench).await;
    assert_eq!(ends, ["c1", "c2", "c0"]);
    assert_eq!(results, ["c0", "c1", "c2"]);
    assert_eq!(texts(&bench).await, ["30", "10", "20"]);
    assert_eq!(bells(&bench).await, 1);
}

fn equal_naps(results: usize, _said: &str) -> Vec<Value> {
    if results == 0 { naps(&[5, 5, 5, 5]) } else { vec![text("done")] }
}

#[tokio::test(start_paused = true)]
async fn what_ends_at_the_same_time_shares_a_commit() {
    let (bench, world, counting) = stage(8, equal_naps).await;
    insta::assert_snapshot!(turn(&bench, &world, &counting).await, @r"
    lease (head and inbox)
    write head, 2 entry, events, receipt
    select inbox
    write head, 5 entry, events
    select inbox
    write head, 4 entry, events
    ");
    assert_eq!(order(&bench).await.1, ["c0", "c1", "c2", "c3"]);
}

#[tokio::test(start_paused = true)]
async fn no_more_run_than_may_and_the_next_starts_in_the_commit_of_a_result() {
    let (bench, world, counting) = stage(2, equal_naps).await;
    let began = Instant::now();
    insta::assert_snapshot!(turn(&bench, &world, &counting).await, @r"
    lease (head and inbox)
    write head, 2 entry, events, receipt
    select inbox
    write head, 3 entry, events
    select inbox
    write head, 4 entry, events
    read head
    select inbox
    write head, 2 entry, events
    ");
    assert_eq!(began.elapsed().as_secs(), 10, "two calls run at a time");
}

fn one_waits(results: usize, _said: &str) -> Vec<Value> {
    match results {
        0 => vec![call("c0", "gated", 0), call("c1", "nap", 5), call("c2", "nope", 0)],
        _ => vec![text("done")],
    }
}

#[tokio::test(start_paused = true)]
async fn calls_run_while_another_waits_for_a_person_and_the_wait_holds_nobody() {
    let (mut bench, world, counting) = stage(8, one_waits).await;
    turn(&bench, &world, &counting).await;
    let head = bench.head().await.unwrap();
    assert_eq!((head.state(), head.claim), (State::WaitingForApproval, None));
    assert_eq!(order(&bench).await.0, ["c2", "c1"]);
    assert_eq!(bells(&bench).await, 0, "a wait sends no nudge");
    bench.decide().await;
    // Another worker, which has to read the buffered results.
    let other = bench.worker(Arc::new(NoProbe));
    turn(&bench, &other, &counting).await;
    assert_eq!(order(&bench).await.1, ["c0", "c1", "c2"]);
    bench.run().await;
    assert_eq!(faults(&bench, &Bench::key(), (1, 0)).await, Vec::<String>::new());
}

/// A call of a built-in file tool.
fn file(id: &str, tool: &str, arguments: &Value) -> Value {
    json!({"type": "toolCall", "id": id, "name": tool, "arguments": arguments})
}

fn edits(results: usize, _said: &str) -> Vec<Value> {
    let edit = |id: &str, old: &str, new: &str| {
        file(id, "edit", &json!({"path": "a.txt", "old_text": old, "new_text": new}))
    };
    match results {
        0 => vec![
            call("c0", "nap", 20),
            file("c1", "write", &json!({"path": "a.txt", "content": "one"})),
            edit("c2", "one", "one two"),
            edit("c3", "two", "two three"),
        ],
        4 => vec![edit("c4", "one two three", "all")],
        _ => vec![text("done")],
    }
}

#[tokio::test(start_paused = true)]
async fn calls_that_change_files_work_on_what_the_one_before_left() {
    let (mut bench, world, counting) = stage(8, edits).await;
    let began = Instant::now();
    turn(&bench, &world, &counting).await;
    assert_eq!(began.elapsed().as_secs(), 20, "the file calls do not wait for `nap`");
    assert_eq!(order(&bench).await.0, ["c1", "c2", "c3", "c0"]);
    while turn_if_any(&bench, &world).await {}
    bench.run().await;
    let entries = bench.entries().await;
    let is_error = entries.iter().any(|entry| {
        matches!(entry.body.message(), Some(Message::ToolResult(result)) if result.is_error)
    });
    assert!(!is_error, "{:?}", texts(&bench).await);
}

async fn turn_if_any(bench: &Bench, world: &World) -> bool {
    let received = bench.queue.receive(queue::TURNS, 1, Duration::from_mins(1)).await.unwrap();
    let Some(message) = received.into_iter().next() else { return false };
    handle(world, &serde_json::from_str(&message.text).unwrap()).await.unwrap();
    bench.queue.delete(queue::TURNS, &message.id, &message.pop_receipt).await.unwrap();
    true
}

fn wires_twice(results: usize, _said: &str) -> Vec<Value> {
    match results {
        0 => vec![call("c0", "wire", 7), call("c1", "wire", 7), call("c2", "wire", 8)],
        _ => vec![text("done")],
    }
}

/// `wire` loses half of its responses: ten conversations include one whose first call loses it.
#[tokio::test(start_paused = true)]
async fn the_same_write_twice_waits_for_the_first_and_is_refused_when_its_outcome_is_unknown() {
    let mut lost = 0;
    for seed in 0..10 {
        let mut bench = Bench::with(seed, wires_twice);
        bench.run_calls_at_once(8);
        let world = bench.worker(Arc::new(NoProbe));
        bench.ask(&world).await;
        while turn_if_any(&bench, &world).await {}
        let head = bench.head().await.unwrap();
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

fn long_naps(results: usize, _said: &str) -> Vec<Value> {
    if results == 0 { naps(&[150, 140, 145]) } else { vec![text("done")] }
}

#[tokio::test(start_paused = true)]
async fn the_claim_is_kept_while_calls_run() {
    let mut bench = Bench::with(1, long_naps);
    bench.run_calls_at_once(8);
    let world = bench.worker(Arc::new(NoProbe));
    bench.ask(&world).await;
    let other = bench.worker(Arc::new(NoProbe));
    let (nudge, over) = (Bench::nudge(), Notify::new());
    let intruder = async {
        let mut tries = 0;
        while tokio::time::timeout(Duration::from_secs(7), over.notified()).await.is_err() {
            handle(&other, &nudge).await.unwrap();
            tries += 1;
        }
        tries
    };
    let worked = async {
        let handled = handle(&world, &nudge).await;
        over.notify_one();
        handled
    };
    let (handled, tries) = tokio::join!(worked, intruder);
    handled.unwrap();
    assert!(tries > 15);
    assert!(bench.done.lock().unwrap().values().all(|times| *times == 1), "each ran once");
    assert_eq!(order(&bench).await.0, ["c1", "c2", "c0"]);
}

fn longer_than_the_turn(results: usize, _said: &str) -> Vec<Value> {
    match results {
        0 => naps(&[100, 50, 6]),
        _ => vec![text("done")],
    }
}

#[tokio::test(start_paused = true)]
async fn a_call_whose_time_no_longer_fits_starts_in_the_next_delivery() {
    let (bench, world, counting) = stage(2, longer_than_the_turn).await;
    // After 50 s a call may take 240 s, and the turn ends after 300 s.
    turn(&bench, &world, &counting).await;
    assert_eq!(order(&bench).await.0, ["c1", "c0"]);
    assert_eq!(bells(&bench).await, 1);
    turn(&bench, &world, &counting).await;
    assert_eq!(order(&bench).await.0, ["c1", "c0", "c2"]);
}

fn three_equal_naps(results: usize, _said: &str) -> Vec<Value> {
    if results == 0 { naps(&[10, 20, 5]) } else { vec![text("done")] }
}

#[tokio::test(start_paused = true)]
async fn a_steer_skips_what_has_not_started_and_lands_when_the_last_has_ended() {
    let (bench, world, _) = stage(2, three_equal_naps).await;
    let nudge = Bench::nudge();
    let (handled, ()) = tokio::join!(handle(&world, &nudge), async {
        tokio::time::sleep(Duration::from_secs(3)).await;
        bench.steer(&world, "stop that").await.unwrap();
    });
    handled.unwrap();
    let skipped = "Skipped due to queued user message.";
    assert_eq!(texts(&bench).await, ["10", "20", skipped]);
    let entries = bench.entries().await;
    let last = entries.iter().rev().find_map(|entry| entry.body.message());
    assert_eq!(last.unwrap().role(), "user", "the steer follows the results");
    let partition = Partition::Conversation(Bench::key());
    let documents = bench.store.documents(&partition);
    let receipts = documents.iter().filter(|stored| stored.document.kind == Kind::Receipt);
    let told = receipts.map(|stored| stored.document.body.value());
    let told = told.filter(|receipt| !receipt["skippedCalls"].is_null()).collect::<Vec<_>>();
    let [receipt] = told.as_slice() else { panic!("{told:#?}") };
    assert_eq!(receipt["ranCalls"], json!(["c0", "c1"]));
    assert_eq!(receipt["skippedCalls"], json!(["c2"]));
}

/// Stops its worker for good at the fail point with the given number.
#[derive(Debug)]
struct Nth {
    left: AtomicU32,
    at: Mutex<Option<&'static str>>,
    reached: Notify,
}

#[async_trait]
impl Probe for Nth {
    async fn reached(&self, boundary: &'static str) {
        if self.left.fetch_sub(1, Ordering::SeqCst) == 0 {
            *self.at.lock().unwrap() = Some(boundary);
            self.reached.notify_one();
            std::future::pending::<()>().await;
        }
    }
}

fn of_each_effect(results: usize, _said: &str) -> Vec<Value> {
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
async fn a_worker_that_dies_anywhere_while_calls_run_loses_nothing_and_pays_once() {
    let mut boundaries = std::collections::BTreeSet::new();
    for number in 0.. {
        let mut bench = Bench::with(u64::from(number), of_each_effect);
        bench.run_calls_at_once(3);
        let client = bench.worker(Arc::new(NoProbe));
        bench.ask(&client).await;
        let nth = Arc::new(Nth {
            left: AtomicU32::new(number),
            at: Mutex::default(),
            reached: Notify::new(),
        });
        let doomed = bench.worker(nth.clone());
        let nudge = Bench::nudge();
        let is_over = tokio::select! {
            handled = handle(&doomed, &nudge) => { handled.unwrap(); true }
            () = nth.reached.notified() => false,
        };
        bench.run().await;
        let at = *nth.at.lock().unwrap();
        assert_eq!(
            faults(&bench, &Bench::key(), (1, 0)).await,
            Vec::<String>::new(),
            "killed at {at:?}"
        );
        assert_eq!(order(&bench).await.1, ["c0", "c1", "c2", "c3"], "killed at {at:?}");
        assert_eq!(texts(&bench).await[3], "0", "killed at {at:?}");
        assert!(*bench.model.answers.lock().unwrap() <= 3, "killed at {at:?}");
        boundaries.extend(at);
        if is_over {
            break;
        }
    }
    for needed in [
        "take-in.after",
        "answer.before",
        "answer.after",
        "tool.before",
        "tool.after",
        "result.before",
        "result.after",
    ] {
        assert!(boundaries.contains(needed), "{needed} was never hit: {boundaries:?}");
    }
}

#[derive(Debug)]
struct Ends;

#[async_trait]
impl Extension for Ends {
    fn name(&self) -> &'static str {
        "ends"
    }

    async fn before_tool_call(&self, _call: &CallAhead<'_>) -> Result<Option<Block>, HookError> {
        Ok(Some(Block { reason: Some("That is all.".to_owned()), terminate: true }))
    }
}

#[tokio::test(start_paused = true)]
async fn calls_that_an_extension_blocks_may_end_the_prompt() {
    let (bench, mut world, counting) = stage(8, of_each_effect).await;
    world.extensions = vec![Arc::new(Ends)];
    turn(&bench, &world, &counting).await;
    assert_eq!(texts(&bench).await, ["That is all."; 4]);
    assert_eq!(bench.head().await.unwrap().prompts[0].state, PromptState::Completed);
    assert_eq!(*bench.model.answers.lock().unwrap(), 1, "the model is not called again");
}

fn pays_three_times(results: usize, _said: &str) -> Vec<Value> {
    match results {
        0 => vec![call("c0", "pay", 0), call("c1", "pay", 1), call("c2", "pay", 2)],
        _ => vec![text("done")],
    }
}

#[tokio::test(start_paused = true)]
async fn outcomes_that_are_unknown_at_once_are_asked_one_by_one() {
    let mut bench = Bench::with(3, pays_three_times);
    bench.run_calls_at_once(8);
    let client = bench.worker(Arc::new(NoProbe));
    bench.ask(&client).await;
    let pause = Arc::new(PauseProbe::new("tool.after"));
    let doomed = bench.worker(pause.clone());
    let nudge = Bench::nudge();
    tokio::select! {
        handled = handle(&doomed, &nudge) => panic!("{handled:?}"),
        () = pause.reached.notified() => {}
    }
    tokio::time::sleep(Duration::from_secs(70)).await;
    let other = bench.worker(Arc::new(NoProbe));
    handle(&other, &nudge).await.unwrap();
    let head = bench.head().await.unwrap();
    assert_eq!(head.requests.len(), 3);
    assert_eq!(head.unknown_writes.len(), 3);
    bench.run().await;
    assert!(bench.done.lock().unwrap().values().eq([&1, &1, &1]), "each was paid once");
    assert_eq!(order(&bench).await.1, ["c0", "c1", "c2"]);
}

#[tokio::test(start_paused = true)]
async fn results_that_could_not_be_committed_are_all_kept_for_the_next_worker() {
    let mut bench = Bench::with(7, pays_three_times);
    bench.run_calls_at_once(8);
    let client = bench.worker(Arc::new(NoProbe));
    bench.ask(&client).await;
    let pause = Arc::new(PauseProbe::new("result.before"));
    let worker = bench.worker(pause.clone());
    let store = bench.store.clone();
    let nudge = Bench::nudge();
    let (handled, ()) = tokio::join!(handle(&worker, &nudge), async {
        pause.reached.notified().await;
        super::claims::overtake(&store).await;
        pause.go.notify_one();
    });
    assert!(matches!(handled, Err(TurnError::ClaimLost { .. })), "{handled:?}");
    bench.run().await;
    assert!(bench.done.lock().unwrap().values().eq([&1, &1, &1]), "each was paid once");
    assert!(!bench.was_asked_for_outcome, "the results are known: {:#?}", bench.story);
}

#[tokio::test(start_paused = true)]
async fn a_commit_that_takes_its_time_makes_no_call_late() {
    let mut bench = Bench::with(1, three_naps);
    bench.run_calls_at_once(8);
    let client = bench.worker(Arc::new(NoProbe));
    bench.ask(&client).await;
    let pause = Arc::new(PauseProbe::new("result.before"));
    let worker = bench.worker(pause.clone());
    let began = Instant::now();
    let nudge = Bench::nudge();
    let (handled, ()) = tokio::join!(handle(&worker, &nudge), async {
        pause.reached.notified().await;
        // The first result's commit blocks until all calls have ended.
        tokio::time::sleep(Duration::from_secs(25)).await;
        pause.go.notify_one();
    });
    handled.unwrap();
    assert_eq!(began.elapsed().as_secs(), 35);
    // c1 alone, and then the calls that have ended meanwhile in one commit.
    assert_eq!(order(&bench).await.0, ["c1", "c0", "c2"]);
}
