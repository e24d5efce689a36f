//! Replays recorded sessions: one parsed round and the recorded outputs give the next request.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use serde_json::{Value, json};
use turnwheel::messages::Message;
use turnwheel::models::ModelRequest;
use turnwheel::testing::model::catalogue::Catalogue;
use turnwheel::testing::model::responses::body::build_request_body;
use turnwheel::testing::model::responses::names::ToolNames;

use super::streams::{MODEL, file_name, fold, recordings_in};
use crate::support::shared_data::find_shared_data;

/// Sessions whose next request differs from ours on purpose, with the reason.
const EXCEPTIONS: [(&str, &str); 4] = [
    (
        "langchain-openai__test_agent_loop_streaming",
        "replays thoughts without encrypted_content: they are in the service's store, which we do not use",
    ),
    (
        "pydantic-ai__test_deepseek_responses-function_tool_stream",
        "replays open thoughts of a model that encrypts nothing: Azure refuses them with store: false",
    ),
    (
        "pydantic-ai__test_openai_responses_stream",
        "the recorded client took the item's id for the call's",
    ),
    ("langchain-openai__test_codex_custom_tool", "a custom tool: we offer functions only"),
];

/// A recorded round and the next one.
struct RoundPair {
    session: String,
    stream_path: PathBuf,
    input: Vec<Value>,
    next_input: Vec<Value>,
}

#[tokio::test]
async fn next_request_matches_recorded_one() {
    let Some(folder) = find_shared_data("recordings/responses-stream") else { return };
    let pairs = round_pairs(&folder);
    let mut compared = 0;
    let mut differing = Vec::new();
    let mut history: BTreeMap<String, Vec<Message>> = BTreeMap::new();
    for pair in pairs {
        let messages =
            history.entry(pair.session.clone()).or_insert_with(|| other_messages(&pair.input, &[]));
        let answer = fold(&std::fs::read(&pair.stream_path).unwrap(), 4096).await.message;
        messages.push(Message::Assistant(answer));
        let added = pair.next_input.get(pair.input.len()..).unwrap();
        let received = other_messages(added, messages);
        messages.extend(received);
        let (ours, recorded) =
            (comparable_items(&request_input(messages)), comparable_items(&pair.next_input));
        compared += 1;
        if EXCEPTIONS.iter().any(|(session, _)| *session == pair.session) {
            if ours != recorded {
                differing.push(pair.session);
            }
        } else {
            assert_eq!(ours, recorded, "after {}", file_name(&pair.stream_path));
        }
    }
    assert!(compared >= 25, "only {compared} rounds compared");
    let expected: Vec<&str> = EXCEPTIONS.iter().map(|(session, _)| *session).collect();
    differing.sort();
    let mut expected: Vec<String> = expected.into_iter().map(ToOwned::to_owned).collect();
    expected.sort();
    assert_eq!(differing, expected, "an exception is obsolete");
}

/// Rounds whose next request extends their input.
fn round_pairs(folder: &Path) -> Vec<RoundPair> {
    let files = recordings_in(folder, ".sse");
    let rounds = files.iter().zip(files.iter().skip(1));
    rounds
        .filter_map(|(stream, next)| {
            let session = session_of(stream)?;
            let (before, after) = (recorded_input(stream)?, recorded_input(next)?);
            let is_continued = session == session_of(next)? && after.len() > before.len();
            (is_continued && after.starts_with(&before)).then(|| RoundPair {
                session,
                stream_path: stream.clone(),
                input: before,
                next_input: after,
            })
        })
        .collect()
}

/// The file's name without its number.
fn session_of(path: &Path) -> Option<String> {
    file_name(path).rsplit_once("__").map(|(session, _)| session.to_owned())
}

fn recorded_input(stream: &Path) -> Option<Vec<Value>> {
    let text = std::fs::read_to_string(stream.with_extension("request.json")).ok()?;
    let request: Value = serde_json::from_str(&text).unwrap();
    request["input"].as_array().cloned()
}

