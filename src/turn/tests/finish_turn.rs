//! The hook `finish_turn`: descriptions, decisions, misbehaviour, crashes and conflicts.

use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use async_trait::async_trait;
use futures_util::future::BoxFuture;
use serde_json::{Value, json};

use super::bench::{Bench, PauseProbe, call, idempotency, text};
use super::compacting::settle;
use super::together::texts;
use crate::agent::content::{Content, joined_text};
use crate::agent::entry::{PromptState, PromptStop};
use crate::agent::settings::Continuation;
use crate::extensions::{ClosingTurn, Extension, FinishTurn, HookError};
use crate::ids::InputId;
use crate::telemetry::testing::Recorder;
use crate::turn::admission::patch::patch_conversation;
use crate::turn::admission::prompt::Accepted;
use crate::turn::admission::waiting::{InputChange, edit};
use crate::turn::delivery::{Handled, handle};
use crate::turn::{NoProbe, World, recount};

pub(super) type Decide = fn(&ClosingTurn<'_>) -> Option<FinishTurn>;

/// Decides by the turn alone, so that every worker decides alike.
#[derive(Debug)]
pub(super) struct Decides {
    pub(super) decide: Decide,
    /// The turns on which it was called: the response, the results and the rounds.
    turns: Mutex<Vec<(String, Vec<String>, u32)>>,
}

impl Decides {
    pub(super) fn new(decide: Decide) -> Arc<Self> {
        Arc::new(Self { decide, turns: Mutex::default() })
    }

    fn calls(&self) -> usize {
        self.turns.lock().unwrap().len()
    }
}

#[async_trait]
impl Extension for Decides {
    fn name(&self) -> &'static str {
        "decides"
    }

    async fn finish_turn(&self, turn: &ClosingTurn<'_>) -> Result<Option<FinishTurn>, HookError> {
        let results = turn.tool_results.iter().map(|result| joined_text(&result.content));
        let id = &turn.conversation.conversation_id;
        let response = format!("{id}: {}", joined_text(&turn.response.content));
        let seen = (response, results.collect(), turn.rounds);
        self.turns.lock().unwrap().push(seen);
        Ok((self.decide)(turn))
    }
}

type Outcome = BoxFuture<'static, Result<Option<FinishTurn>, HookError>>;

/// Runs an asynchronous closure that decides.
struct Waits<F>(F);

impl<F> std::fmt::Debug for Waits<F> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Waits")
    }
}

#[async_trait]
impl<F: Fn() -> Outcome + Send + Sync> Extension for Waits<F> {
    fn name(&self) -> &'static str {
        "waits"
    }

    async fn finish_turn(&self, _turn: &ClosingTurn<'_>) -> Result<Option<FinishTurn>, HookError> {
        (self.0)().await
    }
}

/// A round of two calls, then texts.
fn looks_then_speaks(results: usize, _said: &str) -> Vec<Value> {
    match results {
        0 => vec![text("first"), call("c1", "look", 0), call("c2", "put", 0)],
        _ => vec![text("done")],
    }
}

fn asks_then_speaks(results: usize, _said: &str) -> Vec<Value> {
    if results == 0 { vec![call("c1", "gated", 0)] } else { vec![text("done")] }
}

fn speaks(_results: usize, said: &str) -> Vec<Value> {
    vec![text(said)]
}

fn ends_after_tools(turn: &ClosingTurn<'_>) -> Option<FinishTurn> {
    (!turn.tool_results.is_empty()).then_some(FinishTurn::End)
}

fn continues_once(turn: &ClosingTurn<'_>) -> Option<FinishTurn> {
    (turn.rounds == 1).then_some(FinishTurn::Continue)
}

/// Returns an environment with an accepted prompt, and a worker with the extensions.
async fn stage(
    script: super::bench::Script,
    extensions: Vec<Arc<dyn Extension>>,
) -> (Bench, World) {
    let mut bench = Bench::with(1, script);
    bench.extensions = extensions;
    let world = bench.worker(Arc::new(NoProbe));
    bench.ask(&world).await;
    (bench, world)
}

