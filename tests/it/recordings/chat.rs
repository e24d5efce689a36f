//! Every recorded Chat Completions stream becomes the message that its chunks say, in chunks of any
//! size, and the next request equals that of the recorded client.

use std::collections::BTreeMap;
use std::convert::Infallible;
use std::path::Path;
use std::time::Duration;

use axum::body::Bytes;
use futures_util::stream::iter;
use serde_json::{Value, json};
use turnwheel::messages::{Block, Message, StopReason};
use turnwheel::models::{ModelRecord, ModelRequest};
use turnwheel::testing::model::catalogue::{Catalogue, Tariff};
use turnwheel::testing::model::chat::body::build_chat_body;
use turnwheel::testing::model::chat::fold::ChatFold;
use turnwheel::testing::model::responses::config::CacheRetention;
use turnwheel::testing::model::responses::names::ToolNames;
use turnwheel::testing::model::responses::stream::SseReader;

use super::streams::{MODEL, file_name, recordings_in};
use crate::support::shared_data::find_shared_data;

async fn fold_chat(bytes: &[u8], size: usize) -> ChatFold {
    let chunks: Vec<Result<Bytes, Infallible>> =
        bytes.chunks(size).map(|chunk| Ok(Bytes::copy_from_slice(chunk))).collect();
    let mut events = SseReader::new(iter(chunks), Duration::from_mins(1));
    let mut fold = ChatFold::new(MODEL, Tariff::default(), ToolNames::default());
    while let Some((name, data)) = events.next_event().await.unwrap() {
        fold.push_frame(name.as_deref(), &data);
    }
    fold
}

/// A recorded response, read without the decoder.
#[derive(Debug, Default, PartialEq)]
struct Recorded {
    text: String,
    thinking: String,
    /// Id, name and arguments.
    calls: Vec<(String, String, String)>,
    finish_reason: String,
    model: String,
    /// Input, output and cached tokens; `None` without usage.
    usage: Option<(u64, u64, u64)>,
}

fn read_recorded(bytes: &[u8]) -> Recorded {
    let mut recorded = Recorded::default();
    let mut calls: BTreeMap<u64, (String, String, String)> = BTreeMap::new();
    let text = String::from_utf8_lossy(bytes);
    let lines = text.lines().filter_map(|line| line.strip_prefix("data:"));
    for chunk in lines.filter_map(|data| serde_json::from_str::<Value>(data).ok()) {
        let string = |value: &Value| value.as_str().unwrap_or_default().to_owned();
        if recorded.model.is_empty() {
            recorded.model = string(&chunk["model"]);
        }
        if let Some(usage) = chunk["usage"].as_object() {
            let count = |name: &str| usage.get(name).and_then(Value::as_u64).unwrap_or(0);
            let cached = &chunk["usage"]["prompt_tokens_details"]["cached_tokens"];
            let (input, total) = (count("prompt_tokens"), count("total_tokens"));
            recorded.usage = Some((input, total - input, cached.as_u64().unwrap_or(0)));
        }
        let choices = chunk["choices"].as_array().cloned().unwrap_or_default();
        for choice in choices.iter().filter(|choice| choice["index"] == 0) {
            let delta = &choice["delta"];
            recorded.text += &(string(&delta["content"]) + &string(&delta["refusal"]));
            // The form of completions before chat.
            recorded.text += &string(&choice["text"]);
            recorded.thinking += &string(&delta["reasoning_content"]);
            for call in delta["tool_calls"].as_array().into_iter().flatten() {
                let kept = calls.entry(call["index"].as_u64().unwrap()).or_default();
                kept.0 += &string(&call["id"]);
                kept.1 += &string(&call["function"]["name"]);
                kept.2 += &string(&call["function"]["arguments"]);
            }
            recorded.finish_reason += &string(&choice["finish_reason"]);
        }
    }
    recorded.calls = calls.into_values().collect();
    recorded
}

