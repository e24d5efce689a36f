//! Secrets never leak: no record, response, log line or model request contains one, in any failure.

use std::path::Path;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use axum::Router;
use axum::body::Bytes;
use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use http::{HeaderMap, StatusCode, Uri};
use serde_json::{Value, json};
use turnwheel::testing::settings::table;

use crate::support::dev_process::DevProcess;
use crate::support::fake_model::{FakeModel, ResponseScript, ScriptedResponse};
use crate::support::openapi_check::SendValidated as _;

const TIMEOUT: Duration = Duration::from_mins(2);
/// Prefix of every secret, which no output may contain.
const CANARY: &str = "canary5ecret";

const AGENT: &str = r#"---
description: Looks things up
tools:
  - http:
      name: look
      description: Looks
      url: ${TOOL_URL}/look/{what}?sig=${TOOL_SIGNATURE}
      headers: { x-key: "${TOOL_KEY}" }
      parameters: { properties: { what: { type: string } } }
---
Look things up.
"#;

/// A careless server: it echoes every request, with the status at the end of the path.
struct EchoServer {
    url: String,
    requests: Arc<Mutex<Vec<String>>>,
    server: tokio::task::JoinHandle<()>,
}

impl EchoServer {
    async fn start() -> Self {
        let requests = Arc::<Mutex<Vec<String>>>::default();
        let log = Arc::clone(&requests);
        let router = Router::new().fallback(move |uri: Uri, headers: HeaderMap, body: Bytes| {
            let status =
                uri.path().rsplit('/').next().and_then(|end| end.parse().ok()).unwrap_or(500);
            let text = format!("{uri} {headers:?} {}", String::from_utf8_lossy(&body));
            log.lock().unwrap().push(text.clone());
            // Successful responses keep the tool's address, because links would break: omit it
            // here.
            let text = if status == 200 { text.replace(uri.path(), "") } else { text };
            async move { (StatusCode::from_u16(status).unwrap(), text) }
        });
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
        let url = format!("http://{}", listener.local_addr().unwrap());
        #[expect(clippy::disallowed_methods, reason = "a server beside the test, ended with it")]
        let server = tokio::spawn(async move { axum::serve(listener, router).await.unwrap() });
        Self { url, requests, server }
    }

    fn has_received(&self, text: &str) -> bool {
        self.requests.lock().unwrap().iter().any(|request| request.contains(text))
    }
}

impl Drop for EchoServer {
    fn drop(&mut self) {
        self.server.abort();
    }
}

fn secret(name: &str) -> String {
    format!("{CANARY}-{name}-0123456789-0123456789")
}

