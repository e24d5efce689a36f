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
use turnwheel::settings::table;

use crate::support::fake_model::{FakeModel, Play, Script};
use crate::support::process::Dev;

const PATIENCE: Duration = Duration::from_mins(1);
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
struct Careless {
    url: String,
    heard: Arc<Mutex<Vec<String>>>,
    server: tokio::task::JoinHandle<()>,
}

impl Careless {
    async fn start() -> Self {
        let heard = Arc::<Mutex<Vec<String>>>::default();
        let kept = Arc::clone(&heard);
        let router = Router::new().fallback(move |uri: Uri, headers: HeaderMap, body: Bytes| {
            let status =
                uri.path().rsplit('/').next().and_then(|end| end.parse().ok()).unwrap_or(500);
            let text = format!("{uri} {headers:?} {}", String::from_utf8_lossy(&body));
            kept.lock().unwrap().push(text.clone());
            // Successful responses keep the tool's address, because links would break: omit it
            // here.
            let text = if status == 200 { text.replace(uri.path(), "") } else { text };
            async move { (StatusCode::from_u16(status).unwrap(), text) }
        });
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
        let url = format!("http://{}", listener.local_addr().unwrap());
        #[expect(clippy::disallowed_methods, reason = "a server beside the test, ended with it")]
        let server = tokio::spawn(async move { axum::serve(listener, router).await.unwrap() });
        Self { url, heard, server }
    }

    fn heard(&self, text: &str) -> bool {
        self.heard.lock().unwrap().iter().any(|heard| heard.contains(text))
    }
}

impl Drop for Careless {
    fn drop(&mut self) {
        self.server.abort();
    }
}

fn secret(name: &str) -> String {
    format!("{CANARY}-{name}-0123456789-0123456789")
}

