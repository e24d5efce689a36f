//! Hooks that hang, panic, fail or are slow: nothing is billed twice, and no call starts unchecked.

use std::borrow::Cow;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use async_trait::async_trait;
use serde_json::Value;

use super::compaction::{env_with_full_window, find_compactions, handle_until_idle};
use super::parallel_calls::result_texts;
use super::test_env::{PauseFailPoint, SmallWindowModel, TestEnv, call, text};
use crate::delivery::handle;
use turnwheel_agent_files::{AgentDefinition, Catalog};
use turnwheel_conversation::entry::{Entry, PromptState};
use turnwheel_conversation::message::Message;
use turnwheel_extensions::context::SITES_MADE;
use turnwheel_extensions::{
    CallBlock, Events, Extension, Hook, HookContext, HookError, PendingCompaction, PendingToolCall,
    SummaryOverride, ToolCallDecision,
};
use turnwheel_platform::fail_points::NoFailPoints;
use turnwheel_platform::telemetry::testing::Recorder;
use turnwheel_record::error::DeliveryOutcome;

/// Misbehaviour, the same at every hook.
#[derive(Clone, Copy, Debug)]
enum Misbehaviour {
    Hangs,
    Panics,
    Fails,
    Takes(Duration),
}

impl Misbehaviour {
    async fn run(self) -> Result<(), HookError> {
        match self {
            Self::Hangs => std::future::pending().await,
            Self::Panics => panic!("a secret of the conversation"),
            Self::Fails => Err(HookError::new("the directory is away")),
            Self::Takes(time) => {
                tokio::time::sleep(time).await;
                Ok(())
            }
        }
    }
}

#[derive(Debug)]
struct ToolCallHook(Misbehaviour);

#[async_trait]
impl Extension for ToolCallHook {
    fn name(&self) -> &'static str {
        "checks"
    }

    async fn before_tool_call(
        &self,
        _cx: &HookContext,
        _call: &PendingToolCall<'_>,
    ) -> Result<ToolCallDecision, HookError> {
        self.0.run().await?;
        Ok(ToolCallDecision::Allow)
    }
}

#[derive(Debug)]
struct ContextHook(Misbehaviour);

#[async_trait]
impl Extension for ContextHook {
    fn name(&self) -> &'static str {
        "transforms"
    }

    async fn transform_context<'a>(
        &self,
        _cx: &HookContext,
        messages: Vec<Cow<'a, Message>>,
    ) -> Result<Vec<Cow<'a, Message>>, HookError> {
        self.0.run().await?;
        Ok(messages)
    }
}

#[derive(Debug)]
struct CompactionHook(Misbehaviour);

#[async_trait]
impl Extension for CompactionHook {
    fn name(&self) -> &'static str {
        "compacts"
    }

    async fn before_compaction(
        &self,
        _cx: &HookContext,
        _ahead: &PendingCompaction<'_>,
    ) -> Result<Option<SummaryOverride>, HookError> {
        self.0.run().await?;
        Ok(None)
    }

    async fn after_compaction(&self, _: &HookContext, _: &Entry) -> Result<(), HookError> {
        self.0.run().await
    }
}

fn pays_twice(results: usize, _input: &str) -> Vec<Value> {
    match results {
        0 => vec![call("c1", "pay", 0), call("c2", "pay", 1)],
        _ => vec![text("done")],
    }
}

async fn state_and_error(env: &TestEnv) -> (PromptState, Option<String>) {
    let span = env.head().await.unwrap().prompts.last().cloned().unwrap();
    let entries = env.entries().await;
    let error = entries.iter().rev().find_map(|entry| {
        let answer = entry.body.message()?.as_assistant()?;
        answer.error_message.clone()
    });
    (span.state, error)
}

