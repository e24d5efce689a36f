//! Whole model calls over loopback: the request, the stream events, and the class of each failure.

use std::sync::Arc;
use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use azure_core::credentials::{AccessToken, TokenCredential, TokenRequestOptions};
use serde_json::{Value, json};
use tokio::sync::Notify;
use turnwheel::agent::content::joined_text;
use turnwheel::agent::event::AnswerEvent;
use turnwheel::agent::message::{Message, StopReason};
use turnwheel::agent::settings::ThinkingLevel;
use turnwheel::model::responses::{AzureResponses, ResponsesConfig, Secret};
use turnwheel::model::{Answer, Failure, Listener, Model, ModelRecord, ModelRequest, ToolOffer};

use crate::support::fake_model::{FakeModel, Play, Script};

mod bombs;
mod conformance;
mod vault;

#[derive(Default)]
struct Heard {
    events: Mutex<Vec<AnswerEvent>>,
    any: Notify,
}

impl Listener for Heard {
    fn hear(&self, event: AnswerEvent) {
        self.events.lock().unwrap().push(event);
        self.any.notify_one();
    }
}

impl Heard {
    fn json(&self) -> Vec<Value> {
        self.events
            .lock()
            .unwrap()
            .iter()
            .map(|event| serde_json::to_value(event).unwrap())
            .collect()
    }
}

fn config(base_url: &str) -> ResponsesConfig {
    ResponsesConfig {
        base_url: Some(base_url.to_owned()),
        api_key: Some(Secret::new("key-of-this-test")),
        deployment_map: Some("gpt-5-mini=prod-mini".to_owned()),
        idle_timeout: Some(Duration::from_secs(20)),
        ..ResponsesConfig::default()
    }
}

fn user(text: &str) -> Message {
    serde_json::from_value(json!({ "role": "user", "content": text, "timestamp": 0 })).unwrap()
}

async fn call(
    model: &AzureResponses,
    record: &ModelRecord,
    messages: &[Message],
    heard: &Heard,
) -> Answer {
    let messages: Vec<&Message> = messages.iter().collect();
    let tools = [ToolOffer {
        name: "test.echo",
        description: "Echoes.",
        parameters: &json!({ "type": "object" }),
        strict: false,
    }];
    let request = ModelRequest {
        payload: None,
        model: record,
        system: Some("SYS"),
        messages: &messages,
        tools: &tools,
        thinking: ThinkingLevel::Low,
        temperature: None,
        max_output_tokens: None,
        response_schema: None,
        session_id: "conversation-1",
        traceparent: Some("00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"),
    };
    model.answer(request, heard).await
}

async fn ask(fake: &FakeModel) -> (Answer, Heard) {
    ask_with(&config(&fake.url)).await
}

async fn ask_with(config: &ResponsesConfig) -> (Answer, Heard) {
    let model = AzureResponses::new(config, None).unwrap();
    let record = model.record("gpt-5-mini").unwrap();
    let heard = Heard::default();
    let answer = call(&model, &record, &[user("hi")], &heard).await;
    (answer, heard)
}

fn failed(answer: &Answer) -> (&str, &Failure) {
    assert_eq!(answer.message.stop_reason, StopReason::Error);
    (answer.message.error_message.as_deref().unwrap(), answer.failure.as_ref().unwrap())
}

