//! The hook `finish_turn`: descriptions, decisions, misbehaviour, crashes and conflicts.

use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use async_trait::async_trait;
use futures_util::future::BoxFuture;
use serde_json::{Value, json};

use super::compaction::handle_until_idle;
use super::parallel_calls::result_texts;
use super::test_env::{PauseFailPoint, TestEnv, call, idempotency, text};
use crate::crash_count;
use crate::delivery::handle;
use turnwheel_commands::inbox_edit::{InputChange, InputEdit, edit_input};
use turnwheel_commands::patch::patch_conversation;
use turnwheel_commands::prompt::PromptAccepted;
use turnwheel_conversation::content::{Content, joined_text};
use turnwheel_conversation::entry::{PromptState, PromptStop};
use turnwheel_conversation::settings::Continuation;
use turnwheel_extensions::{ClosingTurn, Extension, FinishTurn, HookContext, HookError};
use turnwheel_platform::fail_points::NoFailPoints;
use turnwheel_platform::ids::InputId;
use turnwheel_platform::telemetry::testing::Recorder;
use turnwheel_record::error::DeliveryOutcome;
use turnwheel_record::services::Services;

pub(super) type DecideFn = fn(&ClosingTurn<'_>) -> Option<FinishTurn>;

/// Decides by the turn alone, so that every worker decides alike.
#[derive(Debug)]
pub(super) struct DecidingExtension {
    pub(super) decide: DecideFn,
    /// The turns on which it was called: the response, the results and the rounds.
    turns: Mutex<Vec<(String, Vec<String>, u32)>>,
}

impl DecidingExtension {
    pub(super) fn new(decide: DecideFn) -> Arc<Self> {
        Arc::new(Self { decide, turns: Mutex::default() })
    }

    fn call_count(&self) -> usize {
        self.turns.lock().unwrap().len()
    }
}

#[async_trait]
impl Extension for DecidingExtension {
    fn name(&self) -> &'static str {
        "decides"
    }

    async fn finish_turn(
        &self,
        cx: &HookContext,
        turn: &ClosingTurn<'_>,
    ) -> Result<Option<FinishTurn>, HookError> {
        let results = turn.tool_results.iter().map(|result| joined_text(&result.content));
        let id = &cx.conversation().conversation_id;
        let response = format!("{id}: {}", joined_text(&turn.response.content));
        let seen = (response, results.collect(), turn.rounds);
        self.turns.lock().unwrap().push(seen);
        Ok((self.decide)(turn))
    }
}

type DecisionFuture = BoxFuture<'static, Result<Option<FinishTurn>, HookError>>;

/// Runs an asynchronous closure that decides.
struct AsyncDecidingExtension<F>(F);

impl<F> std::fmt::Debug for AsyncDecidingExtension<F> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Waits")
    }
}

#[async_trait]
impl<F: Fn() -> DecisionFuture + Send + Sync> Extension for AsyncDecidingExtension<F> {
    fn name(&self) -> &'static str {
        "waits"
    }

    async fn finish_turn(
        &self,
        _cx: &HookContext,
        _turn: &ClosingTurn<'_>,
    ) -> Result<Option<FinishTurn>, HookError> {
        (self.0)().await
    }
}

/// A round of two calls, then texts.
fn calls_tools_then_replies(results: usize, _input: &str) -> Vec<Value> {
    match results {
        0 => vec![text("first"), call("c1", "look", 0), call("c2", "put", 0)],
        _ => vec![text("done")],
    }
}

fn calls_gated_then_replies(results: usize, _input: &str) -> Vec<Value> {
    if results == 0 { vec![call("c1", "gated", 0)] } else { vec![text("done")] }
}

fn echoes_input(_results: usize, input: &str) -> Vec<Value> {
    vec![text(input)]
}

fn ends_after_tools(turn: &ClosingTurn<'_>) -> Option<FinishTurn> {
    (!turn.tool_results.is_empty()).then_some(FinishTurn::End)
}

fn continues_once(turn: &ClosingTurn<'_>) -> Option<FinishTurn> {
    (turn.rounds == 1).then_some(FinishTurn::Continue)
}

/// Returns an environment with an accepted prompt, and a worker with the extensions.
async fn new_env(
    script: super::test_env::Script,
    extensions: Vec<Arc<dyn Extension>>,
) -> (TestEnv, Services) {
    let mut env = TestEnv::with_script(1, script);
    env.extensions = extensions;
    let services = env.new_worker(Arc::new(NoFailPoints));
    env.send_prompt(&services).await;
    (env, services)
}

