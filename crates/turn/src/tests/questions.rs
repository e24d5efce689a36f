//! Questions of hooks: they wait without a worker, survive restarts and days, and are asked once.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use async_trait::async_trait;
use serde_json::{Value, json};

use super::call_approval::{handle_nudges, only_request};
use super::invariant_checks::violation_lines;
use super::parallel_calls::result_texts;
use super::store_requests::calls_gated;
use super::test_env::{
    Script, TestEnv, call, idempotency, text, three_rounds, usual_queue_faults, usual_store_faults,
};
use turnwheel_commands::abort::{AbortRequest, abort};
use turnwheel_conversation::entry::EntryBody;
use turnwheel_conversation::head::State;
use turnwheel_conversation::request::RequestKind;
use turnwheel_extensions::{
    ApprovalRequest, CallBlock, Extension, ExtensionError, HookContext, HookError, PendingToolCall,
    Question, ToolCallDecision,
};
use turnwheel_platform::fail_points::NoFailPoints;
use turnwheel_record::services::Services;
use turnwheel_storage::store::memory as stores;

type HookFn = fn(&HookContext, &PendingToolCall<'_>) -> Result<ToolCallDecision, HookError>;

/// Asks about calls. Counts the calls of its hook.
#[derive(Debug)]
struct Asking {
    name: &'static str,
    hook: HookFn,
    calls: Mutex<u32>,
}

impl Asking {
    fn new(name: &'static str, hook: HookFn) -> Arc<Self> {
        Arc::new(Self { name, hook, calls: Mutex::default() })
    }

    fn call_count(&self) -> u32 {
        *self.calls.lock().unwrap()
    }
}

#[async_trait]
impl Extension for Asking {
    fn name(&self) -> &'static str {
        self.name
    }

    async fn before_tool_call(
        &self,
        cx: &HookContext,
        call: &PendingToolCall<'_>,
    ) -> Result<ToolCallDecision, HookError> {
        *self.calls.lock().unwrap() += 1;
        (self.hook)(cx, call)
    }
}

fn block(reason: impl Into<String>) -> ToolCallDecision {
    ToolCallDecision::Block(CallBlock { reason: Some(reason.into()), terminate: false })
}

/// Blocks the call unless an approver agrees.
fn confirms(cx: &HookContext, call: &PendingToolCall<'_>) -> Result<ToolCallDecision, HookError> {
    let is_confirmed = cx.confirm("sure", format!("Run {}?", call.tool_name))?;
    Ok(if is_confirmed { ToolCallDecision::Allow } else { block("Not confirmed") })
}

fn calls_pay(results: usize, _input: &str) -> Vec<Value> {
    if results == 0 { vec![call("c1", "pay", 0)] } else { vec![text("done")] }
}

async fn env_with(
    script: Script,
    concurrency: u32,
    askers: &[&Arc<Asking>],
) -> (TestEnv, Services) {
    let mut env = TestEnv::with_script(22, script);
    env.enable_parallel_calls(concurrency);
    env.extensions = askers.iter().map(|asker| Arc::clone(asker) as Arc<dyn Extension>).collect();
    let worker = env.new_worker(Arc::new(NoFailPoints));
    env.send_prompt(&worker).await;
    handle_nudges(&env, &worker).await;
    (env, worker)
}

async fn open_questions(env: &TestEnv) -> Vec<String> {
    let requests = env.head().await.unwrap().requests;
    requests
        .into_iter()
        .filter(|request| request.kind == RequestKind::Question)
        .map(|request| request.reason)
        .collect()
}

pub(super) async fn answer(env: &mut TestEnv, worker: &Services, value: Value) {
    env.answer_all(&value).await;
    handle_nudges(env, worker).await;
}