async fn ends(bench: &Bench) -> Vec<(PromptState, Option<PromptStop>)> {
    let head = bench.head().await.unwrap();
    head.prompts.iter().map(|span| (span.state, span.stop_reason)).collect()
}

const COMPLETED: (PromptState, Option<PromptStop>) =
    (PromptState::Completed, Some(PromptStop::End));

#[tokio::test(start_paused = true)]
async fn hook_receives_response_results_and_rounds() {
    for (at_once, continuation) in [(1, Continuation::Queue), (2, Continuation::Inline)] {
        let hook = Decides::new(|_| None);
        let mut bench = Bench::with(1, looks_then_speaks);
        bench.run_calls_at_once(at_once);
        bench.settings.continuation = Some(continuation);
        bench.extensions = vec![hook.clone()];
        let world = bench.worker(Arc::new(NoProbe));
        bench.ask(&world).await;
        settle(&bench, &world).await;
        let results = vec!["look done".to_owned(), "put done".to_owned()];
        let turns = [("c: first".to_owned(), results, 1), ("c: done".to_owned(), Vec::new(), 2)];
        assert_eq!(*hook.turns.lock().unwrap(), turns);
        assert_eq!(ends(&bench).await, [COMPLETED]);
    }
}

#[tokio::test(start_paused = true)]
async fn end_saves_the_model_call_after_tools() {
    for (at_once, continuation) in [(1, Continuation::Queue), (2, Continuation::Inline)] {
        let mut bench = Bench::with(1, looks_then_speaks);
        bench.run_calls_at_once(at_once);
        bench.settings.continuation = Some(continuation);
        bench.extensions = vec![Decides::new(ends_after_tools)];
        let world = bench.worker(Arc::new(NoProbe));
        bench.ask(&world).await;
        settle(&bench, &world).await;
        assert_eq!(*bench.model.answers.lock().unwrap(), 1);
        assert_eq!(texts(&bench).await, ["look done", "put done"]);
        assert_eq!(ends(&bench).await, [COMPLETED]);
    }
}

#[tokio::test(start_paused = true)]
async fn continue_requests_one_more_response() {
    for continuation in [Continuation::Queue, Continuation::Inline] {
        let mut bench = Bench::with(1, speaks);
        bench.settings.continuation = Some(continuation);
        bench.extensions = vec![Decides::new(continues_once)];
        let world = bench.worker(Arc::new(NoProbe));
        bench.ask(&world).await;
        settle(&bench, &world).await;
        assert_eq!(*bench.model.answers.lock().unwrap(), 2);
        assert_eq!(ends(&bench).await, [COMPLETED]);
    }
}

#[tokio::test(start_paused = true)]
async fn first_decision_wins() {
    let (none, end, never) = (
        Decides::new(|_| None),
        Decides::new(|_| Some(FinishTurn::End)),
        Decides::new(|_| Some(FinishTurn::Continue)),
    );
    let (bench, world) = stage(speaks, vec![none.clone(), end.clone(), never.clone()]).await;
    settle(&bench, &world).await;
    assert_eq!([none.calls(), end.calls(), never.calls()], [1, 1, 0]);
    assert_eq!(*bench.model.answers.lock().unwrap(), 1);
}

#[tokio::test(start_paused = true)]
async fn rejected_call_closes_the_turn_with_a_decision() {
    let hook = Decides::new(ends_after_tools);
    let (mut bench, world) = stage(asks_then_speaks, vec![hook.clone()]).await;
    while bench.deliver().await {}
    assert_eq!(hook.calls(), 0, "the call has no result yet");
    bench.decide_all("reject").await;
    settle(&bench, &world).await;
    assert_eq!((hook.calls(), *bench.model.answers.lock().unwrap()), (1, 1));
    assert_eq!(ends(&bench).await, [COMPLETED]);
}

