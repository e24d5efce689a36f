//! Bounds (invariant 11): too large or too slow output ends in a clear error, and no prompt gets
//! stuck.

use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use serde_json::{Value, json};

use super::command_questions;
use super::test_env::{TestEnv, call, idempotency, text};
use crate::commit::CommitKind;
use crate::inbox::inbox_input;
use crate::leased_conversation::acquire_lease;
use turnwheel_commands::compact::{CompactRequest, compact};
use turnwheel_commands::prompt::{PromptRequest, Sender, WhenBusy, accept_prompt};
use turnwheel_conversation::content::joined_text;
use turnwheel_conversation::entry::{PromptState, Source};
use turnwheel_conversation::event::EventKind;
use turnwheel_conversation::head::HEAD_BYTES_MAX;
use turnwheel_conversation::message::Message;
use turnwheel_conversation::step::{CALLS_MAX, Input};
use turnwheel_extensions::{
    CommandCall, CommandOutcome, CommandSpec, Extension, HookContext, HookError,
};
use turnwheel_platform::fail_points::NoFailPoints;
use turnwheel_platform::ids::InputId;
use turnwheel_queries as queries;
use turnwheel_queries::inbox::InputState;
use turnwheel_record::contract::{CommandError, INBOX_ITEMS_MAX};
use turnwheel_record::documents;
use turnwheel_record::idempotency::CLIENT_KEY_PREFIX;
use turnwheel_record::services::{Limits, Services};
use turnwheel_storage::store::{ConversationStore as _, Freshness, HEAD_ID, Partition, Write};

async fn result_texts(env: &TestEnv) -> Vec<String> {
    let entries = env.entries().await;
    let texts = entries.iter().filter_map(|entry| match entry.body.message() {
        Some(Message::ToolResult(result)) => Some(joined_text(&result.content)),
        _ => None,
    });
    texts.collect()
}

async fn run_prompt(script: super::test_env::Script) -> TestEnv {
    let mut env = TestEnv::with_script(1, script);
    let services = env.new_worker(Arc::new(NoFailPoints));
    env.send_prompt(&services).await;
    env.run_until_idle().await;
    env
}

fn calls_max(results: usize, _input: &str) -> Vec<Value> {
    let name = |number| if number % 2 == 0 { "nope" } else { "look" };
    match results {
        0 => (0..CALLS_MAX).map(|number| call("c", name(number), number)).collect(),
        _ => vec![text("done")],
    }
}

#[tokio::test(start_paused = true)]
async fn maximum_number_of_calls_each_gets_its_result() {
    let env = run_prompt(calls_max).await;
    let results = result_texts(&env).await;
    assert_eq!(results.len(), CALLS_MAX);
    assert!(results.iter().step_by(2).all(|text| text.contains("not found")), "{results:?}");
    assert!(results.iter().skip(1).step_by(2).all(|text| text == "look done"), "{results:?}");
    assert_eq!(env.head().await.unwrap().prompts[0].state, PromptState::Completed);
}

fn calls_missing_tools(results: usize, _input: &str) -> Vec<Value> {
    match results {
        0 => (0..CALLS_MAX).map(|number| call("c", "nope", number)).collect(),
        _ => vec![text("done")],
    }
}

#[tokio::test(start_paused = true)]
async fn response_with_only_rejected_calls_fits_its_commits() {
    let env = run_prompt(calls_missing_tools).await;
    assert_eq!(result_texts(&env).await.len(), CALLS_MAX);
    assert_eq!(env.head().await.unwrap().prompts[0].state, PromptState::Completed);
}

fn calls_make(results: usize, _input: &str) -> Vec<Value> {
    if results == 0 { vec![call("c", "make", 0)] } else { vec![text("done")] }
}

#[tokio::test(start_paused = true)]
async fn too_many_widgets_do_not_fail_the_tool() {
    let env = run_prompt(calls_make).await;
    let results = result_texts(&env).await;
    assert!(
        results[0].starts_with("make done") && results[0].contains("were returned"),
        "{results:?}"
    );
    assert_eq!(env.head().await.unwrap().prompts[0].state, PromptState::Completed);
    assert!(env.executions.lock().unwrap().values().eq([&1]));
}

