//! Aborts: an abort takes effect wherever work runs, nothing starts after it, and its receipt is
//! correct.

use std::sync::Arc;
use std::time::Duration;

use serde_json::{Value, json};
use tokio::time::Instant;

use super::test_env::{
    AbortChecks, LoggedRequests as _, PauseFailPoint, RequestLogStore, TURN_FAIL_POINTS, TestEnv,
    call, idempotency, owner_decider, text, usual_queue_faults, usual_store_faults,
};
use crate::delivery::handle;
use turnwheel_commands::abort::{AbortRequest, abort};
use turnwheel_commands::decide::{DecisionRequest, decide};
use turnwheel_conversation::entry::{EntryBody, PromptState};
use turnwheel_conversation::inbox::{InputOutcome, Receipt};
use turnwheel_conversation::message::Message;
use turnwheel_conversation::phase::Phase;
use turnwheel_platform::fail_points::NoFailPoints;
use turnwheel_platform::ids::EffectId;
use turnwheel_record::abort_channel::abort_id;
use turnwheel_record::contract::CommandError;
use turnwheel_record::documents;
use turnwheel_record::services::Services;
use turnwheel_storage::queue;
use turnwheel_storage::store::{Freshness, Partition, memory as stores};

fn replies_hello(_results: usize, _input: &str) -> Vec<Value> {
    vec![text("hello")]
}

fn calls_look_pay_put(results: usize, _input: &str) -> Vec<Value> {
    if results == 0 {
        vec![text("first"), call("c1", "look", 0), call("c2", "pay", 0), call("c3", "put", 0)]
    } else {
        vec![text("done")]
    }
}

fn calls_brew_and_pay(results: usize, _input: &str) -> Vec<Value> {
    if results == 0 {
        vec![call("c1", "brew", 0), call("c2", "pay", 0)]
    } else {
        vec![text("done")]
    }
}

fn calls_study(results: usize, _input: &str) -> Vec<Value> {
    if results == 0 { vec![call("c1", "study", 0)] } else { vec![text("done")] }
}

fn calls_gated(results: usize, _input: &str) -> Vec<Value> {
    if results == 0 { vec![call("c1", "gated", 0)] } else { vec![text("done")] }
}

async fn send_abort(services: &Services) {
    let request = AbortRequest::default();
    let answer = abort(services, &TestEnv::key(), request, &idempotency("stop")).await.unwrap();
    assert_eq!(answer.status, 202);
}

/// Receipt of the abort of the only prompt.
async fn abort_receipt(env: &TestEnv) -> Receipt {
    let head = env.head().await.unwrap();
    let id = abort_id(&head.prompts.last().unwrap().id);
    let partition = Partition::Conversation(TestEnv::key());
    let stored = env.worker_store.read(&partition, id.as_str(), Freshness::Latest).await.unwrap();
    documents::read(&stored.expect("a receipt").document).unwrap()
}

async fn prompt_state(env: &TestEnv) -> PromptState {
    let head = env.head().await.unwrap();
    assert_eq!(head.phase, Phase::Idle);
    head.prompts.last().unwrap().state
}

