//! Steers and follow-ups at every moment: between a response and its calls, during an approval, at
//! a crash, concurrently with edits, and a thousand at once.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use async_trait::async_trait;
use serde_json::Value;
use tokio::sync::Notify;

use super::bench::{Bench, PauseProbe, call, idempotency, owner, text};
use crate::agent::content::Content;
use crate::agent::entry::{EntryBody, PromptState, Source};
use crate::agent::message::Message;
use crate::agent::settings::{QueueMode, Settings};
use crate::ids::InputId;
use crate::turn::admission::prompt::{
    Accepted, FirstPromptRequest, Mode, PromptRequest, Sender, WhenBusy, accept_prompt,
    begin_conversation,
};
use crate::turn::admission::waiting::{InputChange, clear, edit};
use crate::turn::delivery::handle;
use crate::turn::views::inbox::{InputState, InputView, input};
use crate::turn::{NoProbe, Probe, World};

const SKIPPED: &str = "Skipped due to queued user message.";

/// Two calls in one response, until the user sends another text.
fn two_calls(results: usize, said: &str) -> Vec<Value> {
    if said == "go" && results == 0 {
        vec![call("c1", "look", 0), call("c2", "put", 0)]
    } else {
        vec![text(said)]
    }
}

fn gated_first(results: usize, said: &str) -> Vec<Value> {
    if said == "go" && results == 0 {
        vec![call("c1", "gated", 0), call("c2", "put", 0)]
    } else {
        vec![text(said)]
    }
}

async fn say(world: &World, mode: Mode, said: &str) -> InputId {
    let request = PromptRequest {
        input: Some(Content::Text(said.to_owned())),
        mode: Some(mode),
        ..PromptRequest::default()
    };
    let sender = Sender { source: Source::User, traceparent: None, when_busy: WhenBusy::Refuse };
    let answer = accept_prompt(world, &Bench::key(), request, &idempotency(said), &sender).await;
    answer.unwrap().body.unwrap().read::<Accepted>().unwrap().input_id
}

async fn seen(world: &World, id: &InputId) -> InputView {
    input(world, &Bench::key(), id.as_str()).await.unwrap().0
}

/// Texts of user messages and tool results, in order.
async fn heard(bench: &Bench) -> Vec<String> {
    let entries = bench.entries().await;
    let line = |message: &Message| match message {
        Message::User(user) => Some(user.content.joined_text()),
        Message::ToolResult(result) => Some(crate::agent::content::joined_text(&result.content)),
        _ => None,
    };
    entries.iter().filter_map(|entry| line(entry.body.message()?)).collect()
}

