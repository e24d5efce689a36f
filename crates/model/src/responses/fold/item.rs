//! Members of output items. Every one may be missing, or have another form.

use serde_json::{Value, json};

pub(super) fn id_of(item: &Value) -> Option<&str> {
    item.get("id").and_then(Value::as_str).filter(|id| !id.is_empty())
}

/// The type of an item. Some gateways leave it out, or name calls otherwise.
pub(super) fn item_type(item: &Value) -> &str {
    match item.get("type").and_then(Value::as_str) {
        Some("custom_tool_call" | "tool_call") => "function_call",
        Some(kind) => kind,
        None if item.get("arguments").is_some() => "function_call",
        None if item.get("content").is_some() => "message",
        None => "",
    }
}

/// Returns the text signature: the id of the message item, with its phase if it has one. A replay
/// needs both.
pub(super) fn text_signature(item: &Value) -> Option<String> {
    let id = item.get("id").and_then(Value::as_str).filter(|id| !id.is_empty())?;
    match item.get("phase").and_then(Value::as_str) {
        Some(phase) => Some(json!({ "v": 1, "id": id, "phase": phase }).to_string()),
        None => Some(id.to_owned()),
    }
}

/// Joins the text parts, refusals and transcripts included; `None` without any part.
pub(super) fn message_text(item: &Value) -> Option<String> {
    let content = item.get("content")?;
    if let Some(text) = content.as_str() {
        return Some(text.to_owned());
    }
    let parts = content.as_array().filter(|parts| !parts.is_empty())?;
    Some(parts.iter().filter_map(part_text).collect())
}

/// The text of a content part.
pub(super) fn part_text(part: &Value) -> Option<&str> {
    let text = |name: &str| part.get(name).and_then(Value::as_str);
    part.as_str().or_else(|| ["text", "refusal", "transcript"].into_iter().find_map(text))
}

/// Joins the texts of a reasoning item's list as paragraphs; `None` for an empty list.
pub(super) fn join_texts(item: &Value, list: &str) -> Option<String> {
    let parts = item.get(list)?.as_array().filter(|parts| !parts.is_empty())?;
    let texts: Vec<&str> = parts.iter().filter_map(|part| part.get("text")?.as_str()).collect();
    Some(texts.join("\n\n"))
}