#[tokio::test(start_paused = true)]
async fn failing_tool_hook_blocks_the_call() {
    for (bad, cause) in [
        (Misbehaviour::Hangs, "no result within 5s"),
        (Misbehaviour::Panics, "it panicked"),
        (Misbehaviour::Fails, "the directory is away"),
    ] {
        let mut env = TestEnv::with_script(1, pays_twice);
        let recorder = Recorder::new();
        env.telemetry = recorder.telemetry();
        let mut worker = env.new_worker(Arc::new(NoFailPoints));
        worker.extensions = vec![Arc::new(ToolCallHook(bad))];
        env.send_prompt(&worker).await;
        handle_until_idle(&env, &worker).await;
        let text = format!(
            "Tool execution was blocked: extension \"checks\" failed in tool_call: {cause}"
        );
        assert_eq!(result_texts(&env).await, [text.clone(), text], "{bad:?}");
        assert!(env.executions.lock().unwrap().is_empty(), "no call ran");
        assert_eq!(*env.model.calls.lock().unwrap(), 2, "each model response was paid once");
        assert_eq!(state_and_error(&env).await.0, PromptState::Completed);
        let metrics = recorder.metrics();
        let failures = metrics.iter().find(|(name, _)| name.starts_with("turnwheel.hook.failures"));
        assert!(failures.is_some_and(|(_, count)| *count > 1.5), "{metrics:?}");
    }
}

/// An optional extension whose hook misbehaves.
#[derive(Debug)]
struct OptionalHook(Misbehaviour);

#[async_trait]
impl Extension for OptionalHook {
    fn name(&self) -> &'static str {
        "watches"
    }

    fn is_optional(&self) -> bool {
        true
    }

    async fn before_tool_call(
        &self,
        _cx: &HookContext,
        _call: &PendingToolCall<'_>,
    ) -> Result<ToolCallDecision, HookError> {
        self.0.run().await?;
        Ok(ToolCallDecision::Allow)
    }
}

#[tokio::test(start_paused = true)]
async fn failed_optional_extension_blocks_no_call_and_is_reported() {
    for (bad, cause) in [
        (Misbehaviour::Hangs, "no result within 5s"),
        (Misbehaviour::Panics, "it panicked"),
        (Misbehaviour::Fails, "the directory is away"),
    ] {
        let mut env = TestEnv::with_script(1, pays_twice);
        let mut worker = env.new_worker(Arc::new(NoFailPoints));
        worker.extensions = vec![Arc::new(OptionalHook(bad))];
        let errors = Arc::<Mutex<Vec<String>>>::default();
        let to = Arc::clone(&errors);
        worker.extension_error_listeners.add(move |error| {
            to.lock().unwrap().push(format!("{} {} {}", error.extension, error.event, error.text));
        });
        env.send_prompt(&worker).await;
        handle_until_idle(&env, &worker).await;
        assert_eq!(result_texts(&env).await, ["pay done", "pay done"], "{bad:?}");
        let errors = errors.lock().unwrap();
        assert!(errors.len() >= 2, "{errors:?}");
        let expected = format!("watches tool_call {cause}");
        assert!(errors.iter().all(|error| *error == expected), "{errors:?}");
    }
}

#[tokio::test(start_paused = true)]
async fn lease_is_renewed_while_slow_hooks_run() {
    let mut env = TestEnv::with_script(2, pays_twice);
    let client = env.new_worker(Arc::new(NoFailPoints));
    env.send_prompt(&client).await;
    let mut worker = env.new_worker(Arc::new(NoFailPoints));
    // Each hook meets its deadline; together they take longer than a lease lasts.
    let slow = || {
        Arc::new(ToolCallHook(Misbehaviour::Takes(Duration::from_secs(25)))) as Arc<dyn Extension>
    };
    worker.extensions = vec![slow(), slow(), slow()];
    worker.limits.hook_timeout = Duration::from_secs(30);
    let other = env.new_worker(Arc::new(NoFailPoints));
    let nudge = TestEnv::nudge();
    // Commits the model response, and leaves its calls to the next delivery.
    assert_eq!(handle(&worker, &nudge).await.unwrap(), DeliveryOutcome::Worked);
    let (handled, others) = tokio::join!(handle(&worker, &nudge), async {
        tokio::time::sleep(Duration::from_secs(100)).await;
        handle(&other, &nudge).await.unwrap()
    });
    assert_eq!((handled.unwrap(), others), (DeliveryOutcome::Worked, DeliveryOutcome::NoWork));
    handle_until_idle(&env, &worker).await;
    assert_eq!(result_texts(&env).await, ["pay done", "pay done"]);
    assert!(env.executions.lock().unwrap().values().eq([&1, &1]), "each was paid once");
    assert_eq!(*env.model.calls.lock().unwrap(), 2, "each model response was paid once");
}

