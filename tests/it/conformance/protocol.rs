//! Cases of protocol mode, and cases of the loop with a model without native tool calls.

use schemars::JsonSchema;
use serde::Deserialize;
use serde_json::{Value, json};
use turnwheel::{App, Effect, Tool, ToolContext, ToolError, ToolResult};

use super::case::Case;
use super::compare::assert_same;
use super::notation::{self, call_id};
use super::test_app::CONVERSATION;
use crate::support::fake_model::{FakeModel, ResponseScript, ScriptedResponse};
use crate::support::service::Service;

/// The model script of a loop case.
pub(super) fn model_script(case: &Case) -> Vec<ScriptedResponse> {
    let script = ScriptedResponse::parse_script(case.given("model_script"));
    if !case.is_protocol() {
        return script;
    }
    script.iter().map(ScriptedResponse::to_protocol_text).collect()
}

/// Translates between a case of native calls and a run over protocol text. Without protocol mode it
/// changes nothing.
pub(super) struct Translation {
    is_protocol: bool,
    /// Ids of the calls: in the run, and in the case.
    ids: Vec<(String, String)>,
}

impl Translation {
    /// `messages` are those of the run.
    pub(super) fn new(case: &Case, messages: &[Value]) -> Self {
        let is_protocol = case.is_protocol();
        let script = case.given("model_script").as_array().cloned().unwrap_or_default();
        let of_case =
            script.iter().flat_map(|item| item["calls"].as_array().cloned().unwrap_or_default());
        let of_case = of_case.map(|call| call["id"].as_str().unwrap().to_owned());
        let blocks = messages.iter().filter(|message| message["role"] == "assistant");
        let blocks = blocks.flat_map(|message| message["content"].as_array().unwrap());
        let of_run = blocks.filter(|block| block["type"] == "toolCall");
        let of_run = of_run.map(|block| call_id(&block["id"]).as_str().unwrap().to_owned());
        let ids = of_run.zip(of_case).filter(|_| is_protocol).collect();
        Self { is_protocol, ids }
    }

    /// The texts of this loop.
    pub(super) fn expected(&self, expected: &Value) -> Value {
        if !self.is_protocol {
            return expected.clone();
        }
        let text = expected.to_string();
        let text = text.replace("Tool nope not found", "Tool 'nope' not registered");
        serde_json::from_str(&text).unwrap()
    }

    /// Replaces the ids of calls by those of the case.
    pub(super) fn restore_ids(&self, values: &[Value]) -> Vec<Value> {
        values.iter().map(|value| self.restore_id(value)).collect()
    }

    fn restore_id(&self, value: &Value) -> Value {
        match value {
            Value::String(text) => {
                let found = self.ids.iter().find(|(of_run, _)| of_run == text);
                json!(found.map_or(text, |(_, of_case)| of_case))
            }
            Value::Array(items) => items.iter().map(|item| self.restore_id(item)).collect(),
            Value::Object(members) => members
                .iter()
                .map(|(name, value)| (name.clone(), self.restore_id(value)))
                .collect::<serde_json::Map<_, _>>()
                .into(),
            Value::Null | Value::Bool(_) | Value::Number(_) => value.clone(),
        }
    }

    /// A request in the notation of the cases.
    pub(super) fn request(&self, body: &Value) -> Value {
        let native = notation::request(body);
        if !self.is_protocol {
            return native;
        }
        assert!(body.get("tools").is_none(), "{body}");
        let mut ids = self.ids.iter().map(|(_, of_case)| of_case.as_str());
        let mut lines = Vec::new();
        for line in native.as_array().unwrap() {
            let line = line.as_str().unwrap();
            if let Some(text) = line.strip_prefix("assistant:") {
                lines.push(format!("assistant:{}", native_response(text, &mut ids)));
            } else if let Some(results) = line.strip_prefix("user:<results>\n") {
                let results = results.strip_suffix("\n</results>").unwrap();
                let results: Vec<Value> = serde_json::from_str(results).unwrap();
                let texts = results.iter().map(|it| it["content"].as_str().unwrap());
                lines.extend(texts.map(|text| format!("toolResult:{text}")));
            } else {
                lines.push(line.to_owned());
            }
        }
        json!(lines)
    }
}