#[tokio::test(start_paused = true)]
async fn failing_hook_changes_nothing() {
    let bad: [fn() -> Outcome; 3] = [
        || Box::pin(std::future::pending()),
        || panic!("a secret of the conversation"),
        || Box::pin(async { Err(HookError::new("the directory is away")) }),
    ];
    for (number, bad) in bad.into_iter().enumerate() {
        let mut bench = Bench::with(1, looks_then_speaks);
        let recorder = Recorder::new();
        bench.telemetry = recorder.telemetry();
        bench.extensions = vec![Arc::new(Waits(bad))];
        let world = bench.worker(Arc::new(NoProbe));
        bench.ask(&world).await;
        settle(&bench, &world).await;
        assert_eq!(*bench.model.answers.lock().unwrap(), 2, "case {number}");
        assert_eq!(ends(&bench).await, [COMPLETED]);
        let metrics = recorder.metrics();
        let failures = metrics.iter().find(|(name, _)| name.starts_with("turnwheel.hook.failures"));
        assert!(failures.is_some_and(|(_, count)| *count > 1.5), "{metrics:?}");
    }
}

#[tokio::test(start_paused = true)]
async fn lease_is_renewed_while_slow_hooks_decide() {
    let slow = |decision| {
        let wait = move || -> Outcome {
            Box::pin(async move {
                tokio::time::sleep(Duration::from_secs(25)).await;
                Ok(decision)
            })
        };
        Arc::new(Waits(wait)) as Arc<dyn Extension>
    };
    let end = Some(FinishTurn::End);
    let (mut bench, mut world) =
        stage(looks_then_speaks, vec![slow(None), slow(None), slow(None), slow(end)]).await;
    world.limits.hook = Duration::from_secs(30);
    let other = bench.worker(Arc::new(NoProbe));
    let nudge = Bench::nudge();
    let (handled, others) = tokio::join!(handle(&world, &nudge), async {
        tokio::time::sleep(Duration::from_secs(90)).await;
        handle(&other, &nudge).await.unwrap()
    });
    assert_eq!((handled.unwrap(), others), (Handled::Worked, Handled::Nothing));
    settle(&bench, &world).await;
    assert_eq!(texts(&bench).await, ["look done", "put done"]);
    assert_eq!(*bench.model.answers.lock().unwrap(), 1);
    assert!(bench.done.lock().unwrap().values().all(|times| *times == 1), "each ran once");
}

#[tokio::test(start_paused = true)]
async fn committed_response_is_not_billed_again_after_a_crash() {
    // A response that was not committed is lost with its worker, even if an extension had decided.
    for (boundary, expected) in [("answer.before", 3), ("answer.after", 2), ("release.before", 2)] {
        let hook = Decides::new(continues_once);
        let (mut bench, _) = stage(speaks, vec![hook.clone()]).await;
        let pause = Arc::new(PauseProbe::new(boundary));
        let doomed = bench.worker(pause.clone());
        let nudge = Bench::nudge();
        tokio::select! {
            handled = handle(&doomed, &nudge) => panic!("{handled:?}"),
            () = pause.reached.notified() => {}
        }
        tokio::time::sleep(Duration::from_secs(70)).await;
        bench.run().await;
        assert_eq!(*bench.model.answers.lock().unwrap(), expected, "{boundary}");
        assert_eq!(ends(&bench).await, [COMPLETED]);
    }
}

#[tokio::test(start_paused = true)]
async fn decision_survives_a_conflicting_patch() {
    let mut bench = Bench::with(1, speaks);
    let client = bench.worker(Arc::new(NoProbe));
    let calls = Arc::new(AtomicU32::new(0));
    let (counted, patching) = (Arc::clone(&calls), client.clone());
    let patches = move || -> Outcome {
        let (number, client) = (counted.fetch_add(1, Ordering::SeqCst), patching.clone());
        Box::pin(async move {
            let patch = json!({"name": format!("name {number}")});
            let key = idempotency(&format!("patch {number}"));
            let patch = patch.as_object().unwrap();
            patch_conversation(&client, &Bench::key(), patch, &key, |_| true).await.unwrap();
            Ok(Some(FinishTurn::Continue))
        })
    };
    bench.settings.max_rounds = Some(3);
    bench.extensions = vec![Arc::new(Waits(patches))];
    let world = bench.worker(Arc::new(NoProbe));
    bench.ask(&world).await;
    settle(&bench, &world).await;
    assert_eq!((calls.load(Ordering::SeqCst), *bench.model.answers.lock().unwrap()), (3, 3));
    assert_eq!(ends(&bench).await, [(PromptState::Completed, Some(PromptStop::MaxRounds))]);
    assert_eq!(bench.head().await.unwrap().name.as_deref(), Some("name 2"));
}

