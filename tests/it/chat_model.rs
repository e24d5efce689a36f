//! Whole model calls over Chat Completions on loopback: the request, the events, and the class of
//! each failure.

use std::time::Duration;

use serde_json::{Value, json};
use turnwheel::messages::StopReason;
use turnwheel::models::{Model, ModelFailure, ModelResponse};
use turnwheel::testing::agent::content::joined_text;
use turnwheel::testing::model::responses::{ModelApiClient, ResponsesConfig, SecretText};
use turnwheel::testing::settings::model::ModelApis;

use crate::support::fake_model::{FakeModel, ResponseScript, ScriptedResponse};
use crate::support::model_calls::{RecordingListener, call_model, expect_failure, user_message};

mod service;

const MODEL: &str = "DeepSeek-V3.2";

fn config(base_url: &str) -> ResponsesConfig {
    ResponsesConfig {
        base_url: Some(base_url.to_owned()),
        api_key: Some(SecretText::new("key-of-this-test")),
        deployment_map: Some(format!("{MODEL}=open")),
        apis: ModelApis::parse("chat,gpt-5.1=responses").unwrap(),
        prices: Some(SecretText::new(format!(r#"{{"{MODEL}":{{"input":1,"output":2}}}}"#))),
        idle_timeout: Some(Duration::from_secs(20)),
        ..ResponsesConfig::default()
    }
}

async fn call_config(config: &ResponsesConfig) -> (ModelResponse, Vec<String>) {
    let model = ModelApiClient::new(config, None).unwrap();
    let record = model.record(MODEL).unwrap();
    let listener = RecordingListener::default();
    let response = call_model(&model, &record, &[user_message("hi")], &listener).await;
    (response, listener.kinds())
}

async fn call_fake(fake: &FakeModel) -> (ModelResponse, Vec<String>) {
    call_config(&config(&fake.url)).await
}

fn sse(status: u16, headers: &[(&str, &str)], body: String) -> ScriptedResponse {
    let headers = headers.iter().chain(&[("content-type", "text/event-stream")]);
    let headers = headers.map(|(name, value)| ((*name).to_owned(), (*value).to_owned())).collect();
    ScriptedResponse::Http { status, headers, body }
}

#[tokio::test]
async fn chat_call_sends_request_and_emits_events() {
    let mut script = ResponseScript::call("call_1", "test.echo", json!({ "value": "x" }));
    script.thinking = vec!["Hm".to_owned()];
    script.text = vec!["Hel".to_owned(), "lo".to_owned()];
    let fake = FakeModel::start([ScriptedResponse::Response(script)]).await;
    let (response, kinds) = call_fake(&fake).await;

    assert_eq!(response.failure, None);
    assert_eq!(response.message.stop_reason, StopReason::ToolUse);
    assert_eq!(joined_text(&response.message.content), "Hello");
    let call = response.message.tool_calls().next().unwrap();
    assert_eq!((call.name.as_str(), call.id.as_str()), ("test.echo", "call_1"));
    assert_eq!((response.message.usage.input, response.message.usage.output), (10, 5));
    assert!((response.message.usage.cost.total - 0.000_02).abs() < 1e-12);
    assert!(response.message.extra.is_empty(), "reported usage has no mark");
    assert_eq!(
        (response.message.api.as_str(), response.message.model.as_str()),
        ("openai-completions", MODEL)
    );
    assert_eq!(response.metadata.model.as_deref(), Some("fake"));
    let expected = ["thinking_start", "thinking_delta", "thinking_end", "text_start", "text_delta"];
    let calls = ["text_delta", "text_end", "toolcall_start", "toolcall_delta", "toolcall_end"];
    assert_eq!(kinds, [expected, calls].concat());

    let sent = &fake.received_requests()[0];
    assert_eq!(sent.headers["api-key"], "key-of-this-test");
    assert_eq!(sent.headers["authorization"], "Bearer key-of-this-test", "for compatible services");
    assert_eq!(
        sent.body,
        json!({
            "model": "open", "stream": true, "stream_options": { "include_usage": true }, "max_tokens": 16_384,
            "messages": [{ "role": "system", "content": "SYS" }, { "role": "user", "content": "hi" }],
            "tools": [{ "type": "function", "function": { "name": "test_echo", "description": "Echoes.",
                "parameters": { "type": "object", "properties": {} } } }],
        })
    );
}

#[test]
fn api_is_chosen_per_model() {
    let model = ModelApiClient::new(&config("https://r.openai.azure.com"), None).unwrap();
    let api = |id: &str| model.record(id).unwrap().api;
    assert_eq!(api(MODEL), "openai-completions");
    assert_eq!(api("gpt-5.1"), "azure-openai-responses");
}

#[tokio::test]
async fn http_failures_have_classes() {
    let retry = |ms: u64| ModelFailure::Retryable { after: Some(Duration::from_millis(ms)) };
    let error =
        |code: Value| json!({ "error": { "code": code, "message": "so it is" } }).to_string();
    let cases = [
        (429, "retry-after", error(json!("429")), retry(7_000), "HTTP 429: so it is"),
        (503, "x-none", String::new(), ModelFailure::Retryable { after: None }, "HTTP 503"),
        (401, "x-none", error(json!(401)), ModelFailure::Permanent, "AZURE_OPENAI_API_KEY"),
        (404, "x-none", error(json!("DeploymentNotFound")), ModelFailure::Permanent, "_NAME_MAP"),
        (400, "x-none", error(json!("content_filter")), ModelFailure::Permanent, "content_filter"),
        (
            400,
            "x-none",
            error(json!("context_length_exceeded")),
            ModelFailure::ContextOverflow,
            "context_length_exceeded",
        ),
        (
            422,
            "x-none",
            r#"{"detail":"extra fields"}"#.to_owned(),
            ModelFailure::Permanent,
            "extra fields",
        ),
    ];
    for (status, header, body, expected, text) in cases {
        let headers = vec![(header.to_owned(), "7".to_owned())];
        let fake = FakeModel::start([ScriptedResponse::Http { status, headers, body }]).await;
        let (response, kinds) = call_fake(&fake).await;
        let (error_text, failure) = expect_failure(&response);
        assert_eq!(failure, &expected, "{status} {error_text}");
        assert!(error_text.contains(text) && kinds.is_empty(), "{error_text}");
    }
}

#[tokio::test]
async fn rate_limit_inside_chat_stream_uses_header() {
    let body = "data: {\"error\":{\"code\":\"rate_limit_exceeded\",\"message\":\"Slow down\"}}\n\n";
    let fake = FakeModel::start([sse(200, &[("retry-after", "4")], body.to_owned())]).await;
    let (response, _) = call_fake(&fake).await;
    let (error_text, failure) = expect_failure(&response);
    assert_eq!(error_text, "Error Code rate_limit_exceeded: Slow down");
    assert_eq!(failure, &ModelFailure::Retryable { after: Some(Duration::from_secs(4)) });
}

#[tokio::test]
async fn broken_chat_stream_keeps_text_and_is_retryable() {
    let chunks = ResponseScript::text("half an answer").chat_chunks();
    let unfinished = chunks[..3].to_vec();
    let garbage = format!("data: {}\n\ndata: garbage\n\n", chunks[2]);
    let mut silent = ResponseScript::text("half an answer");
    silent.is_unending = true;
    let cases = [
        (ScriptedResponse::CutAfter(3, chunks), "the connection to the model failed"),
        (ScriptedResponse::SseEvents(unfinished), "stream closed before the finish reason"),
        (sse(200, &[], garbage), "a chunk of the response could not be parsed"),
        (ScriptedResponse::Response(silent), "no data received from the model for"),
    ];
    for (play, text) in cases {
        let fake = FakeModel::start([play]).await;
        let config =
            ResponsesConfig { idle_timeout: Some(Duration::from_secs(3)), ..config(&fake.url) };
        let (response, _) = call_config(&config).await;
        let (error_text, failure) = expect_failure(&response);
        assert!(error_text.starts_with(text), "{error_text}");
        assert_eq!(failure, &ModelFailure::Retryable { after: None });
        assert_eq!(joined_text(&response.message.content), "half an answer", "{error_text}");
        assert_eq!(response.message.usage.total_tokens, 0, "as for the Responses API");
    }
}

#[tokio::test]
async fn missing_usage_is_estimated_and_marked() {
    let chunks = ResponseScript::text("word ".repeat(100).trim()).chat_chunks();
    let finish = chunks.iter().position(|it| it["choices"][0]["finish_reason"] == "stop").unwrap();
    let (complete, done) = (finish + 1, json!("[DONE]"));
    let plays = [
        ScriptedResponse::CutAfter(complete, chunks.clone()),
        ScriptedResponse::SseEvents(chunks[..complete].to_vec()),
        ScriptedResponse::SseEvents([&chunks[..complete], &[done]].concat()),
    ];
    for play in plays {
        let fake = FakeModel::start([play]).await;
        let (response, _) = call_fake(&fake).await;
        assert_eq!((response.failure, response.message.stop_reason), (None, StopReason::Stop));
        let usage = *response.message.usage;
        assert!((90..120).contains(&usage.output) && (5..40).contains(&usage.input), "{usage:?}");
        assert_eq!(usage.total_tokens, usage.input + usage.output);
        let tokens = |count: u64| f64::from(u32::try_from(count).unwrap());
        let cost = 0.000_001 * tokens(usage.input) + 0.000_002 * tokens(usage.output);
        assert!((usage.cost.total - cost).abs() < 1e-9, "{usage:?}");
        assert_eq!(response.message.extra["usageEstimated"], true);
    }
}

#[tokio::test]
async fn whole_chat_response_is_read_without_stream() {
    let whole = |body: Value| ScriptedResponse::Http {
        status: 200,
        headers: vec![("content-type".to_owned(), "application/json".to_owned())],
        body: body.to_string(),
    };
    let message = json!({ "role": "assistant", "content": "hi" });
    let fake = FakeModel::start([
        whole(json!({ "object": "chat.completion", "choices": [{ "message": message, "finish_reason": "stop" }],
            "usage": { "prompt_tokens": 4, "completion_tokens": 2 } })),
        whole(json!({ "error": { "code": "server_error", "message": "x" } })),
        whole(json!({ "hello": "I am another service" })),
    ])
    .await;
    let (response, kinds) = call_fake(&fake).await;
    assert_eq!(joined_text(&response.message.content), "hi");
    assert_eq!(kinds, ["text_start", "text_delta", "text_end"]);
    assert_eq!(
        expect_failure(&call_fake(&fake).await.0),
        ("Error Code server_error: x", &ModelFailure::Retryable { after: None })
    );
    let (response, _) = call_fake(&fake).await;
    let (text, failure) = expect_failure(&response);
    assert!(text.contains("AZURE_OPENAI_BASE_URL"), "{text}");
    assert_eq!(failure, &ModelFailure::Permanent);
}
