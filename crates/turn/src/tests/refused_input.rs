//! Parts of the input that the model service refuses: one more call without them, and a conversation
//! that goes on.

use std::sync::{Arc, Mutex};

use async_trait::async_trait;
use serde_json::{Value, json};

use super::test_env::{Script, TestEnv, call, idempotency, rejecting_sender, text};
use super::why::why_view;
use crate::refused_input::is_content_refused;
use turnwheel_commands::compact::{CompactRequest, compact};
use turnwheel_commands::prompt::{PromptRequest, accept_prompt};
use turnwheel_conversation::content::{Block, Content, Image};
use turnwheel_conversation::entry::{EntryBody, PromptState};
use turnwheel_conversation::message::{AssistantMessage, StopReason};
use turnwheel_conversation::settings::CompactionSettings;
use turnwheel_conversation::unknown_members::Extra;
use turnwheel_json::raw::RawJson;
use turnwheel_model::{
    CallMetadata, Listener, Model, ModelFailure, ModelRecord, ModelRequest, ModelResponse,
};
use turnwheel_platform::fail_points::NoFailPoints;
use turnwheel_record::services::Services;

/// The code of an input that is too large.
const OVERFLOW: &str = "context_length_exceeded";

/// Refuses requests with a text, in their messages or as the name of a tool.
#[derive(Debug)]
struct RefusingModel {
    inner: Arc<dyn Model>,
    refused: &'static str,
    status: u16,
    code: &'static str,
    error: &'static str,
    /// Messages and names of tools of each request.
    requests: Mutex<Vec<String>>,
}

#[async_trait]
impl Model for RefusingModel {
    async fn respond(&self, request: ModelRequest<'_>, listener: &dyn Listener) -> ModelResponse {
        let tools: Vec<&str> = request.tools.iter().map(|tool| tool.name).collect();
        let sent = json!([request.messages, tools, request.response_schema]);
        let sent = RawJson::from_value(&sent).text().to_owned();
        let is_refused = sent.contains(self.refused);
        self.requests.lock().unwrap().push(sent);
        let response = self.inner.respond(request, listener).await;
        if !is_refused {
            return response;
        }
        let mut message = response.message;
        message.content = Vec::new();
        message.stop_reason = StopReason::Error;
        message.error_message =
            Some(format!("HTTP {}: {}: {}", self.status, self.code, self.error));
        let (status, error) = (Some(self.status), Some(self.code.to_owned()));
        let metadata = CallMetadata { status, error, ..CallMetadata::default() };
        let is_overflow = self.code == OVERFLOW;
        let failure =
            if is_overflow { ModelFailure::ContextOverflow } else { ModelFailure::Permanent };
        ModelResponse { message, failure: Some(failure), metadata }
    }

    fn record(&self, model: &str) -> Result<ModelRecord, String> {
        self.inner.record(model)
    }
}

fn looks(results: usize, input: &str) -> Vec<Value> {
    let is_look = input == "go" && results == 0;
    vec![if is_look { call("c1", "look", 0) } else { text("done") }]
}

fn says_done(_results: usize, _input: &str) -> Vec<Value> {
    vec![text("done")]
}

