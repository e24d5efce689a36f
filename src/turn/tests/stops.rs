//! Aborts: an abort takes effect wherever work runs, nothing starts after it, and its receipt is
//! correct.

use std::sync::Arc;
use std::time::Duration;

use serde_json::{Value, json};
use tokio::time::Instant;

use super::bench::{Bench, Counting, PauseProbe, bad_queue, bad_store, call, idempotency, text};
use crate::agent::entry::{EntryBody, PromptState};
use crate::agent::inbox::{Outcome, Receipt};
use crate::agent::message::Message;
use crate::agent::phase::Phase;
use crate::ids::EffectId;
use crate::queue;
use crate::store::memory as stores;
use crate::store::{Freshness, Partition};
use crate::turn::admission::Refusal;
use crate::turn::admission::decide::{Decider, Said, decide};
use crate::turn::admission::stop::{AbortRequest, abort};
use crate::turn::delivery::handle;
use crate::turn::stopping::stop_id;
use crate::turn::{NoProbe, World, record};

fn says_hello(_results: usize, _said: &str) -> Vec<Value> {
    vec![text("hello")]
}

fn looks_and_pays(results: usize, _said: &str) -> Vec<Value> {
    if results == 0 {
        vec![text("first"), call("c1", "look", 0), call("c2", "pay", 0), call("c3", "put", 0)]
    } else {
        vec![text("done")]
    }
}

fn brews(results: usize, _said: &str) -> Vec<Value> {
    if results == 0 {
        vec![call("c1", "brew", 0), call("c2", "pay", 0)]
    } else {
        vec![text("done")]
    }
}

fn studies(results: usize, _said: &str) -> Vec<Value> {
    if results == 0 { vec![call("c1", "study", 0)] } else { vec![text("done")] }
}

fn is_gated(results: usize, _said: &str) -> Vec<Value> {
    if results == 0 { vec![call("c1", "gated", 0)] } else { vec![text("done")] }
}

async fn stop(world: &World) {
    let request = AbortRequest::default();
    let answer = abort(world, &Bench::key(), request, &idempotency("stop")).await.unwrap();
    assert_eq!(answer.status, 202);
}

/// Receipt of the abort of the only prompt.
async fn receipt(bench: &Bench) -> Receipt {
    let head = bench.head().await.unwrap();
    let id = stop_id(&head.prompts.last().unwrap().id);
    let partition = Partition::Conversation(Bench::key());
    let stored = bench.shared.read(&partition, id.as_str(), Freshness::Latest).await.unwrap();
    record::read(&stored.expect("a receipt").document).unwrap()
}

async fn state(bench: &Bench) -> PromptState {
    let head = bench.head().await.unwrap();
    assert_eq!(head.phase, Phase::Idle);
    head.prompts.last().unwrap().state
}

/// Checks the receipt of the abort against the entries and the executed calls.
async fn is_true(bench: &Bench) -> Result<(), String> {
    let receipt = receipt(bench).await;
    let head = bench.head().await.unwrap();
    let (mut answer, mut calls, mut results) = (0, Vec::new(), 0);
    for entry in bench.entries().await {
        match entry.body.message() {
            Some(Message::Assistant(message)) if message.tool_calls().count() > 0 => {
                answer = entry.base.seq;
                calls = message.tool_calls().map(|call| call.id.clone()).collect();
            }
            Some(Message::ToolResult(_)) => results += 1,
            _ => {}
        }
    }
    if results != calls.len() {
        return Err(format!("{} calls have {results} results", calls.len()));
    }
    if receipt.outcome == Outcome::Ignored {
        let is_complete = state(bench).await == PromptState::Completed;
        return is_complete.then_some(()).ok_or_else(|| "an ignored abort must leave the prompt completed".to_owned());
    }
    for (index, id) in calls.iter().enumerate() {
        let effect = EffectId::of_call(&head.conversation_id, &head.incarnation, answer, index);
        let done = bench.done.lock().unwrap().get(effect.as_str()).copied().unwrap_or_default();
        let [ran, skipped, unknown] =
            [&receipt.ran_calls, &receipt.skipped_calls, &receipt.unknown_calls]
                .map(|list| list.contains(id));
        let is_told_once = u8::from(ran) + u8::from(skipped) + u8::from(unknown) == 1;
        // The receipt lists calls only while their turn runs; later the entries have their results.
        let is_over = receipt.ran_calls.is_empty() && receipt.skipped_calls.is_empty();
        if !is_over && !is_told_once || skipped && done > 0 || ran && done == 0 {
            return Err(format!("{id} ran {done} times; receipt: {receipt:?}"));
        }
    }
    Ok(())
}