/// Number of questions asked, by call and key.
pub(super) async fn asked_counts(env: &TestEnv) -> BTreeMap<String, u32> {
    let mut counts = BTreeMap::new();
    for entry in env.entries().await {
        let EntryBody::Request(entry) = entry.body else { continue };
        if let Some(asker) = &entry.request.asker {
            let call = entry.request.call;
            let input = &entry.request.input_id;
            let name = format!("{call:?} {input:?} {} {}", asker.extension, asker.key);
            *counts.entry(name).or_default() += 1;
        }
    }
    counts
}

#[tokio::test(start_paused = true)]
async fn call_starts_after_the_answer() {
    for (value, result) in [(json!(true), "pay done"), (json!(false), "Not confirmed")] {
        let guard = Asking::new("guard", confirms);
        let (mut env, worker) = env_with(calls_pay, 1, &[&guard]).await;
        let head = env.head().await.unwrap();
        assert_eq!(only_request(&env).await.reason, "Run pay?");
        assert_eq!(head.state(), State::WaitingForApproval);
        assert!(head.lease.is_none(), "no worker waits");
        assert_eq!(head.next_step_due(head.updated_at), only_request(&env).await.expires_at);
        answer(&mut env, &worker, value).await;
        assert_eq!(result_texts(&env).await, [result]);
        assert_eq!(guard.call_count(), 2, "the hook runs again with the answer");
    }
}

#[tokio::test(start_paused = true)]
async fn answer_survives_a_restart_and_days() {
    let guard = Asking::new("guard", confirms);
    let (mut env, worker) = env_with(calls_pay, 1, &[&guard]).await;
    drop(worker);
    tokio::time::sleep(Duration::from_hours(24 * 6)).await;
    let restarted = env.new_worker(Arc::new(NoFailPoints));
    answer(&mut env, &restarted, json!(true)).await;
    assert_eq!(result_texts(&env).await, ["pay done"]);
    assert_eq!(asked_counts(&env).await.into_values().collect::<Vec<_>>(), [1]);
}

#[tokio::test(start_paused = true)]
async fn expired_question_is_no() {
    let hook: HookFn = |cx, _| {
        let choice =
            cx.select("way", Question::new("How?").within(Duration::from_hours(1)), &["a"])?;
        Ok(block(format!("{choice:?}")))
    };
    let (mut env, _) = env_with(calls_pay, 1, &[&Asking::new("guard", hook)]).await;
    env.undecided_percent = 100;
    tokio::time::sleep(Duration::from_hours(2)).await;
    env.run_until_idle().await;
    assert_eq!(result_texts(&env).await, ["None"]);
}

#[tokio::test(start_paused = true)]
async fn abort_ends_the_wait() {
    let guard = Asking::new("guard", confirms);
    let (env, worker) = env_with(calls_pay, 1, &[&guard]).await;
    let request = AbortRequest::default();
    abort(&worker, &TestEnv::key(), request, &idempotency("stop")).await.unwrap();
    handle_nudges(&env, &worker).await;
    assert_eq!(result_texts(&env).await, ["Operation aborted"]);
    assert_eq!(open_questions(&env).await, Vec::<String>::new());
    assert_eq!(guard.call_count(), 1);
}