/// The text of a response, with its calls in the notation of the cases.
fn native_response<'i>(text: &str, ids: &mut impl Iterator<Item = &'i str>) -> String {
    let text = text.rsplit_once("</think>").map_or(text, |(_, rest)| rest.trim_start());
    let Some((before, calls)) = text.split_once("<execute>") else { return text.to_owned() };
    let calls: Vec<Value> =
        serde_json::from_str(calls.strip_suffix("</execute>").unwrap()).unwrap();
    let call = |call: &Value| {
        format!("<toolCall {} {}>", ids.next().unwrap(), call["name"].as_str().unwrap())
    };
    before.trim_end().to_owned() + &calls.iter().map(call).collect::<String>()
}

pub(super) async fn run_case(case: &Case) {
    if case.given("inputs").is_object() {
        for (name, text) in case.given("inputs").as_object().unwrap() {
            Box::pin(run_malformed(case, name, text.as_str().unwrap())).await;
        }
    } else {
        Box::pin(run_batch(case)).await;
    }
}

/// The tool of the cases.
#[derive(Deserialize, JsonSchema)]
struct EchoArguments {
    value: Option<String>,
    fail: Option<bool>,
    silent: Option<bool>,
}

struct ProtocolEcho;

impl Tool for ProtocolEcho {
    type Args = EchoArguments;

    fn name(&self) -> &'static str {
        "echo"
    }

    fn description(&self) -> &'static str {
        "A tool of the conformance cases."
    }

    fn effect(&self) -> Effect {
        Effect::Read
    }

    async fn call(&self, args: EchoArguments, _: ToolContext) -> Result<ToolResult, ToolError> {
        match args {
            EchoArguments { fail: Some(true), .. } => Err(ToolError::failed("File not found: x")),
            EchoArguments { silent: Some(true), .. } => Ok(ToolResult::text("Wrote 3 bytes")),
            EchoArguments { value, .. } => {
                Ok(ToolResult::text(format!("echo:{}", value.unwrap_or_default())))
            }
        }
    }
}

/// The service with the tool of the cases, after a prompt.
struct Run {
    service: Service,
    model: FakeModel,
    _folder: tempfile::TempDir,
}

impl Run {
    /// Runs a prompt whose model writes these tokens, and then "done".
    async fn start(tokens: &[&str]) -> Self {
        let folder = tempfile::tempdir().unwrap();
        let agents = folder.path().join("agents");
        std::fs::create_dir(&agents).unwrap();
        let agent = "---\nmodel: gpt-5.1\nloop: protocol\ntools: [echo]\n---\nBe kind.\n";
        std::fs::write(agents.join("player.agent.md"), agent).unwrap();
        let text = tokens.iter().map(|token| (*token).to_owned()).collect();
        let first = ResponseScript { text, ..ResponseScript::default() };
        let plays = [first, ResponseScript::text("done")].map(ScriptedResponse::Response);
        let model = FakeModel::start(plays).await;
        let settings =
            [("AZURE_OPENAI_BASE_URL", model.url.as_str()), ("AZURE_OPENAI_API_KEY", "a-key")];
        let service = Service::start(App::new().tool(ProtocolEcho), folder.path(), &settings).await;
        let body = json!({"conversationId": CONVERSATION, "input": "go"});
        let (status, accepted) = service.post("/api/prompts", &body).await;
        assert_eq!(status, 202, "{accepted}");
        let prompt_id = accepted["promptId"].as_str().unwrap();
        let prompt = service.wait_for_prompt(CONVERSATION, prompt_id).await;
        assert_eq!(prompt["state"], "completed", "{prompt}");
        Self { service, model, _folder: folder }
    }