async fn prompt_ends(env: &TestEnv) -> Vec<(PromptState, Option<PromptStop>)> {
    let head = env.head().await.unwrap();
    head.prompts.iter().map(|span| (span.state, span.stop_reason)).collect()
}

const COMPLETED: (PromptState, Option<PromptStop>) =
    (PromptState::Completed, Some(PromptStop::End));

#[tokio::test(start_paused = true)]
async fn hook_receives_response_results_and_rounds() {
    for (at_once, continuation) in [(1, Continuation::Queue), (2, Continuation::Inline)] {
        let hook = DecidingExtension::new(|_| None);
        let mut env = TestEnv::with_script(1, calls_tools_then_replies);
        env.enable_parallel_calls(at_once);
        env.settings.continuation = Some(continuation);
        env.extensions = vec![hook.clone()];
        let services = env.new_worker(Arc::new(NoFailPoints));
        env.send_prompt(&services).await;
        handle_until_idle(&env, &services).await;
        let results = vec!["look done".to_owned(), "put done".to_owned()];
        let turns = [("c: first".to_owned(), results, 1), ("c: done".to_owned(), Vec::new(), 2)];
        assert_eq!(*hook.turns.lock().unwrap(), turns);
        assert_eq!(prompt_ends(&env).await, [COMPLETED]);
    }
}

#[tokio::test(start_paused = true)]
async fn end_saves_the_model_call_after_tools() {
    for (at_once, continuation) in [(1, Continuation::Queue), (2, Continuation::Inline)] {
        let mut env = TestEnv::with_script(1, calls_tools_then_replies);
        env.enable_parallel_calls(at_once);
        env.settings.continuation = Some(continuation);
        env.extensions = vec![DecidingExtension::new(ends_after_tools)];
        let services = env.new_worker(Arc::new(NoFailPoints));
        env.send_prompt(&services).await;
        handle_until_idle(&env, &services).await;
        assert_eq!(*env.model.calls.lock().unwrap(), 1);
        assert_eq!(result_texts(&env).await, ["look done", "put done"]);
        assert_eq!(prompt_ends(&env).await, [COMPLETED]);
    }
}

#[tokio::test(start_paused = true)]
async fn continue_requests_one_more_response() {
    for continuation in [Continuation::Queue, Continuation::Inline] {
        let mut env = TestEnv::with_script(1, echoes_input);
        env.settings.continuation = Some(continuation);
        env.extensions = vec![DecidingExtension::new(continues_once)];
        let services = env.new_worker(Arc::new(NoFailPoints));
        env.send_prompt(&services).await;
        handle_until_idle(&env, &services).await;
        assert_eq!(*env.model.calls.lock().unwrap(), 2);
        assert_eq!(prompt_ends(&env).await, [COMPLETED]);
    }
}

#[tokio::test(start_paused = true)]
async fn first_decision_wins() {
    let (none, end, never) = (
        DecidingExtension::new(|_| None),
        DecidingExtension::new(|_| Some(FinishTurn::End)),
        DecidingExtension::new(|_| Some(FinishTurn::Continue)),
    );
    let (env, services) =
        new_env(echoes_input, vec![none.clone(), end.clone(), never.clone()]).await;
    handle_until_idle(&env, &services).await;
    assert_eq!([none.call_count(), end.call_count(), never.call_count()], [1, 1, 0]);
    assert_eq!(*env.model.calls.lock().unwrap(), 1);
}

#[tokio::test(start_paused = true)]
async fn rejected_call_closes_the_turn_with_a_decision() {
    let hook = DecidingExtension::new(ends_after_tools);
    let (mut env, services) = new_env(calls_gated_then_replies, vec![hook.clone()]).await;
    while env.deliver().await {}
    assert_eq!(hook.call_count(), 0, "the call has no result yet");
    env.decide_all("reject").await;
    handle_until_idle(&env, &services).await;
    assert_eq!((hook.call_count(), *env.model.calls.lock().unwrap()), (1, 1));
    assert_eq!(prompt_ends(&env).await, [COMPLETED]);
}