#[tokio::test]
async fn a_call_sends_what_it_should_and_hears_what_comes() {
    let mut script = Script::call("call_1", "test.echo", json!({ "value": "x" }));
    script.thinking = vec!["Hm".to_owned()];
    script.text = vec!["Hel".to_owned(), "lo".to_owned()];
    let fake = FakeModel::start([Play::Answer(script)]).await;
    let (answer, heard) = ask(&fake).await;

    assert_eq!(answer.failure, None);
    assert_eq!(answer.message.stop_reason, StopReason::ToolUse);
    assert_eq!(joined_text(&answer.message.content), "Hello");
    let tool_call = answer.message.tool_calls().next().unwrap();
    assert_eq!(
        (tool_call.name.as_str(), tool_call.id.as_str()),
        ("test.echo", "call_1|fc_call_1_0")
    );
    assert_eq!((answer.message.usage.input, answer.message.usage.output), (10, 5));
    assert!((answer.message.usage.cost.total - 0.000_012_5).abs() < 1e-12);
    let kinds: Vec<String> =
        heard.json().iter().map(|event| event["type"].as_str().unwrap().to_owned()).collect();
    assert_eq!(
        kinds,
        [
            "thinking_start",
            "thinking_delta",
            "thinking_end",
            "text_start",
            "text_delta",
            "text_delta",
            "text_end",
            "toolcall_start",
            "toolcall_delta",
            "toolcall_end"
        ]
    );

    let asked = fake.asked();
    let header =
        |name: &str| asked[0].headers.get(name).map(|value| value.to_str().unwrap().to_owned());
    assert_eq!(header("api-key").as_deref(), Some("key-of-this-test"));
    assert!(header("traceparent").unwrap().starts_with("00-0af7651916cd43dd8448eb211c80319c"));
    assert_eq!(header("authorization"), None);
    let body = &fake.requests()[0];
    assert_eq!(
        (&body["model"], &body["stream"], &body["store"]),
        (&json!("prod-mini"), &json!(true), &json!(false))
    );
    assert_eq!(body["input"][0], json!({ "role": "developer", "content": "SYS" }));
    assert_eq!(body["tools"][0]["name"], "test_echo");
    assert_eq!(body["prompt_cache_key"], "conversation-1");
}

#[tokio::test]
async fn every_http_failure_says_what_to_do_and_whether_to_try_again() {
    let retry = |ms: Option<u64>| Failure::Retryable { after: ms.map(Duration::from_millis) };
    let error =
        |code: &str| json!({ "error": { "code": code, "message": "so it is" } }).to_string();
    let cases = [
        (
            429,
            vec![("retry-after-ms", "1500")],
            error("429"),
            retry(Some(1500)),
            "HTTP 429: so it is",
        ),
        (503, vec![], String::new(), retry(None), "HTTP 503 without an explanation"),
        (401, vec![], error("401"), Failure::Final, "AZURE_OPENAI_API_KEY"),
        (403, vec![], error("403"), Failure::Final, "Cognitive Services OpenAI User"),
        (
            404,
            vec![],
            error("DeploymentNotFound"),
            Failure::Final,
            "AZURE_OPENAI_DEPLOYMENT_NAME_MAP",
        ),
        (400, vec![], error("content_filter"), Failure::Final, "content_filter"),
        (
            400,
            vec![],
            error("context_length_exceeded"),
            Failure::Overflow,
            "context_length_exceeded",
        ),
        (
            307,
            vec![("location", "http://127.0.0.1:1/")],
            String::new(),
            Failure::Final,
            "Redirects are not followed",
        ),
        (
            401,
            vec![],
            json!({ "error": { "message": "wrong key: key-of-this-test" } }).to_string(),
            Failure::Final,
            "wrong key: …",
        ),
    ];
    for (status, headers, body, expected, text) in cases {
        let headers =
            headers.into_iter().map(|(name, value)| (name.to_owned(), value.to_owned())).collect();
        let fake = FakeModel::start([Play::Http { status, headers, body }]).await;
        let (answer, heard) = ask(&fake).await;
        let (said, failure) = failed(&answer);
        assert_eq!(failure, &expected, "{status} {said}");
        assert!(said.contains(text), "{said}");
        assert!(heard.json().is_empty());
    }
}

#[tokio::test]
async fn a_limit_within_a_200_is_a_limit_and_its_header_counts() {
    let events = [
        json!({ "type": "response.failed", "response": { "status": "failed", "error": null } }),
        json!({ "type": "error", "error": { "type": "too_many_requests", "code": "rate_limit_exceeded", "message": "Slow down" } }),
    ];
    let body = events.map(|event| format!("data: {event}\n\n")).concat();
    let headers = vec![
        ("content-type".to_owned(), "text/event-stream".to_owned()),
        ("retry-after".to_owned(), "4".to_owned()),
    ];
    let fake = FakeModel::start([Play::Http { status: 200, headers, body }]).await;
    let (answer, _) = ask(&fake).await;
    let (said, failure) = failed(&answer);
    assert_eq!(said, "Error Code rate_limit_exceeded: Slow down");
    assert_eq!(failure, &Failure::Retryable { after: Some(Duration::from_secs(4)) });
}