/// Checks the receipt of the abort against the entries and the executed calls.
async fn check_receipt(env: &TestEnv) -> Result<(), String> {
    let receipt = abort_receipt(env).await;
    let head = env.head().await.unwrap();
    let (mut response_seq, mut calls, mut results) = (0, Vec::new(), 0);
    for entry in env.entries().await {
        match entry.body.message() {
            Some(Message::Assistant(message)) if message.tool_calls().count() > 0 => {
                response_seq = entry.base.seq;
                calls = message.tool_calls().map(|call| call.id.clone()).collect();
            }
            Some(Message::ToolResult(_)) => results += 1,
            _ => {}
        }
    }
    if results != calls.len() {
        return Err(format!("{} calls have {results} results", calls.len()));
    }
    if receipt.outcome == InputOutcome::Ignored {
        let is_complete = prompt_state(env).await == PromptState::Completed;
        return is_complete
            .then_some(())
            .ok_or_else(|| "an ignored abort must leave the prompt completed".to_owned());
    }
    for (index, id) in calls.iter().enumerate() {
        let effect =
            EffectId::from_call(&head.conversation_id, &head.incarnation, response_seq, index);
        let done = env.executions.lock().unwrap().get(effect.as_str()).copied().unwrap_or_default();
        let [ran, skipped, unknown] =
            [&receipt.ran_calls, &receipt.skipped_calls, &receipt.outcome_unknown_calls]
                .map(|list| list.contains(id));
        let is_listed_once = u8::from(ran) + u8::from(skipped) + u8::from(unknown) == 1;
        // The receipt lists calls only while their turn runs; later the entries have their results.
        let is_over = receipt.ran_calls.is_empty() && receipt.skipped_calls.is_empty();
        if !is_over && !is_listed_once || skipped && done > 0 || ran && done == 0 {
            return Err(format!("{id} ran {done} times; receipt: {receipt:?}"));
        }
    }
    Ok(())
}

#[tokio::test(start_paused = true)]
async fn remote_abort_cancels_model_call_within_seconds() {
    let early = [100, 1_000, 3_300, 4_990].map(|after| (after, 2));
    let late = [5_010, 9_000, 17_300, 100_000].map(|after| (after, 5));
    for (after, seconds_max) in early.into_iter().chain(late) {
        let mut env = TestEnv::with_script(1, replies_hello);
        *env.model.response_time.lock().unwrap() = Duration::from_mins(2);
        let (worker, elsewhere) =
            (env.new_worker(Arc::new(NoFailPoints)), env.new_worker(Arc::new(NoFailPoints)));
        env.send_prompt(&elsewhere).await;
        let nudge = TestEnv::nudge();
        let (handled, stopped_at) = tokio::join!(handle(&worker, &nudge), async {
            tokio::time::sleep(Duration::from_millis(after)).await;
            send_abort(&elsewhere).await;
            Instant::now()
        });
        handled.unwrap();
        let elapsed = stopped_at.elapsed();
        assert!(elapsed < Duration::from_secs(seconds_max), "after {after} ms: {elapsed:?}");
        assert_eq!(prompt_state(&env).await, PromptState::Aborted);
        assert_eq!(abort_receipt(&env).await.outcome, InputOutcome::Applied);
        let entries = env.entries().await;
        let last = entries.iter().rev().find_map(|entry| entry.body.message()).unwrap();
        let last = last.as_assistant().expect("the last message is no response");
        assert_eq!(last.error_message.as_deref(), Some("Request was aborted"));
    }
}

#[tokio::test(start_paused = true)]
async fn abort_in_same_process_takes_effect_at_once() {
    let mut env = TestEnv::with_script(2, calls_study);
    let worker = env.new_worker(Arc::new(NoFailPoints));
    env.send_prompt(&worker).await;
    let nudge = TestEnv::nudge();
    let (handled, stopped_at) = tokio::join!(handle(&worker, &nudge), async {
        tokio::time::sleep(Duration::from_millis(7_300)).await;
        send_abort(&worker).await;
        Instant::now()
    });
    handled.unwrap();
    assert!(stopped_at.elapsed() < Duration::from_millis(50), "{:?}", stopped_at.elapsed());
    assert_eq!(prompt_state(&env).await, PromptState::Aborted);
    assert_eq!(
        abort_receipt(&env).await.outcome_unknown_calls,
        ["c1"],
        "the cancelled read has an unknown outcome"
    );
    assert!(env.head().await.unwrap().indeterminate_writes.is_empty(), "a read may be repeated");
}