type RefusalTexts = (&'static str, &'static str, &'static str);

fn new_env(script: Script, refusal: RefusalTexts) -> (TestEnv, Services, Arc<RefusingModel>) {
    new_env_with_status(400, script, refusal)
}

fn new_env_with_status(
    status: u16,
    script: Script,
    (refused, code, error): RefusalTexts,
) -> (TestEnv, Services, Arc<RefusingModel>) {
    let mut env = TestEnv::with_script(1, script);
    let inner: Arc<dyn Model> = env.model.clone();
    let requests = Mutex::default();
    let model = Arc::new(RefusingModel { inner, refused, status, code, error, requests });
    env.model_override = Some(model.clone());
    let services = env.new_worker(Arc::new(NoFailPoints));
    (env, services, model)
}

async fn run(env: &mut TestEnv, services: &Services, input: &str) -> (PromptState, String) {
    if env.head().await.is_none() {
        env.send_prompt_to(services, "c", input).await;
    } else {
        env.queue_prompt(services, &TestEnv::key(), input).await.unwrap();
    }
    env.run_until_idle().await;
    let head = env.head().await.unwrap();
    let entries = env.entries().await;
    let error = entries.iter().rev().find_map(|entry| {
        let EntryBody::PromptEnd(end) = &entry.body else { return None };
        Some(end.error.as_ref().map(|error| error.message.clone()).unwrap_or_default())
    });
    (head.prompts.last().unwrap().state, error.unwrap_or_default())
}

impl RefusingModel {
    fn count(&self) -> usize {
        self.requests.lock().unwrap().len()
    }
}

#[tokio::test(start_paused = true)]
async fn refused_tool_result_costs_one_more_call() {
    let refusal = ("look done", "content_filter", "The content management policy was triggered.");
    let (mut env, services, model) = new_env(looks, refusal);
    assert_eq!(run(&mut env, &services, "go").await.0, PromptState::Completed);
    assert_eq!(model.count(), 3, "the call, the refused request, and the one without the result");
    assert_eq!(run(&mut env, &services, "next").await.0, PromptState::Completed);
    assert_eq!(model.count(), 4);
    let stored = serde_json::to_string(&env.entries().await).unwrap();
    assert!(stored.contains("look done"), "the entry keeps the result");
}

#[tokio::test(start_paused = true)]
async fn refused_input_fails_only_its_own_prompt() {
    let refusal = ("secret words", "content_filter", "Filtered.");
    let (mut env, services, model) = new_env(says_done, refusal);
    assert_eq!(run(&mut env, &services, "hello").await.0, PromptState::Completed);
    let (state, error) = run(&mut env, &services, "secret words").await;
    assert_eq!(state, PromptState::Failed);
    assert!(error.contains("Filtered.") && error.contains("Send it in other words."), "{error}");
    let hints = why_view(&env).await.unblock;
    assert!(hints.iter().any(|hint| hint.contains("/leaf {\"entryId\"")), "{hints:?}");
    assert_eq!(run(&mut env, &services, "harmless").await.0, PromptState::Completed);
    assert_eq!(model.count(), 3, "no request is made in vain");
    let last = model.requests.lock().unwrap().last().unwrap().clone();
    assert!(last.contains("hello") && last.contains("message omitted"), "{last}");
}

fn responds_once_with_secret(_results: usize, input: &str) -> Vec<Value> {
    vec![text(if input == "one" { "secret words" } else { "done" })]
}

#[tokio::test(start_paused = true)]
async fn refused_response_text_fails_one_prompt() {
    let refusal = ("secret words", "content_filter", "Filtered.");
    let (mut env, services, model) = new_env(responds_once_with_secret, refusal);
    let states = [
        ("one", PromptState::Completed),
        ("two", PromptState::Failed),
        ("three", PromptState::Completed),
        ("four", PromptState::Completed),
    ];
    for (input, state) in states {
        assert_eq!(run(&mut env, &services, input).await.0, state, "{input}");
    }
    assert_eq!(model.count(), 5, "one more call of the third prompt");
    let last = model.requests.lock().unwrap().last().unwrap().clone();
    assert!(last.contains("response omitted") && last.contains("three"), "{last}");
    let stored = serde_json::to_string(&env.entries().await).unwrap();
    assert!(stored.contains("secret words"), "the entry keeps the text");
}

fn writes_secret_summary(_results: usize, input: &str) -> Vec<Value> {
    let is_secret = input.contains("<conversation>")
        && input.contains("begin")
        && !input.contains("<previous-summary>");
    vec![text(if is_secret { "secret words" } else { "done" })]
}

#[tokio::test(start_paused = true)]
async fn refused_summary_is_not_sent_to_be_updated() {
    let refusal = ("secret words", "content_filter", "Filtered.");
    let (mut env, _, model) = new_env(writes_secret_summary, refusal);
    env.settings.compaction =
        Some(CompactionSettings { enabled: true, reserve_tokens: 500, keep_recent_tokens: 1 });
    let services = env.new_worker(Arc::new(NoFailPoints));
    let long = "many words ".repeat(60);
    for number in [1, 2] {
        let input = format!("begin {number}: {long}");
        assert_eq!(run(&mut env, &services, &input).await.0, PromptState::Completed);
    }
    compact_now(&mut env, &services, "first").await;
    let states = [PromptState::Failed, PromptState::Completed, PromptState::Completed];
    for (number, state) in states.into_iter().enumerate() {
        let input = format!("later {number}: {long}");
        assert_eq!(run(&mut env, &services, &input).await.0, state, "{number}");
    }
    compact_now(&mut env, &services, "second").await;
    let entries = env.entries().await;
    let summaries = entries.iter().filter_map(|entry| entry.body.compaction());
    let summaries: Vec<&str> = summaries.map(|it| it.summary.as_str()).collect();
    let are_secret: Vec<bool> = summaries.iter().map(|it| it.contains("secret words")).collect();
    assert_eq!(are_secret, [true, false], "{summaries:?}");
    let requests = model.requests.lock().unwrap().clone();
    let update = requests.iter().rfind(|it| it.contains("<previous-summary>")).unwrap();
    assert!(update.contains("summary omitted"), "{update}");
}

async fn compact_now(env: &mut TestEnv, services: &Services, key: &str) {
    let request = CompactRequest { instructions: None };
    compact(services, &TestEnv::key(), request, &idempotency(key)).await.unwrap();
    env.run_until_idle().await;
}

#[tokio::test(start_paused = true)]
async fn status_404_without_a_path_repairs_nothing() {
    for (error, repairs) in [("Filtered.", 0), ("Invalid 'input[1].content': it is empty.", 1)] {
        let refusal = ("secret words", "content_filter", error);
        let (mut env, services, _model) =
            new_env_with_status(404, responds_once_with_secret, refusal);
        assert_eq!(run(&mut env, &services, "secret words").await.0, PromptState::Failed);
        let stored = serde_json::to_string(&env.entries().await).unwrap();
        assert_eq!(stored.matches("turnwheel/inputRepair").count(), repairs, "{error}");
    }
}

#[tokio::test(start_paused = true)]
async fn permanent_status_500_repairs_only_named_content() {
    for (code, error, is_repaired) in [
        ("server_error", "The server is broken.", false),
        ("server_error", "Invalid 'input[1].content': it is empty.", true),
        ("content_filter", "Filtered.", true),
        (OVERFLOW, "Your input exceeds the context window.", true),
    ] {
        let (mut env, services, _model) =
            new_env_with_status(500, says_done, ("secret words", code, error));
        assert_eq!(run(&mut env, &services, "secret words").await.0, PromptState::Failed);
        let stored = serde_json::to_string(&env.entries().await).unwrap();
        assert_eq!(stored.contains("turnwheel/inputRepair"), is_repaired, "{error}");
    }
}

#[test]
fn image_that_the_model_cannot_read_is_refused_content() {
    let is_refused = |status: u16, text: &str| {
        let failed = AssistantMessage::new_synthetic("p", Vec::new(), StopReason::Error);
        let error_message = Some(format!("HTTP {status}: server_error: {text}"));
        let (status, error) = (Some(status), Some("server_error".to_owned()));
        is_content_refused(&ModelResponse {
            message: AssistantMessage { error_message, ..failed },
            failure: Some(ModelFailure::Permanent),
            metadata: CallMetadata { status, error, ..CallMetadata::default() },
        })
    };
    for text in [
        "image input is not supported - hint: you may need to provide the mmproj",
        "Failed to parse messages: Unsupported content part type: \"image_url\"",
        "this model is missing data required for image input",
    ] {
        assert!(is_refused(400, text) && is_refused(500, text), "{text}");
        assert!(!is_refused(429, text), "{text}");
    }
    assert!(!is_refused(500, "The server is broken."));
}

/// A server whose model reads no images may report a failure of its own.
#[tokio::test(start_paused = true)]
async fn image_refused_with_status_500_is_left_out() {
    let refusal = ("mimeType", "server_error", "image input is not supported");
    let (mut env, services, model) = new_env_with_status(500, looks, refusal);
    assert_eq!(run(&mut env, &services, "hello").await.0, PromptState::Completed);
    let image = Image {
        data: "iVBORw0KGgo=".to_owned(),
        mime_type: "image/png".to_owned(),
        extra: Extra::new(),
    };
    let input = Content::Blocks(vec![Block::text("describe it"), Block::Image(image)]);
    let request = PromptRequest { input: Some(input), ..PromptRequest::default() };
    let own = idempotency("image");
    Box::pin(accept_prompt(&services, &TestEnv::key(), request, &own, &rejecting_sender()))
        .await
        .unwrap();
    env.run_until_idle().await;
    let requests = model.requests.lock().unwrap().clone();
    assert_eq!(requests.len(), 3, "one refused request: {requests:?}");
    assert!(requests[1].contains("mimeType"), "{}", requests[1]);
    let next = &requests[2];
    assert!(next.contains("(image omitted: the model service refused it)"), "{next}");
    assert!(!next.contains("mimeType"), "{next}");
}

#[tokio::test(start_paused = true)]
async fn oversized_input_fails_only_its_own_prompt() {
    for before in [&["hello"][..], &[]] {
        let refusal = ("secret words", OVERFLOW, "Your input exceeds the context window.");
        let (mut env, services, _model) = new_env(says_done, refusal);
        for input in before {
            assert_eq!(run(&mut env, &services, input).await.0, PromptState::Completed);
        }
        let (state, error) = run(&mut env, &services, "secret words").await;
        assert_eq!(state, PromptState::Failed);
        assert!(error.contains("Send a shorter one"), "{error}");
        for input in ["harmless", "more"] {
            assert_eq!(
                run(&mut env, &services, input).await,
                (PromptState::Completed, String::new())
            );
        }
    }
}

#[tokio::test(start_paused = true)]
async fn oversized_tool_result_is_left_out() {
    let refusal = ("look done", OVERFLOW, "Your input exceeds the context window.");
    let (mut env, services, _model) = new_env(looks, refusal);
    assert_eq!(run(&mut env, &services, "go").await.0, PromptState::Completed);
    assert_eq!(run(&mut env, &services, "next").await.0, PromptState::Completed);
}

#[tokio::test(start_paused = true)]
async fn tool_with_refused_schema_is_not_offered() {
    let error = "Invalid schema for function 'look': array schema missing items.";
    let refusal = ("\"look\"", "invalid_function_parameters", error);
    let (mut env, services, model) = new_env(says_done, refusal);
    assert_eq!(run(&mut env, &services, "go").await.0, PromptState::Completed);
    assert_eq!(run(&mut env, &services, "next").await.0, PromptState::Completed);
    assert_eq!(model.count(), 3);
    let last = model.requests.lock().unwrap().last().unwrap().clone();
    assert!(!last.contains("\"look\"") && last.contains("\"wire\""), "the others stay: {last}");
}

fn answers_with_json(_results: usize, _input: &str) -> Vec<Value> {
    vec![text(r#"{"a":1}"#)]
}

#[tokio::test(start_paused = true)]
async fn refused_response_schema_is_not_sent() {
    let error = "Invalid schema for response_format 'response': 'not' is not permitted.";
    let refusal = ("marker", "invalid_json_schema", error);
    let (mut env, _services, model) = new_env(answers_with_json, refusal);
    env.set_response_schema(&json!({"type": "object", "title": "marker"}));
    let services = env.new_worker(Arc::new(NoFailPoints));
    for input in ["go", "next"] {
        assert_eq!(run(&mut env, &services, input).await, (PromptState::Completed, String::new()));
    }
    assert_eq!(model.count(), 3, "one refused request");
}

#[tokio::test(start_paused = true)]
async fn second_refusal_ends_the_prompt_and_names_the_part() {
    // The note in place of the result is refused, too.
    let refusal = ("toolResult", "content_filter", "Filtered.");
    let (mut env, services, model) = new_env(looks, refusal);
    let (state, error) = run(&mut env, &services, "go").await;
    assert_eq!((state, model.count()), (PromptState::Failed, 3));
    let expected = "HTTP 400: content_filter: Filtered. The model service refused a call of a tool, so later requests have a \
                    note in the place of the call and its result. Send the next input.";
    assert_eq!(error, expected);
}