#[tokio::test(start_paused = true)]
async fn questions_of_one_hook_follow_each_other() {
    let hook: HookFn = |cx, _| {
        let way = cx.select("way", "How?", &["fast", "slow"])?;
        let name = cx.input("name", "Name?", Some("in full"))?;
        let again = cx.select("way", "Another text", &["fast", "slow"])?;
        Ok(block(format!("{way:?} {name:?} {}", again == way)))
    };
    let (mut env, worker) = env_with(calls_pay, 1, &[&Asking::new("guard", hook)]).await;
    assert_eq!(open_questions(&env).await, ["How?"]);
    answer(&mut env, &worker, json!("slow")).await;
    assert_eq!(open_questions(&env).await, ["Name?"]);
    answer(&mut env, &worker, json!("Ada")).await;
    assert_eq!(result_texts(&env).await, [r#"Some("slow") Some("Ada") true"#]);
}

#[tokio::test(start_paused = true)]
async fn extensions_ask_in_order_and_the_approval_comes_last() {
    let requiring: HookFn = |cx, call| {
        confirms(cx, call)?;
        Ok(ToolCallDecision::RequireApproval(ApprovalRequest::because("one requires")))
    };
    let one = Asking::new("one", requiring);
    let two = Asking::new("two", confirms);
    let (mut env, worker) = env_with(calls_gated, 1, &[&one, &two]).await;
    assert_eq!(only_request(&env).await.asker.unwrap().extension, "one");
    answer(&mut env, &worker, json!(true)).await;
    assert_eq!(only_request(&env).await.asker.unwrap().extension, "two");
    assert_eq!((one.call_count(), two.call_count()), (2, 1));
    answer(&mut env, &worker, json!(true)).await;
    let approval = only_request(&env).await;
    assert_eq!(
        (approval.kind, approval.reason.as_str()),
        (RequestKind::Tool, "Gated\n\none requires")
    );
    tokio::time::sleep(Duration::from_mins(5)).await;
    env.decide_all("approve").await;
    handle_nudges(&env, &worker).await;
    assert_eq!(result_texts(&env).await, ["gated done"]);
    let counts: Vec<u32> = asked_counts(&env).await.into_values().collect();
    assert_eq!(counts, [1, 1], "the approval asks nothing again");
}

#[tokio::test(start_paused = true)]
async fn actions_of_a_hook_that_asks_are_dropped() {
    let hook: HookFn = |cx, call| {
        cx.append_entry("note", &call.tool_name)?;
        confirms(cx, call)
    };
    let one = Asking::new("one", |cx, _| {
        cx.append_entry("note", &"first")?;
        Ok(ToolCallDecision::Allow)
    });
    let (mut env, worker) = env_with(calls_pay, 1, &[&one, &Asking::new("two", hook)]).await;
    answer(&mut env, &worker, json!(true)).await;
    let entries = env.entries().await;
    let notes = entries.iter().filter(|entry| matches!(entry.body, EntryBody::Custom(_)));
    assert_eq!(notes.count(), 2, "one of each extension");
}

#[tokio::test(start_paused = true)]
async fn hook_that_ignores_the_question_still_waits_for_it() {
    let ignoring: HookFn = |cx, _| {
        let is_confirmed = cx.confirm("sure", "Sure?").unwrap_or(true);
        Ok(if is_confirmed { ToolCallDecision::Allow } else { block("no") })
    };
    let panicking: HookFn = |cx, _| {
        let is_confirmed = cx.confirm("sure", "Sure?").unwrap();
        Ok(if is_confirmed { ToolCallDecision::Allow } else { block("no") })
    };
    for hook in [ignoring, panicking] {
        let failures = Arc::<Mutex<Vec<ExtensionError>>>::default();
        let mut env = TestEnv::with_script(22, calls_pay);
        env.extensions = vec![Asking::new("guard", hook)];
        let mut worker = env.new_worker(Arc::new(NoFailPoints));
        let reported = Arc::clone(&failures);
        worker
            .extension_error_listeners
            .add(move |error| reported.lock().unwrap().push(error.clone()));
        env.send_prompt(&worker).await;
        handle_nudges(&env, &worker).await;
        assert_eq!(open_questions(&env).await, ["Sure?"]);
        assert!(failures.lock().unwrap().is_empty(), "a question is no failure");
        answer(&mut env, &worker, json!(false)).await;
        assert_eq!(result_texts(&env).await, ["no"]);
    }
}

fn calls_pay_and_put(results: usize, _input: &str) -> Vec<Value> {
    if results == 0 { vec![call("c1", "pay", 0), call("c2", "put", 0)] } else { vec![text("done")] }
}

#[tokio::test(start_paused = true)]
async fn parallel_calls_ask_at_the_same_time() {
    let guard = Asking::new("guard", confirms);
    let (mut env, worker) = env_with(calls_pay_and_put, 2, &[&guard]).await;
    assert_eq!(open_questions(&env).await, ["Run pay?", "Run put?"]);
    answer(&mut env, &worker, json!(true)).await;
    assert_eq!(result_texts(&env).await, ["pay done", "put done"]);

    let (mut env, worker) = env_with(calls_pay_and_put, 1, &[&guard]).await;
    assert_eq!(open_questions(&env).await, ["Run pay?"], "one after the other");
    answer(&mut env, &worker, json!(false)).await;
    assert_eq!(open_questions(&env).await, ["Run put?"]);
}

fn calls_put_six_times(results: usize, _input: &str) -> Vec<Value> {
    if results == 0 {
        (0..6).map(|number| call(&format!("c{number}"), "put", number)).collect()
    } else {
        vec![text("done")]
    }
}

/// Three questions for a text reserve the room of the head; the other calls wait for a result.
#[tokio::test(start_paused = true)]
async fn calls_without_room_for_a_question_wait_for_earlier_calls() {
    let hook: HookFn = |cx, _| {
        cx.input("name", "Name?", None)?;
        Ok(ToolCallDecision::Allow)
    };
    let (mut env, worker) = env_with(calls_put_six_times, 6, &[&Asking::new("guard", hook)]).await;
    assert_eq!(open_questions(&env).await.len(), 3);
    assert!(env.head().await.unwrap().lease.is_none(), "nothing runs meanwhile");
    answer(&mut env, &worker, json!("x")).await;
    assert_eq!(open_questions(&env).await.len(), 1, "the fourth waits for the third");
    for _ in 0..3 {
        answer(&mut env, &worker, json!("x".repeat(1_000))).await;
    }
    assert_eq!(result_texts(&env).await, ["put done"; 6]);
    assert_eq!(asked_counts(&env).await.into_values().sum::<u32>(), 6);
}

#[tokio::test(start_paused = true)]
async fn too_many_answers_fail_the_hook() {
    let hook: HookFn = |cx, _| {
        for key in ["one", "two", "three"] {
            cx.input(key, "Name?", None)?;
        }
        Ok(ToolCallDecision::Allow)
    };
    let (mut env, worker) = env_with(calls_pay, 1, &[&Asking::new("guard", hook)]).await;
    answer(&mut env, &worker, json!("ä".repeat(1_000))).await;
    assert_eq!(open_questions(&env).await, Vec::<String>::new());
    let [result] = &result_texts(&env).await[..] else { panic!() };
    assert!(result.contains("the question `two` is one too many"), "{result}");
}

/// Crashes at every fail point, lost commits, and two versions of the answer: each question is asked
/// once, and each call runs with its answer.
#[tokio::test(start_paused = true)]
async fn crashes_ask_no_question_twice() {
    for seed in 0..60 {
        let mut env = TestEnv::with_script(seed, three_rounds);
        env.enable_parallel_calls(if seed % 2 == 0 { 1 } else { 3 });
        env.extensions = vec![Asking::new("one", confirms), Asking::new("two", confirms)];
        env.store.set_faults(usual_store_faults());
        env.queue.set_faults(usual_queue_faults());
        env.crash_percent = 4;
        let services = env.new_worker(Arc::new(NoFailPoints));
        env.send_prompt(&services).await;
        env.run_until_idle().await;
        env.store.set_faults(stores::StoreFaults::default());
        assert_eq!(violation_lines(&env, &TestEnv::key(), (1, 0)).await, Vec::<String>::new());
        let asked = asked_counts(&env).await;
        assert!(asked.values().all(|count| *count == 1), "seed {seed}: {asked:?}");
        let is_poisoned = env.head().await.unwrap().prompts[0].to_seq.is_none();
        assert!(!is_poisoned && asked.len() >= 2, "seed {seed}: {asked:?}");
    }
}
