//! Cases of protocol mode, and cases of the loop with a model without native tool calls.

use serde_json::{Value, json};

use super::case::Case;
use super::compare::assert_same;
use super::notation::{self, call_id};
use super::test_app::{CONVERSATION, CaseConfig, TestApp};
use crate::support::event_stream::EventStream;
use crate::support::fake_model::{ResponseScript, ScriptedResponse};

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
        let of_case = script.iter().flat_map(|item| item["calls"].as_array().cloned().unwrap_or_default());
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
            other => other.clone(),
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
    let calls: Vec<Value> = serde_json::from_str(calls.strip_suffix("</execute>").unwrap()).unwrap();
    let call = |call: &Value| {
        format!("<toolCall {} {}>", ids.next().unwrap(), call["name"].as_str().unwrap())
    };
    before.trim_end().to_owned() + &calls.iter().map(call).collect::<String>()
}

pub(super) async fn run_case(case: &Case) {
    if case.given("inputs").is_object() {
        for (name, text) in case.given("inputs").as_object().unwrap() {
            run_malformed(case, name, text.as_str().unwrap()).await;
        }
    } else {
        run_batch(case).await;
    }
}

/// Runs a prompt whose model writes these tokens, and then "done".
async fn run_tokens(case: &Case, tokens: &[&str]) -> TestApp {
    let first = ResponseScript {
        text: tokens.iter().map(|token| (*token).to_owned()).collect(),
        ..ResponseScript::default()
    };
    let plays = [first, ResponseScript::text("done")].map(ScriptedResponse::Response);
    let app = TestApp::start(case, plays.to_vec(), CaseConfig::for_loop("protocol")).await;
    let prompt_id = app.prompt(&json!("go")).await;
    app.service.wait_for_prompt(CONVERSATION, &prompt_id).await;
    app
}

/// The case's tool `echo` fails or is silent on request. Here `boom` fails, and no tool is silent.
async fn run_batch(case: &Case) {
    let tokens = case.given("tokens").as_array().unwrap();
    let tokens: Vec<String> = tokens
        .iter()
        .map(|token| {
            let token = token.as_str().unwrap();
            token.replace(r#""echo","args":{"fail":true}"#, r#""boom","args":{}"#)
        })
        .collect();
    let tokens: Vec<&str> = tokens.iter().map(String::as_str).collect();
    let app = run_tokens(case, &tokens).await;
    let messages = app.messages().await;
    let blocks = messages[1]["content"].as_array().unwrap();
    let block = |index: usize, member: &str| blocks[index][member].clone();
    let stored = &case.expected()["stored"];
    assert_eq!(block(0, "thinking"), stored[0]["content"]);
    assert_eq!(block(1, "text"), stored[5]["content"], "before the calls");
    for (index, position) in [(1, 2), (3, 4)] {
        let call: Value = serde_json::from_str(stored[index]["content"].as_str().unwrap()).unwrap();
        let actual = json!({"name": block(position, "name"), "args": block(position, "arguments")});
        assert_eq!(actual, call);
    }
    assert!(!json!(messages).to_string().contains("execute>"), "storage is clean");
    // The results of the batch, in the form of the case.
    let bodies = app.model.request_bodies();
    let sent = bodies[1]["input"].as_array().unwrap().last().unwrap()["content"][0]["text"].clone();
    let sent = sent.as_str().unwrap();
    let expected = stored[6]["content"].as_str().unwrap();
    let start = r#"<results>
[{"tool": "echo", "status": "success", "content": "echo:a"}, {"tool": ""#;
    assert!(sent.starts_with(start) && expected.starts_with(start), "{sent}");
    let unknown =
        r#"{"tool": "nope", "status": "failure", "content": "Tool 'nope' not registered"}, "#;
    assert!(sent.contains(unknown) && expected.contains(unknown), "{sent}");
    assert!(sent.ends_with("\"}]\n</results>"), "{sent}");
    let stream = EventStream::open(&app.service, CONVERSATION, "?follow=false", None).await;
    let events = notation::events(&stream.read_rest().await);
    let ends = events.iter().filter(|event| event["type"] == "tool_execution_end");
    let ends: Vec<Value> = ends.map(|event| event["is_error"].clone()).collect();
    assert_eq!(ends[..3], [json!(false), json!(true), json!(true)]);
    app.service.stop().await;
}

async fn run_malformed(case: &Case, name: &str, text: &str) {
    let app = run_tokens(case, &[text]).await;
    let messages: Vec<Value> = app.messages().await.iter().map(notation::message).collect();
    let expected = json!({"role": "assistant", "text": case.expected()[name][0]["content"], "stop": "stop"});
    let done = json!({"role": "assistant", "text": "done", "stop": "stop"});
    assert_same(&format!("{}: {name}", case.id()), &messages[1..], &[expected, done]);
    assert!(app.runs().is_empty(), "no call runs");
    app.service.stop().await;
}