#[tokio::test]
async fn recorded_chat_streams_become_messages() {
    let Some(folder) = find_shared_data("recordings/chat-stream") else { return };
    let files = recordings_in(&folder, ".sse");
    assert_eq!(files.len(), 97);
    let mut without_usage = 0;
    for path in files {
        let (bytes, file) = (std::fs::read(&path).unwrap(), file_name(&path).to_owned());
        let expected = read_recorded(&bytes);
        let whole = fold_chat(&bytes, bytes.len()).await;
        assert!(whole.is_finished(), "{file}");
        assert_eq!(whole.lacks_usage(), expected.usage.is_none(), "{file}");
        without_usage += usize::from(whole.lacks_usage());
        let folded = whole.finish();
        for size in [1, 7, 61] {
            let split = fold_chat(&bytes, size).await.finish();
            assert_eq!(split.message, folded.message, "{file} in chunks of {size}");
        }
        let message = &folded.message;
        assert_eq!(folded.error, None, "{file}");
        let of = |is_wanted: fn(&Block) -> Option<&str>| -> String {
            message.content.iter().filter_map(is_wanted).collect()
        };
        assert_eq!(
            of(|it| if let Block::Text(it) = it { Some(&it.text) } else { None }),
            expected.text,
            "{file}"
        );
        assert_eq!(
            of(|it| if let Block::Thinking(it) = it { Some(&it.thinking) } else { None }),
            expected.thinking,
            "{file}"
        );
        let calls: Vec<(String, String, Value)> = message
            .tool_calls()
            .map(|call| (call.id.clone(), call.name.clone(), call.arguments.to_value()))
            .collect();
        let expected_calls = expected.calls.into_iter().map(|(id, name, arguments)| {
            let text = if arguments.is_empty() { "{}" } else { &arguments };
            (id, name, serde_json::from_str(text).unwrap_or_else(|_| json!(text)))
        });
        assert_eq!(calls, expected_calls.collect::<Vec<_>>(), "{file}");
        let stop = match expected.finish_reason.as_str() {
            "stop" => StopReason::Stop,
            "tool_calls" => StopReason::ToolUse,
            "length" => StopReason::Length,
            other => panic!("{file}: {other}"),
        };
        assert_eq!(message.stop_reason, stop, "{file}");
        let usage = *message.usage;
        assert_eq!(
            (usage.input + usage.cache_read, usage.output, usage.cache_read),
            expected.usage.unwrap_or_default(),
            "{file}"
        );
        assert_eq!(folded.metadata.model.unwrap_or_default(), expected.model, "{file}");
    }
    assert_eq!(without_usage, 6);
}

#[tokio::test]
async fn truncated_chat_streams_are_failures() {
    let Some(folder) = find_shared_data("recordings/chat-stream") else { return };
    for path in recordings_in(&folder, ".sse").into_iter().step_by(9) {
        let bytes = std::fs::read(&path).unwrap();
        let text = String::from_utf8_lossy(&bytes);
        let finish = text.find("\"finish_reason\":\"").unwrap();
        let end = text.get(..finish).unwrap().rfind("data:").unwrap();
        for part in [1, 2, 5] {
            let folded = fold_chat(&bytes[..end / part], 997).await.finish();
            assert!(folded.error.is_some(), "{} cut at {}", file_name(&path), end / part);
        }
    }
}

/// The response of the model as the recorded client sent it back.
fn recorded_response(stream: &Path, next: &Path) -> Option<Value> {
    let read = |path: &Path| -> Option<Vec<Value>> {
        let text = std::fs::read_to_string(path.with_extension("request.json")).ok()?;
        serde_json::from_str::<Value>(&text).unwrap()["messages"].as_array().cloned()
    };
    let (before, after) = (read(stream)?, read(next)?);
    let response = after.get(before.len()).filter(|it| it["role"] == "assistant")?;
    after.starts_with(&before).then(|| response.clone())
}

/// Text, reasoning and calls of a sent response. Clients send missing texts in several forms.
fn comparable(response: &Value) -> Value {
    let calls = response["tool_calls"].as_array().cloned().unwrap_or_default();
    let call = |call: &Value| {
        let arguments = call["function"]["arguments"].as_str().unwrap();
        let arguments: Value = serde_json::from_str(arguments).unwrap();
        json!([call["id"], call["type"], call["function"]["name"], arguments])
    };
    let text = |name: &str| response[name].as_str().unwrap_or_default().to_owned();
    json!([text("content"), text("reasoning_content"), calls.iter().map(call).collect::<Vec<_>>()])
}

#[tokio::test]
async fn next_chat_request_matches_recorded_one() {
    let Some(folder) = find_shared_data("recordings/chat-stream") else { return };
    let files = recordings_in(&folder, ".sse");
    let mut compared = 0;
    for (stream, next) in files.iter().zip(files.iter().skip(1)) {
        let session = |path: &Path| file_name(path).rsplit_once("__").unwrap().0.to_owned();
        let Some(recorded) = recorded_response(stream, next) else { continue };
        if session(stream) != session(next) {
            continue;
        }
        let bytes = std::fs::read(stream).unwrap();
        let mut response = fold_chat(&bytes, 4096).await.finish().message;
        let model =
            if recorded.get("reasoning_content").is_some() { "deepseek-v4-pro" } else { "gpt-4o" };
        response.model = model.to_owned();
        let record = ModelRecord {
            api: "openai-completions".to_owned(),
            ..Catalogue::default().record(model, model)
        };
        let results: Vec<Message> = response
            .tool_calls()
            .map(|call| {
                serde_json::from_value(json!({ "role": "toolResult", "toolCallId": call.id, "toolName": call.name,
                    "content": [{ "type": "text", "text": "x" }], "isError": false, "timestamp": 0 }))
                .unwrap()
            })
            .collect();
        let response = Message::Assistant(response);
        let messages: Vec<&Message> = std::iter::once(&response).chain(&results).collect();
        let request = ModelRequest::new(&record, &messages);
        let names = ToolNames::default();
        let body = build_chat_body(&request, &names, CacheRetention::Short).to_bytes().unwrap();
        let sent: Value = serde_json::from_slice(&body).unwrap();
        assert_eq!(
            comparable(&sent["messages"][0]),
            comparable(&recorded),
            "{}",
            file_name(stream)
        );
        compared += 1;
    }
    assert!(compared >= 10, "only {compared} rounds compared");
}
