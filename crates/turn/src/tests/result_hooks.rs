//! Hooks on the results of tool calls: chained changes, failures, and outcomes that stay known.

use std::sync::{Arc, Mutex};
use std::time::Duration;

use async_trait::async_trait;
use serde_json::{Value, json};
use tokio::sync::Notify;

use super::compaction::handle_until_idle;
use super::parallel_calls::result_texts;
use super::test_env::{
    HookFailPoint, PauseFailPoint, Script, TestEnv, call, idempotency, kill_at, text,
};
use crate::delivery::handle;
use turnwheel_commands::abort::{AbortRequest, abort};
use turnwheel_conversation::content::Block;
use turnwheel_conversation::entry::PromptState;
use turnwheel_extensions::{
    CallBlock, Extension, FinishedToolCall, HookContext, HookError, PendingToolCall, ResultChanges,
    ToolCallDecision,
};
use turnwheel_json::raw::RawJson;
use turnwheel_platform::fail_points::NoFailPoints;
use turnwheel_record::services::Services;
use turnwheel_storage::store::memory::StoreFaults;
use turnwheel_storage::store::{DocumentKind, Partition};

/// Appends its name to the content of each result.
#[derive(Debug)]
pub(super) struct Appends {
    name: &'static str,
    /// The call whose result it delays, and for how long: by two equal waits.
    delays: Option<(&'static str, Duration)>,
    fails: bool,
    began: Notify,
    /// Each result that it received, with `!` if it was an error.
    seen: Mutex<Vec<String>>,
}

impl Appends {
    pub(super) fn new(name: &'static str) -> Arc<Self> {
        Arc::new(Self {
            name,
            delays: None,
            fails: false,
            began: Notify::new(),
            seen: Mutex::default(),
        })
    }

    fn failing(name: &'static str) -> Arc<Self> {
        Arc::new(Self { fails: true, ..Arc::into_inner(Self::new(name)).unwrap() })
    }

    pub(super) fn delaying(id: &'static str, delay: Duration) -> Arc<Self> {
        let delays = Some((id, delay));
        Arc::new(Self { delays, ..Arc::into_inner(Self::new("slow")).unwrap() })
    }

    fn seen(&self) -> Vec<String> {
        self.seen.lock().unwrap().clone()
    }
}

#[async_trait]
impl Extension for Appends {
    fn name(&self) -> &'static str {
        self.name
    }

    async fn before_tool_call(
        &self,
        _cx: &HookContext,
        call: &PendingToolCall<'_>,
    ) -> Result<ToolCallDecision, HookError> {
        Ok(if call.tool_name == "put" {
            ToolCallDecision::Block(CallBlock::default())
        } else {
            ToolCallDecision::Allow
        })
    }

    async fn after_tool_call(
        &self,
        _cx: &HookContext,
        call: &FinishedToolCall<'_>,
    ) -> Result<ResultChanges, HookError> {
        let before = turnwheel_conversation::content::joined_text(call.content);
        let mark = if call.is_error { "!" } else { "" };
        self.seen.lock().unwrap().push(before.clone() + mark);
        if let Some((_, delay)) = self.delays.filter(|(id, _)| *id == call.tool_call_id) {
            self.began.notify_one();
            tokio::time::sleep(delay / 2).await;
            tokio::time::sleep(delay / 2).await;
        }
        if self.fails {
            return Err(HookError::new("no dictionary"));
        }
        Ok(ResultChanges {
            content: Some(vec![Block::text(format!("{before} {}", self.name))]),
            details: Some(RawJson::from_value(&json!({"by": self.name}))),
            is_error: Some(false),
        })
    }
}

async fn new_env(script: Script, hooks: &[&Arc<Appends>]) -> (TestEnv, Services) {
    let mut env = TestEnv::with_script(31, script);
    let mut worker = env.new_worker(Arc::new(NoFailPoints));
    worker.extensions = hooks.iter().map(|hook| Arc::clone(hook) as Arc<dyn Extension>).collect();
    worker.limits.hook_timeout = Duration::from_secs(30);
    env.send_prompt(&worker).await;
    (env, worker)
}