/// Pauses its worker at the first fail point, and kills it at the second.
#[derive(Debug)]
struct CutProbe {
    boundaries: [&'static str; 2],
    passed: AtomicUsize,
    reached: Notify,
    go: Notify,
}

impl CutProbe {
    fn new(boundaries: [&'static str; 2]) -> Arc<Self> {
        let (reached, go) = (Notify::new(), Notify::new());
        Arc::new(Self { boundaries, passed: AtomicUsize::new(0), reached, go })
    }
}

#[async_trait]
impl Probe for CutProbe {
    async fn reached(&self, boundary: &'static str) {
        let passed = self.passed.load(Ordering::SeqCst);
        if self.boundaries.get(passed) != Some(&boundary) {
            return;
        }
        self.passed.store(passed + 1, Ordering::SeqCst);
        self.reached.notify_one();
        if passed == 0 {
            self.go.notified().await;
        } else {
            std::future::pending::<()>().await;
        }
    }
}

/// Steers at the first fail point and kills the worker at the second. Returns false if the second
/// was not hit.
async fn cut(bench: &mut Bench, at: [&'static str; 2]) -> (bool, InputId) {
    let client = bench.worker(Arc::new(NoProbe));
    bench.ask(&client).await;
    let probe = CutProbe::new(at);
    let worker = bench.worker(probe.clone());
    let nudge = Bench::nudge();
    let mut handled = std::pin::pin!(handle(&worker, &nudge));
    tokio::select! {
        handled = &mut handled => panic!("{at:?}: {handled:?}"),
        () = probe.reached.notified() => {}
    }
    let steer = say(&client, Mode::Steer, "turn").await;
    probe.go.notify_one();
    tokio::select! {
        _ = &mut handled => (false, steer),
        () = probe.reached.notified() => (true, steer),
    }
}

#[tokio::test(start_paused = true)]
async fn a_crash_around_a_landing_loses_nothing_and_skips_nothing_twice() {
    const CUTS: [&str; 9] = [
        "answer.before",
        "answer.after",
        "tool.before",
        "tool.after",
        "result.before",
        "result.after",
        "release.before",
        "release.after",
        "nudge.after",
    ];
    let mut cuts = 0;
    for steered_at in ["model.before", "model.after", "tool.before", "tool.after"] {
        for cut_at in CUTS.into_iter().filter(|cut_at| *cut_at != steered_at) {
            let at = [steered_at, cut_at];
            let mut bench = Bench::with(1, two_calls);
            let (is_cut, steer) = cut(&mut bench, at).await;
            cuts += usize::from(is_cut);
            bench.run().await;
            let heard = heard(&bench).await;
            let before_calls = steered_at.starts_with("model");
            let (expected, skipped) = match (before_calls, cut_at) {
                // The response was not committed: the steer joins the first turn.
                (true, "answer.before") => (vec!["go", "turn"], 0),
                (true, _) => (vec!["go", SKIPPED, SKIPPED, "turn"], 2),
                (false, _) => (vec!["go", "look done", SKIPPED, "turn"], 1),
            };
            assert_eq!(heard, expected, "{at:?}: {:#?}", bench.story);
            let world = bench.worker(Arc::new(NoProbe));
            let receipt = seen(&world, &steer).await;
            assert_eq!(receipt.state, InputState::Landed, "{at:?}");
            assert_eq!(receipt.skipped_calls.len(), skipped, "{at:?}: {receipt:?}");
            let done = bench.done.lock().unwrap().len();
            assert_eq!(done, usize::from(!before_calls), "{at:?}: skipped calls never ran");
            let ends = bench.entries().await;
            let ends = ends.iter().filter(|entry| matches!(entry.body, EntryBody::PromptEnd(_)));
            assert_eq!(ends.count(), 1, "{at:?}");
        }
    }
    assert!(cuts >= 20, "only {cuts} workers were killed");
}

#[tokio::test(start_paused = true)]
async fn a_steer_waits_until_a_person_has_decided_and_what_is_approved_is_done() {
    for (decision, expected) in [
        ("approve", ["go", "gated done", SKIPPED, "turn"]),
        ("reject", ["go", "Rejected by user", SKIPPED, "turn"]),
    ] {
        let mut bench = Bench::with(2, gated_first);
        let world = bench.worker(Arc::new(NoProbe));
        bench.ask(&world).await;
        while bench.deliver().await {}
        let steer = say(&world, Mode::Steer, "turn").await;
        while bench.deliver().await {}
        assert_eq!(seen(&world, &steer).await.state, InputState::Queued);
        let head = bench.head().await.unwrap();
        assert_eq!((head.waiting, head.requests.len()), (1, 1));
        bench.decide_all(decision).await;
        bench.run().await;
        assert_eq!(heard(&bench).await, expected, "{:#?}", bench.story);
    }
}

/// Runs `change` between a worker's inbox read and its write.
async fn raced(at: &'static str, change: impl AsyncFn(&World, &InputId)) -> (Bench, InputView) {
    let mut bench = Bench::with(3, two_calls);
    let client = bench.worker(Arc::new(NoProbe));
    bench.ask(&client).await;
    // A held item has no due time: only the worker's own inbox read finds it.
    let probe = Arc::new(PauseProbe::new("model.after"));
    let pause = Arc::new(PauseProbe::new(at));
    let worker = bench.worker(Arc::new(Both(probe.clone(), pause.clone())));
    let nudge = Bench::nudge();
    let steer = {
        let mut handled = std::pin::pin!(handle(&worker, &nudge));
        tokio::select! {
            handled = &mut handled => panic!("{handled:?}"),
            () = probe.reached.notified() => {}
        }
        let steer = say(&client, Mode::Steer, "turn").await;
        probe.go.notify_one();
        tokio::select! {
            handled = &mut handled => panic!("{handled:?}"),
            () = pause.reached.notified() => {}
        }
        change(&client, &steer).await;
        pause.go.notify_one();
        handled.await.unwrap();
        steer
    };
    bench.run().await;
    let view = seen(&client, &steer).await;
    (bench, view)
}

#[derive(Debug)]
struct Both(Arc<PauseProbe>, Arc<PauseProbe>);

#[async_trait]
impl Probe for Both {
    async fn reached(&self, boundary: &'static str) {
        self.0.reached(boundary).await;
        self.1.reached(boundary).await;
    }
}

#[tokio::test(start_paused = true)]
async fn an_edit_that_comes_between_look_and_write_is_what_lands() {
    let change = async |world: &World, id: &InputId| {
        let input = Some(Content::Text("turn left".to_owned()));
        let change = InputChange { input, ..InputChange::default() };
        let passes = |_: &str| true;
        let key = Bench::key();
        edit(world, &key, id.as_str(), &change, (&idempotency("edit"), passes)).await.unwrap();
    };
    let (bench, view) = raced("answer.before", change).await;
    assert_eq!(heard(&bench).await, ["go", SKIPPED, SKIPPED, "turn left"]);
    assert_eq!((view.state, view.skipped_calls.len()), (InputState::Landed, 2));
    assert_eq!(*bench.model.answers.lock().unwrap(), 2, "no response is billed twice");
}

#[tokio::test(start_paused = true)]
async fn what_is_taken_back_between_look_and_write_skips_nothing() {
    let change = async |world: &World, id: &InputId| {
        clear(world, &Bench::key(), id.as_str()).await.unwrap();
    };
    let (bench, view) = raced("answer.before", change).await;
    assert_eq!(heard(&bench).await, ["go", "look done", "put done"]);
    assert_eq!(view.state, InputState::Cleared);
    assert_eq!(*bench.model.answers.lock().unwrap(), 2);
}

#[tokio::test(start_paused = true)]
async fn what_has_landed_is_no_longer_changed() {
    let change = async |world: &World, id: &InputId| {
        let refused = clear(world, &Bench::key(), id.as_str()).await.unwrap_err();
        let text = refused.to_string();
        assert!(text.contains("joined prompt pr_") && text.contains("in turn 2"), "{text}");
    };
    let (bench, view) = raced("answer.after", change).await;
    assert_eq!(heard(&bench).await, ["go", SKIPPED, SKIPPED, "turn"]);
    assert_eq!(view.state, InputState::Landed);
}

#[tokio::test(start_paused = true)]
async fn an_end_that_was_not_settled_is_settled_when_what_waited_is_taken_back() {
    let mut bench = Bench::with(4, gated_first);
    let world = bench.worker(Arc::new(NoProbe));
    bench.ask(&world).await;
    while bench.deliver().await {}
    let follow_up = say(&world, Mode::FollowUp, "later").await;
    while bench.deliver().await {}
    // The prompt fails. The follow-up would start by itself, but is cleared before a worker runs.
    *bench.model.refusal.lock().unwrap() = Some("told_to_fail");
    bench.decide_all("approve").await;
    let probe = Arc::new(PauseProbe::new("release.before"));
    let worker = bench.worker(probe.clone());
    let nudge = Bench::nudge();
    let fails = async {
        while bench.head().await.unwrap().prompt.is_some() {
            let _ = handle(&worker, &nudge).await;
            tokio::time::sleep(Duration::from_secs(30)).await;
        }
    };
    let let_go = async {
        probe.reached.notified().await;
        clear(&world, &Bench::key(), follow_up.as_str()).await.unwrap();
        probe.go.notify_one();
    };
    tokio::join!(fails, let_go);
    bench.run().await;
    let events = bench.events_of(&Bench::key()).await;
    let names: Vec<String> = events.iter().map(|event| event.body.name()).collect();
    assert_eq!(names.last().unwrap(), "agent_settled", "{names:?}");
    assert_eq!(names.iter().filter(|name| *name == "agent_settled").count(), 1);
}

/// A response that fills most of a commit.
fn long_winded(_results: usize, said: &str) -> Vec<Value> {
    if said == "go" { vec![text(&"x".repeat(1_300_000))] } else { vec![text("done")] }
}

#[tokio::test(start_paused = true)]
async fn what_finds_no_room_beside_a_long_answer_is_taken_in_later() {
    for mode in [Mode::Steer, Mode::FollowUp] {
        let mut bench = Bench::with(6, long_winded);
        let client = bench.worker(Arc::new(NoProbe));
        bench.ask(&client).await;
        let pause = Arc::new(PauseProbe::new("model.after"));
        let worker = bench.worker(pause.clone());
        let nudge = Bench::nudge();
        let said = "y".repeat(250_000);
        let says = async {
            pause.reached.notified().await;
            say(&client, mode, &said).await;
            pause.go.notify_one();
        };
        let (handled, ()) = tokio::join!(handle(&worker, &nudge), says);
        handled.unwrap();
        bench.run().await;
        assert_eq!(heard(&bench).await, ["go", said.as_str()], "{mode:?}");
        assert_eq!(bench.head().await.unwrap().prompts.len(), 2, "the first prompt ends with its response");
    }
}

#[tokio::test(start_paused = true)]
async fn a_thousand_steers_land_in_few_commits_each_once() {
    const STEERS: usize = 1_000;
    let mut bench = Bench::with(5, gated_first);
    let world = bench.worker(Arc::new(NoProbe));
    let settings = Settings { steering_mode: Some(QueueMode::All), ..Settings::default() };
    let request = FirstPromptRequest {
        conversation_id: Some("c".to_owned()),
        settings: Some(settings),
        input: Some(Content::Text("go".to_owned())),
        ..FirstPromptRequest::default()
    };
    let sender = Sender { source: Source::User, traceparent: None, when_busy: WhenBusy::Refuse };
    begin_conversation(&world, &owner(), request, &idempotency("go"), &sender).await.unwrap();
    while bench.deliver().await {}
    for number in 0..STEERS {
        say(&world, Mode::Steer, &format!("steer {number:04}")).await;
        tokio::time::sleep(Duration::from_millis(1)).await;
    }
    let before = bench.store.commits();
    bench.run().await;
    let commits = bench.store.commits() - before;
    let heard = heard(&bench).await;
    let steers: Vec<&String> = heard.iter().filter(|line| line.starts_with("steer")).collect();
    assert_eq!(steers.len(), STEERS);
    assert!(steers.is_sorted(), "steers are applied in the order of acceptance");
    let head = bench.head().await.unwrap();
    assert_eq!((head.prompts.len(), head.prompts[0].state), (1, PromptState::Completed));
    // Each commit applies about sixty steers.
    assert!(commits < 60, "{commits} commits");
    let answers = *bench.model.answers.lock().unwrap();
    assert!(answers < 30, "{answers} responses");
}
