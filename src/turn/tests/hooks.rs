//! Hooks that hang, panic, fail or are slow: nothing is billed twice, and no call starts unchecked.

use std::borrow::Cow;
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use serde_json::Value;

use super::bench::{Bench, PauseProbe, Windowed, call, text};
use super::compacting::{brimful, compactions, settle};
use super::together::texts;
use crate::agent::entry::{Entry, PromptState};
use crate::agent::message::Message;
use crate::extensions::{Block, CallAhead, CompactionAhead, Extension, HookError, Instead};
use crate::ids::ConversationKey;
use crate::telemetry::testing::Recorder;
use crate::turn::NoProbe;
use crate::turn::delivery::{Handled, handle};

/// Misbehaviour, the same at every hook.
#[derive(Clone, Copy, Debug)]
enum Bad {
    Hangs,
    Panics,
    Fails,
    Takes(Duration),
}

impl Bad {
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
struct Checks(Bad);

#[async_trait]
impl Extension for Checks {
    fn name(&self) -> &'static str {
        "checks"
    }

    async fn before_tool_call(&self, _call: &CallAhead<'_>) -> Result<Option<Block>, HookError> {
        self.0.run().await?;
        Ok(None)
    }
}

#[derive(Debug)]
struct Transforms(Bad);

#[async_trait]
impl Extension for Transforms {
    fn name(&self) -> &'static str {
        "transforms"
    }

    async fn transform_context<'a>(
        &self,
        messages: Vec<Cow<'a, Message>>,
    ) -> Result<Vec<Cow<'a, Message>>, HookError> {
        self.0.run().await?;
        Ok(messages)
    }
}

#[derive(Debug)]
struct Compacts(Bad);

#[async_trait]
impl Extension for Compacts {
    fn name(&self) -> &'static str {
        "compacts"
    }

    async fn before_compaction(
        &self,
        _ahead: &CompactionAhead<'_>,
    ) -> Result<Option<Instead>, HookError> {
        self.0.run().await?;
        Ok(None)
    }

    async fn after_compaction(&self, _: &ConversationKey, _: &Entry) -> Result<(), HookError> {
        self.0.run().await
    }
}

fn pays_twice(results: usize, _said: &str) -> Vec<Value> {
    match results {
        0 => vec![call("c1", "pay", 0), call("c2", "pay", 1)],
        _ => vec![text("done")],
    }
}

async fn state_and_error(bench: &Bench) -> (PromptState, Option<String>) {
    let span = bench.head().await.unwrap().prompts.last().cloned().unwrap();
    let entries = bench.entries().await;
    let error = entries.iter().rev().find_map(|entry| {
        let answer = entry.body.message()?.as_assistant()?;
        answer.error_message.clone()
    });
    (span.state, error)
}

#[tokio::test(start_paused = true)]
async fn failing_tool_hook_blocks_the_call() {
    for (bad, cause) in [
        (Bad::Hangs, "no result within 5s"),
        (Bad::Panics, "it panicked"),
        (Bad::Fails, "the directory is away"),
    ] {
        let mut bench = Bench::with(1, pays_twice);
        let recorder = Recorder::new();
        bench.telemetry = recorder.telemetry();
        let mut worker = bench.worker(Arc::new(NoProbe));
        worker.extensions = vec![Arc::new(Checks(bad))];
        bench.ask(&worker).await;
        settle(&bench, &worker).await;
        let text = format!(
            "Tool execution was blocked: extension \"checks\" failed in before_tool_call: {cause}"
        );
        assert_eq!(texts(&bench).await, [text.clone(), text], "{bad:?}");
        assert!(bench.done.lock().unwrap().is_empty(), "no call ran");
        assert_eq!(*bench.model.answers.lock().unwrap(), 2, "each model response was paid once");
        assert_eq!(state_and_error(&bench).await.0, PromptState::Completed);
        let metrics = recorder.metrics();
        let failures = metrics.iter().find(|(name, _)| name.starts_with("turnwheel.hook.failures"));
        assert!(failures.is_some_and(|(_, count)| *count > 1.5), "{metrics:?}");
    }
}

