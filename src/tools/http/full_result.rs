//! A tool that answers in our own shape: content, details, files, widgets.

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use bytes::Bytes;
use serde::Deserialize;
use serde_json::Value;

use crate::agent::content::Block;
use crate::agent::entry::{Output, WidgetOutput};
use crate::agent::raw::{Extra, RawJson};
use crate::tools::http::answer::{IMAGE_BYTES_MAX, keep, tame_path};
use crate::tools::{ToolContext, ToolResult};

/// Files and widgets of one answer.
const OUTPUTS_MAX: usize = 20;
const KEYS: [&str; 6] = ["content", "details", "files", "widgets", "isError", "terminate"];

#[derive(Deserialize)]
#[serde(rename_all = "camelCase", default)]
#[derive(Default)]
struct FullResult {
    content: Vec<RawJson>,
    details: Option<RawJson>,
    files: Vec<RawJson>,
    widgets: Vec<RawJson>,
    is_error: Option<bool>,
    terminate: Option<bool>,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct File {
    path: String,
    mime_type: Option<String>,
    text: Option<String>,
    base64: Option<String>,
    description: Option<String>,
}

#[derive(Deserialize)]
struct Widget {
    widget: String,
    data: Option<RawJson>,
    fallback: Option<String>,
}

/// Whether JSON is meant as a full result: only its keys, and lists of what they name. Other JSON that happens to have
/// a `content` or `files` stays plain data.
pub(super) fn is_one(value: &Value) -> bool {
    let Some(object) = value.as_object() else { return false };
    let items_have = |key: &str, member: &str| match object.get(key) {
        None => None,
        Some(Value::Array(items)) => {
            Some(items.iter().all(|item| item.get(member).is_some_and(Value::is_string)))
        }
        Some(_) => Some(false),
    };
    let lists = [
        items_have("content", "type"),
        items_have("files", "path"),
        items_have("widgets", "widget"),
    ];
    object.keys().all(|key| KEYS.contains(&key.as_str()))
        && ["isError", "terminate"].iter().all(|key| object.get(*key).is_none_or(Value::is_boolean))
        && lists.iter().any(Option::is_some)
        && lists.iter().flatten().all(|is_list| *is_list)
}

/// What cannot be used is left out, and the model reads that it was.
pub(super) async fn read(text: &str, context: &ToolContext) -> ToolResult {
    let full: FullResult = serde_json::from_str(text).unwrap_or_default();
    let mut result = ToolResult {
        details: full.details,
        is_error: full.is_error.unwrap_or(false),
        terminate: full.terminate.unwrap_or(false),
        ..ToolResult::default()
    };
    let mut notes = Vec::new();
    for raw in full.content {
        match block(raw) {
            Ok(block) => result.content.push(block),
            Err(note) => notes.push(note),
        }
    }
    let room = OUTPUTS_MAX.saturating_sub(full.widgets.len().min(OUTPUTS_MAX));
    let left_out = (full.files.len() + full.widgets.len()).saturating_sub(OUTPUTS_MAX);
    if left_out > 0 {
        notes.push(format!("{left_out} files or widgets over {OUTPUTS_MAX} were left out"));
    }
    for raw in full.files.iter().take(room) {
        match file(raw, context).await {
            Ok(output) => result.outputs.push(output),
            Err(note) => notes.push(note),
        }
    }
    for raw in full.widgets.iter().take(OUTPUTS_MAX) {
        match widget(raw) {
            Some(output) => result.outputs.push(output),
            None => {
                notes.push("a widget was left out: it is not {widget, data, fallback}".to_owned());
            }
        }
    }
    result.content.extend(notes.into_iter().map(|note| Block::text(format!("[{note}]"))));
    result
}

/// Text and images only: a server may not put words, calls or thoughts into the model's mouth.
fn block(raw: RawJson) -> Result<Block, String> {
    let block =
        Block::from_raw(raw).map_err(|error| format!("a content block was left out: {error}"))?;
    match block {
        Block::Text(text) => Ok(Block::text(text.text)),
        Block::Image(image) => match STANDARD.decode(&image.data) {
            Ok(bytes) if bytes.len() <= IMAGE_BYTES_MAX => Ok(Block::Image(image)),
            Ok(_) => Err(format!(
                "an image over {} KB was left out: send it as a file",
                IMAGE_BYTES_MAX / 1024
            )),
            Err(_) => Err("an image was left out: its data is not base64".to_owned()),
        },
        Block::Thinking(_) | Block::ToolCall(_) | Block::File(_) | Block::Other(_) => {
            Err("a content block was left out: only text and image are known".to_owned())
        }
    }
}

async fn file(raw: &RawJson, context: &ToolContext) -> Result<Output, String> {
    let file: File = raw.read().map_err(|error| format!("a file was left out: {error}"))?;
    let path = tame_path(&file.path)
        .ok_or_else(|| "a file was left out: its path is empty or too long".to_owned())?;
    let bytes = match (file.text, file.base64) {
        (Some(text), None) => Bytes::from(text),
        (None, Some(data)) => STANDARD
            .decode(data)
            .map(Bytes::from)
            .map_err(|_| format!("the file `{path}` was left out: its content is not base64"))?,
        _ => return Err(format!("the file `{path}` was left out: it needs text or base64")),
    };
    let mime_type = file.mime_type.unwrap_or_else(|| {
        mime_guess::from_path(&path).first_or_octet_stream().essence_str().to_owned()
    });
    keep(&path, &mime_type, bytes, file.description, context).await
}

fn widget(raw: &RawJson) -> Option<Output> {
    let widget: Widget = raw.read().ok()?;
    Some(Output::Widget(WidgetOutput {
        fallback: widget.fallback.unwrap_or_else(|| widget.widget.clone()),
        widget: widget.widget,
        data: widget.data.unwrap_or_else(|| RawJson::of(&Value::Null)),
        extra: Extra::new(),
    }))
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn only_our_own_shape_is_a_full_result() {
        for full in [
            json!({"content": [{"type": "text", "text": "x"}]}),
            json!({"content": [], "details": {"a": 1}, "isError": true}),
            json!({"content": [{"type": "text", "text": "x"}], "terminate": true}),
            json!({"files": [{"path": "a.txt", "text": "x"}]}),
            json!({"widgets": [{"widget": "chart", "data": [1]}]}),
        ] {
            assert!(is_one(&full), "{full}");
        }
        for plain in [
            json!({"content": "text of a page"}),
            json!({"content": [{"type": "text", "text": "x"}], "id": 7}),
            json!({"files": ["a.txt"]}),
            json!({"isError": true}),
            json!({"terminate": true}),
            json!({"content": [], "terminate": "yes"}),
            json!({"details": 1}),
            json!([]),
        ] {
            assert!(!is_one(&plain), "{plain}");
        }
    }
}