#[tokio::test(start_paused = true)]
async fn hooks_of_one_commit_share_thirty_seconds() {
    let mut env = TestEnv::with_script(5, pays_twice);
    let mut worker = env.new_worker(Arc::new(NoFailPoints));
    let slow = || {
        Arc::new(ToolCallHook(Misbehaviour::Takes(Duration::from_secs(20)))) as Arc<dyn Extension>
    };
    worker.extensions = vec![slow(), slow()];
    worker.limits.hook_timeout = Duration::from_secs(30);
    let errors = Arc::<Mutex<Vec<String>>>::default();
    let to = Arc::clone(&errors);
    worker.extension_error_listeners.add(move |error| to.lock().unwrap().push(error.text.clone()));
    env.send_prompt(&worker).await;
    let began = tokio::time::Instant::now();
    handle(&worker, &TestEnv::nudge()).await.unwrap();
    assert_eq!(began.elapsed().as_secs(), 30, "then the model response is committed");
    assert!(env.executions.lock().unwrap().is_empty(), "no call ran unchecked");
    let text = "the hooks of this step together took too long";
    assert_eq!(*errors.lock().unwrap(), [text], "the second call waits for the first");
    handle_until_idle(&env, &worker).await;
    assert_eq!(result_texts(&env).await, ["pay done", "pay done"]);
    assert_eq!(*env.model.calls.lock().unwrap(), 2, "each model response was paid once");
    assert_eq!(errors.lock().unwrap().len(), 1, "later checks have no common limit");
}

/// Blocks every call, but only at the events that it names.
#[derive(Debug)]
struct BlockingHook(Events);

#[async_trait]
impl Extension for BlockingHook {
    fn name(&self) -> &'static str {
        "blocks"
    }

    fn events(&self) -> Events {
        self.0
    }

    async fn before_tool_call(
        &self,
        cx: &HookContext,
        call: &PendingToolCall<'_>,
    ) -> Result<ToolCallDecision, HookError> {
        assert!(cx.prompt_id().is_some());
        let reason = Some(format!("{} may not call {}", cx.agent(), call.tool_name));
        Ok(ToolCallDecision::Block(CallBlock { reason, terminate: false }))
    }
}

#[tokio::test(start_paused = true)]
async fn extensions_of_the_agent_run_after_those_of_the_app_at_their_events() {
    for (of_app, of_agent, expected) in [
        (Events::from([Hook::Context]), Events::ALL, "clerk may not call pay"),
        (Events::from([Hook::Context]), Events::from([Hook::TurnEnd]), "pay done"),
    ] {
        let mut env = TestEnv::with_script(6, pays_twice);
        let mut worker = env.new_worker(Arc::new(NoFailPoints));
        worker.extensions = vec![Arc::new(BlockingHook(of_app))];
        env.send_prompt(&worker).await;
        let catalog = worker.agents.current();
        let clerk = catalog.find(None).unwrap();
        let clerk = AgentDefinition {
            name: clerk.name.clone(),
            settings: clerk.settings.clone(),
            instructions: clerk.instructions.clone(),
            mcp: Vec::new(),
            tools: clerk.tools.clone(),
            extensions: vec![Arc::new(BlockingHook(of_agent))],
            revision: clerk.revision.clone(),
            ..AgentDefinition::default()
        };
        let agents = [("clerk".to_owned(), Arc::new(clerk))].into();
        worker.agents.replace(Catalog { agents, ..Catalog::default() });
        handle_until_idle(&env, &worker).await;
        assert_eq!(result_texts(&env).await, [expected, expected]);
    }
}