pub(super) fn replies_too_long(_results: usize, _input: &str) -> Vec<Value> {
    vec![text(&"x".repeat(1_600_000))]
}

#[tokio::test(start_paused = true)]
async fn oversized_response_fails_prompt_after_one_model_call() {
    let env = run_prompt(replies_too_long).await;
    let head = env.head().await.unwrap();
    assert_eq!(head.prompts[0].state, PromptState::Failed);
    assert_eq!(*env.model.calls.lock().unwrap(), 1);
    let services = { env }.new_worker(Arc::new(NoFailPoints));
    let view = queries::prompts::read_prompt(&services, &head, &head.prompts[0].id).await.unwrap();
    let message = view.error.unwrap().message;
    assert!(message.contains("larger than one commit can hold"), "{message}");
}

#[tokio::test(start_paused = true)]
async fn tool_with_timeout_beyond_turn_is_rejected() {
    let mut env = TestEnv::with_script(2, |results, _| {
        if results == 0 { vec![call("c", "pay", 0)] } else { vec![text("done")] }
    });
    let mut services = env.new_worker(Arc::new(NoFailPoints));
    services.limits = Limits { turn_duration: Duration::from_secs(40), ..Limits::default() };
    env.send_prompt(&services).await;
    for _ in 0..5 {
        crate::delivery::handle(&services, &TestEnv::nudge()).await.unwrap();
    }
    let results = result_texts(&env).await;
    assert!(results[0].contains("longer than a turn"), "{results:?}");
    assert_eq!(env.head().await.unwrap().prompts[0].state, PromptState::Completed);
}

#[tokio::test(start_paused = true)]
async fn tool_without_enough_time_starts_in_next_turn() {
    let mut env = TestEnv::with_script(3, |results, _| {
        if results == 0 { vec![call("c", "pay", 0)] } else { vec![text("done")] }
    });
    // 300 s of a turn minus 260 s for the response: 30 s of time-out and 20 s of margin do not fit.
    *env.model.response_time.lock().unwrap() = Duration::from_secs(260);
    let services = env.new_worker(Arc::new(NoFailPoints));
    env.send_prompt(&services).await;
    env.deliver().await;
    assert!(env.executions.lock().unwrap().is_empty(), "the call must not start in this turn");
    env.deliver().await;
    assert_eq!(env.executions.lock().unwrap().len(), 1, "the call starts in the next turn");
    env.run_until_idle().await;
    assert_eq!(*env.model.calls.lock().unwrap(), 2, "no response is billed twice");
}

#[tokio::test(start_paused = true)]
async fn model_has_its_full_time_after_slow_tools() {
    let mut env = TestEnv::with_script(4, |results, _| {
        if results == 0 {
            vec![call("c1", "brew", 1), call("c2", "brew", 2)]
        } else {
            vec![text("done")]
        }
    });
    let services = env.new_worker(Arc::new(NoFailPoints));
    env.send_prompt(&services).await;
    env.deliver().await;
    // The second `brew` starts in the next turn, of which 100 s remain when it is done.
    *env.model.response_time.lock().unwrap() = Duration::from_mins(2);
    env.run_until_idle().await;
    assert_eq!(env.head().await.unwrap().prompts[0].state, PromptState::Completed);
    assert_eq!(*env.model.calls.lock().unwrap(), 2);
}

