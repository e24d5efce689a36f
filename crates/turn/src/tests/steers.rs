//! Steers and follow-ups at every moment: between a response and its calls, during an approval, at
//! a crash, concurrently with edits, and a thousand at once.

mod lost_writes;

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use async_trait::async_trait;
use serde_json::Value;
use tokio::sync::Notify;

use super::test_env::{PauseFailPoint, TestEnv, call, idempotency, owner, rejecting_sender, text};
use crate::delivery::handle;
use turnwheel_commands::inbox_clear::clear_input;
use turnwheel_commands::inbox_edit::{InputChange, InputEdit, edit_input};
use turnwheel_commands::prompt::{
    FirstPromptRequest, Mode, PromptAccepted, PromptRequest, accept_prompt, begin_conversation,
};
use turnwheel_conversation::content::Content;
use turnwheel_conversation::entry::{EntryBody, PromptState};
use turnwheel_conversation::inbox::WhenIdle;
use turnwheel_conversation::message::Message;
use turnwheel_conversation::settings::{QueueMode, Settings};
use turnwheel_platform::fail_points::{FailPoints, NoFailPoints};
use turnwheel_platform::ids::InputId;
use turnwheel_queries::inbox::{InputState, InputView, read_input};
use turnwheel_record::contract::INBOX_ITEMS_MAX;
use turnwheel_record::services::Services;

const SKIPPED: &str = "Skipped due to queued user message.";

/// Two calls in one response, until the user sends another text.
fn two_calls(results: usize, input: &str) -> Vec<Value> {
    if input == "go" && results == 0 {
        vec![call("c1", "look", 0), call("c2", "put", 0)]
    } else {
        vec![text(input)]
    }
}

fn calls_gated_first(results: usize, input: &str) -> Vec<Value> {
    if input == "go" && results == 0 {
        vec![call("c1", "gated", 0), call("c2", "put", 0)]
    } else {
        vec![text(input)]
    }
}

async fn send_input(services: &Services, mode: Mode, input: &str) -> InputId {
    send_input_when(services, mode, input, WhenIdle::Start).await
}

async fn send_input_when(
    services: &Services,
    mode: Mode,
    input: &str,
    when_idle: WhenIdle,
) -> InputId {
    let request = PromptRequest {
        input: Some(Content::Text(input.to_owned())),
        mode: Some(mode),
        when_idle: Some(when_idle),
        ..PromptRequest::default()
    };
    let answer =
        accept_prompt(services, &TestEnv::key(), request, &idempotency(input), &rejecting_sender())
            .await;
    answer.unwrap().body.unwrap().read::<PromptAccepted>().unwrap().input_id
}

async fn input_view(services: &Services, id: &InputId) -> InputView {
    read_input(services, &TestEnv::key(), id.as_str()).await.unwrap().0
}

/// Texts of user messages and tool results, in order.
async fn user_and_result_texts(env: &TestEnv) -> Vec<String> {
    let entries = env.entries().await;
    let line = |message: &Message| match message {
        Message::User(user) => Some(user.content.joined_text()),
        Message::ToolResult(result) => {
            Some(turnwheel_conversation::content::joined_text(&result.content))
        }
        _ => None,
    };
    entries.iter().filter_map(|entry| line(entry.body.message()?)).collect()
}