/// Messages that are not the model's: of the user, and outputs of the last response's calls.
fn other_messages(items: &[Value], history: &[Message]) -> Vec<Message> {
    let calls: Vec<(String, String)> = history
        .iter()
        .filter_map(|message| match message {
            Message::Assistant(answer) => Some(answer),
            Message::User(_)
            | Message::ToolResult(_)
            | Message::BashExecution(_)
            | Message::Custom(_)
            | Message::BranchSummary(_)
            | Message::CompactionSummary(_)
            | Message::Other(_) => None,
        })
        .flat_map(|answer| answer.tool_calls().map(|call| (call.id.clone(), call.name.clone())))
        .collect();
    let of = |item: &Value| -> Option<Value> {
        if item["type"] == "function_call_output" {
            let call_id = item["call_id"].as_str().unwrap();
            let (id, tool) = calls
                .iter()
                .rfind(|(id, _)| id.split('|').next() == Some(call_id))
                .cloned()
                .unwrap_or((call_id.to_owned(), String::new()));
            let content = json!([{ "type": "text", "text": item["output"] }]);
            return Some(
                json!({ "role": "toolResult", "toolCallId": id, "toolName": tool, "content": content, "isError": false, "timestamp": 0 }),
            );
        }
        (item["role"] == "user").then(|| json!({ "role": "user", "content": texts(&item["content"]).join("\n"), "timestamp": 0 }))
    };
    items.iter().filter_map(of).map(|message| serde_json::from_value(message).unwrap()).collect()
}

fn request_input(messages: &[Message]) -> Vec<Value> {
    let record = Catalogue::default().record(MODEL, MODEL);
    let messages: Vec<&Message> = messages.iter().collect();
    let request = ModelRequest::new(&record, &messages);
    let names = ToolNames::default();
    let mut body = serde_json::to_value(build_request_body(&request, &names)).unwrap();
    serde_json::from_value(body["input"].take()).unwrap()
}

/// The items without differences that do not matter to the model. Kept: kind, role, texts, call
/// ids, names, arguments as JSON, outputs, encrypted content, and the order. Dropped: item ids,
/// states, phases (optional for clients), the splits of a text, and its typographic quotes (one
/// recorder rewrote them).
fn comparable_items(items: &[Value]) -> Vec<Value> {
    let one = |item: &Value| -> Option<Value> {
        let kind = item["type"].as_str().unwrap_or("message");
        Some(match kind {
            "message" if item["role"] == "system" || item["role"] == "developer" => return None,
            "message" => {
                json!({ "role": item["role"], "text": plain_quotes(&texts(&item["content"]).concat()) })
            }
            "reasoning" => json!({ "reasoning": item["encrypted_content"] }),
            "function_call" => json!({
                "call": item["call_id"], "name": item["name"],
                "arguments": serde_json::from_str::<Value>(item["arguments"].as_str().unwrap()).unwrap(),
            }),
            "function_call_output" => {
                json!({ "output_of": item["call_id"], "output": plain_quotes(item["output"].as_str().unwrap()) })
            }
            _ => {
                let mut item = item.clone();
                for name in ["id", "status"] {
                    item.as_object_mut().unwrap().remove(name);
                }
                item
            }
        })
    };
    items.iter().filter_map(one).collect()
}

fn texts(content: &Value) -> Vec<&str> {
    match content {
        Value::String(text) => vec![text],
        Value::Array(parts) => parts.iter().filter_map(|part| part["text"].as_str()).collect(),
        Value::Null | Value::Bool(_) | Value::Number(_) | Value::Object(_) => Vec::new(),
    }
}

fn plain_quotes(text: &str) -> String {
    text.replace(['’', '‘'], "'")
        .replace(['“', '”'], "\"")
        .replace('…', "...")
        .replace(['–', '—'], "-")
        .replace("--", "-")
}