#[tokio::test(start_paused = true)]
async fn hook_runs_again_when_a_queued_input_changes() {
    let mut bench = Bench::with(1, speaks);
    let client = bench.worker(Arc::new(NoProbe));
    let calls = Arc::new(AtomicU32::new(0));
    let queued: Arc<Mutex<Option<InputId>>> = Arc::default();
    let (counted, editing, edited) = (Arc::clone(&calls), client.clone(), Arc::clone(&queued));
    let edits = move || -> Outcome {
        let is_first = counted.fetch_add(1, Ordering::SeqCst) == 0;
        let (client, id) = (editing.clone(), edited.lock().unwrap().clone().unwrap());
        Box::pin(async move {
            if is_first {
                let input = Some(Content::Text("turn left".to_owned()));
                let change = InputChange { input, ..InputChange::default() };
                let passes = |_: &str| true;
                let key = Bench::key();
                let once = (&idempotency("edit"), passes);
                edit(&client, &key, id.as_str(), &change, once).await.unwrap();
            }
            Ok(Some(if is_first { FinishTurn::Continue } else { FinishTurn::End }))
        })
    };
    bench.extensions = vec![Arc::new(Waits(edits))];
    bench.ask(&client).await;
    let pause = Arc::new(PauseProbe::new("model.after"));
    let world = bench.worker(pause.clone());
    let nudge = Bench::nudge();
    let (handled, ()) = tokio::join!(handle(&world, &nudge), async {
        pause.reached.notified().await;
        let accepted = bench.queue_up(&client, &Bench::key(), "turn right").await.unwrap();
        let accepted: Accepted = accepted.body.unwrap().read().unwrap();
        *queued.lock().unwrap() = Some(accepted.input_id);
        pause.go.notify_one();
    });
    handled.unwrap();
    assert_eq!(
        calls.load(Ordering::SeqCst),
        2,
        "the first plan had read the input before its edit"
    );
    assert_eq!(*bench.model.answers.lock().unwrap(), 1, "the response was billed once");
    settle(&bench, &world).await;
    assert_eq!(ends(&bench).await, [COMPLETED, COMPLETED]);
    let entries = bench.entries().await;
    let said = entries.iter().filter_map(|entry| {
        entry.body.message()?.as_assistant().map(|response| joined_text(&response.content))
    });
    assert_eq!(said.collect::<Vec<_>>(), ["go", "turn left"]);
}

fn mails(results: usize, _said: &str) -> Vec<Value> {
    if results == 0 { vec![call("c1", "mail", 0)] } else { vec![text("done")] }
}

#[tokio::test(start_paused = true)]
async fn start_up_leaves_the_decision_to_the_next_delivery() {
    let hook = Decides::new(ends_after_tools);
    let (mut bench, _) = stage(mails, vec![hook.clone()]).await;
    let pause = Arc::new(PauseProbe::new("tool.after"));
    let doomed = bench.worker(pause.clone());
    let nudge = Bench::nudge();
    tokio::select! {
        handled = handle(&doomed, &nudge) => panic!("{handled:?}"),
        () = pause.reached.notified() => {}
    }
    tokio::time::sleep(Duration::from_secs(70)).await;
    let world = bench.worker(Arc::new(NoProbe));
    recount::start_up(&world).await.unwrap();
    assert_eq!(hook.calls(), 0, "a start-up runs no hook");
    bench.run().await;
    assert_eq!((hook.calls(), *bench.model.answers.lock().unwrap()), (1, 1));
    assert!(
        texts(&bench).await[0].contains("unknown"),
        "the model reads that the outcome is unknown"
    );
    assert_eq!(ends(&bench).await, [COMPLETED]);
    assert!(bench.done.lock().unwrap().values().eq([&1]), "the mail was sent once");
}
