//! The case of branches: over HTTP with an imported file, and with the in-process `Agent`.

use std::collections::HashMap;
use std::sync::Arc;

use serde_json::{Value, json};
use tokio::sync::mpsc::UnboundedReceiver;
use turnwheel::Agent;
use turnwheel::identifiers::EntryId;
use turnwheel::inputs::{FinishedPromptRequest, NavigateOptions};
use turnwheel::models::ScriptedModel;
use turnwheel::prelude::AgentEvent;

use super::case::Case;
use super::test_app::{CaseConfig, TestApp};
use crate::support::openapi_check::SendValidated as _;

const CONVERSATION: &str = "/api/conversations/tree";
/// Kinds that only Turnwheel has.
const OWN_KINDS: [&str; 2] = ["prompt", "prompt_end"];

pub(super) async fn run_case(case: &Case) {
    let expected = case.expected();
    let mut http = HttpSession::start(case).await;
    for step in expected["steps"].as_array().unwrap() {
        let op = step["op"].as_str().unwrap();
        if op == "resetLeaf" {
            http.check_labels_and_tree(expected).await;
        }
        http.perform(op, step).await;
        assert_eq!(http.context().await, step["context"], "{}: {op}", case.id());
    }
    http.check_errors(expected).await;
    http.app.service.stop().await;
    run_in_process(case).await;
}

/// `user:text`, `assistant:text` or `branchSummary:text`.
fn message_line(message: &Value) -> String {
    let content = &message["content"];
    let text = content.as_str().or(content[0]["text"].as_str()).or(message["summary"].as_str());
    format!("{}:{}", message["role"].as_str().unwrap(), text.unwrap_or_default())
}

fn summary_text(step: &Value) -> String {
    let last = step["context"].as_array().unwrap().last().unwrap().as_str().unwrap();
    last.split_once(':').unwrap().1.to_owned()
}

/// The number in `append 5`.
fn appended_text(op: &str) -> &str {
    op.split(' ').nth(1).unwrap()
}

struct HttpSession {
    app: TestApp,
    /// Ids of the entries by their names in the case.
    ids: HashMap<String, String>,
}

impl HttpSession {
    async fn start(case: &Case) -> Self {
        let app = TestApp::start(case, Vec::new(), CaseConfig::for_loop("agent")).await;
        Self { app, ids: HashMap::new() }
    }

    async fn perform(&mut self, op: &str, step: &Value) {
        match op.split(['(', ' ']).next().unwrap() {
            "append" if op == "append 1..4" => self.import_start().await,
            "append" => self.append(appended_text(op)).await,
            "branch" => {
                let moved = self.move_leaf(&json!({"entryId": self.ids["i2"]})).await;
                assert_eq!(moved["leafId"].as_str(), Some(self.ids["i2"].as_str()));
            }
            "branchWithSummary" => {
                let body = json!({"entryId": self.ids["i2"], "summary": summary_text(step)});
                let moved = self.move_leaf(&body).await;
                let id = moved["leafId"].as_str().unwrap().to_owned();
                self.ids.insert("s1".to_owned(), id.clone());
                let entries = self.entries().await;
                let summary = entries.iter().find(|entry| entry["id"] == id.as_str()).unwrap();
                // The newer meaning, which the case prefers: the leaf that was left.
                assert_eq!(summary["fromId"], moved["oldLeafId"]);
            }
            "resetLeaf" => {
                let moved = self.move_leaf(&json!({"entryId": "root"})).await;
                assert_eq!(moved["leafId"], Value::Null);
            }
            other => panic!("unknown operation: {other}"),
        }
    }

    /// Imports the messages 1 to 4, which are the entries `i1` to `i4`.
    async fn import_start(&mut self) {
        let mut lines = vec![
            json!({"type": "session", "version": 3, "id": "s", "timestamp": "2026-01-01T00:00:00.000Z", "cwd": "/"}),
        ];
        for number in 1..=4 {
            let id = format!("i{number}");
            let parent = (number > 1).then(|| format!("i{}", number - 1));
            let text = number.to_string();
            let message = match number % 2 {
                1 => json!({"role": "user", "content": text, "timestamp": 1}),
                _ => json!({
                    "role": "assistant", "content": [{"type": "text", "text": text}], "api": "a", "provider": "p",
                    "model": "m", "usage": {}, "stopReason": "stop", "timestamp": 1,
                }),
            };
            lines.push(json!({"type": "message", "id": id, "parentId": parent, "timestamp": "2026-01-01T00:00:01.000Z", "message": message}));
            self.ids.insert(id.clone(), id);
        }
        let lines: Vec<String> = lines.iter().map(ToString::to_string).collect();
        let url = format!("{}/api/conversations/import?conversationId=tree", self.app.service.base);
        let request = self.app.service.client.post(url);
        let request = request.header("content-type", "application/x-ndjson").body(lines.join("\n"));
        let imported: Value = request.send_validated().await.unwrap().json().await.unwrap();
        assert_eq!(imported["imported"], 4, "{imported}");
    }

    async fn append(&mut self, text: &str) {
        let path = format!("{CONVERSATION}/prompts/import?wait=10");
        let body = json!({"input": text, "source": "user"});
        let (status, inserted) = self.app.service.post(&path, &body).await;
        assert_eq!(status, 200, "{inserted}");
        let entries = self.entries().await;
        let added = entries.iter().rev().find(|entry| entry["message"]["content"] == text).unwrap();
        self.ids.insert(format!("i{text}"), added["id"].as_str().unwrap().to_owned());
    }

