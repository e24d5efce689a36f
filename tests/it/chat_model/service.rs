//! Prompts of the whole service with a model behind Chat Completions: tool rounds, retries, images.

use std::process::{Command, Stdio};

use serde_json::{Value, json};
use turnwheel::App;

use super::{MODEL, sse};
use crate::support::fake_model::{Call, FakeModel, ResponseScript, ScriptedResponse};
use crate::support::service::Service;
use crate::support::tools::{Echo, Runs};

const AGENT: &str =
    "---\ndescription: Helps.\ntools: [echo]\nretry: {baseDelayMs: 10}\n---\nBe brief.\n";
const PIXEL: &str = "iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR42mNk+M9QDwADhgGAWjR9awAAAABJRU5ErkJggg==";

struct TestApp {
    service: Service,
    model: FakeModel,
    _folder: tempfile::TempDir,
}

impl TestApp {
    async fn start(plays: Vec<ScriptedResponse>) -> Self {
        let folder = tempfile::tempdir().unwrap();
        std::fs::create_dir(folder.path().join("agents")).unwrap();
        std::fs::write(folder.path().join("agents/helper.agent.md"), AGENT).unwrap();
        let model = FakeModel::start(plays).await;
        let prices = format!(r#"{{"{MODEL}":{{"images":true,"input":1,"output":2}}}}"#);
        let settings = [
            ("AZURE_OPENAI_BASE_URL", model.url.as_str()),
            ("AZURE_OPENAI_API_KEY", "a-key"),
            ("TURNWHEEL_MODEL", MODEL),
            ("TURNWHEEL_MODEL_API", "DeepSeek-V3.2=chat"),
            ("TURNWHEEL_PRICES", prices.as_str()),
        ];
        let app = App::new().tool(Echo(Runs::default()));
        let service = Service::start(app, folder.path(), &settings).await;
        assert_eq!(service.post("/api/conversations", &json!({"id": "c"})).await.0, 201);
        Self { service, model, _folder: folder }
    }

    /// Sends a prompt, waits for its end and returns it.
    async fn run_prompt(&self, input: &Value) -> Value {
        let path = "/api/conversations/c/prompts";
        let (status, prompt) = self.service.post(path, &json!({"input": input})).await;
        assert_eq!(status, 202, "{prompt}");
        self.service.wait_for_prompt("c", prompt["promptId"].as_str().unwrap()).await
    }

    fn sent_messages(&self, request: usize) -> Value {
        self.model.request_bodies()[request]["messages"].clone()
    }
}

fn echo_call(id: &str, value: &str) -> Call {
    Call { id: id.to_owned(), name: "echo".to_owned(), arguments: json!({"value": value}) }
}

#[tokio::test]
async fn image_and_parallel_calls_make_one_round() {
    let calls = vec![echo_call("call_a", "one"), echo_call("call_b", "two")];
    let thinking = vec!["Hm".to_owned()];
    let app = TestApp::start(vec![
        ScriptedResponse::Response(ResponseScript { thinking, calls, ..ResponseScript::default() }),
        ScriptedResponse::Response(ResponseScript::text("Both are done.")),
    ])
    .await;
    let image = json!({"type": "image", "data": PIXEL, "mimeType": "image/png"});
    let prompt = app.run_prompt(&json!([{"type": "text", "text": "Look"}, image])).await;
    assert_eq!(prompt["state"], "completed", "{prompt}");
    assert_eq!(prompt["output"][2]["content"], "Both are done.", "{prompt}");

    assert_eq!(app.model.request_bodies().len(), 2, "one request for each model call");
    let (first, second) = (app.sent_messages(0), app.sent_messages(1));
    let (first, second) = (first.as_array().unwrap(), second.as_array().unwrap());
    assert_eq!(first[0]["role"], "system");
    let url = format!("data:image/png;base64,{PIXEL}");
    let shown = first[1]["content"].as_array().unwrap();
    assert_eq!(shown.last().unwrap()["image_url"]["url"], url);
    assert_eq!(second[..first.len()], first[..], "the prefix is stable");
    let call = |id: &str, value: &str| json!({"type": "function", "id": id, "function": {"name": "echo", "arguments": json!({"value": value}).to_string()}});
    assert_eq!(
        second[first.len()..],
        [
            json!({"role": "assistant", "content": null, "tool_calls": [call("call_a", "one"), call("call_b", "two")]}),
            json!({"role": "tool", "tool_call_id": "call_a", "content": "echo:one"}),
            json!({"role": "tool", "tool_call_id": "call_b", "content": "echo:two"}),
        ]
    );
    assert_eq!(prompt["usage"]["totalTokens"], 30, "{prompt}");
    app.service.stop().await;
}

#[tokio::test]
async fn transient_failures_are_retried_until_response() {
    let rate_limit = ScriptedResponse::Http {
        status: 429,
        headers: vec![("retry-after-ms".to_owned(), "20".to_owned())],
        body: json!({"error": {"code": "429", "message": "busy"}}).to_string(),
    };
    let cut = ScriptedResponse::CutAfter(3, ResponseScript::text("half").chat_chunks());
    let app = TestApp::start(vec![
        rate_limit,
        cut,
        sse(200, &[], "data: garbage\n\n".to_owned()),
        ScriptedResponse::Response(ResponseScript::text("all of it")),
    ])
    .await;
    let prompt = app.run_prompt(&json!("go")).await;
    assert_eq!(prompt["state"], "completed", "{prompt}");
    assert_eq!(prompt["output"][0]["content"], "all of it");
    let bodies = app.model.request_bodies();
    assert_eq!(bodies.len(), 4);
    assert!(bodies.iter().all(|body| *body == bodies[0]), "each attempt sends the same request");
    app.service.stop().await;
}

#[tokio::test]
async fn filtered_response_is_incomplete() {
    let mut script = ResponseScript::text("half");
    script.stop = Some("content_filter".to_owned());
    let app = TestApp::start(vec![ScriptedResponse::Response(script)]).await;
    let prompt = app.run_prompt(&json!("go")).await;
    assert_eq!(prompt["incomplete"]["reason"], "content_filter", "{prompt}");
    app.service.stop().await;
}

#[tokio::test]
async fn rejected_prompt_fails_without_retry() {
    let body = json!({"error": {"code": "content_filter", "message": "Filtered.", "param": "prompt",
        "innererror": {"code": "ResponsibleAIPolicyViolation"}}});
    let headers = Vec::new();
    let rejected = ScriptedResponse::Http { status: 400, headers, body: body.to_string() };
    let app = TestApp::start(vec![rejected]).await;
    let prompt = app.run_prompt(&json!("go")).await;
    assert_eq!(prompt["state"], "failed", "{prompt}");
    assert!(prompt["error"]["message"].as_str().unwrap().contains("content_filter"), "{prompt}");
    assert_eq!(app.model.request_bodies().len(), 1);
    app.service.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn doctor_calls_each_api_of_tiers() {
    let mut chunks = ResponseScript::text("ok").chat_chunks();
    chunks.retain(|chunk| chunk.get("usage").is_none());
    let model = FakeModel::start([
        ScriptedResponse::SseEvents(chunks),
        ScriptedResponse::Response(ResponseScript::text("ok")),
    ])
    .await;
    let folder = tempfile::tempdir().unwrap();
    let models = format!("normal={MODEL},high=gpt-5.1");
    let mut command = Command::new(env!("CARGO_BIN_EXE_turnwheel"));
    command
        .arg("doctor")
        .current_dir(folder.path())
        .env_clear()
        .env("AZURE_OPENAI_BASE_URL", &model.url)
        .env("AZURE_OPENAI_API_KEY", "a-key")
        .env("TURNWHEEL_MODEL", models)
        .env("TURNWHEEL_MODEL_API", format!("{MODEL}=chat"))
        .stdin(Stdio::null());
    let output = tokio::task::spawn_blocking(move || command.output().unwrap()).await.unwrap();
    let text = String::from_utf8(output.stdout).unwrap();
    let lines: Vec<&str> = text.lines().filter(|line| line.starts_with("model")).collect();
    assert_eq!(lines.len(), 2, "{text}");
    let estimated = "over Chat Completions, without usage: its costs are estimates";
    assert!(lines[0].contains(&format!("normal: {MODEL} responds {estimated}")), "{text}");
    assert!(lines[1].ends_with("high: gpt-5.1 responds"), "{text}");
    assert_eq!(model.request_bodies().len(), 2);
}
