//! Whole model calls over loopback: the request, the stream events, and the class of each failure.

use std::sync::Arc;
use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use azure_core::credentials::{AccessToken, TokenCredential, TokenRequestOptions};
use serde_json::{Value, json};
use turnwheel::messages::StopReason;
use turnwheel::models::{Model, ModelFailure, ModelResponse};
use turnwheel::testing::agent::content::joined_text;
use turnwheel::testing::model::responses::{ModelApiClient, ResponsesConfig, SecretText};

use crate::support::fake_model::{FakeModel, ResponseScript, ScriptedResponse};
use crate::support::model_calls::{RecordingListener, call_model, expect_failure, user_message};

mod compression_bombs;
mod conformance;
mod vault;

fn config(base_url: &str) -> ResponsesConfig {
    ResponsesConfig {
        base_url: Some(base_url.to_owned()),
        api_key: Some(SecretText::new("key-of-this-test")),
        deployment_map: Some("gpt-5-mini=prod-mini".to_owned()),
        idle_timeout: Some(Duration::from_secs(20)),
        ..ResponsesConfig::default()
    }
}

async fn call_fake(fake: &FakeModel) -> (ModelResponse, RecordingListener) {
    call_with_config(&config(&fake.url)).await
}

async fn call_with_config(config: &ResponsesConfig) -> (ModelResponse, RecordingListener) {
    let model = ModelApiClient::new(config, None).unwrap();
    let record = model.record("gpt-5-mini").unwrap();
    let listener = RecordingListener::default();
    let response = call_model(&model, &record, &[user_message("hi")], &listener).await;
    (response, listener)
}

#[tokio::test]
async fn model_call_sends_request_and_emits_events() {
    let mut script = ResponseScript::call("call_1", "test.echo", json!({ "value": "x" }));
    script.thinking = vec!["Hm".to_owned()];
    script.text = vec!["Hel".to_owned(), "lo".to_owned()];
    let fake = FakeModel::start([ScriptedResponse::Response(script)]).await;
    let (response, listener) = call_fake(&fake).await;

    assert_eq!(response.failure, None);
    assert_eq!(response.message.stop_reason, StopReason::ToolUse);
    assert_eq!(joined_text(&response.message.content), "Hello");
    let tool_call = response.message.tool_calls().next().unwrap();
    assert_eq!(
        (tool_call.name.as_str(), tool_call.id.as_str()),
        ("test.echo", "call_1|fc_call_1_0")
    );
    assert_eq!((response.message.usage.input, response.message.usage.output), (10, 5));
    assert!((response.message.usage.cost.total - 0.000_012_5).abs() < 1e-12);
    assert_eq!(
        listener.kinds(),
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

    let sent_requests = fake.received_requests();
    let header = |name: &str| {
        sent_requests[0].headers.get(name).map(|value| value.to_str().unwrap().to_owned())
    };
    assert_eq!(header("api-key").as_deref(), Some("key-of-this-test"));
    assert!(header("traceparent").unwrap().starts_with("00-0af7651916cd43dd8448eb211c80319c"));
    // OpenAI and compatible services read the key here; the server is not one of Azure.
    assert_eq!(header("authorization").as_deref(), Some("Bearer key-of-this-test"));
    let body = &fake.request_bodies()[0];
    assert_eq!(
        (&body["model"], &body["stream"], &body["store"]),
        (&json!("prod-mini"), &json!(true), &json!(false))
    );
    assert_eq!(body["input"][0], json!({ "role": "developer", "content": "SYS" }));
    assert_eq!(body["tools"][0]["name"], "test_echo");
    assert_eq!(body["prompt_cache_key"], "conversation-1");
}

#[tokio::test]
async fn http_failures_have_class_and_advice() {
    let retry = |ms: Option<u64>| ModelFailure::Retryable { after: ms.map(Duration::from_millis) };
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
        (401, vec![], error("401"), ModelFailure::Permanent, "AZURE_OPENAI_API_KEY"),
        (403, vec![], error("403"), ModelFailure::Permanent, "Cognitive Services OpenAI User"),
        (
            404,
            vec![],
            error("DeploymentNotFound"),
            ModelFailure::Permanent,
            "AZURE_OPENAI_DEPLOYMENT_NAME_MAP",
        ),
        (400, vec![], error("content_filter"), ModelFailure::Permanent, "content_filter"),
        (
            400,
            vec![],
            error("context_length_exceeded"),
            ModelFailure::ContextOverflow,
            "context_length_exceeded",
        ),
        (
            307,
            vec![("location", "http://127.0.0.1:1/")],
            String::new(),
            ModelFailure::Permanent,
            "Redirects are not followed",
        ),
        (
            401,
            vec![],
            json!({ "error": { "message": "wrong key: key-of-this-test" } }).to_string(),
            ModelFailure::Permanent,
            "wrong key: …",
        ),
    ];
    for (status, headers, body, expected, text) in cases {
        let headers =
            headers.into_iter().map(|(name, value)| (name.to_owned(), value.to_owned())).collect();
        let fake = FakeModel::start([ScriptedResponse::Http { status, headers, body }]).await;
        let (response, listener) = call_fake(&fake).await;
        let (error_text, failure) = expect_failure(&response);
        assert_eq!(failure, &expected, "{status} {error_text}");
        assert!(error_text.contains(text), "{error_text}");
        assert!(listener.events_json().is_empty());
    }
}