#[tokio::test(start_paused = true)]
async fn failing_context_hook_fails_the_model_call_unsent() {
    for (bad, cause, tries) in [
        (Misbehaviour::Hangs, "no result within 5s", 4),
        (Misbehaviour::Panics, "it panicked", 1),
        (Misbehaviour::Fails, "the directory is away", 4),
    ] {
        let mut env = TestEnv::with_script(3, pays_twice);
        let mut worker = env.new_worker(Arc::new(NoFailPoints));
        worker.extensions = vec![Arc::new(ContextHook(bad))];
        env.send_prompt(&worker).await;
        handle_until_idle(&env, &worker).await;
        let text = format!(
            "The model was not called: extension \"transforms\" failed in context: {cause}"
        );
        assert_eq!(state_and_error(&env).await, (PromptState::Failed, Some(text)), "{bad:?}");
        assert_eq!(*env.model.calls.lock().unwrap(), 0, "nothing was sent");
        let failures = env.entries().await.iter().filter(|it| it.body.message().is_some()).count();
        assert_eq!(failures - 1, tries, "{bad:?}");
    }
}

#[tokio::test(start_paused = true)]
async fn failing_compaction_hook_leaves_the_summary_to_the_model() {
    for bad in [Misbehaviour::Hangs, Misbehaviour::Panics, Misbehaviour::Fails] {
        let (env, mut services, model) =
            env_with_full_window(SmallWindowModel::new(super::compaction::WINDOW)).await;
        services.extensions = vec![Arc::new(CompactionHook(bad))];
        handle_until_idle(&env, &services).await;
        assert_eq!(model.summary_count(), 1, "{bad:?}");
        let entries = env.entries().await;
        assert_eq!(find_compactions(&entries).len(), 1);
        assert_eq!(find_compactions(&entries)[0].from_hook, None);
        assert_eq!(state_and_error(&env).await, (PromptState::Completed, None));
    }
}

#[tokio::test(start_paused = true)]
async fn hooks_run_again_when_another_worker_takes_over() {
    let mut env = TestEnv::with_script(4, pays_twice);
    let client = env.new_worker(Arc::new(NoFailPoints));
    env.send_prompt(&client).await;
    let pause = Arc::new(PauseFailPoint::new("response.before"));
    let mut victim = env.new_worker(pause.clone());
    victim.extensions = vec![Arc::new(ToolCallHook(Misbehaviour::Panics))];
    let nudge = TestEnv::nudge();
    pause.kill(handle(&victim, &nudge)).await;
    tokio::time::sleep(Duration::from_secs(70)).await;
    let mut worker = env.new_worker(Arc::new(NoFailPoints));
    worker.extensions = vec![Arc::new(ToolCallHook(Misbehaviour::Takes(Duration::from_secs(1))))];
    handle_until_idle(&env, &worker).await;
    env.run_until_idle().await;
    assert_eq!(result_texts(&env).await, ["pay done", "pay done"], "the uncommitted block is void");
}

/// The facts of a site are copied from the conversation: without extensions nothing is.
#[tokio::test(start_paused = true)]
async fn prompt_without_extensions_makes_no_hook_site() {
    let sites_made = async |extensions: Vec<Arc<dyn Extension>>| {
        let before = SITES_MADE.get();
        let mut env = TestEnv::new(1);
        env.extensions = extensions;
        let worker = env.new_worker(Arc::new(NoFailPoints));
        env.send_prompt(&worker).await;
        env.run_until_idle().await;
        SITES_MADE.get() - before
    };
    assert_eq!(sites_made(Vec::new()).await, 0);
    let quick: Arc<dyn Extension> = Arc::new(ToolCallHook(Misbehaviour::Takes(Duration::ZERO)));
    assert!(sites_made(vec![quick]).await > 20);
}