#[tokio::test(start_paused = true)]
async fn a_stop_from_another_process_cuts_the_models_answer_within_two_seconds() {
    let mut bench = Bench::with(1, says_hello);
    *bench.model.span.lock().unwrap() = Duration::from_mins(2);
    let (worker, elsewhere) = (bench.worker(Arc::new(NoProbe)), bench.worker(Arc::new(NoProbe)));
    bench.ask(&elsewhere).await;
    let nudge = Bench::nudge();
    let (handled, stopped_at) = tokio::join!(handle(&worker, &nudge), async {
        tokio::time::sleep(Duration::from_millis(7_300)).await;
        stop(&elsewhere).await;
        Instant::now()
    });
    handled.unwrap();
    assert!(stopped_at.elapsed() < Duration::from_secs(2), "{:?}", stopped_at.elapsed());
    assert_eq!(state(&bench).await, PromptState::Aborted);
    assert_eq!(receipt(&bench).await.outcome, Outcome::Landed);
    let entries = bench.entries().await;
    let last = entries.iter().rev().find_map(|entry| entry.body.message()).unwrap();
    let last = last.as_assistant().expect("the last message is no response");
    assert_eq!(last.error_message.as_deref(), Some("Request was aborted"));
}

#[tokio::test(start_paused = true)]
async fn a_stop_in_the_same_process_is_heard_at_once() {
    let mut bench = Bench::with(2, studies);
    let worker = bench.worker(Arc::new(NoProbe));
    bench.ask(&worker).await;
    let nudge = Bench::nudge();
    let (handled, stopped_at) = tokio::join!(handle(&worker, &nudge), async {
        tokio::time::sleep(Duration::from_millis(7_300)).await;
        stop(&worker).await;
        Instant::now()
    });
    handled.unwrap();
    assert!(stopped_at.elapsed() < Duration::from_millis(50), "{:?}", stopped_at.elapsed());
    assert_eq!(state(&bench).await, PromptState::Aborted);
    assert_eq!(receipt(&bench).await.unknown_calls, ["c1"], "the cancelled read has an unknown outcome");
    assert!(bench.head().await.unwrap().unknown_writes.is_empty(), "a read may be repeated");
}