#[tokio::test(start_paused = true)]
async fn nothing_starts_after_abort_at_any_fail_point() {
    let mut lines = Vec::new();
    for at in TURN_FAIL_POINTS {
        let mut env = TestEnv::with_script(3, calls_look_pay_put);
        let client = env.new_worker(Arc::new(NoFailPoints));
        let pause = Arc::new(PauseFailPoint::new(at));
        let worker = env.new_worker(pause.clone());
        env.send_prompt(&client).await;
        let nudge = TestEnv::nudge();
        let (handled, done_before) = tokio::join!(handle(&worker, &nudge), async {
            pause.reached.notified().await;
            send_abort(&client).await;
            let done_before = env.executions.lock().unwrap().len();
            pause.resume.notify_one();
            done_before
        });
        handled.unwrap();
        env.run_until_idle().await;
        check_receipt(&env).await.unwrap_or_else(|reason| panic!("{at}: {reason}"));
        // At most one more call: the one whose intent was being committed.
        let done = env.executions.lock().unwrap().len();
        assert!(done <= done_before + 1, "{at}: {done_before}, then {done}");
        let receipt = abort_receipt(&env).await;
        lines.push(format!(
            "{at}: ran {:?}, skipped {:?}",
            receipt.ran_calls, receipt.skipped_calls
        ));
    }
    insta::assert_snapshot!(lines.join("\n"), @r#"
    lease.before: ran [], skipped []
    lease.after: ran [], skipped []
    inbox.after: ran [], skipped []
    pending-work.before: ran [], skipped []
    pending-work.after: ran [], skipped ["c1", "c2", "c3"]
    model.before: ran [], skipped ["c1", "c2", "c3"]
    model.after: ran [], skipped ["c1", "c2", "c3"]
    response.before: ran [], skipped ["c1", "c2", "c3"]
    response.after: ran ["c1"], skipped ["c2", "c3"]
    tool.before: ran ["c1"], skipped ["c2", "c3"]
    tool.after: ran ["c1"], skipped ["c2", "c3"]
    result.before: ran ["c1"], skipped ["c2", "c3"]
    result.after: ran ["c1", "c2"], skipped ["c3"]
    release.before: ran [], skipped []
    release.after: ran [], skipped []
    nudge.before: ran [], skipped []
    nudge.after: ran [], skipped []
    "#);
}

#[tokio::test(start_paused = true)]
async fn aborted_write_becomes_indeterminate_and_blocks_equal_writes() {
    let mut env = TestEnv::with_script(4, calls_brew_and_pay);
    let (worker, elsewhere) =
        (env.new_worker(Arc::new(NoFailPoints)), env.new_worker(Arc::new(NoFailPoints)));
    env.send_prompt(&elsewhere).await;
    let nudge = TestEnv::nudge();
    let (handled, stopped_at) = tokio::join!(handle(&worker, &nudge), async {
        tokio::time::sleep(Duration::from_secs(30)).await;
        send_abort(&elsewhere).await;
        Instant::now()
    });
    handled.unwrap();
    // The next poll, and the time that a write has.
    assert!(stopped_at.elapsed() < Duration::from_secs(7), "{:?}", stopped_at.elapsed());
    assert_eq!(prompt_state(&env).await, PromptState::Aborted);
    let aborted = abort_receipt(&env).await;
    assert_eq!(
        (aborted.outcome_unknown_calls, aborted.skipped_calls),
        (vec!["c1".to_owned()], vec!["c2".to_owned()])
    );
    env.queue_prompt(&worker, &TestEnv::key(), "again").await.unwrap();
    env.run_until_idle().await;
    assert_eq!(
        env.executions.lock().unwrap().len(),
        2,
        "`brew` ran once, and `pay` in the second prompt"
    );
    let entries = env.entries().await;
    let is_refused = |message: &Message| {
        serde_json::to_string(message).unwrap().contains("has an unknown outcome")
    };
    assert!(entries.iter().filter_map(|entry| entry.body.message()).any(is_refused));
}

#[tokio::test(start_paused = true)]
async fn aborted_write_within_grace_period_keeps_its_result() {
    let mut env = TestEnv::with_script(5, calls_brew_and_pay);
    let worker = env.new_worker(Arc::new(NoFailPoints));
    env.send_prompt(&worker).await;
    let nudge = TestEnv::nudge();
    let (handled, ()) = tokio::join!(handle(&worker, &nudge), async {
        tokio::time::sleep(Duration::from_secs(199)).await;
        send_abort(&worker).await;
    });
    handled.unwrap();
    assert_eq!(prompt_state(&env).await, PromptState::Aborted);
    let aborted = abort_receipt(&env).await;
    assert_eq!(
        (aborted.ran_calls, aborted.skipped_calls),
        (vec!["c1".to_owned()], vec!["c2".to_owned()])
    );
    assert!(env.head().await.unwrap().indeterminate_writes.is_empty());
}

#[tokio::test(start_paused = true)]
async fn abort_of_dead_worker_applies_after_lease_expires() {
    let mut env = TestEnv::with_script(6, calls_brew_and_pay);
    let worker = env.new_worker(Arc::new(NoFailPoints));
    env.send_prompt(&worker).await;
    let nudge = TestEnv::nudge();
    tokio::select! {
        _ = handle(&worker, &nudge) => panic!("the delivery ended too early"),
        () = tokio::time::sleep(Duration::from_secs(30)) => {}
    }
    let elsewhere = env.new_worker(Arc::new(NoFailPoints));
    send_abort(&elsewhere).await;
    env.run_until_idle().await;
    assert_eq!(prompt_state(&env).await, PromptState::Aborted);
    let aborted = abort_receipt(&env).await;
    assert_eq!(
        (aborted.outcome_unknown_calls, aborted.skipped_calls),
        (vec!["c1".to_owned()], vec!["c2".to_owned()])
    );
    assert!(!env.has_outcome_request, "an abort creates no outcome request");
    assert_eq!(env.executions.lock().unwrap().len(), 1);
}

async fn approve(
    services: &Services,
    id: &turnwheel_platform::ids::RequestId,
) -> Result<u16, CommandError> {
    let request_body =
        DecisionRequest { decision: "approve".to_owned(), reason: None, value: None };
    let answer =
        decide(services, &TestEnv::key(), id.as_str(), request_body, &owner_decider()).await;
    answer.map(|answer| answer.status)
}

#[tokio::test(start_paused = true)]
async fn abort_decides_open_approval_request_once() {
    for is_approved_first in [false, true] {
        let mut env = TestEnv::with_script(7, calls_gated);
        let worker = env.new_worker(Arc::new(NoFailPoints));
        env.send_prompt(&worker).await;
        handle(&worker, &TestEnv::nudge()).await.unwrap();
        let request = env.head().await.unwrap().requests[0].id.clone();
        if is_approved_first {
            assert_eq!(approve(&worker, &request).await.unwrap(), 200);
        }
        send_abort(&worker).await;
        handle(&worker, &TestEnv::nudge()).await.unwrap();
        assert_eq!(prompt_state(&env).await, PromptState::Aborted);
        assert_eq!(abort_receipt(&env).await.skipped_calls, ["c1"]);
        assert!(env.executions.lock().unwrap().is_empty(), "the call never ran");
        let decided: Vec<String> = env
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
            let CommandError::AlreadyDecided(approval) = refused else { panic!("{refused:?}") };
            assert_eq!(approval.to_value()["decidedBy"], "abort");
            assert_eq!(approval.to_value()["decision"], "aborted");
        }
    }
}

