//! Test service with a fake model and a few tools, and requests with headers.

use std::sync::Arc;
use std::time::Duration;

use reqwest::Method;
use reqwest::header::HeaderMap;
use serde_json::Value;
use tokio::sync::Semaphore;
use turnwheel::{App, Approval, Effect, Tool, ToolContext, ToolError, ToolResult};

use crate::support::fake_model::{FakeModel, ResponseScript, ScriptedResponse};
use crate::support::openapi_check;
use crate::support::service::Service;
use crate::support::tools::{Echo, Gated, Nothing, Runs};

const AGENT: &str = "---
description: A test agent.
model: gpt-5.1
tools: [echo, test.gated, hasty, schedule]
---
You are helpful.
";

pub(super) struct TestApp {
    pub(super) service: Service,
    pub(super) model: FakeModel,
    pub(super) runs: Runs,
    _folder: tempfile::TempDir,
}

pub(super) struct Reply {
    pub(super) status: u16,
    pub(super) headers: HeaderMap,
    pub(super) body: Value,
}

impl Reply {
    /// The last part of the problem's `type`.
    pub(super) fn problem(&self) -> &str {
        self.body["type"].as_str().unwrap().strip_prefix("urn:turnwheel:problem:").unwrap()
    }

    pub(super) fn is_replayed(&self) -> bool {
        self.headers.get("idempotency-replayed").is_some_and(|value| value == "true")
    }
}

impl TestApp {
    pub(super) async fn start(responses: impl IntoIterator<Item = ScriptedResponse>) -> Self {
        let folder = tempfile::tempdir().unwrap();
        let agents = folder.path().join("agents");
        std::fs::create_dir(&agents).unwrap();
        std::fs::write(agents.join("helper.agent.md"), AGENT).unwrap();
        let model = FakeModel::start(responses).await;
        let runs = Runs::default();
        let app = App::new()
            .tool(Echo(Arc::clone(&runs)))
            .tool(Gated(Arc::clone(&runs)))
            .tool(Hasty(Arc::clone(&runs)));
        let settings = [
            ("AZURE_OPENAI_BASE_URL", model.url.as_str()),
            ("AZURE_OPENAI_API_KEY", "a-key"),
            ("TURNWHEEL_AUTH", "header"),
        ];
        let service = Service::start(app, folder.path(), &settings).await;
        Self { service, model, runs, _folder: folder }
    }

    pub(super) async fn send(
        &self,
        (method, path): (Method, &str),
        headers: &[(&str, &str)],
        body: Option<&Value>,
    ) -> Reply {
        let mut request =
            self.service.client.request(method, format!("{}{path}", self.service.base));
        for (name, value) in headers {
            request = request.header(*name, *value);
        }
        if let Some(body) = body {
            request = request.json(body);
        }
        let response = openapi_check::send(request).await.unwrap();
        let (status, headers, text) = (response.status.as_u16(), response.headers, response.text);
        let body = serde_json::from_str(&text).unwrap_or(Value::String(text));
        Reply { status, headers, body }
    }

    pub(super) async fn post(&self, path: &str, headers: &[(&str, &str)], body: &Value) -> Reply {
        self.send((Method::POST, path), headers, Some(body)).await
    }

    pub(super) async fn get(&self, path: &str, headers: &[(&str, &str)]) -> Reply {
        self.send((Method::GET, path), headers, None).await
    }
}

pub(super) fn respond_text(text: &str) -> ScriptedResponse {
    ScriptedResponse::Response(ResponseScript::text(text))
}

pub(super) fn respond_call(name: &str, arguments: Value) -> ScriptedResponse {
    ScriptedResponse::Response(ResponseScript::call("c1", name, arguments))
}

/// A response of these pieces of text; each piece waits for a permit.
pub(super) struct PacedResponse {
    permits: Arc<Semaphore>,
    events: usize,
}

impl PacedResponse {
    pub(super) fn new(pieces: &[String]) -> (Self, ScriptedResponse) {
        let script = ResponseScript { text: pieces.to_vec(), ..ResponseScript::default() };
        let events = script.events();
        let permits = Arc::new(Semaphore::new(0));
        let paced = Self { permits: Arc::clone(&permits), events: events.len() };
        (paced, ScriptedResponse::Paced(permits, events))
    }

    /// Releases the events before the first piece.
    pub(super) fn release_start(&self) {
        self.permits.add_permits(2);
    }

    pub(super) fn release_next(&self) {
        self.permits.add_permits(1);
    }

    pub(super) fn release_all(&self) {
        self.permits.add_permits(self.events);
    }
}

/// A tool whose approval request expires after 50 ms.
struct Hasty(Runs);

impl Tool for Hasty {
    type Args = Nothing;

    fn name(&self) -> &'static str {
        "hasty"
    }

    fn description(&self) -> &'static str {
        "Runs only if a person agrees at once."
    }

    fn effect(&self) -> Effect {
        Effect::Write
    }

    fn approval(&self, _args: &Nothing) -> Option<Approval> {
        Some(Approval::because("Quick!").within(Duration::from_millis(50)))
    }

    async fn call(&self, _args: Nothing, _cx: ToolContext) -> Result<ToolResult, ToolError> {
        self.0.lock().unwrap().push("hasty".to_owned());
        Ok(ToolResult::text("done"))
    }
}