#[tokio::test]
async fn rate_limit_inside_200_is_retryable_after_header() {
    let events = [
        json!({ "type": "response.failed", "response": { "status": "failed", "error": null } }),
        json!({ "type": "error", "error": { "type": "too_many_requests", "code": "rate_limit_exceeded", "message": "Slow down" } }),
    ];
    let body = events.map(|event| format!("data: {event}\n\n")).concat();
    let headers = vec![
        ("content-type".to_owned(), "text/event-stream".to_owned()),
        ("retry-after".to_owned(), "4".to_owned()),
    ];
    let fake = FakeModel::start([ScriptedResponse::Http { status: 200, headers, body }]).await;
    let (response, _) = call_fake(&fake).await;
    let (error_text, failure) = expect_failure(&response);
    assert_eq!(error_text, "Error Code rate_limit_exceeded: Slow down");
    assert_eq!(failure, &ModelFailure::Retryable { after: Some(Duration::from_secs(4)) });
}

#[tokio::test]
async fn broken_stream_keeps_text_and_is_retryable() {
    let events = ResponseScript::text("half an answer").events();
    let unfinished = events[..3].to_vec();
    let mut silent = ResponseScript::text("half an answer");
    silent.is_unending = true;
    let cases = [
        (ScriptedResponse::CutAfter(3, events), "the connection to the model failed"),
        (ScriptedResponse::SseEvents(unfinished), "stream closed before response.completed"),
        (ScriptedResponse::Response(silent), "no data received from the model for"),
    ];
    for (play, text) in cases {
        let fake = FakeModel::start([play]).await;
        let config =
            ResponsesConfig { idle_timeout: Some(Duration::from_secs(3)), ..config(&fake.url) };
        let (response, _) = call_with_config(&config).await;
        let (error_text, failure) = expect_failure(&response);
        assert!(error_text.starts_with(text), "{error_text}");
        assert_eq!(failure, &ModelFailure::Retryable { after: None });
        assert_eq!(joined_text(&response.message.content), "half an answer", "{error_text}");
    }
}

#[tokio::test]
async fn unreachable_model_is_retryable() {
    let fake = FakeModel::start([ScriptedResponse::Hang]).await;
    let config =
        ResponsesConfig { idle_timeout: Some(Duration::from_millis(50)), ..config(&fake.url) };
    let (response, _) = call_with_config(&config).await;
    assert_eq!(expect_failure(&response).1, &ModelFailure::Retryable { after: None });

    let url = fake.url.clone();
    drop(fake);
    let unreachable =
        call_with_config(&self::config(&url.replace("127.0.0.1", "127.0.0.2"))).await.0;
    let (error_text, failure) = expect_failure(&unreachable);
    assert!(error_text.starts_with("connection error: "), "{error_text}");
    assert!(!error_text.contains("127.0.0.2:1/"), "{error_text}");
    assert_eq!(failure, &ModelFailure::Retryable { after: None });
}