fn inbox_len(env: &TestEnv) -> usize {
    let partition = Partition::Conversation(TestEnv::key());
    env.store.select_newest(&partition, DocumentKind::Inbox).len()
}

fn reads_missing_file(results: usize, _input: &str) -> Vec<Value> {
    match results {
        0 => vec![
            json!({"type": "toolCall", "id": "c1", "name": "read", "arguments": {"path": "none"}}),
        ],
        _ => vec![text("done")],
    }
}

pub(super) fn calls_pay(results: usize, _input: &str) -> Vec<Value> {
    if results == 0 { vec![call("c1", "pay", 0)] } else { vec![text("done")] }
}

fn calls_look(results: usize, _input: &str) -> Vec<Value> {
    if results == 0 { vec![call("c1", "look", 0)] } else { vec![text("done")] }
}

fn pays_twice(results: usize, _input: &str) -> Vec<Value> {
    match results {
        0 => vec![call("c1", "pay", 0), call("c2", "pay", 1)],
        _ => vec![text("done")],
    }
}

#[tokio::test(start_paused = true)]
async fn hooks_chain_and_failure_stays_an_error() {
    let (one, bad, two) = (Appends::new("one"), Appends::failing("bad"), Appends::new("two"));
    let (env, worker) = new_env(reads_missing_file, &[&one, &bad, &two]).await;
    handle_until_idle(&env, &worker).await;
    let raw = one.seen().remove(0);
    let raw = raw.strip_suffix('!').expect("the tool failed");
    assert_eq!(bad.seen(), [format!("{raw} one!")]);
    assert_eq!(two.seen(), bad.seen());
    let entries = env.entries().await;
    let result = entries.iter().find_map(|entry| entry.body.tool_result()).unwrap();
    assert!(result.is_error, "an error stands");
    assert_eq!(result.details, Some(RawJson::from_value(&json!({"by": "two"}))));
    let note =
        "[extension \"bad\" failed in tool_result: no dictionary; it did not change the result.]";
    let texts = result_texts(&env).await;
    assert!(texts[0].contains(&format!("{raw} one two")), "{texts:?}");
    assert!(texts[0].ends_with(note), "{texts:?}");
}

#[tokio::test(start_paused = true)]
async fn not_emitted_for_blocked_unknown_and_invalid_calls() {
    fn script(results: usize, _input: &str) -> Vec<Value> {
        match results {
            0 => vec![call("c1", "nope", 0), call("c2", "read", 0), call("c3", "put", 0)],
            3 => vec![call("c4", "look", 0)],
            _ => vec![text("done")],
        }
    }
    let hook = Appends::new("one");
    let (env, worker) = new_env(script, &[&hook]).await;
    handle_until_idle(&env, &worker).await;
    assert_eq!(hook.seen(), ["look done"]);
    assert_eq!(result_texts(&env).await.last().unwrap(), "look done one");
}

#[tokio::test(start_paused = true)]
async fn hanging_hook_of_a_write_keeps_the_result() {
    let hook = Appends::delaying("c1", Duration::from_hours(1));
    let (mut env, worker) = new_env(calls_pay, &[&hook]).await;
    let nudge = TestEnv::nudge();
    // The process dies while the hook waits.
    tokio::select! {
        handled = handle(&worker, &nudge) => panic!("{handled:?}"),
        () = async { hook.began.notified().await; tokio::time::sleep(Duration::from_secs(1)).await } => {}
    }
    tokio::time::sleep(Duration::from_secs(70)).await;
    let other = env.new_worker(Arc::new(NoFailPoints));
    handle_until_idle(&env, &other).await;
    assert_eq!(result_texts(&env).await, ["pay done"], "the outcome is known");
    assert_eq!(env.executions.lock().unwrap().values().sum::<u32>(), 1);
    env.run_until_idle().await;
    assert!(!env.has_outcome_request);
}

#[tokio::test(start_paused = true)]
async fn timed_out_hook_leaves_a_note_and_no_inbox_item() {
    let hook = Appends::delaying("c1", Duration::from_hours(1));
    let (env, worker) = new_env(calls_pay, &[&hook]).await;
    handle_until_idle(&env, &worker).await;
    let note = "[extension \"slow\" failed in tool_result: no result within 30s; it did not change the result.]";
    let texts = result_texts(&env).await;
    assert!(texts[0].starts_with("pay done") && texts[0].ends_with(note), "{texts:?}");
    assert_eq!(inbox_len(&env), 0);
}