#[tokio::test(start_paused = true)]
async fn response_schema_makes_last_text_the_result() {
    let script: super::test_env::Script =
        |_, _| vec![text("thinking aloud"), text(r#"{"total": 12.50}"#)];
    let mut env = TestEnv::with_script(1, script);
    env.set_response_schema(&json!({"type": "object"}));
    let services = env.new_worker(Arc::new(NoFailPoints));
    env.send_prompt(&services).await;
    env.run_until_idle().await;
    let head = env.head().await.unwrap();
    let services = { env }.new_worker(Arc::new(NoFailPoints));
    let view = queries::prompts::read_prompt(&services, &head, &head.prompts[0].id).await.unwrap();
    let view = serde_json::to_value(&view).unwrap();
    assert_eq!(view["result"], json!({"total": 12.5}));
    let (listed, _) = queries::prompts::list_prompts(&services, &head, 0, 20).await.unwrap();
    assert_eq!(listed[0].result.as_ref().unwrap().text(), r#"{"total": 12.50}"#);
}

/// Extension with all hooks, of which none changes anything.
#[derive(Debug)]
struct IdleExtension;

impl Extension for IdleExtension {
    fn name(&self) -> &'static str {
        "idle"
    }
}

/// Sends a prompt that no commit can start: its key alone fills the record of the conversation.
pub(super) async fn send_unstartable(services: &Services) -> InputId {
    let own = idempotency(&format!("{CLIENT_KEY_PREFIX}{}", "k".repeat(HEAD_BYTES_MAX)));
    let request = PromptRequest { input: Some("too large".into()), ..PromptRequest::default() };
    let sender = Sender {
        source: Source::User,
        traceparent: None,
        when_busy: WhenBusy::Queue,
        clients: None,
    };
    Box::pin(accept_prompt(services, &TestEnv::key(), request, &own, &sender)).await.unwrap();
    own.input_id(&TestEnv::key())
}

#[tokio::test(start_paused = true)]
async fn input_that_never_fits_ends_and_the_next_prompt_runs() {
    for has_start_hook in [false, true] {
        let mut env = TestEnv::with_script(5, |_, _| vec![text("done")]);
        if has_start_hook {
            env.extensions.push(Arc::new(IdleExtension));
        }
        let services = env.new_worker(Arc::new(NoFailPoints));
        env.send_prompt(&services).await;
        env.run_until_idle().await;
        let id = send_unstartable(&services).await;
        tokio::time::sleep(Duration::from_millis(1)).await;
        env.queue_prompt(&services, &TestEnv::key(), "next").await.unwrap();
        env.run_until_idle().await;
        let head = env.head().await.unwrap();
        let states: Vec<PromptState> = head.prompts.iter().map(|prompt| prompt.state).collect();
        assert_eq!(states, [PromptState::Completed; 2], "with the hook: {has_start_hook}");
        let key = TestEnv::key();
        let input = queries::inbox::read_input(&services, &key, id.as_str()).await;
        assert_eq!(input.unwrap().0.state, InputState::Ignored);
    }
}

/// Fills the record of the conversation up to so many free bytes.
async fn fill_head(env: &TestEnv, free: usize) {
    let partition = Partition::Conversation(TestEnv::key());
    let stored = env.store.read(&partition, HEAD_ID, Freshness::Latest).await.unwrap().unwrap();
    let mut head = documents::read_head(&stored).unwrap();
    head.metadata.insert("a".to_owned(), String::new());
    let bytes = documents::head_document(&head).unwrap().body.text().len();
    head.metadata.insert("a".to_owned(), "x".repeat(HEAD_BYTES_MAX - bytes - free));
    let write = Write::Replace(documents::head_document(&head).unwrap(), Some(stored.etag));
    env.store.write(&partition, vec![write]).await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn full_record_ends_inputs_until_it_has_room() {
    let mut env = TestEnv::with_script(6, |_, _| vec![text("done")]);
    let services = env.new_worker(Arc::new(NoFailPoints));
    env.send_prompt(&services).await;
    env.run_until_idle().await;
    for (free, prompts) in [(100, 1), (8_000, 2)] {
        fill_head(&env, free).await;
        let input = format!("with {free} bytes");
        env.queue_prompt(&services, &TestEnv::key(), &input).await.unwrap();
        env.run_until_idle().await;
        assert_eq!(env.head().await.unwrap().prompts.len(), prompts, "{free} bytes are free");
    }
}

/// Its command has a question of the maximum length, which JSON doubles.
#[derive(Debug)]
struct LongQuestion;

#[async_trait]
impl Extension for LongQuestion {
    fn name(&self) -> &'static str {
        "desk"
    }

    fn commands(&self) -> Vec<CommandSpec> {
        vec![CommandSpec::new("note", "")]
    }

    async fn run_command(
        &self,
        cx: &HookContext,
        _call: &CommandCall<'_>,
    ) -> Result<CommandOutcome, HookError> {
        cx.confirm("sure", "\"".repeat(2_048))?;
        Ok(CommandOutcome::text("noted"))
    }
}

/// An idle conversation with [`LongQuestion`].
pub(super) async fn env_with_long_question() -> (TestEnv, Services) {
    let mut env = TestEnv::with_script(7, |_, _| vec![text("done")]);
    env.extensions.push(Arc::new(LongQuestion));
    let services = env.new_worker(Arc::new(NoFailPoints));
    env.send_prompt(&services).await;
    env.run_until_idle().await;
    (env, services)
}

/// Sends the command, which waits for its first run by a worker.
pub(super) async fn send_command(services: &Services) -> InputId {
    let response = command_questions::run(services, "note", "note").await;
    assert_eq!(response.status, 202, "it waits");
    idempotency("note").input_id(&TestEnv::key())
}

#[tokio::test(start_paused = true)]
async fn command_whose_question_does_not_fit_removes_no_prompt() {
    let (mut env, services) = env_with_long_question().await;
    fill_head(&env, 4_000).await;
    let command_id = send_command(&services).await;
    for input in ["first", "second"] {
        tokio::time::sleep(Duration::from_millis(1)).await;
        env.queue_prompt(&services, &TestEnv::key(), input).await.unwrap();
    }
    env.run_until_idle().await;
    let head = env.head().await.unwrap();
    let states: Vec<PromptState> = head.prompts.iter().map(|prompt| prompt.state).collect();
    assert_eq!(states, [PromptState::Completed; 3]);
    assert!(head.waiting_commands.is_empty() && head.requests.is_empty());
    let key = TestEnv::key();
    let (input, _) =
        queries::inbox::read_input(&services, &key, command_id.as_str()).await.unwrap();
    let error = input.result.unwrap().to_value()["error"].to_string();
    assert!(error.contains("too large for one commit"), "{error}");
}

#[tokio::test(start_paused = true)]
async fn ignored_command_settles_its_question() {
    let (env, services) = env_with_long_question().await;
    let command_id = send_command(&services).await;
    Box::pin(crate::delivery::handle(&services, &TestEnv::nudge())).await.unwrap();
    assert_eq!(env.head().await.unwrap().requests.len(), 1, "the question is open");

    let key = TestEnv::key();
    let ends = Duration::from_hours(1);
    let leased = Box::pin(acquire_lease(&services, &key, ends, None)).await.unwrap();
    let mut conversation = leased.unwrap();
    let inbox = conversation.state.read_inbox(&services).await.unwrap();
    let poisoned = Input::Poisoned { reason: "too large".to_owned() };
    let plan = conversation.state.plan(&services, vec![inbox_input(&inbox), poisoned]);
    conversation.commit(CommitKind::PendingWork, plan).await.unwrap();
    conversation.release().await;

    let head = env.head().await.unwrap();
    assert!(head.waiting_commands.is_empty() && head.requests.is_empty());
    let kinds: Vec<EventKind> = env.events().await.iter().map(|event| event.body.kind()).collect();
    assert!(
        kinds.ends_with(&[EventKind::PromptApprovalSettled, EventKind::CommandEnd]),
        "{kinds:?}"
    );
    let (input, _) =
        queries::inbox::read_input(&services, &key, command_id.as_str()).await.unwrap();
    assert_eq!(input.state, InputState::Ignored);
}

#[tokio::test(start_paused = true)]
async fn full_inbox_refuses_compactions() {
    let mut env = TestEnv::with_script(8, |_, _| vec![text("done")]);
    let services = env.new_worker(Arc::new(NoFailPoints));
    env.send_prompt(&services).await;
    env.run_until_idle().await;
    let key = TestEnv::key();
    for number in 0..=INBOX_ITEMS_MAX {
        let own = idempotency(&format!("compact {number}"));
        let sent = compact(&services, &key, CompactRequest::default(), &own).await;
        let is_refused = matches!(sent, Err(CommandError::InboxFull { .. }));
        assert_eq!(is_refused, number == INBOX_ITEMS_MAX, "{number}: {sent:?}");
    }
}