#[tokio::test]
async fn a_cut_or_silent_stream_keeps_what_came_and_is_tried_again() {
    let events = Script::text("half an answer").events();
    let unfinished = events[..3].to_vec();
    let mut silent = Script::text("half an answer");
    silent.hangs = true;
    let cases = [
        (Play::CutAfter(3, events), "the connection to the model failed"),
        (Play::SseEvents(unfinished), "stream closed before response.completed"),
        (Play::Answer(silent), "no data received from the model for"),
    ];
    for (play, text) in cases {
        let fake = FakeModel::start([play]).await;
        let config =
            ResponsesConfig { idle_timeout: Some(Duration::from_millis(500)), ..config(&fake.url) };
        let (answer, _) = ask_with(&config).await;
        let (said, failure) = failed(&answer);
        assert!(said.starts_with(text), "{said}");
        assert_eq!(failure, &Failure::Retryable { after: None });
        assert_eq!(joined_text(&answer.message.content), "half an answer", "{said}");
    }
}

#[tokio::test]
async fn a_model_that_does_not_answer_at_all_is_tried_again() {
    let fake = FakeModel::start([Play::Hang]).await;
    let config =
        ResponsesConfig { idle_timeout: Some(Duration::from_millis(50)), ..config(&fake.url) };
    let (answer, _) = ask_with(&config).await;
    assert_eq!(failed(&answer).1, &Failure::Retryable { after: None });

    let url = fake.url.clone();
    drop(fake);
    let nobody = ask_with(&self::config(&url.replace("127.0.0.1", "127.0.0.2"))).await.0;
    let (said, failure) = failed(&nobody);
    assert!(said.starts_with("connection error: "), "{said}");
    assert!(!said.contains("127.0.0.2:1/"), "{said}");
    assert_eq!(failure, &Failure::Retryable { after: None });
}

#[tokio::test]
async fn an_answer_without_end_is_given_up_for_good() {
    let headers = vec![("content-type".to_owned(), "text/event-stream".to_owned())];
    let body = format!("data: {}", "x".repeat(9 * 1024 * 1024));
    let fake = FakeModel::start([Play::Http { status: 200, headers, body }]).await;
    let (answer, _) = ask(&fake).await;
    let (said, failure) = failed(&answer);
    assert_eq!(said, "the model response or one of its events exceeds 8388608 bytes");
    assert_eq!(failure, &Failure::Final);
}

#[tokio::test]
async fn deltas_are_heard_while_the_answer_is_under_way() {
    let mut script = Script::text("first words");
    script.hangs = true;
    let fake = FakeModel::start([Play::Answer(script)]).await;
    let model = AzureResponses::new(&config(&fake.url), None).unwrap();
    let record = model.record("gpt-5-mini").unwrap();
    let heard = Heard::default();
    let messages = [user("hi")];
    let answer = call(&model, &record, &messages, &heard);
    let delta = async {
        while !heard.json().iter().any(|event| event["delta"] == "first words") {
            heard.any.notified().await;
        }
    };
    // The listener finishes first and drops the call, as an abort does.
    tokio::select! {
        biased;
        () = delta => {}
        _ = answer => panic!("the response never ends"),
    }
}

#[tokio::test]
async fn an_answer_that_is_no_stream_is_read_whole() {
    let json = |body: Value| Play::Http {
        status: 200,
        headers: vec![("content-type".to_owned(), "application/json; charset=utf-8".to_owned())],
        body: body.to_string(),
    };
    let message = json!({ "type": "message", "id": "m", "role": "assistant", "content": [{ "type": "output_text", "text": "hi" }] });
    let fake = FakeModel::start([
        json(json!({ "object": "response", "status": "completed", "output": [message] })),
        json(json!({ "error": { "code": "server_error", "message": "x" } })),
        json(json!({ "hello": "I am another service" })),
    ])
    .await;
    let (answer, heard) = ask(&fake).await;
    assert_eq!(joined_text(&answer.message.content), "hi");
    assert_eq!(heard.json().len(), 2);
    assert_eq!(
        failed(&ask(&fake).await.0),
        ("Error Code server_error: x", &Failure::Retryable { after: None })
    );
    let (answer, _) = ask(&fake).await;
    assert_eq!(failed(&answer).1, &Failure::Final);
    assert!(failed(&answer).0.contains("AZURE_OPENAI_BASE_URL"));
    // The fake returns an error after its last scripted response.
    assert!(failed(&ask(&fake).await.0).0.contains("script is exhausted"));
}