/// Returns a value for every setting that is a secret; add one for each new row.
fn secret_setting(name: &str, server: &EchoServer) -> Option<String> {
    let text = secret(name);
    Some(match name {
        "AZURE_OPENAI_API_KEY" => text,
        "TURNWHEEL_SIGNING_KEYS" => STANDARD.encode(text),
        "TURNWHEEL_WEBHOOK_SECRET" => format!("whsec_{}", STANDARD.encode(text)),
        "TURNWHEEL_WEBHOOK_URL" => format!("{}/{text}/503", server.url),
        "APPLICATIONINSIGHTS_CONNECTION_STRING" => {
            format!("InstrumentationKey={text};IngestionEndpoint={}/", server.url)
        }
        "TURNWHEEL_PRICES" => {
            format!(r#"{{"gpt-5-mini":{{"headers":{{"x-key-of-model":"{text}"}}}}}}"#)
        }
        "AZURE_OPENAI_HEADERS"
        | "OTEL_EXPORTER_OTLP_HEADERS"
        | "OTEL_EXPORTER_OTLP_TRACES_HEADERS"
        | "OTEL_EXPORTER_OTLP_METRICS_HEADERS"
        | "OTEL_EXPORTER_OTLP_LOGS_HEADERS" => format!("x-key={text}"),
        // `dev` without `--storage azure` uses none of these.
        "AzureWebJobsStorage" | "COSMOS__accountKey" | "AZURE_CLIENT_SECRET" => return None,
        other => panic!("{other} is a secret: give it a value here"),
    })
}

fn settings(model: &FakeModel, server: &EchoServer) -> Vec<(&'static str, String)> {
    let mut settings = vec![
        ("TURNWHEEL_MODEL", "gpt-5-mini".to_owned()),
        ("AZURE_OPENAI_BASE_URL", model.url.clone()),
        ("OTEL_EXPORTER_OTLP_ENDPOINT", server.url.clone()),
        ("OTEL_BSP_SCHEDULE_DELAY", "20".to_owned()),
        ("TURNWHEEL_PUBLIC_URL", "http://127.0.0.1:9".to_owned()),
        // Libraries log at this level only by name.
        ("RUST_LOG", "trace,hyper=trace,h2=trace,reqwest=trace".to_owned()),
        ("TOOL_URL", format!("{}/{}", server.url, secret("TOOL_URL"))),
        ("TOOL_KEY", secret("TOOL_KEY")),
        ("TOOL_SIGNATURE", secret("TOOL_SIGNATURE")),
    ];
    for row in table::ROWS.iter().filter(|row| row.is_secret) {
        settings.extend(secret_setting(row.name, server).map(|value| (row.name, value)));
    }
    settings
}

/// Returns the context of the first secret in a text: plain or as base64, as in settings.
fn find_secret(text: &[u8]) -> Option<String> {
    // Twelve bytes: the bytes that follow do not change the end of their base64.
    let shapes = [CANARY.to_owned(), STANDARD.encode(CANARY)];
    let content = String::from_utf8_lossy(text);
    shapes.iter().find_map(|shape| {
        let at = content.find(shape.as_str())?;
        let from = content.floor_char_boundary(at.saturating_sub(200));
        let to = content.ceil_char_boundary((at + 100).min(content.len()));
        content.get(from..to).map(ToOwned::to_owned)
    })
}

fn read_files(folder: &Path) -> Vec<(String, Vec<u8>)> {
    let mut files = Vec::new();
    for entry in std::fs::read_dir(folder).unwrap() {
        let path = entry.unwrap().path();
        if path.is_dir() {
            files.extend(read_files(&path));
        } else {
            files.push((path.display().to_string(), std::fs::read(&path).unwrap()));
        }
    }
    files
}

/// Responses of all routes with data of the conversation.
async fn read_all_routes(dev: &DevProcess, http: &reqwest::Client) -> Vec<(String, Vec<u8>)> {
    let mut responses = Vec::new();
    for path in [
        "/api/conversations/c",
        "/api/conversations/c/entries?limit=100",
        "/api/conversations/c/messages?limit=100",
        "/api/conversations/c/prompts?limit=100",
        "/api/conversations/c/events?follow=false",
        "/api/agents",
        "/api/models",
        "/api/health",
        "/api/openapi.json",
        "/api/openapi-3.0.json",
    ] {
        let answer = http.get(dev.url(path)).timeout(TIMEOUT).send_validated().await.unwrap();
        responses.push((path.to_owned(), answer.bytes().await.unwrap().to_vec()));
    }
    responses
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn secrets_never_reach_logs_records_or_model() {
    let server = EchoServer::start().await;
    let key = secret("AZURE_OPENAI_API_KEY");
    let refusal = json!({"error": {"code": "invalid_api_key", "message": format!("Incorrect API key provided: {key}")}});
    let call_tool = |id: &str, what: &str| {
        ScriptedResponse::Response(ResponseScript::call(id, "look", json!({"what": what})))
    };
    let model = FakeModel::start([
        ScriptedResponse::Http { status: 401, headers: Vec::new(), body: refusal.to_string() },
        call_tool("call_1", "403"),
        call_tool("call_2", "500"),
        call_tool("call_3", "200"),
        ScriptedResponse::Response(ResponseScript::text("Looked.")),
    ])
    .await;
    let folder = tempfile::tempdir().unwrap();
    std::fs::create_dir(folder.path().join("agents")).unwrap();
    std::fs::write(folder.path().join("agents/looker.agent.md"), AGENT).unwrap();
    let data = folder.path().join("data");
    let mut dev = DevProcess::start_in(folder.path(), &data, &settings(&model, &server));
    let http = reqwest::Client::new();
    let mut states = Vec::new();
    for _ in 0..2 {
        let body = json!({"conversationId": "c", "input": "Look"});
        let request = http.post(dev.url("/api/prompts?wait=60")).json(&body).timeout(TIMEOUT);
        let mut prompt: Value = request.send_validated().await.unwrap().json().await.unwrap();
        if prompt["type"].is_string() {
            let request = http.post(dev.url("/api/conversations/c/prompts?wait=60"));
            let request = request.json(&json!({"input": "Look"})).timeout(TIMEOUT);
            prompt = request.send_validated().await.unwrap().json().await.unwrap();
        }
        states.push(prompt["state"].as_str().unwrap_or_default().to_owned());
    }
    assert_eq!(states, ["failed", "completed"], "{}", dev.log());
    let mut written = read_all_routes(&dev, &http).await;
    assert!(dev.interrupt(TIMEOUT).is_some(), "{}", dev.log());
    // Each secret was used; otherwise the test would prove nothing.
    for name in [
        "TOOL_URL",
        "TOOL_KEY",
        "TOOL_SIGNATURE",
        "TURNWHEEL_WEBHOOK_URL",
        "OTEL_EXPORTER_OTLP_TRACES_HEADERS",
    ] {
        assert!(server.has_received(&secret(name)), "{name} was not used: {}", dev.log());
    }
    assert_eq!(model.received_requests().last().unwrap().headers["api-key"], key.as_str());
    let log = dev.whole_log();
    assert!(log.len() > 10_000, "the log has trace lines: {log}");
    written.push(("the log".to_owned(), log.into_bytes()));
    written.extend(
        model
            .request_bodies()
            .iter()
            .map(|body| ("a model request".to_owned(), body.to_string().into_bytes())),
    );
    let stored = read_files(&data);
    assert!(stored.iter().any(|(_, bytes)| bytes.len() > 4_096), "the data folder has a record");
    written.extend(stored);
    let leaks: Vec<(String, String)> = written
        .iter()
        .filter_map(|(name, bytes)| Some((name.clone(), find_secret(bytes)?)))
        .collect();
    assert!(leaks.is_empty(), "{leaks:#?}");
}