#[tokio::test(start_paused = true)]
async fn hooks_on_one_result_share_thirty_seconds() {
    let slow = Appends::delaying("c1", Duration::from_secs(20));
    let last = Appends::new("last");
    let (env, worker) = new_env(calls_pay, &[&slow, &slow, &last]).await;
    let began = tokio::time::Instant::now();
    handle_until_idle(&env, &worker).await;
    assert!(began.elapsed() < Duration::from_secs(40), "{:?}", began.elapsed());
    let texts = result_texts(&env).await;
    assert!(texts[0].starts_with("pay done slow"), "{texts:?}");
    let note = "the hooks of this step together took too long; it did not change the result.]";
    assert_eq!(texts[0].matches(note).count(), 2, "{texts:?}");
    assert_eq!(last.seen(), Vec::<String>::new(), "no time is left for it");
}

/// A hook that waits makes the outcome of a write known before its commit. Otherwise the hooks are
/// part of the call: a read runs again, and an approver settles a write.
#[tokio::test(start_paused = true)]
async fn kill_around_the_hooks_settles_each_call_once() {
    const CONFIRMED: &str = "A person checked: this call happened. Its result is not known.";
    for (script, fail_point, delay, expected, executions) in [
        (calls_look as Script, "tool-result.before", 0, "look done slow", 2),
        (calls_look, "tool-result.after", 0, "look done slow", 2),
        (calls_look, "tool-result.after", 2, "look done slow", 2),
        (calls_pay, "tool-result.before", 0, CONFIRMED, 1),
        (calls_pay, "tool-result.after", 0, CONFIRMED, 1),
        (calls_pay, "tool-result.after", 2, "pay done", 1),
    ] {
        let hook = Appends::delaying(if delay > 0 { "c1" } else { "" }, Duration::from_secs(delay));
        let mut env = TestEnv::with_script(33, script);
        env.extensions = vec![hook];
        let pause = Arc::new(PauseFailPoint::new(fail_point));
        let victim = env.new_worker(pause.clone());
        env.send_prompt(&victim).await;
        kill_at(victim, &pause).await;
        env.run_until_idle().await;
        assert_eq!(result_texts(&env).await, [expected], "{fail_point} {delay}");
        assert_eq!(env.executions.lock().unwrap().values().sum::<u32>(), executions);
        assert_eq!(inbox_len(&env), 0);
    }
}

#[tokio::test(start_paused = true)]
async fn abort_during_a_hook_keeps_the_known_outcome() {
    for (script, expected) in [(calls_pay as Script, "pay done"), (calls_look, "look done")] {
        let hook = Appends::delaying("c1", Duration::from_hours(1));
        let (mut env, worker) = new_env(script, &[&hook]).await;
        let client = env.new_worker(Arc::new(NoFailPoints));
        let nudge = TestEnv::nudge();
        let (handled, ()) = tokio::join!(handle(&worker, &nudge), async {
            hook.began.notified().await;
            tokio::time::sleep(Duration::from_secs(1)).await;
            let stop = AbortRequest::default();
            abort(&client, &TestEnv::key(), stop, &idempotency("stop")).await.unwrap();
        });
        handled.unwrap();
        handle_until_idle(&env, &worker).await;
        assert_eq!(result_texts(&env).await, [expected]);
        let head = env.head().await.unwrap();
        assert_eq!(head.prompts.last().unwrap().state, PromptState::Aborted);
        assert!(head.indeterminate_writes.is_empty());
        assert_eq!(inbox_len(&env), 0);
    }
}