/// Pauses its worker at the first fail point, and kills it at the second.
#[derive(Debug)]
struct PauseThenKill {
    fail_points: [&'static str; 2],
    hit_count: AtomicUsize,
    reached: Notify,
    resume: Notify,
}

impl PauseThenKill {
    fn new(fail_points: [&'static str; 2]) -> Arc<Self> {
        let (reached, resume) = (Notify::new(), Notify::new());
        Arc::new(Self { fail_points, hit_count: AtomicUsize::new(0), reached, resume })
    }
}

#[async_trait]
impl FailPoints for PauseThenKill {
    async fn hit(&self, fail_point: &'static str) {
        let passed = self.hit_count.load(Ordering::SeqCst);
        if self.fail_points.get(passed) != Some(&fail_point) {
            return;
        }
        self.hit_count.store(passed + 1, Ordering::SeqCst);
        self.reached.notify_one();
        if passed == 0 {
            self.resume.notified().await;
        } else {
            std::future::pending::<()>().await;
        }
    }
}

/// Steers at the first fail point and kills the worker at the second. Returns false if the second
/// was not hit.
async fn steer_then_kill(env: &mut TestEnv, at: [&'static str; 2]) -> (bool, InputId) {
    let client = env.new_worker(Arc::new(NoFailPoints));
    env.send_prompt(&client).await;
    let fail_points = PauseThenKill::new(at);
    let worker = env.new_worker(fail_points.clone());
    let nudge = TestEnv::nudge();
    let mut handled = std::pin::pin!(handle(&worker, &nudge));
    tokio::select! {
        handled = &mut handled => panic!("{at:?}: {handled:?}"),
        () = fail_points.reached.notified() => {}
    }
    let steer = send_input(&client, Mode::Steer, "turn").await;
    fail_points.resume.notify_one();
    tokio::select! {
        _ = &mut handled => (false, steer),
        () = fail_points.reached.notified() => (true, steer),
    }
}

#[tokio::test(start_paused = true)]
async fn crash_around_steer_application_loses_and_duplicates_nothing() {
    const CUTS: [&str; 9] = [
        "response.before",
        "response.after",
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
            let mut env = TestEnv::with_script(1, two_calls);
            let (is_cut, steer) = steer_then_kill(&mut env, at).await;
            cuts += usize::from(is_cut);
            env.run_until_idle().await;
            let texts = user_and_result_texts(&env).await;
            let before_calls = steered_at.starts_with("model");
            let (expected, skipped) = match (before_calls, cut_at) {
                // The response was not committed: the steer joins the first turn.
                (true, "response.before") => (vec!["go", "turn"], 0),
                (true, _) => (vec!["go", SKIPPED, SKIPPED, "turn"], 2),
                (false, _) => (vec!["go", "look done", SKIPPED, "turn"], 1),
            };
            assert_eq!(texts, expected, "{at:?}: {:#?}", env.run_log);
            let services = env.new_worker(Arc::new(NoFailPoints));
            let receipt = input_view(&services, &steer).await;
            assert_eq!(receipt.state, InputState::Applied, "{at:?}");
            assert_eq!(receipt.skipped_calls.len(), skipped, "{at:?}: {receipt:?}");
            let done = env.executions.lock().unwrap().len();
            assert_eq!(done, usize::from(!before_calls), "{at:?}: skipped calls never ran");
            let ends = env.entries().await;
            let ends = ends.iter().filter(|entry| matches!(entry.body, EntryBody::PromptEnd(_)));
            assert_eq!(ends.count(), 1, "{at:?}");
        }
    }
    assert!(cuts >= 20, "only {cuts} workers were killed");
}

#[tokio::test(start_paused = true)]
async fn steer_waits_for_approval_and_approved_call_runs() {
    for (decision, expected) in [
        ("approve", ["go", "gated done", SKIPPED, "turn"]),
        ("reject", ["go", "Rejected by user", SKIPPED, "turn"]),
    ] {
        let mut env = TestEnv::with_script(2, calls_gated_first);
        let services = env.new_worker(Arc::new(NoFailPoints));
        env.send_prompt(&services).await;
        while env.deliver().await {}
        let steer = send_input(&services, Mode::Steer, "turn").await;
        while env.deliver().await {}
        assert_eq!(input_view(&services, &steer).await.state, InputState::Queued);
        let head = env.head().await.unwrap();
        assert_eq!((head.waiting_items, head.requests.len()), (1, 1));
        env.decide_all(decision).await;
        env.run_until_idle().await;
        assert_eq!(user_and_result_texts(&env).await, expected, "{:#?}", env.run_log);
    }
}

/// Runs `change` between a worker's inbox read and its write.
async fn race_with_change(
    at: &'static str,
    change: impl AsyncFn(&Services, &InputId),
) -> (TestEnv, InputView) {
    let mut env = TestEnv::with_script(3, two_calls);
    let client = env.new_worker(Arc::new(NoFailPoints));
    env.send_prompt(&client).await;
    // A held item has no due time: only the worker's own inbox read finds it.
    let model_pause = Arc::new(PauseFailPoint::new("model.after"));
    let pause_at = Arc::new(PauseFailPoint::new(at));
    let worker = env.new_worker(Arc::new(BothFailPoints(model_pause.clone(), pause_at.clone())));
    let nudge = TestEnv::nudge();
    let steer = {
        let mut handled = std::pin::pin!(handle(&worker, &nudge));
        tokio::select! {
            handled = &mut handled => panic!("{handled:?}"),
            () = model_pause.reached.notified() => {}
        }
        let steer = send_input(&client, Mode::Steer, "turn").await;
        model_pause.resume.notify_one();
        tokio::select! {
            handled = &mut handled => panic!("{handled:?}"),
            () = pause_at.reached.notified() => {}
        }
        change(&client, &steer).await;
        pause_at.resume.notify_one();
        handled.await.unwrap();
        steer
    };
    env.run_until_idle().await;
    let view = input_view(&client, &steer).await;
    (env, view)
}

#[derive(Debug)]
struct BothFailPoints(Arc<PauseFailPoint>, Arc<PauseFailPoint>);

#[async_trait]
impl FailPoints for BothFailPoints {
    async fn hit(&self, fail_point: &'static str) {
        self.0.hit(fail_point).await;
        self.1.hit(fail_point).await;
    }
}

#[tokio::test(start_paused = true)]
async fn edit_between_read_and_commit_is_applied() {
    let change = async |services: &Services, id: &InputId| {
        let input = Some(Content::Text("turn left".to_owned()));
        let change = InputChange { input, ..InputChange::default() };
        let passes = |_: &str| true;
        let key = TestEnv::key();
        let edit = InputEdit { id: id.as_str(), change: &change };
        edit_input(services, &key, edit, &idempotency("edit"), passes).await.unwrap();
    };
    let (env, view) = race_with_change("response.before", change).await;
    assert_eq!(user_and_result_texts(&env).await, ["go", SKIPPED, SKIPPED, "turn left"]);
    assert_eq!((view.state, view.skipped_calls.len()), (InputState::Applied, 2));
    assert_eq!(*env.model.calls.lock().unwrap(), 2, "no response is billed twice");
}

#[tokio::test(start_paused = true)]
async fn steer_cleared_between_read_and_commit_skips_nothing() {
    let change = async |services: &Services, id: &InputId| {
        clear_input(services, &TestEnv::key(), id.as_str()).await.unwrap();
    };
    let (env, view) = race_with_change("response.before", change).await;
    assert_eq!(user_and_result_texts(&env).await, ["go", "look done", "put done"]);
    assert_eq!(view.state, InputState::Cleared);
    assert_eq!(*env.model.calls.lock().unwrap(), 2);
}

#[tokio::test(start_paused = true)]
async fn applied_input_can_no_longer_be_changed() {
    let change = async |services: &Services, id: &InputId| {
        let refused = clear_input(services, &TestEnv::key(), id.as_str()).await.unwrap_err();
        let text = refused.to_string();
        assert!(text.contains("joined prompt pr_") && text.contains("in turn 2"), "{text}");
    };
    let (env, view) = race_with_change("response.after", change).await;
    assert_eq!(user_and_result_texts(&env).await, ["go", SKIPPED, SKIPPED, "turn"]);
    assert_eq!(view.state, InputState::Applied);
}

#[tokio::test(start_paused = true)]
async fn cleared_follow_up_emits_agent_settled_once() {
    let mut env = TestEnv::with_script(4, calls_gated_first);
    let services = env.new_worker(Arc::new(NoFailPoints));
    env.send_prompt(&services).await;
    while env.deliver().await {}
    let follow_up = send_input(&services, Mode::FollowUp, "later").await;
    while env.deliver().await {}
    // The prompt fails. The follow-up would start by itself, but is cleared before a worker runs.
    *env.model.next_error.lock().unwrap() = Some("told_to_fail");
    env.decide_all("approve").await;
    let pause = Arc::new(PauseFailPoint::new("release.before"));
    let worker = env.new_worker(pause.clone());
    let nudge = TestEnv::nudge();
    let fails = async {
        while env.head().await.unwrap().prompt.is_some() {
            let _ = handle(&worker, &nudge).await;
            tokio::time::sleep(Duration::from_secs(30)).await;
        }
    };
    let clears = async {
        pause.reached.notified().await;
        clear_input(&services, &TestEnv::key(), follow_up.as_str()).await.unwrap();
        pause.resume.notify_one();
    };
    tokio::join!(fails, clears);
    env.run_until_idle().await;
    let events = env.events_of(&TestEnv::key()).await;
    let names: Vec<String> = events.iter().map(|event| event.body.name()).collect();
    assert_eq!(names.last().unwrap(), "agent_settled", "{names:?}");
    assert_eq!(names.iter().filter(|name| *name == "agent_settled").count(), 1);
}

/// A response that fills most of a commit.
fn replies_long(_results: usize, input: &str) -> Vec<Value> {
    if input == "go" { vec![text(&"x".repeat(1_300_000))] } else { vec![text("done")] }
}

#[tokio::test(start_paused = true)]
async fn input_beside_large_response_is_applied_later() {
    for mode in [Mode::Steer, Mode::FollowUp] {
        let mut env = TestEnv::with_script(6, replies_long);
        let client = env.new_worker(Arc::new(NoFailPoints));
        env.send_prompt(&client).await;
        let pause = Arc::new(PauseFailPoint::new("model.after"));
        let worker = env.new_worker(pause.clone());
        let nudge = TestEnv::nudge();
        let input = "y".repeat(250_000);
        let says = async {
            pause.reached.notified().await;
            send_input(&client, mode, &input).await;
            pause.resume.notify_one();
        };
        let (handled, ()) = tokio::join!(handle(&worker, &nudge), says);
        handled.unwrap();
        env.run_until_idle().await;
        assert_eq!(user_and_result_texts(&env).await, ["go", input.as_str()], "{mode:?}");
        assert_eq!(
            env.head().await.unwrap().prompts.len(),
            2,
            "the first prompt ends with its response"
        );
    }
}

#[tokio::test(start_paused = true)]
async fn many_steers_are_applied_once_in_few_commits() {
    const STEERS: usize = INBOX_ITEMS_MAX as usize;
    let mut env = TestEnv::with_script(5, calls_gated_first);
    let services = env.new_worker(Arc::new(NoFailPoints));
    let settings = Settings { steering_mode: Some(QueueMode::All), ..Settings::default() };
    let request = FirstPromptRequest {
        conversation_id: Some("c".to_owned()),
        settings: Some(settings),
        input: Some(Content::Text("go".to_owned())),
        ..FirstPromptRequest::default()
    };
    begin_conversation(&services, &owner(), request, &idempotency("go"), &rejecting_sender())
        .await
        .unwrap();
    while env.deliver().await {}
    for number in 0..STEERS {
        send_input(&services, Mode::Steer, &format!("steer {number:04}")).await;
        tokio::time::sleep(Duration::from_millis(1)).await;
    }
    let before = env.store.commit_count();
    env.run_until_idle().await;
    let commits = env.store.commit_count() - before;
    let texts = user_and_result_texts(&env).await;
    let steers: Vec<&String> = texts.iter().filter(|line| line.starts_with("steer")).collect();
    assert_eq!(steers.len(), STEERS);
    assert!(steers.is_sorted(), "steers are applied in the order of acceptance");
    let head = env.head().await.unwrap();
    assert_eq!((head.prompts.len(), head.prompts[0].state), (1, PromptState::Completed));
    assert!(commits < 12, "{commits} commits");
    let model_calls = *env.model.calls.lock().unwrap();
    assert!(model_calls < 6, "{model_calls} responses");
}