#[tokio::test(start_paused = true)]
async fn failing_hook_changes_nothing() {
    let bad: [fn() -> DecisionFuture; 3] = [
        || Box::pin(std::future::pending()),
        || panic!("a secret of the conversation"),
        || Box::pin(async { Err(HookError::new("the directory is away")) }),
    ];
    for (number, bad) in bad.into_iter().enumerate() {
        let mut env = TestEnv::with_script(1, calls_tools_then_replies);
        let recorder = Recorder::new();
        env.telemetry = recorder.telemetry();
        env.extensions = vec![Arc::new(AsyncDecidingExtension(bad))];
        let services = env.new_worker(Arc::new(NoFailPoints));
        env.send_prompt(&services).await;
        handle_until_idle(&env, &services).await;
        assert_eq!(*env.model.calls.lock().unwrap(), 2, "case {number}");
        assert_eq!(prompt_ends(&env).await, [COMPLETED]);
        let metrics = recorder.metrics();
        let failures = metrics.iter().find(|(name, _)| name.starts_with("turnwheel.hook.failures"));
        assert!(failures.is_some_and(|(_, count)| *count > 1.5), "{metrics:?}");
    }
}

#[tokio::test(start_paused = true)]
async fn lease_is_renewed_while_slow_hooks_decide() {
    let slow = |decision| {
        let wait = move || -> DecisionFuture {
            Box::pin(async move {
                tokio::time::sleep(Duration::from_secs(25)).await;
                Ok(decision)
            })
        };
        Arc::new(AsyncDecidingExtension(wait)) as Arc<dyn Extension>
    };
    let end = Some(FinishTurn::End);
    let (mut env, mut services) =
        new_env(calls_tools_then_replies, vec![slow(None), slow(None), slow(None), slow(end)])
            .await;
    services.limits.hook_timeout = Duration::from_secs(30);
    let other = env.new_worker(Arc::new(NoFailPoints));
    let nudge = TestEnv::nudge();
    let (handled, others) = tokio::join!(handle(&services, &nudge), async {
        tokio::time::sleep(Duration::from_secs(90)).await;
        handle(&other, &nudge).await.unwrap()
    });
    assert_eq!((handled.unwrap(), others), (DeliveryOutcome::Worked, DeliveryOutcome::NoWork));
    handle_until_idle(&env, &services).await;
    assert_eq!(result_texts(&env).await, ["look done", "put done"]);
    assert_eq!(*env.model.calls.lock().unwrap(), 1);
    assert!(env.executions.lock().unwrap().values().all(|times| *times == 1), "each ran once");
}

#[tokio::test(start_paused = true)]
async fn committed_response_is_not_billed_again_after_a_crash() {
    // A response that was not committed is lost with its worker, even if an extension had decided.
    for (fail_point, expected) in
        [("response.before", 3), ("response.after", 2), ("release.before", 2)]
    {
        let hook = DecidingExtension::new(continues_once);
        let (mut env, _) = new_env(echoes_input, vec![hook.clone()]).await;
        let pause = Arc::new(PauseFailPoint::new(fail_point));
        let victim = env.new_worker(pause.clone());
        let nudge = TestEnv::nudge();
        pause.kill(handle(&victim, &nudge)).await;
        tokio::time::sleep(Duration::from_secs(70)).await;
        env.run_until_idle().await;
        assert_eq!(*env.model.calls.lock().unwrap(), expected, "{fail_point}");
        assert_eq!(prompt_ends(&env).await, [COMPLETED]);
    }
}

#[tokio::test(start_paused = true)]
async fn decision_survives_a_conflicting_patch() {
    let mut env = TestEnv::with_script(1, echoes_input);
    let client = env.new_worker(Arc::new(NoFailPoints));
    let calls = Arc::new(AtomicU32::new(0));
    let (counted, patching) = (Arc::clone(&calls), client.clone());
    let patches = move || -> DecisionFuture {
        let (number, client) = (counted.fetch_add(1, Ordering::SeqCst), patching.clone());
        Box::pin(async move {
            let patch = json!({"name": format!("name {number}")});
            let key = idempotency(&format!("patch {number}"));
            let patch = patch.as_object().unwrap();
            patch_conversation(&client, &TestEnv::key(), patch, &key, |_| true).await.unwrap();
            Ok(Some(FinishTurn::Continue))
        })
    };
    env.settings.max_rounds = Some(3);
    env.extensions = vec![Arc::new(AsyncDecidingExtension(patches))];
    let services = env.new_worker(Arc::new(NoFailPoints));
    env.send_prompt(&services).await;
    handle_until_idle(&env, &services).await;
    assert_eq!((calls.load(Ordering::SeqCst), *env.model.calls.lock().unwrap()), (3, 3));
    assert_eq!(prompt_ends(&env).await, [(PromptState::Completed, Some(PromptStop::MaxRounds))]);
    assert_eq!(env.head().await.unwrap().name.as_deref(), Some("name 2"));
}

