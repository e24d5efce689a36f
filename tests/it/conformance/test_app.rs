//! The whole service for one case: its agent, tools and hooks, and the fake model.

use std::sync::Arc;
use std::time::Duration;

use serde_json::{Value, json};
use tokio::task::JoinSet;
use turnwheel::App;

use super::case::Case;
use super::hooks::register_hooks;
use crate::support::call_blocker::{BlockableTool, CallBlocker};
use crate::support::fake_model::{FakeModel, ScriptedResponse};
use crate::support::openapi_check::SendValidated as _;
use crate::support::service::Service;
use crate::support::tools::{Add, Boom, Echo, Finish, Gated, Prog, Runs, Slow};

/// Id of the conversation of every case.
pub(super) const CONVERSATION: &str = "case";

pub(super) struct TestApp {
    pub(super) service: Service,
    pub(super) model: FakeModel,
    pub(super) runs: Runs,
    /// Gate of all tool calls.
    pub(super) gate: CallBlocker,
    _nudgers: JoinSet<()>,
    _folder: tempfile::TempDir,
}

/// Configuration of a case, beyond its tools.
pub(super) struct CaseConfig<'a> {
    /// Id of the model.
    pub(super) model: &'a str,
    /// Entry of the model in `TURNWHEEL_PRICES`.
    pub(super) price_entry: Value,
    pub(super) settings: Value,
    /// First messages of the conversation.
    pub(super) messages: Vec<Value>,
}

impl CaseConfig<'_> {
    /// Configuration of a loop case, without retries: they have tests of their own.
    pub(super) fn for_loop(kind: &str) -> Self {
        Self {
            model: "gpt-5.1",
            price_entry: json!({}),
            settings: json!({"loop": kind, "retry": {"enabled": false}}),
            messages: Vec::new(),
        }
    }
}

impl TestApp {
    /// Starts the service and creates the conversation, without a prompt.
    pub(super) async fn start(
        case: &Case,
        plays: Vec<ScriptedResponse>,
        config: CaseConfig<'_>,
    ) -> Self {
        let folder = tempfile::tempdir().unwrap();
        let agents = folder.path().join("agents");
        std::fs::create_dir(&agents).unwrap();
        std::fs::write(agents.join("player.agent.md"), agent_file(case, config.model)).unwrap();
        let model = FakeModel::start(plays).await;
        let runs = Runs::default();
        let gate = CallBlocker::default();
        let runs_handle = || Arc::clone(&runs);
        let app = App::new()
            .tool(BlockableTool(Echo(runs_handle()), gate.clone()))
            .tool(BlockableTool(Boom(runs_handle()), gate.clone()))
            .tool(BlockableTool(Add(runs_handle()), gate.clone()))
            .tool(BlockableTool(Slow(runs_handle()), gate.clone()))
            .tool(BlockableTool(Prog(runs_handle()), gate.clone()))
            .tool(BlockableTool(Finish(runs_handle()), gate.clone()))
            .tool(BlockableTool(Gated(runs_handle()), gate.clone()));
        let prices = json!({config.model: config.price_entry}).to_string();
        let settings = [
            ("AZURE_OPENAI_BASE_URL", model.url.as_str()),
            ("AZURE_OPENAI_API_KEY", "a-key"),
            ("TURNWHEEL_PRICES", prices.as_str()),
        ];
        let service = Service::start(register_hooks(app, case), folder.path(), &settings).await;
        let body =
            json!({"id": CONVERSATION, "settings": config.settings, "messages": config.messages});
        let (status, answer) = service.post("/api/conversations", &body).await;
        assert_eq!(status, 201, "{}: {answer}", case.id());
        let mut nudgers = JoinSet::new();
        for number in 0..case.given("workers").as_u64().unwrap_or_default() {
            nudgers.spawn(send_nudges(service.client.clone(), service.base.clone(), number));
        }
        Self { service, model, runs, gate, _nudgers: nudgers, _folder: folder }
    }

    /// Sends a prompt and returns its id.
    pub(super) async fn prompt(&self, input: &Value) -> String {
        let path = format!("/api/conversations/{CONVERSATION}/prompts");
        let (status, answer) = self.service.post(&path, &json!({"input": input})).await;
        assert_eq!(status, 202, "{answer}");
        answer["promptId"].as_str().unwrap().to_owned()
    }

    pub(super) async fn messages(&self) -> Vec<Value> {
        let path = format!("/api/conversations/{CONVERSATION}/messages?limit=100");
        self.service.get(&path).await["items"].as_array().unwrap().clone()
    }

    pub(super) fn runs(&self) -> Vec<String> {
        self.runs.lock().unwrap().clone()
    }
}

/// Nudges the conversation at random moments until the task is aborted.
async fn send_nudges(client: reqwest::Client, base: String, seed: u64) {
    let mut rng = fastrand::Rng::with_seed(seed);
    let owner = json!({"tenant": "default", "user": "default", "conversationId": CONVERSATION});
    let body = json!({"input": owner.to_string()});
    loop {
        tokio::time::sleep(Duration::from_millis(rng.u64(0..12))).await;
        // The host rejects too many at a time; a lost nudge does not matter here.
        let _ =
            client.post(format!("{base}/admin/functions/turn")).json(&body).send_validated().await;
    }
}

fn agent_file(case: &Case, model: &str) -> String {
    let tools = case.given("tools").as_array().cloned().unwrap_or_default();
    let tools: Vec<&str> = tools.iter().map(|tool| tool["name"].as_str().unwrap()).collect();
    let instructions = case.given("system_prompt").as_str().unwrap_or("You are helpful.");
    format!(
        "---\ndescription: Plays a case.\nmodel: {model}\ntools: {}\n---\n{instructions}\n",
        json!(tools)
    )
}