#[tokio::test(start_paused = true)]
async fn repeated_aborts_are_one_and_spare_next_prompt() {
    let mut env = TestEnv::with_script(8, replies_hello);
    let worker = env.new_worker(Arc::new(NoFailPoints));
    let key = TestEnv::key();
    env.send_prompt(&worker).await;
    let send = async |name: &str, prompt: Option<&str>| {
        let prompt_id = prompt.map(turnwheel_platform::ids::PromptId::new);
        let answer =
            abort(&worker, &key, AbortRequest { prompt_id, clear_inbox: None }, &idempotency(name))
                .await
                .unwrap();
        (answer.body.unwrap().to_value(), answer.is_replayed)
    };
    let (first, _) = send("one", None).await;
    let (second, _) = send("two", None).await;
    assert_eq!(first, second, "both requests are one abort");
    let (other, _) = send("three", Some("pr_other")).await;
    assert_eq!(other.get("promptId"), None);
    env.run_until_idle().await;
    assert_eq!(prompt_state(&env).await, PromptState::Aborted);
    assert_eq!(*env.model.calls.lock().unwrap(), 0, "the abort precedes the model call");
    env.queue_prompt(&worker, &key, "again").await.unwrap();
    assert_eq!(send("one", None).await, (first, true), "a repeated request gets the same response");
    env.run_until_idle().await;
    assert_eq!(prompt_state(&env).await, PromptState::Completed);
    let (idle, _) = send("four", None).await;
    assert_eq!(idle.get("promptId"), None);
    assert!(idle["inputId"].is_string(), "{idle}");
    assert!(env.is_idle().await, "no pending work is left");
    assert_eq!(json!(idle["inputId"]), json!(idempotency("four").input_id(&key)));
}