#[tokio::test(start_paused = true)]
async fn hook_runs_again_when_a_queued_input_changes() {
    let mut env = TestEnv::with_script(1, echoes_input);
    let client = env.new_worker(Arc::new(NoFailPoints));
    let calls = Arc::new(AtomicU32::new(0));
    let queued: Arc<Mutex<Option<InputId>>> = Arc::default();
    let (counted, editing, edited) = (Arc::clone(&calls), client.clone(), Arc::clone(&queued));
    let edits = move || -> DecisionFuture {
        let is_first = counted.fetch_add(1, Ordering::SeqCst) == 0;
        let (client, id) = (editing.clone(), edited.lock().unwrap().clone().unwrap());
        Box::pin(async move {
            if is_first {
                let input = Some(Content::Text("turn left".to_owned()));
                let change = InputChange { input, ..InputChange::default() };
                let passes = |_: &str| true;
                let key = TestEnv::key();
                let edit = InputEdit { id: id.as_str(), change: &change };
                let once = idempotency("edit");
                edit_input(&client, &key, edit, &once, passes).await.unwrap();
            }
            Ok(Some(if is_first { FinishTurn::Continue } else { FinishTurn::End }))
        })
    };
    env.extensions = vec![Arc::new(AsyncDecidingExtension(edits))];
    env.send_prompt(&client).await;
    let pause = Arc::new(PauseFailPoint::new("model.after"));
    let services = env.new_worker(pause.clone());
    let nudge = TestEnv::nudge();
    let (handled, ()) = tokio::join!(handle(&services, &nudge), async {
        pause.reached.notified().await;
        let accepted = env.queue_prompt(&client, &TestEnv::key(), "turn right").await.unwrap();
        let accepted: PromptAccepted = accepted.body.unwrap().read().unwrap();
        *queued.lock().unwrap() = Some(accepted.input_id);
        pause.resume.notify_one();
    });
    handled.unwrap();
    assert_eq!(
        calls.load(Ordering::SeqCst),
        2,
        "the first plan had read the input before its edit"
    );
    assert_eq!(*env.model.calls.lock().unwrap(), 1, "the response was billed once");
    handle_until_idle(&env, &services).await;
    assert_eq!(prompt_ends(&env).await, [COMPLETED, COMPLETED]);
    let entries = env.entries().await;
    let responses = entries.iter().filter_map(|entry| {
        entry.body.message()?.as_assistant().map(|response| joined_text(&response.content))
    });
    assert_eq!(responses.collect::<Vec<_>>(), ["go", "turn left"]);
}

fn calls_mail(results: usize, _input: &str) -> Vec<Value> {
    if results == 0 { vec![call("c1", "mail", 0)] } else { vec![text("done")] }
}

#[tokio::test(start_paused = true)]
async fn start_up_leaves_the_decision_to_the_next_delivery() {
    let hook = DecidingExtension::new(ends_after_tools);
    let (mut env, _) = new_env(calls_mail, vec![hook.clone()]).await;
    let pause = Arc::new(PauseFailPoint::new("tool.after"));
    let victim = env.new_worker(pause.clone());
    let nudge = TestEnv::nudge();
    pause.kill(handle(&victim, &nudge)).await;
    tokio::time::sleep(Duration::from_secs(70)).await;
    let services = env.new_worker(Arc::new(NoFailPoints));
    crash_count::recover_at_start_up(&services).await.unwrap();
    assert_eq!(hook.call_count(), 0, "a start-up runs no hook");
    env.run_until_idle().await;
    assert_eq!((hook.call_count(), *env.model.calls.lock().unwrap()), (1, 1));
    assert!(
        result_texts(&env).await[0].contains("unknown"),
        "the model reads that the outcome is unknown"
    );
    assert_eq!(prompt_ends(&env).await, [COMPLETED]);
    assert!(env.executions.lock().unwrap().values().eq([&1]), "the mail was sent once");
}