/// Returns a value for every setting that is a secret; add one for each new row.
fn value(name: &str, careless: &Careless) -> Option<String> {
    let text = secret(name);
    Some(match name {
        "AZURE_OPENAI_API_KEY" => text,
        "TURNWHEEL_SIGNING_KEYS" => STANDARD.encode(text),
        "TURNWHEEL_WEBHOOK_SECRET" => format!("whsec_{}", STANDARD.encode(text)),
        "TURNWHEEL_WEBHOOK_URL" => format!("{}/{text}/503", careless.url),
        "APPLICATIONINSIGHTS_CONNECTION_STRING" => {
            format!("InstrumentationKey={text};IngestionEndpoint={}/", careless.url)
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

fn settings(model: &FakeModel, careless: &Careless) -> Vec<(&'static str, String)> {
    let mut settings = vec![
        ("TURNWHEEL_MODEL", "gpt-5-mini".to_owned()),
        ("AZURE_OPENAI_BASE_URL", model.url.clone()),
        ("OTEL_EXPORTER_OTLP_ENDPOINT", careless.url.clone()),
        ("OTEL_BSP_SCHEDULE_DELAY", "20".to_owned()),
        ("TURNWHEEL_PUBLIC_URL", "http://127.0.0.1:9".to_owned()),
        ("RUST_LOG", "trace".to_owned()),
        ("TOOL_URL", format!("{}/{}", careless.url, secret("TOOL_URL"))),
        ("TOOL_KEY", secret("TOOL_KEY")),
        ("TOOL_SIGNATURE", secret("TOOL_SIGNATURE")),
    ];
    for row in table::ROWS.iter().filter(|row| row.is_secret) {
        settings.extend(value(row.name, careless).map(|value| (row.name, value)));
    }
    settings
}

/// Returns the context of the first secret in a text: plain or as base64, as in settings.
fn is_told(text: &[u8]) -> Option<String> {
    // Twelve bytes: the bytes that follow do not change the end of their base64.
    let shapes = [CANARY.to_owned(), STANDARD.encode(CANARY)];
    let shown = String::from_utf8_lossy(text);
    shapes.iter().find_map(|shape| {
        let at = shown.find(shape.as_str())?;
        let from = shown.floor_char_boundary(at.saturating_sub(200));
        let to = shown.ceil_char_boundary((at + 100).min(shown.len()));
        shown.get(from..to).map(ToOwned::to_owned)
    })
}

fn files(folder: &Path) -> Vec<(String, Vec<u8>)> {
    let mut files = Vec::new();
    for entry in std::fs::read_dir(folder).unwrap() {
        let path = entry.unwrap().path();
        if path.is_dir() {
            files.extend(self::files(&path));
        } else {
            files.push((path.display().to_string(), std::fs::read(&path).unwrap()));
        }
    }
    files
}

/// Responses of all routes with data of the conversation.
async fn everything(dev: &Dev, http: &reqwest::Client) -> Vec<(String, Vec<u8>)> {
    let mut told = Vec::new();
    for path in [
        "/api/conversations/c",
        "/api/conversations/c/entries?limit=100",
        "/api/conversations/c/messages?limit=100",
        "/api/conversations/c/prompts?limit=100",
        "/api/conversations/c/events?follow=false",
        "/api/agents",
        "/api/health",
        "/api/openapi.json",
    ] {
        let answer = http.get(dev.url(path)).timeout(PATIENCE).send().await.unwrap();
        told.push((path.to_owned(), answer.bytes().await.unwrap().to_vec()));
    }
    told
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn no_secret_is_in_a_log_a_record_an_event_or_a_request_to_the_model() {
    let careless = Careless::start().await;
    let key = secret("AZURE_OPENAI_API_KEY");
    let refusal = json!({"error": {"code": "invalid_api_key", "message": format!("Incorrect API key provided: {key}")}});
    let look = |id: &str, what: &str| Play::Answer(Script::call(id, "look", json!({"what": what})));
    let model = FakeModel::start([
        Play::Http { status: 401, headers: Vec::new(), body: refusal.to_string() },
        look("call_1", "403"),
        look("call_2", "500"),
        look("call_3", "200"),
        Play::Answer(Script::text("Looked.")),
    ])
    .await;
    let folder = tempfile::tempdir().unwrap();
    std::fs::create_dir(folder.path().join("agents")).unwrap();
    std::fs::write(folder.path().join("agents/looker.agent.md"), AGENT).unwrap();
    let data = folder.path().join("data");
    let mut dev = Dev::start_in(folder.path(), &data, &settings(&model, &careless));
    let http = reqwest::Client::new();
    let mut states = Vec::new();
    for _ in 0..2 {
        let body = json!({"conversationId": "c", "input": "Look"});
        let asked = http.post(dev.url("/api/prompts?wait=50")).json(&body).timeout(PATIENCE);
        let mut prompt: Value = asked.send().await.unwrap().json().await.unwrap();
        if prompt["type"].is_string() {
            let asked = http.post(dev.url("/api/conversations/c/prompts?wait=50"));
            let asked = asked.json(&json!({"input": "Look"})).timeout(PATIENCE);
            prompt = asked.send().await.unwrap().json().await.unwrap();
        }
        states.push(prompt["state"].as_str().unwrap_or_default().to_owned());
    }
    assert_eq!(states, ["failed", "completed"], "{}", dev.log());
    let mut written = everything(&dev, &http).await;
    assert!(dev.interrupt(Duration::from_secs(30)).is_some(), "{}", dev.log());
    // Each secret was used; otherwise the test would prove nothing.
    for name in [
        "TOOL_URL",
        "TOOL_KEY",
        "TOOL_SIGNATURE",
        "TURNWHEEL_WEBHOOK_URL",
        "OTEL_EXPORTER_OTLP_TRACES_HEADERS",
    ] {
        assert!(careless.heard(&secret(name)), "{name} was not used: {}", dev.log());
    }
    assert_eq!(model.asked().last().unwrap().headers["api-key"], key.as_str());
    let log = dev.log();
    assert!(log.len() > 10_000, "the log has trace lines: {log}");
    written.push(("the log".to_owned(), log.into_bytes()));
    written.extend(
        model
            .requests()
            .iter()
            .map(|body| ("a model request".to_owned(), body.to_string().into_bytes())),
    );
    let kept = files(&data);
    assert!(kept.iter().any(|(_, bytes)| bytes.len() > 4_096), "the data folder has a record");
    written.extend(kept);
    let told: Vec<(String, String)> =
        written.iter().filter_map(|(name, bytes)| Some((name.clone(), is_told(bytes)?))).collect();
    assert!(told.is_empty(), "{told:#?}");
}