#[tokio::test(start_paused = true)]
async fn abort_receipt_is_correct_with_injected_faults() {
    let mut landed = 0;
    for seed in 1..=60 {
        let mut env = TestEnv::with_script(seed, calls_look_pay_put);
        env.store.set_faults(usual_store_faults());
        env.queue.set_faults(usual_queue_faults());
        env.crash_percent = 4;
        let services = env.new_worker(Arc::new(NoFailPoints));
        env.send_prompt(&services).await;
        let wait = Duration::from_millis(env.rng.u64(0..400));
        let key = TestEnv::key();
        let client = async {
            tokio::time::sleep(wait).await;
            let key = TestEnv::key();
            while abort(&services, &key, AbortRequest::default(), &idempotency("stop"))
                .await
                .is_err()
            {
                tokio::time::sleep(Duration::from_secs(1)).await;
            }
        };
        tokio::join!(env.run_until_idle(), client);
        env.run_until_idle().await;
        env.store.set_faults(stores::StoreFaults::default());
        let head = env.head().await.unwrap();
        let id = abort_id(&head.prompts.last().unwrap().id);
        let partition = Partition::Conversation(key);
        let stored =
            env.worker_store.read(&partition, id.as_str(), Freshness::Latest).await.unwrap();
        if stored.is_some() {
            check_receipt(&env).await.unwrap_or_else(|reason| {
                panic!("seed {seed}: {reason}\n{:#?}", env.run_log);
            });
            landed += u32::from(abort_receipt(&env).await.outcome == InputOutcome::Applied);
        }
    }
    assert!(landed >= 20, "only {landed} aborts were applied");
}

#[tokio::test(start_paused = true)]
async fn abort_checks_cost_half_a_unit_a_second() {
    for (seconds, reads) in [(11, 8), (30, 14), (60, 24), (110, 41)] {
        let mut env = TestEnv::with_script(1, replies_hello);
        *env.model.response_time.lock().unwrap() = Duration::from_secs(seconds);
        let counting = RequestLogStore::wrap(env.store.clone());
        env.worker_store = counting.clone();
        let worker = env.new_worker(Arc::new(NoFailPoints));
        env.send_prompt(&worker).await;
        handle(&worker, &TestEnv::nudge()).await.unwrap();
        // Polls see any version: one unit each.
        let expected = AbortChecks { reads, units: reads };
        assert_eq!(counting.abort_checks(), expected, "a model call of {seconds} s");
        assert!(seconds < 30 || u64::from(reads) * 2 <= seconds, "{seconds} s");
    }
}

#[tokio::test(start_paused = true)]
async fn abort_request_is_three_requests() {
    let mut env = TestEnv::with_script(9, calls_study);
    let counting = RequestLogStore::wrap(env.store.clone());
    env.worker_store = counting.clone();
    let worker = env.new_worker(Arc::new(NoFailPoints));
    env.send_prompt(&worker).await;
    env.queue.drop_queue(queue::TURNS);
    handle(&worker, &TestEnv::nudge()).await.unwrap();
    counting.take_requests();
    send_abort(&worker).await;
    insta::assert_snapshot!(counting.take_requests(), @r"
    read head
    read item
    write receipt, inbox, head (count)
    ");
}
