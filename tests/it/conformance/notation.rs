//! Converts events, messages and requests to the notation of the cases.

use serde_json::{Map, Value, json};

use crate::support::event_stream::Frame;

/// Event types that the cases use; others are ignored.
const EVENT_TYPES: [&str; 10] = [
    "agent_start",
    "agent_end",
    "turn_start",
    "turn_end",
    "message_start",
    "message_update",
    "message_end",
    "tool_execution_start",
    "tool_execution_update",
    "tool_execution_end",
];

/// True for events that are emitted live and never stored.
pub(super) fn is_live_only(event: &Value) -> bool {
    event["type"] == "message_update" || event["type"] == "tool_execution_update"
}

pub(super) fn events(frames: &[Frame]) -> Vec<Value> {
    frames.iter().filter(|frame| EVENT_TYPES.contains(&frame.name.as_str())).map(event).collect()
}

fn event(frame: &Frame) -> Value {
    let data = &frame.data;
    assert_eq!(data["type"], frame.name.as_str());
    let kind = |mut members: Value| {
        members["type"] = data["type"].clone();
        members
    };
    match frame.name.as_str() {
        "message_start" if data["message"]["role"] == "assistant" => {
            kind(json!({"role": "assistant"}))
        }
        "message_start" | "message_end" => kind(message(&data["message"])),
        "message_update" => kind(update(&data["assistantMessageEvent"])),
        "turn_end" => kind(json!({
            "stop": data["message"]["stopReason"],
            "tool_results": list(&data["toolResults"], |result| call_id(&result["toolCallId"])),
        })),
        "agent_end" => {
            kind(json!({"messages": list(&data["messages"], |message| message["role"].clone())}))
        }
        "tool_execution_start" => kind(json!({
            "id": call_id(&data["toolCallId"]), "tool": data["toolName"], "args": data["args"],
        })),
        "tool_execution_update" => kind(json!({
            "id": call_id(&data["toolCallId"]), "text": text(&data["partialResult"]["content"]),
        })),
        "tool_execution_end" => kind(json!({
            "id": call_id(&data["toolCallId"]), "tool": data["toolName"],
            "text": text(&data["result"]["content"]), "is_error": data["isError"],
        })),
        _ => kind(json!({})),
    }
}

fn update(event: &Value) -> Value {
    let mut update = json!({"event": event["type"], "index": event["contentIndex"]});
    if let Some(delta) = event.get("delta") {
        update["delta"] = delta.clone();
    }
    update
}

/// Converts a stored message.
pub(super) fn message(message: &Value) -> Value {
    let mut members = Map::new();
    let mut set = |name: &str, value: Value| members.insert(name.to_owned(), value);
    set("role", message["role"].clone());
    set("text", text(&message["content"]));
    match message["role"].as_str().unwrap() {
        "assistant" => {
            let calls = list(&message["content"], |block| block["id"].clone());
            let calls: Vec<Value> = calls.iter().filter(|id| !id.is_null()).map(call_id).collect();
            if !calls.is_empty() {
                set("tool_calls", Value::Array(calls));
            }
            set("stop", message["stopReason"].clone());
            if let Some(error) = message.get("errorMessage") {
                set("error", error.clone());
            }
        }
        "toolResult" => {
            set("tool_call_id", call_id(&message["toolCallId"]));
            set("tool", message["toolName"].clone());
            set("is_error", message["isError"].clone());
        }
        _ => {}
    }
    Value::Object(members)
}

/// The provider's part of a call id, as the cases write it.
pub(super) fn call_id(id: &Value) -> Value {
    id.as_str().and_then(|id| id.split('|').next()).into()
}

fn list(items: &Value, of: impl Fn(&Value) -> Value) -> Vec<Value> {
    items.as_array().map(|items| items.iter().map(of).collect()).unwrap_or_default()
}

/// Returns a text, or the joined texts of content blocks or request parts.
fn text(content: &Value) -> Value {
    if content.is_string() {
        return content.clone();
    }
    let texts = list(content, |block| block["text"].clone());
    Value::from(texts.iter().filter_map(Value::as_str).collect::<String>())
}

/// Converts a request's input without its instructions; the items of one response become one.
pub(super) fn request(body: &Value) -> Value {
    let mut lines: Vec<String> = Vec::new();
    let mut is_in_response = false;
    for item in body["input"].as_array().unwrap() {
        let kind = item["type"].as_str().unwrap_or("message");
        let role = item["role"].as_str().unwrap_or_default();
        let part = match (kind, role) {
            ("message", "developer" | "system") => continue,
            ("message", "assistant") => text(&item["content"]).as_str().unwrap().to_owned(),
            ("function_call", _) => format!(
                "<toolCall {} {}>",
                item["call_id"].as_str().unwrap(),
                item["name"].as_str().unwrap()
            ),
            ("reasoning", _) => String::new(),
            ("function_call_output", _) => {
                is_in_response = false;
                lines.push(format!("toolResult:{}", item["output"].as_str().unwrap()));
                continue;
            }
            _ => {
                is_in_response = false;
                lines.push(format!("{role}:{}", text(&item["content"]).as_str().unwrap()));
                continue;
            }
        };
        if !std::mem::replace(&mut is_in_response, true) {
            lines.push("assistant:".to_owned());
        }
        lines.last_mut().unwrap().push_str(&part);
    }
    json!(lines)
}

/// The event order of sequential calls: each result directly follows the end of its call.
pub(super) fn sequential_order(events: &[Value]) -> Vec<Value> {
    let is_result = |event: &&Value| event["role"] == "toolResult";
    let mut ordered = Vec::new();
    for event in events.iter().filter(|event| !is_result(event)) {
        ordered.push(event.clone());
        if event["type"] == "tool_execution_end" {
            let results = events.iter().filter(is_result);
            ordered.extend(results.filter(|result| result["tool_call_id"] == event["id"]).cloned());
        }
    }
    ordered
}
