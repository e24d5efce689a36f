//! Model settings through the whole service, checked in model requests: model, thinking level,
//! images and rounds.

use schemars::JsonSchema;
use serde::Deserialize;
use serde_json::{Value, json};
use turnwheel::messages::{Block, Extra, Image};
use turnwheel::{App, Effect, Tool, ToolContext, ToolError, ToolResult};

use crate::support::fake_model::{FakeModel, ResponseScript, ScriptedResponse};
use crate::support::openapi_check::SendValidated as _;
use crate::support::service::Service;
use crate::support::tools::{Echo, Runs};

/// An image of one pixel.
const PNG: &str = "iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR42mNk+M9QDwADhgGAWjR9awAAAABJRU5ErkJggg==";

/// A tool that returns an image.
struct Camera;

#[derive(Deserialize, JsonSchema)]
struct Nothing {}

impl Tool for Camera {
    type Args = Nothing;

    fn name(&self) -> &'static str {
        "camera"
    }

    fn description(&self) -> &'static str {
        "Takes a picture."
    }

    fn effect(&self) -> Effect {
        Effect::Read
    }

    async fn call(&self, _args: Nothing, _cx: ToolContext) -> Result<ToolResult, ToolError> {
        let image =
            Image { data: PNG.to_owned(), mime_type: "image/png".to_owned(), extra: Extra::new() };
        Ok(ToolResult { content: vec![Block::Image(image)], ..ToolResult::default() })
    }
}

struct TestApp {
    service: Service,
    model: FakeModel,
    _folder: tempfile::TempDir,
}