#[tokio::test(start_paused = true)]
async fn lease_is_renewed_while_slow_hooks_run() {
    let mut bench = Bench::with(2, pays_twice);
    let client = bench.worker(Arc::new(NoProbe));
    bench.ask(&client).await;
    let mut worker = bench.worker(Arc::new(NoProbe));
    // Each hook meets its deadline; together they take longer than a lease lasts.
    let slow = || Arc::new(Checks(Bad::Takes(Duration::from_secs(25)))) as Arc<dyn Extension>;
    worker.extensions = vec![slow(), slow(), slow()];
    worker.limits.hook = Duration::from_secs(30);
    let other = bench.worker(Arc::new(NoProbe));
    let nudge = Bench::nudge();
    let (handled, others) = tokio::join!(handle(&worker, &nudge), async {
        tokio::time::sleep(Duration::from_secs(100)).await;
        handle(&other, &nudge).await.unwrap()
    });
    assert_eq!((handled.unwrap(), others), (Handled::Worked, Handled::Nothing));
    settle(&bench, &worker).await;
    assert_eq!(texts(&bench).await, ["pay done", "pay done"]);
    assert!(bench.done.lock().unwrap().values().eq([&1, &1]), "each was paid once");
    assert_eq!(*bench.model.answers.lock().unwrap(), 2, "each model response was paid once");
}

#[tokio::test(start_paused = true)]
async fn failing_context_hook_fails_the_model_call_unsent() {
    for (bad, cause, tries) in [
        (Bad::Hangs, "no result within 5s", 4),
        (Bad::Panics, "it panicked", 1),
        (Bad::Fails, "the directory is away", 4),
    ] {
        let mut bench = Bench::with(3, pays_twice);
        let mut worker = bench.worker(Arc::new(NoProbe));
        worker.extensions = vec![Arc::new(Transforms(bad))];
        bench.ask(&worker).await;
        settle(&bench, &worker).await;
        let text = format!(
            "The model was not called: extension \"transforms\" failed in transform_context: {cause}"
        );
        assert_eq!(state_and_error(&bench).await, (PromptState::Failed, Some(text)), "{bad:?}");
        assert_eq!(*bench.model.answers.lock().unwrap(), 0, "nothing was sent");
        let failures =
            bench.entries().await.iter().filter(|it| it.body.message().is_some()).count();
        assert_eq!(failures - 1, tries, "{bad:?}");
    }
}

#[tokio::test(start_paused = true)]
async fn failing_compaction_hook_leaves_the_summary_to_the_model() {
    for bad in [Bad::Hangs, Bad::Panics, Bad::Fails] {
        let (bench, mut world, model) = brimful(Windowed::of(super::compacting::WINDOW)).await;
        world.extensions = vec![Arc::new(Compacts(bad))];
        settle(&bench, &world).await;
        assert_eq!(model.summaries(), 1, "{bad:?}");
        let entries = bench.entries().await;
        assert_eq!(compactions(&entries).len(), 1);
        assert_eq!(compactions(&entries)[0].from_hook, None);
        assert_eq!(state_and_error(&bench).await, (PromptState::Completed, None));
    }
}

#[tokio::test(start_paused = true)]
async fn hooks_run_again_when_another_worker_takes_over() {
    let mut bench = Bench::with(4, pays_twice);
    let client = bench.worker(Arc::new(NoProbe));
    bench.ask(&client).await;
    let pause = Arc::new(PauseProbe::new("answer.before"));
    let mut doomed = bench.worker(pause.clone());
    doomed.extensions = vec![Arc::new(Checks(Bad::Panics))];
    let nudge = Bench::nudge();
    tokio::select! {
        handled = handle(&doomed, &nudge) => panic!("{handled:?}"),
        () = pause.reached.notified() => {}
    }
    tokio::time::sleep(Duration::from_secs(70)).await;
    let mut worker = bench.worker(Arc::new(NoProbe));
    worker.extensions = vec![Arc::new(Checks(Bad::Takes(Duration::from_secs(1))))];
    settle(&bench, &worker).await;
    bench.run().await;
    assert_eq!(texts(&bench).await, ["pay done", "pay done"], "the uncommitted block is void");
}