#[tokio::test(start_paused = true)]
async fn lost_lease_during_a_hook_keeps_the_known_outcome() {
    let hook = Appends::delaying("c1", Duration::from_hours(1));
    let (mut env, worker) = new_env(calls_pay, &[&hook]).await;
    let nudge = TestEnv::nudge();
    let mut stalled = Box::pin(handle(&worker, &nudge));
    tokio::select! {
        handled = &mut stalled => panic!("{handled:?}"),
        () = async { hook.began.notified().await; tokio::time::sleep(Duration::from_secs(1)).await } => {}
    }
    tokio::time::sleep(Duration::from_secs(70)).await;
    let other = env.new_worker(Arc::new(NoFailPoints));
    handle(&other, &nudge).await.unwrap();
    assert_eq!(result_texts(&env).await, ["pay done"]);
    let _ = stalled.await;
    env.run_until_idle().await;
    assert_eq!(result_texts(&env).await, ["pay done"]);
    assert_eq!(env.executions.lock().unwrap().values().sum::<u32>(), 1);
    assert!(!env.has_outcome_request);
}

#[tokio::test(start_paused = true)]
async fn other_commit_does_not_settle_the_call_with_the_raw_result() {
    let hook = Appends::delaying("c1", Duration::from_secs(5));
    let mut env = TestEnv::with_script(32, pays_twice);
    env.enable_parallel_calls(8);
    let mut worker = env.new_worker(Arc::new(NoFailPoints));
    worker.extensions = vec![hook.clone()];
    worker.limits.hook_timeout = Duration::from_secs(30);
    env.send_prompt(&worker).await;
    handle_until_idle(&env, &worker).await;
    assert_eq!(result_texts(&env).await, ["pay done slow", "pay done slow"]);
    assert_eq!(inbox_len(&env), 0, "the kept result was read and ignored");
    assert_eq!(env.executions.lock().unwrap().values().sum::<u32>(), 2);
}

/// The write of the raw result is repeated until the store is back.
#[tokio::test(start_paused = true)]
async fn store_outage_does_not_shorten_hook_time() {
    let hook = Appends::delaying("c1", Duration::from_secs(2));
    let mut env = TestEnv::with_script(34, calls_pay);
    let store = Arc::clone(&env.store);
    let begin_outage = move || {
        store.set_faults(StoreFaults::unavailable());
    };
    let mut worker = env.new_worker(Arc::new(HookFailPoint("tool-result.before", begin_outage)));
    worker.extensions = vec![hook.clone()];
    worker.limits.hook_timeout = Duration::from_secs(5);
    env.send_prompt(&worker).await;
    tokio::join!(Box::pin(handle_until_idle(&env, &worker)), async {
        hook.began.notified().await;
        tokio::time::sleep(Duration::from_secs(8)).await;
        env.store.set_faults(StoreFaults::default());
    });
    assert_eq!(result_texts(&env).await, ["pay done slow"]);
    assert_eq!(env.executions.lock().unwrap().values().sum::<u32>(), 1);
    assert_eq!(inbox_len(&env), 0);
}

#[tokio::test(start_paused = true)]
async fn ready_hook_costs_no_request() {
    let mut counts = Vec::new();
    for hooks in [Vec::new(), vec![&Appends::new("one")]] {
        let (env, worker) = new_env(calls_pay, &hooks).await;
        handle_until_idle(&env, &worker).await;
        let receipts = env
            .store
            .select_newest(&Partition::Conversation(TestEnv::key()), DocumentKind::Receipt);
        counts.push((env.store.commit_count(), receipts.len()));
    }
    assert_eq!(counts[0], counts[1]);
}

/// Replaces each result by one that is too long.
#[derive(Debug)]
struct Inflates;

#[async_trait]
impl Extension for Inflates {
    fn name(&self) -> &'static str {
        "inflates"
    }

    async fn after_tool_call(
        &self,
        _cx: &HookContext,
        _call: &FinishedToolCall<'_>,
    ) -> Result<ResultChanges, HookError> {
        let content = Some(vec![Block::text("line\n".repeat(5_000))]);
        Ok(ResultChanges { content, is_error: Some(true), ..ResultChanges::default() })
    }
}

#[tokio::test(start_paused = true)]
async fn changed_result_is_limited() {
    let (env, mut worker) = new_env(calls_look, &[]).await;
    worker.extensions = vec![Arc::new(Inflates)];
    handle_until_idle(&env, &worker).await;
    let texts = result_texts(&env).await;
    assert!(texts[0].contains("[Output truncated: showing lines 1-"), "{texts:?}");
    let entries = env.entries().await;
    assert!(entries.iter().find_map(|entry| entry.body.tool_result()).unwrap().is_error);
}