impl TestApp {
    /// Starts with two agents: `helper`, with these keys, and `mute`, whose file lacks
    /// instructions.
    async fn start(plays: Vec<ScriptedResponse>, keys: &str) -> Self {
        let folder = tempfile::tempdir().unwrap();
        let agents = folder.path().join("agents");
        std::fs::create_dir(&agents).unwrap();
        let helper =
            format!("---\ndescription: Helps.\ntools: [echo, camera]\n{keys}\n---\nBe brief.\n");
        std::fs::write(agents.join("helper.agent.md"), helper).unwrap();
        std::fs::write(agents.join("mute.agent.md"), "---\ndescription: Says nothing.\n---\n")
            .unwrap();
        let model = FakeModel::start(plays).await;
        let settings = [
            ("AZURE_OPENAI_BASE_URL", model.url.as_str()),
            ("AZURE_OPENAI_API_KEY", "a-key"),
            ("TURNWHEEL_MODEL", "normal=gpt-5-mini,high=gpt-5.4"),
            ("AZURE_OPENAI_DEPLOYMENT_NAME_MAP", "gpt-5.4=big,blind=blind"),
            ("TURNWHEEL_PRICES", r#"{"blind":{"images":false}}"#),
            ("TURNWHEEL_DEFAULT_AGENT", "helper"),
        ];
        let app = App::new().tool(Echo(Runs::default())).tool(Camera);
        let service = Service::start(app, folder.path(), &settings).await;
        Self { service, model, _folder: folder }
    }

    async fn patch(&self, settings: Value) -> Value {
        let url = format!("{}/api/conversations/c", self.service.base);
        let answer = self
            .service
            .client
            .patch(url)
            .json(&json!({"settings": settings}))
            .send_validated()
            .await
            .unwrap();
        assert_eq!(answer.status(), 200);
        answer.json().await.unwrap()
    }

    /// Sends a prompt and returns it once it has ended.
    async fn run_prompt(&self, path: &str, body: &Value) -> Value {
        let (status, answer) = self.service.post(path, body).await;
        assert_eq!(status, 202, "{answer}");
        let (conversation, prompt) = (&answer["conversationId"], &answer["promptId"]);
        self.service.wait_for_prompt(conversation.as_str().unwrap(), prompt.as_str().unwrap()).await
    }

    async fn create_conversation(&self, settings: Value) {
        let body = json!({"id": "c", "settings": settings});
        assert_eq!(self.service.post("/api/conversations", &body).await.0, 201);
    }
}

const PROMPTS: &str = "/api/conversations/c/prompts";

fn text_response(text: &str) -> ScriptedResponse {
    ScriptedResponse::Response(ResponseScript::text(text))
}

fn call_response(name: &str, arguments: Value) -> ScriptedResponse {
    ScriptedResponse::Response(ResponseScript::call("c1", name, arguments))
}

fn texts(item: &Value) -> Vec<&str> {
    item["content"].as_array().unwrap().iter().filter_map(|part| part["text"].as_str()).collect()
}

#[tokio::test]
async fn model_settings_reach_requests_and_record() {
    let app =
        TestApp::start((0..5).map(|_| text_response("ok")).collect(), "model: high\nthinking: low")
            .await;
    app.create_conversation(json!({})).await;
    let of_agent = app.run_prompt(PROMPTS, &json!({"input": "1"})).await;
    let once = app.run_prompt(PROMPTS, &json!({"input": "2", "model": "gpt-4o"})).await;
    let view = app.patch(json!({"model": "normal", "thinkingLevel": "max"})).await;
    let patched = app.run_prompt(PROMPTS, &json!({"input": "3"})).await;
    app.patch(json!({"model": "gpt-5.4", "thinkingLevel": "xhigh"})).await;
    app.run_prompt(PROMPTS, &json!({"input": "4"})).await;
    app.patch(json!({"thinkingLevel": "off"})).await;
    app.run_prompt(PROMPTS, &json!({"input": "5"})).await;

    let requests = app.model.request_bodies();
    let sent: Vec<_> = requests
        .iter()
        .map(|request| (&request["model"], &request["reasoning"]["effort"]))
        .collect();
    assert_eq!(
        sent,
        [
            (&json!("big"), &json!("low")),
            (&json!("gpt-4o"), &Value::Null),
            // A level above the model's maximum becomes that maximum.
            (&json!("gpt-5-mini"), &json!("high")),
            (&json!("big"), &json!("xhigh")),
            (&json!("big"), &json!("none")),
        ]
    );
    assert_eq!(view["settings"], json!({"model": "normal", "thinkingLevel": "max"}));
    let models = [&of_agent["model"], &once["model"], &patched["model"]];
    assert_eq!(models, [&json!("high"), &json!("gpt-4o"), &json!("normal")]);

    let entries = app.service.get("/api/conversations/c/entries?limit=100").await;
    let entries = entries["items"].as_array().unwrap();
    let changes = |kind: &str, member: &str| -> Vec<Value> {
        let of_kind = entries.iter().filter(|entry| entry["type"] == kind);
        of_kind.map(|entry| entry[member].clone()).collect()
    };
    assert_eq!(changes("model_change", "modelId"), ["gpt-5-mini", "gpt-5.4"]);
    assert_eq!(changes("thinking_level_change", "thinkingLevel"), ["max", "xhigh", "off"]);
    let messages = app.service.get("/api/conversations/c/messages").await;
    let models: Vec<_> = messages["items"]
        .as_array()
        .unwrap()
        .iter()
        .filter(|message| message["role"] == "assistant")
        .map(|message| message["model"].clone())
        .collect();
    assert_eq!(models, ["gpt-5.4", "gpt-4o", "gpt-5-mini", "gpt-5.4", "gpt-5.4"]);
    app.service.stop().await;
}

#[tokio::test]
async fn reasoning_of_another_model_becomes_text() {
    let thinking =
        ResponseScript { thinking: vec!["Hm".to_owned()], ..ResponseScript::text("one") };
    let app = TestApp::start(
        vec![ScriptedResponse::Response(thinking), text_response("two"), text_response("three")],
        "thinking: low",
    )
    .await;
    app.create_conversation(json!({})).await;
    app.run_prompt(PROMPTS, &json!({"input": "1"})).await;
    app.run_prompt(PROMPTS, &json!({"input": "2"})).await;
    app.run_prompt(PROMPTS, &json!({"input": "3", "model": "gpt-5.4"})).await;
    let requests = app.model.request_bodies();
    assert_eq!(requests[1]["input"][2]["type"], "reasoning");
    assert_eq!(requests[1]["input"][3]["id"], "msg_1");
    let foreign = &requests[2]["input"];
    assert_eq!((texts(&foreign[2]), texts(&foreign[3])), (vec!["Hm"], vec!["one"]));
    assert!(!foreign.to_string().contains("ENC"), "{foreign}");
    app.service.stop().await;
}

#[tokio::test]
async fn images_from_users_and_tools_reach_model() {
    let plays =
        vec![call_response("camera", json!({})), text_response("seen"), text_response("not seen")];
    let app = TestApp::start(plays, "").await;
    app.create_conversation(json!({})).await;
    let input = json!([{"type": "text", "text": "look"}, {"type": "image", "data": PNG, "mimeType": "image/png"}]);
    let prompt = app.run_prompt(PROMPTS, &json!({"input": input})).await;
    assert_eq!(prompt["input"], input);
    app.run_prompt(PROMPTS, &json!({"input": "and now?", "model": "blind"})).await;
    let requests = app.model.request_bodies();
    let second_input = &requests[1]["input"];
    let url = format!("data:image/png;base64,{PNG}");
    assert_eq!(second_input[1]["content"][1]["image_url"], url);
    assert_eq!(second_input[3]["output"], "(see attached image)");
    assert_eq!(texts(&second_input[4]), ["Attached image(s) from tool result:"]);
    assert_eq!(second_input[4]["content"][1]["image_url"], url);
    let blind = requests[2]["input"].to_string();
    assert!(!blind.contains("base64"), "{blind}");
    assert!(blind.contains("(image omitted: this model takes no images)"), "{blind}");
    for (data, kind, member) in [
        ("-", "image/png", "data"),
        // No image: the provider would reject every later request of the conversation.
        ("aGVsbG8=", "image/png", "data"),
        (PNG, "image/svg+xml", "mimeType"),
    ] {
        let input = json!([{"type": "image", "data": data, "mimeType": kind}]);
        let (status, problem) = app.service.post(PROMPTS, &json!({"input": input})).await;
        let pointer = format!("/input/0/{member}");
        assert_eq!((status, &problem["errors"][0]["pointer"]), (400, &json!(pointer)));
    }
    app.service.stop().await;
}

#[tokio::test]
async fn prompt_without_input_adds_no_user_message() {
    let app =
        TestApp::start(vec![text_response("Good morning"), text_response("Still here")], "").await;
    app.create_conversation(json!({})).await;
    let (status, problem) = app.service.post(PROMPTS, &json!({})).await;
    assert_eq!((status, &problem["errors"][0]["pointer"]), (400, &json!("/input")));
    for expected in ["Good morning", "Still here"] {
        let conversation = app.service.get("/api/conversations/c").await;
        let at = conversation["leafId"].as_str().unwrap_or("root");
        let prompt = app.run_prompt(PROMPTS, &json!({"at": at})).await;
        assert_eq!((&prompt["state"], prompt.get("input")), (&json!("completed"), None));
        assert_eq!(prompt["output"][0]["content"], expected);
    }
    let roles = |request: &Value| -> Vec<String> {
        let items = request["input"].as_array().unwrap().iter();
        items.map(|item| item["role"].as_str().unwrap().to_owned()).collect()
    };
    let requests: Vec<_> = app.model.request_bodies().iter().map(roles).collect();
    assert_eq!(requests, [vec!["developer"], vec!["developer", "assistant"]]);
    app.service.stop().await;
}

#[tokio::test]
async fn broken_agent_file_makes_only_its_agent_unavailable() {
    let app = TestApp::start(vec![text_response("Hello.")], "").await;
    let problem = "agents/mute.agent.md:3: there are no instructions";
    let agents = app.service.get("/api/agents").await;
    let named = |name: &str| {
        let mut items = agents["items"].as_array().unwrap().iter();
        items.find(|agent| agent["name"] == name).unwrap().clone()
    };
    assert_eq!(named("helper")["available"], true);
    assert_eq!(named("mute")["available"], false);
    assert!(named("mute")["problem"].as_str().unwrap().starts_with(problem), "{agents}");
    let (status, refused) =
        app.service.post("/api/prompts", &json!({"agent": "mute", "input": "Hi"})).await;
    assert_eq!(status, 503, "{refused}");
    assert!(refused["detail"].as_str().unwrap().contains(problem), "{refused}");
    let prompt = app.run_prompt("/api/prompts", &json!({"agent": "helper", "input": "Hi"})).await;
    assert_eq!(prompt["state"], "completed", "{prompt}");
    assert_eq!(app.model.request_bodies().len(), 1);
    app.service.stop().await;
}

#[tokio::test]
async fn lone_surrogates_are_removed() {
    let mut events = ResponseScript::call("c1", "echo", json!({"value": "HALF"})).events();
    for event in &mut events {
        let text = event.to_string().replace("HALF", r"\\ud83d");
        *event = serde_json::from_str(&text).unwrap();
    }
    let app =
        TestApp::start(vec![ScriptedResponse::SseEvents(events), text_response("ok")], "").await;
    let request = app.service.client.post(format!("{}/api/prompts", app.service.base));
    let answer =
        request.header("content-type", "application/json").body(r#"{"input":"cut \ud83d"}"#);
    let accepted: Value = answer.send_validated().await.unwrap().json().await.unwrap();
    let id = |name: &str| accepted[name].as_str().unwrap().to_owned();
    let prompt = app.service.wait_for_prompt(&id("conversationId"), &id("promptId")).await;
    assert_eq!((&prompt["state"], &prompt["input"]), (&json!("completed"), &json!("cut ")));
    let requests = app.model.request_bodies();
    assert_eq!(texts(&requests[0]["input"][1]), ["cut "]);
    let items = requests[1]["input"].as_array().unwrap();
    let call = items.iter().find(|item| item["type"] == "function_call").unwrap();
    assert_eq!(call["arguments"], r#"{"value":""}"#);
    app.service.stop().await;
}

#[tokio::test]
async fn rounds_are_limited_by_setting_loop_and_service() {
    let echo = || call_response("echo", json!({"value": "x"}));
    let cases = [
        (json!({"maxRounds": 2}), 2, "Exceeded maximum number of rounds (2). Stopping."),
        (json!({"loop": "prompt"}), 25, "Exceeded maximum number of rounds (25). Stopping."),
        (
            json!({"loop": "agent", "hardRoundsMax": 30}),
            30,
            "Stopped after 30 rounds: the service's hard limit.",
        ),
    ];
    let rounds: usize = cases.iter().map(|(_, rounds, _)| rounds).sum();
    let app = TestApp::start((0..rounds).map(|_| echo()).collect(), "continuation: inline").await;
    let mut request_count = 0;
    for (settings, rounds, expected) in cases {
        let prompt =
            app.run_prompt("/api/prompts", &json!({"input": "go", "settings": settings})).await;
        assert_eq!(
            (&prompt["state"], &prompt["stopReason"]),
            (&json!("completed"), &json!("max_rounds"))
        );
        assert_eq!(prompt["output"].as_array().unwrap().last().unwrap()["content"], expected);
        request_count += rounds;
        assert_eq!(app.model.request_bodies().len(), request_count, "{settings}");
    }
    app.service.stop().await;
}

#[tokio::test]
async fn duplicate_tool_name_fails_startup() {
    let folder = tempfile::tempdir().unwrap();
    std::fs::create_dir(folder.path().join("agents")).unwrap();
    let app = App::new().tool(Echo(Runs::default())).tool(Camera).tool(Camera);
    let error = Service::try_start(app, folder.path(), &[]).await.unwrap_err().to_string();
    let types = "`it::modes::Camera` and `it::modes::Camera`";
    assert!(
        error.contains(&format!("two tools are called `camera`: {types}. Rename one")),
        "{error}"
    );
}