    async fn move_leaf(&self, body: &Value) -> Value {
        let (status, moved) = self.app.service.post(&format!("{CONVERSATION}/leaf"), body).await;
        assert_eq!(status, 200, "{moved}");
        moved
    }

    async fn label(&self, entry_id: &str, label: &str) -> Value {
        let url = format!("{}{CONVERSATION}/entries/{entry_id}/label", self.app.service.base);
        let request = self.app.service.client.put(url).json(&json!({"label": label}));
        request.send_validated().await.unwrap().json().await.unwrap()
    }

    async fn entries(&self) -> Vec<Value> {
        let page = self.app.service.get(&format!("{CONVERSATION}/entries?limit=100")).await;
        page["items"].as_array().unwrap().clone()
    }

    async fn context(&self) -> Value {
        let page = self.app.service.get(&format!("{CONVERSATION}/messages?limit=100")).await;
        page["items"].as_array().unwrap().iter().map(message_line).collect()
    }

    async fn check_labels_and_tree(&self, expected: &Value) {
        for label in ["start", "start2"] {
            assert_eq!(self.label(&self.ids["i1"], label).await["label"], label);
        }
        let page = self.app.service.get(&format!("{CONVERSATION}/tree?all=true&limit=100")).await;
        let nodes = page["items"].as_array().unwrap();
        let names: HashMap<&str, &str> =
            self.ids.iter().map(|(name, id)| (id.as_str(), name.as_str())).collect();
        assert_eq!(json!(nest(nodes, &names, &Value::Null)), expected["tree"], "{page}");
    }

    async fn check_errors(&self, expected: &Value) {
        let path = format!("{CONVERSATION}/leaf");
        let branch = self.app.service.post(&path, &json!({"entryId": "zzz"})).await.1;
        let body = json!({"entryId": "zzz", "summary": "text"});
        let summarised = self.app.service.post(&path, &body).await.1;
        let errors =
            [branch, summarised, self.label("zzz", "text").await, self.label("zzz", "").await];
        let details: Value = errors.iter().map(|problem| problem["detail"].clone()).collect();
        assert_eq!(details, expected["errors"]);
    }
}

/// The nodes below a parent as in the case. Turnwheel's own kinds are left out: their children belong
/// to their parents.
fn nest(nodes: &[Value], names: &HashMap<&str, &str>, parent: &Value) -> Vec<Value> {
    let mut nested = Vec::new();
    for node in nodes.iter().filter(|node| node["parentId"] == *parent) {
        let kind = node["type"].as_str().unwrap();
        let children = nest(nodes, names, &node["id"]);
        if OWN_KINDS.contains(&kind) {
            nested.extend(children);
            continue;
        }
        let id = node["id"].as_str().unwrap();
        let name = names.get(id).copied().unwrap_or(kind);
        let mut shown = json!({"id": name, "children": children});
        if let Some(label) = node.get("label") {
            shown["label"] = label.clone();
        }
        nested.push(shown);
    }
    nested
}

/// The same steps with the methods of an embedded agent, which has no labels of its own.
async fn run_in_process(case: &Case) {
    let expected = case.expected();
    let agent = Agent::builder().models(Arc::new(ScriptedModel)).start().await.unwrap();
    let (sender, mut ended) = tokio::sync::mpsc::unbounded_channel();
    let _subscription = agent.subscribe(move |event| {
        if let AgentEvent::MessageEnd { .. } = event {
            let _ = sender.send(());
        }
    });
    for step in expected["steps"].as_array().unwrap() {
        let op = step["op"].as_str().unwrap();
        match op.split(['(', ' ']).next().unwrap() {
            "append" if op == "append 1..4" => {
                for (input, output) in [("1", "2"), ("3", "4")] {
                    insert(&agent, &mut ended, input, Some(output)).await;
                }
            }
            "append" => insert(&agent, &mut ended, appended_text(op), None).await,
            // The position before the message that follows i2.
            "branch" => drop(agent.branch(Some(&message_id(&agent, "3").await)).await.unwrap()),
            "branchWithSummary" => {
                let summary = Some(summary_text(step));
                let options = NavigateOptions { summary, ..NavigateOptions::default() };
                let target = message_id(&agent, "5").await;
                assert!(agent.navigate(Some(&target), options).await.unwrap().is_moved);
            }
            "resetLeaf" => drop(agent.branch(None).await.unwrap()),
            other => panic!("unknown operation: {other}"),
        }
        let messages = serde_json::to_value(agent.state().messages).unwrap();
        let context: Value = messages.as_array().unwrap().iter().map(message_line).collect();
        assert_eq!(context, step["context"], "{}: {op} in process", case.id());
    }
    let unknown = EntryId::new("zzz");
    let error = agent.branch(Some(&unknown)).await.unwrap_err();
    assert_eq!(error.to_string(), expected["errors"][0]);
}

async fn insert(
    agent: &Agent,
    ended: &mut UnboundedReceiver<()>,
    input: &str,
    output: Option<&str>,
) {
    let outputs: Vec<Value> =
        output.iter().map(|text| json!({"type": "text", "content": text})).collect();
    let request = json!({"input": input, "output": outputs, "source": "user"});
    let request: FinishedPromptRequest = serde_json::from_str(&request.to_string()).unwrap();
    agent.insert_prompt(request).await.unwrap();
    for _ in 0..=outputs.len() {
        ended.recv().await.unwrap();
    }
}

async fn message_id(agent: &Agent, text: &str) -> EntryId {
    let tree = agent.tree().await.unwrap();
    let is_message = |preview: &Option<String>| preview.as_deref() == Some(text);
    tree.items.iter().find(|node| is_message(&node.preview)).unwrap().id.clone()
}