#[derive(Debug, Default)]
struct Tokens {
    given: AtomicUsize,
    scopes: Mutex<Vec<String>>,
}

#[async_trait::async_trait]
impl TokenCredential for Tokens {
    async fn get_token(
        &self,
        scopes: &[&str],
        _options: Option<TokenRequestOptions<'_>>,
    ) -> azure_core::Result<AccessToken> {
        self.scopes.lock().unwrap().extend(scopes.iter().map(|scope| (*scope).to_owned()));
        match self.given.fetch_add(1, Ordering::SeqCst) {
            2 => Err(azure_core::Error::with_message(
                azure_core::error::ErrorKind::Credential,
                "no identity here",
            )),
            number => Ok(AccessToken {
                token: format!("token-{number}").into(),
                expires_on: azure_core::time::OffsetDateTime::UNIX_EPOCH,
            }),
        }
    }
}

#[tokio::test]
async fn without_a_key_a_fresh_token_goes_with_every_call() {
    let fake =
        FakeModel::start([Play::Answer(Script::text("a")), Play::Answer(Script::text("b"))]).await;
    let tokens = Arc::new(Tokens::default());
    let config = ResponsesConfig {
        api_key: None,
        scope: Some("api://mine/.default".to_owned()),
        ..config(&fake.url)
    };
    let credential: Arc<dyn TokenCredential> = Arc::clone(&tokens) as Arc<dyn TokenCredential>;
    let model = AzureResponses::new(&config, Some(credential)).unwrap();
    let record = model.record("gpt-5-mini").unwrap();
    for expected in ["a", "b"] {
        let answer = call(&model, &record, &[user("hi")], &Heard::default()).await;
        assert_eq!(joined_text(&answer.message.content), expected);
    }
    let sent: Vec<String> = fake
        .asked()
        .iter()
        .map(|asked| asked.headers["authorization"].to_str().unwrap().to_owned())
        .collect();
    assert_eq!(sent, ["Bearer token-0", "Bearer token-1"]);
    let answer = call(&model, &record, &[user("hi")], &Heard::default()).await;
    let (said, failure) = failed(&answer);
    assert_eq!(
        said,
        "no Entra token for api://mine/.default: no identity here. Azure OpenAI API key is required. Set AZURE_OPENAI_API_KEY environment variable or pass it as an argument."
    );
    assert_eq!(failure, &Failure::Retryable { after: None });
    assert_eq!(*tokens.scopes.lock().unwrap(), ["api://mine/.default"; 3]);
}

#[test]
fn tiers_and_deployments_come_from_the_settings() {
    let mut config = config("https://r.openai.azure.com");
    config.default_model = Some("gpt-5.1".to_owned());
    let told = AzureResponses::new(&config, None).unwrap().record("high").unwrap_err();
    assert!(told.contains("AZURE_OPENAI_DEPLOYMENT_NAME_MAP"), "{told}");
    config.deployment_map = Some("gpt-5.1=daily,high=gpt-6-sol,gpt-6-sol=big".to_owned());
    let model = AzureResponses::new(&config, None).unwrap();
    let named = |id: &str| {
        let record = model.record(id).unwrap();
        (record.id, record.deployment_name)
    };
    assert_eq!(named("normal"), ("gpt-5.1".to_owned(), "daily".to_owned()));
    assert_eq!(named("high"), ("gpt-6-sol".to_owned(), "big".to_owned()));
    assert_eq!(named("mystery"), ("mystery".to_owned(), "mystery".to_owned()));
}

#[test]
fn all_mistakes_of_the_settings_are_told_at_once() {
    let config = ResponsesConfig { prices: Some(Secret::new("{")), ..ResponsesConfig::default() };
    let told = AzureResponses::new(&config, None).unwrap_err();
    assert_eq!(told.len(), 3, "{told:?}");
}