#[tokio::test]
async fn oversized_response_fails_permanently() {
    let headers = vec![("content-type".to_owned(), "text/event-stream".to_owned())];
    let body = format!("data: {}", "x".repeat(9 * 1024 * 1024));
    let fake = FakeModel::start([ScriptedResponse::Http { status: 200, headers, body }]).await;
    let (response, _) = call_fake(&fake).await;
    let (error_text, failure) = expect_failure(&response);
    assert_eq!(error_text, "the model response or one of its events exceeds 8388608 bytes");
    assert_eq!(failure, &ModelFailure::Permanent);
}

#[tokio::test]
async fn deltas_arrive_while_response_streams() {
    let mut script = ResponseScript::text("first words");
    script.is_unending = true;
    let fake = FakeModel::start([ScriptedResponse::Response(script)]).await;
    let model = ModelApiClient::new(&config(&fake.url), None).unwrap();
    let record = model.record("gpt-5-mini").unwrap();
    let listener = RecordingListener::default();
    let messages = [user_message("hi")];
    let response = call_model(&model, &record, &messages, &listener);
    let delta = async {
        while !listener.events_json().iter().any(|event| event["delta"] == "first words") {
            listener.event_added.notified().await;
        }
    };
    // The listener finishes first and drops the call, as an abort does.
    tokio::select! {
        biased;
        () = delta => {}
        _ = response => panic!("the response never ends"),
    }
}