    async fn messages(&self) -> Vec<Value> {
        let path = format!("/api/conversations/{CONVERSATION}/messages?limit=100");
        self.service.get(&path).await["items"].as_array().unwrap().clone()
    }
}

async fn run_batch(case: &Case) {
    let tokens = case.given("tokens").as_array().unwrap();
    let tokens: Vec<&str> = tokens.iter().map(|token| token.as_str().unwrap()).collect();
    let run = Run::start(&tokens).await;
    let messages = run.messages().await;
    // The stored records, in the case's notation. The text precedes the calls ("better").
    let record = |kind: &str, content: &Value| json!({"type": kind, "content": content});
    let blocks = messages[1]["content"].as_array().unwrap();
    let mut stored: Vec<Value> = blocks
        .iter()
        .map(|block| match block["type"].as_str().unwrap() {
            "thinking" => record("think", &block["thinking"]),
            "text" => record("respond", &block["text"]),
            _ => {
                let call = json!({"name": block["name"], "args": block["arguments"]});
                record("call", &json!(call.to_string()))
            }
        })
        .collect();
    let bodies = run.model.request_bodies();
    let input = bodies[1]["input"].as_array().unwrap();
    stored.push(record("result", &input.last().unwrap()["content"][0]["text"]));
    let mut expected = case.expected()["stored"].as_array().unwrap().clone();
    let text = expected.remove(5);
    expected.insert(1, text);
    for call in &mut expected[2..6] {
        // The case spells the JSON as Python does.
        let json: Value = serde_json::from_str(call["content"].as_str().unwrap()).unwrap();
        call["content"] = json!(json.to_string());
    }
    assert_same(&format!("{}: stored", case.id()), &stored, &expected);
    assert_history(case, &run).await;
    let calls = input[input.len() - 2]["content"][0]["text"].as_str().unwrap();
    let source = case.expected()["stored"].as_array().unwrap();
    let source = source.iter().filter(|record| record["type"] == "call");
    let source: Vec<&str> = source.map(|record| record["content"].as_str().unwrap()).collect();
    assert!(calls.ends_with(&format!("<execute>[{}]</execute>", source.join(", "))), "{calls}");
    assert!(!json!(messages).to_string().contains("execute>"), "storage has no markers");
    assert!(bodies.iter().all(|body| body.get("tools").is_none()), "no native tools");
    let system = &bodies[0]["input"][0]["content"];
    assert!(system.as_str().unwrap().contains("\n\nINSTRUCTIONS: Be kind.\n\nTOOLS:\necho("));
    assert_eq!(bodies[0]["input"][0], bodies[1]["input"][0], "the frame is stable");
    run.service.stop().await;
}

/// The history has the stored events of the source, byte for byte, between the input and the answer.
async fn assert_history(case: &Case, run: &Run) {
    let path = format!("/api/conversations/{CONVERSATION}/history?format=protocol&limit=100");
    let history = run.service.get(&path).await["items"].as_array().unwrap().clone();
    let of_round: Vec<Value> = history[1..history.len() - 1]
        .iter()
        .map(|event| json!({"type": event["type"], "content": event["content"]}))
        .collect();
    let mut expected = case.expected()["stored"].as_array().unwrap().clone();
    let text = expected.remove(5);
    expected.insert(1, text);
    assert_same(&format!("{}: history", case.id()), &of_round, &expected);
    let result = history.iter().find(|event| event["type"] == "result").unwrap();
    let events = case.expected()["events"].as_array().unwrap();
    assert_eq!(result["payload"], events.last().unwrap()["payload"]);
}

async fn run_malformed(case: &Case, name: &str, text: &str) {
    let run = Run::start(&[text]).await;
    let messages: Vec<Value> = run.messages().await.iter().map(notation::message).collect();
    let text = &case.expected()[name][0]["content"];
    let expected = json!({"role": "assistant", "text": text, "stop": "stop"});
    let done = json!({"role": "assistant", "text": "done", "stop": "stop"});
    assert_same(&format!("{}: {name}", case.id()), &messages[1..], &[expected, done]);
    run.service.stop().await;
}
