//! Members of output items. Every one may be missing, or have another form.

use std::borrow::Cow;

use serde_json::{Value, json};

use crate::response_text::{known_parts, parts_of_value, text_of_value};

pub(super) fn id_of(item: &Value) -> Option<&str> {
    item.get("id").and_then(Value::as_str).filter(|id| !id.is_empty())
}

/// The type of an item. Some gateways leave it out, name calls otherwise, or send a part or a text in
/// place of a message.
pub(super) fn item_type(item: &Value) -> &str {
    let has = |name: &str| item.get(name).is_some_and(|value| !value.is_null());
    match item.get("type").and_then(Value::as_str) {
        Some("custom_tool_call" | "tool_call") => "function_call",
        Some("output_text" | "text" | "refusal") => "message",
        Some(kind) => kind,
        None if has("arguments") || has("input") => "function_call",
        None if has("content") || has("text") || item.is_string() => "message",
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

/// The parts of a message.
pub(super) fn content_parts(item: &Value) -> &[Value] {
    item.get("content").map(parts_of_value).unwrap_or_default()
}

/// Joins the text parts, refusals and transcripts included, without parts of unknown types; `None`
/// without any part.
pub(super) fn message_text(item: &Value) -> Option<String> {
    let content = item.get("content");
    let known = content.map(known_parts);
    let text = known.as_deref().and_then(text_of_value).or_else(|| own_text(item));
    // The list of an item may have only empty parts.
    let has_parts = content.and_then(Value::as_array).is_some_and(|parts| !parts.is_empty());
    let has_text = has_parts || content.is_some_and(Value::is_string);
    text.map(Cow::into_owned).or_else(|| has_text.then(String::new))
}

/// The text of an item that is a part, or a text.
fn own_text(item: &Value) -> Option<Cow<'_, str>> {
    let is_part = ["text", "refusal"].into_iter().any(|name| item.get(name).is_some());
    if is_part || item.is_string() { text_of_value(item) } else { None }
}

/// Joins the texts of a reasoning item's list as paragraphs; `None` without any text.
pub(super) fn join_texts(item: &Value, list: &str) -> Option<String> {
    let parts = parts_of_value(item.get(list)?);
    let texts: Vec<Cow<'_, str>> = parts.iter().filter_map(text_of_value).collect();
    (!texts.is_empty()).then(|| texts.join("\n\n"))
}