#[tokio::test]
async fn response_without_stream_is_read_whole() {
    let json = |body: Value| ScriptedResponse::Http {
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
    let (response, listener) = call_fake(&fake).await;
    assert_eq!(joined_text(&response.message.content), "hi");
    assert_eq!(listener.events_json().len(), 2);
    assert_eq!(
        expect_failure(&call_fake(&fake).await.0),
        ("Error Code server_error: x", &ModelFailure::Retryable { after: None })
    );
    let (response, _) = call_fake(&fake).await;
    assert_eq!(expect_failure(&response).1, &ModelFailure::Permanent);
    assert!(expect_failure(&response).0.contains("AZURE_OPENAI_BASE_URL"));
    // The fake returns an error after its last scripted response.
    assert!(expect_failure(&call_fake(&fake).await.0).0.contains("script is exhausted"));
}

#[derive(Debug, Default)]
struct CountingCredential {
    tokens_issued: AtomicUsize,
    scopes: Mutex<Vec<String>>,
}

#[async_trait::async_trait]
impl TokenCredential for CountingCredential {
    async fn get_token(
        &self,
        scopes: &[&str],
        _options: Option<TokenRequestOptions<'_>>,
    ) -> azure_core::Result<AccessToken> {
        self.scopes.lock().unwrap().extend(scopes.iter().map(|scope| (*scope).to_owned()));
        match self.tokens_issued.fetch_add(1, Ordering::SeqCst) {
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
async fn every_call_sends_entra_token_without_key() {
    let fake = FakeModel::start([
        ScriptedResponse::Response(ResponseScript::text("a")),
        ScriptedResponse::Response(ResponseScript::text("b")),
    ])
    .await;
    let tokens = Arc::new(CountingCredential::default());
    let config = ResponsesConfig {
        api_key: None,
        scope: Some("api://mine/.default".to_owned()),
        ..config(&fake.url)
    };
    let credential: Arc<dyn TokenCredential> = Arc::clone(&tokens) as Arc<dyn TokenCredential>;
    let model = ModelApiClient::new(&config, Some(credential)).unwrap();
    let record = model.record("gpt-5-mini").unwrap();
    for expected in ["a", "b"] {
        let response =
            call_model(&model, &record, &[user_message("hi")], &RecordingListener::default()).await;
        assert_eq!(joined_text(&response.message.content), expected);
    }
    let sent: Vec<String> = fake
        .received_requests()
        .iter()
        .map(|sent_requests| sent_requests.headers["authorization"].to_str().unwrap().to_owned())
        .collect();
    assert_eq!(sent, ["Bearer token-0", "Bearer token-1"]);
    let response =
        call_model(&model, &record, &[user_message("hi")], &RecordingListener::default()).await;
    let (error_text, failure) = expect_failure(&response);
    assert_eq!(
        error_text,
        "No API key found for azure. No Entra token for api://mine/.default: no identity here. Azure OpenAI API key is required. Set AZURE_OPENAI_API_KEY environment variable or pass it as an argument."
    );
    assert_eq!(failure, &ModelFailure::Retryable { after: None });
    assert_eq!(*tokens.scopes.lock().unwrap(), ["api://mine/.default"; 3]);
}

#[tokio::test]
async fn model_is_called_at_its_own_address() {
    let app = FakeModel::start([ScriptedResponse::Response(ResponseScript::text("app"))]).await;
    let responses =
        ["own", "keyed"].map(|text| ScriptedResponse::Response(ResponseScript::text(text)));
    let other = FakeModel::start(responses).await;
    let prices = json!({
        "local": { "baseUrl": other.url, "headers": { "x-route": "eu" } },
        "keyed": { "baseUrl": other.url, "apiKey": "key-of-the-other" },
    });
    let config = ResponsesConfig {
        prices: Some(SecretText::new(prices.to_string())),
        headers: Some(SecretText::new("x-gateway=secret-of-the-app")),
        ..config(&app.url)
    };
    let model = ModelApiClient::new(&config, None).unwrap();
    for (id, expected) in [("local", "own"), ("keyed", "keyed"), ("gpt-5-mini", "app")] {
        let record = model.record(id).unwrap();
        let is_app = record.base_url.starts_with(&app.url);
        assert_eq!(is_app, id == "gpt-5-mini", "{}", record.base_url);
        let response =
            call_model(&model, &record, &[user_message("hi")], &RecordingListener::default()).await;
        assert_eq!(joined_text(&response.message.content), expected);
    }
    let header = |fake: &FakeModel, index: usize, name: &str| {
        let requests = fake.received_requests();
        requests[index].headers.get(name).map(|value| value.to_str().unwrap().to_owned())
    };
    // The key and the headers of the app stay with the app's service.
    for name in ["api-key", "authorization", "x-gateway"] {
        assert_eq!(header(&other, 0, name), None, "{name}");
    }
    assert_eq!(header(&other, 0, "x-route").as_deref(), Some("eu"));
    assert_eq!(header(&other, 1, "api-key").as_deref(), Some("key-of-the-other"));
    assert_eq!(header(&other, 1, "x-gateway"), None);
    assert_eq!(header(&app, 0, "x-gateway").as_deref(), Some("secret-of-the-app"));
}

#[test]
fn model_addresses_replace_that_of_the_app() {
    let prices = r#"{"local": {"baseUrl": "http://127.0.0.1:9/v1"}}"#;
    let config = ResponsesConfig {
        prices: Some(SecretText::new(prices)),
        default_model: Some("local".to_owned()),
        ..ResponsesConfig::default()
    };
    let model = ModelApiClient::new(&config, None).unwrap();
    assert_eq!(model.record("normal").unwrap().base_url, "http://127.0.0.1:9/v1");
    let error = model.record("gpt-5.1").unwrap_err();
    let text = "Azure OpenAI base URL is required. Set AZURE_OPENAI_BASE_URL or AZURE_OPENAI_RESOURCE_NAME, or pass azureBaseUrl, azureResourceName, or model.baseUrl.";
    assert!(error.starts_with(text), "{error}");
}

#[test]
fn tiers_and_deployments_come_from_settings() {
    let mut config = config("https://r.openai.azure.com");
    config.default_model = Some("gpt-5.1".to_owned());
    let error = ModelApiClient::new(&config, None).unwrap().record("high").unwrap_err();
    assert!(error.contains("AZURE_OPENAI_DEPLOYMENT_NAME_MAP"), "{error}");
    config.deployment_map = Some("gpt-5.1=daily,high=gpt-6-sol,gpt-6-sol=big".to_owned());
    let model = ModelApiClient::new(&config, None).unwrap();
    let named = |id: &str| {
        let record = model.record(id).unwrap();
        (record.id, record.deployment_name)
    };
    assert_eq!(named("normal"), ("gpt-5.1".to_owned(), "daily".to_owned()));
    assert_eq!(named("high"), ("gpt-6-sol".to_owned(), "big".to_owned()));
    assert_eq!(named("mystery"), ("mystery".to_owned(), "mystery".to_owned()));
}

#[test]
fn settings_errors_are_reported_together() {
    let config =
        ResponsesConfig { prices: Some(SecretText::new("{")), ..ResponsesConfig::default() };
    let error = ModelApiClient::new(&config, None).unwrap_err();
    assert_eq!(error.len(), 3, "{error:?}");
}