#[tokio::test(start_paused = true)]
async fn wherever_a_stop_comes_nothing_starts_after_it_and_its_receipt_is_true() {
    let boundaries = [
        "claim.before",
        "claim.after",
        "inbox.after",
        "take-in.before",
        "take-in.after",
        "model.before",
        "model.after",
        "answer.before",
        "answer.after",
        "tool.before",
        "tool.after",
        "result.before",
        "result.after",
        "release.before",
        "release.after",
        "nudge.before",
        "nudge.after",
    ];
    let mut told = Vec::new();
    for at in boundaries {
        let mut bench = Bench::with(3, looks_and_pays);
        let client = bench.worker(Arc::new(NoProbe));
        let pause = Arc::new(PauseProbe::new(at));
        let worker = bench.worker(pause.clone());
        bench.ask(&client).await;
        let nudge = Bench::nudge();
        let (handled, done_before) = tokio::join!(handle(&worker, &nudge), async {
            pause.reached.notified().await;
            stop(&client).await;
            let done_before = bench.done.lock().unwrap().len();
            pause.go.notify_one();
            done_before
        });
        handled.unwrap();
        bench.run().await;
        is_true(&bench).await.unwrap_or_else(|reason| panic!("{at}: {reason}"));
        // At most one more call: the one whose intent was being committed.
        let done = bench.done.lock().unwrap().len();
        assert!(done <= done_before + 1, "{at}: {done_before}, then {done}");
        let receipt = receipt(&bench).await;
        told.push(format!(
            "{at}: ran {:?}, skipped {:?}",
            receipt.ran_calls, receipt.skipped_calls
        ));
    }
    insta::assert_snapshot!(told.join("\n"), @r#"
    claim.before: ran [], skipped []
    claim.after: ran [], skipped ["c1", "c2", "c3"]
    inbox.after: ran [], skipped ["c1", "c2", "c3"]
    take-in.before: ran [], skipped ["c1", "c2", "c3"]
    take-in.after: ran [], skipped ["c1", "c2", "c3"]
    model.before: ran [], skipped ["c1", "c2", "c3"]
    model.after: ran [], skipped ["c1", "c2", "c3"]
    answer.before: ran ["c1"], skipped ["c2", "c3"]
    answer.after: ran ["c1"], skipped ["c2", "c3"]
    tool.before: ran ["c1"], skipped ["c2", "c3"]
    tool.after: ran ["c1"], skipped ["c2", "c3"]
    result.before: ran ["c1", "c2"], skipped ["c3"]
    result.after: ran ["c1", "c2"], skipped ["c3"]
    release.before: ran [], skipped []
    release.after: ran [], skipped []
    nudge.before: ran [], skipped []
    nudge.after: ran [], skipped []
    "#);
}

#[tokio::test(start_paused = true)]
async fn a_write_that_does_not_end_in_time_is_of_unknown_outcome_and_blocks_its_like() {
    let mut bench = Bench::with(4, brews);
    let (worker, elsewhere) = (bench.worker(Arc::new(NoProbe)), bench.worker(Arc::new(NoProbe)));
    bench.ask(&elsewhere).await;
    let nudge = Bench::nudge();
    let (handled, stopped_at) = tokio::join!(handle(&worker, &nudge), async {
        tokio::time::sleep(Duration::from_secs(30)).await;
        stop(&elsewhere).await;
        Instant::now()
    });
    handled.unwrap();
    assert!(stopped_at.elapsed() < Duration::from_secs(4), "{:?}", stopped_at.elapsed());
    assert_eq!(state(&bench).await, PromptState::Aborted);
    let told = receipt(&bench).await;
    assert_eq!(
        (told.unknown_calls, told.skipped_calls),
        (vec!["c1".to_owned()], vec!["c2".to_owned()])
    );
    bench.queue_up(&worker, &Bench::key(), "again").await.unwrap();
    bench.run().await;
    assert_eq!(bench.done.lock().unwrap().len(), 2, "`brew` ran once, and `pay` in the second prompt");
    let entries = bench.entries().await;
    let is_refused = |message: &Message| {
        serde_json::to_string(message).unwrap().contains("has an unknown outcome")
    };
    assert!(entries.iter().filter_map(|entry| entry.body.message()).any(is_refused));
}

#[tokio::test(start_paused = true)]
async fn a_write_that_ends_within_its_grace_has_its_result() {
    let mut bench = Bench::with(5, brews);
    let worker = bench.worker(Arc::new(NoProbe));
    bench.ask(&worker).await;
    let nudge = Bench::nudge();
    let (handled, ()) = tokio::join!(handle(&worker, &nudge), async {
        tokio::time::sleep(Duration::from_secs(199)).await;
        stop(&worker).await;
    });
    handled.unwrap();
    assert_eq!(state(&bench).await, PromptState::Aborted);
    let told = receipt(&bench).await;
    assert_eq!(
        (told.ran_calls, told.skipped_calls),
        (vec!["c1".to_owned()], vec!["c2".to_owned()])
    );
    assert!(bench.head().await.unwrap().unknown_writes.is_empty());
}

#[tokio::test(start_paused = true)]
async fn a_stop_while_the_holder_is_dead_lands_when_its_claim_is_over() {
    let mut bench = Bench::with(6, brews);
    let worker = bench.worker(Arc::new(NoProbe));
    bench.ask(&worker).await;
    let nudge = Bench::nudge();
    tokio::select! {
        _ = handle(&worker, &nudge) => panic!("the delivery ended too early"),
        () = tokio::time::sleep(Duration::from_secs(30)) => {}
    }
    let elsewhere = bench.worker(Arc::new(NoProbe));
    stop(&elsewhere).await;
    bench.run().await;
    assert_eq!(state(&bench).await, PromptState::Aborted);
    let told = receipt(&bench).await;
    assert_eq!(
        (told.unknown_calls, told.skipped_calls),
        (vec!["c1".to_owned()], vec!["c2".to_owned()])
    );
    assert!(!bench.was_asked_for_outcome, "an abort creates no outcome request");
    assert_eq!(bench.done.lock().unwrap().len(), 1);
}

fn person() -> Decider {
    let (tenant, user) = (crate::ids::TenantId::new("t"), crate::ids::UserId::new("u"));
    Decider::Person { tenant, user, roles: Vec::new() }
}

async fn approve(world: &World, id: &crate::ids::RequestId) -> Result<u16, Refusal> {
    let said = Said { decision: "approve".to_owned(), reason: None, value: None };
    let answer = decide(world, &Bench::key(), id.as_str(), said, &person()).await;
    answer.map(|answer| answer.status)
}

#[tokio::test(start_paused = true)]
async fn what_waits_for_a_person_is_decided_by_the_stop_once() {
    for is_approved_first in [false, true] {
        let mut bench = Bench::with(7, is_gated);
        let worker = bench.worker(Arc::new(NoProbe));
        bench.ask(&worker).await;
        handle(&worker, &Bench::nudge()).await.unwrap();
        let request = bench.head().await.unwrap().requests[0].id.clone();
        if is_approved_first {
            assert_eq!(approve(&worker, &request).await.unwrap(), 200);
        }
        stop(&worker).await;
        handle(&worker, &Bench::nudge()).await.unwrap();
        assert_eq!(state(&bench).await, PromptState::Aborted);
        assert_eq!(receipt(&bench).await.skipped_calls, ["c1"]);
        assert!(bench.done.lock().unwrap().is_empty(), "the call never ran");
        let decided: Vec<String> = bench
            .entries()
            .await
            .iter()
            .filter_map(|entry| match &entry.body {
                EntryBody::Decision(entry) => Some(entry.decision.decided_by.clone()),
                _ => None,
            })
            .collect();
        if is_approved_first {
            assert_eq!(decided, ["u"], "the first decision is kept");
        } else {
            assert_eq!(decided, ["abort"]);
            let refused = approve(&worker, &request).await.unwrap_err();
            let Refusal::AlreadyDecided(approval) = refused else { panic!("{refused:?}") };
            assert_eq!(approval.value()["decidedBy"], "abort");
            assert_eq!(approval.value()["decision"], "aborted");
        }
    }
}

#[tokio::test(start_paused = true)]
async fn a_stop_is_one_stop_whoever_sends_it_and_never_the_next_prompts() {
    let mut bench = Bench::with(8, says_hello);
    let worker = bench.worker(Arc::new(NoProbe));
    let key = Bench::key();
    bench.ask(&worker).await;
    let send = async |name: &str, prompt: Option<&str>| {
        let prompt_id = prompt.map(crate::ids::PromptId::new);
        let answer =
            abort(&worker, &key, AbortRequest { prompt_id }, &idempotency(name)).await.unwrap();
        (answer.body.unwrap().value(), answer.is_replayed)
    };
    let (first, _) = send("one", None).await;
    let (second, _) = send("two", None).await;
    assert_eq!(first, second, "both requests are one abort");
    let (other, _) = send("three", Some("pr_other")).await;
    assert_eq!(other.get("promptId"), None);
    bench.run().await;
    assert_eq!(state(&bench).await, PromptState::Aborted);
    assert_eq!(*bench.model.answers.lock().unwrap(), 0, "the abort precedes the model call");
    bench.queue_up(&worker, &key, "again").await.unwrap();
    assert_eq!(send("one", None).await, (first, true), "a repeated request gets the same response");
    bench.run().await;
    assert_eq!(state(&bench).await, PromptState::Completed);
    let (idle, _) = send("four", None).await;
    assert_eq!(idle.get("promptId"), None);
    assert!(idle["inputId"].is_string(), "{idle}");
    assert!(bench.has_come_to_rest().await, "no pending work is left");
    assert_eq!(json!(idle["inputId"]), json!(idempotency("four").input_id(&key)));
}

#[tokio::test(start_paused = true)]
async fn a_stop_on_a_bad_day_is_true_as_well() {
    let mut landed = 0;
    for seed in 1..=60 {
        let mut bench = Bench::with(seed, looks_and_pays);
        bench.store.set_faults(bad_store());
        bench.queue.set_faults(bad_queue());
        bench.crash_in_a_hundred = 4;
        let world = bench.worker(Arc::new(NoProbe));
        bench.ask(&world).await;
        let wait = Duration::from_millis(bench.dice.u64(0..400));
        let key = Bench::key();
        let client = async {
            tokio::time::sleep(wait).await;
            let key = Bench::key();
            while abort(&world, &key, AbortRequest::default(), &idempotency("stop")).await.is_err()
            {
                tokio::time::sleep(Duration::from_secs(1)).await;
            }
        };
        tokio::join!(bench.run(), client);
        bench.run().await;
        bench.store.set_faults(stores::Faults::default());
        let head = bench.head().await.unwrap();
        let id = stop_id(&head.prompts.last().unwrap().id);
        let partition = Partition::Conversation(key);
        let stored = bench.shared.read(&partition, id.as_str(), Freshness::Latest).await.unwrap();
        if stored.is_some() {
            is_true(&bench).await.unwrap_or_else(|reason| {
                panic!("seed {seed}: {reason}\n{:#?}", bench.story);
            });
            landed += u32::from(receipt(&bench).await.outcome == Outcome::Landed);
        }
    }
    assert!(landed >= 20, "only {landed} aborts were applied");
}

#[tokio::test(start_paused = true)]
async fn looking_for_a_stop_is_one_read_a_second_while_something_runs() {
    let mut bench = Bench::with(9, studies);
    let counting = Counting::before(bench.store.clone());
    bench.shared = counting.clone();
    let worker = bench.worker(Arc::new(NoProbe));
    bench.ask(&worker).await;
    bench.queue.drop_queue(queue::TURNS);
    handle(&worker, &Bench::nudge()).await.unwrap();
    // The responses before and after the call, and everything else here, take less than a second.
    assert_eq!(counting.looks(), 199, "one check a second during a call of 200 s");
    counting.told();
    stop(&worker).await;
    insta::assert_snapshot!(counting.told(), @r"
    read head
    read item
    write receipt, inbox
    ");
}
