//! Full results: JSON responses with content, details, files, widgets, usage and an error flag.

use std::collections::BTreeMap;

use base64::Engine as _;
use base64::engine::general_purpose::{
    STANDARD, STANDARD_PAD_INDIFFERENT, URL_SAFE_PAD_INDIFFERENT,
};
use bytes::Bytes;
use serde::Deserialize;
use serde::de::DeserializeOwned;
use serde_json::{Map, Value};

use crate::result_limits::custom_output;
use crate::{ToolContext, ToolResult};
use turnwheel_conversation::content::{Block, Image};
use turnwheel_conversation::entry::{FileOutput, Output, WidgetOutput};
use turnwheel_conversation::unknown_members::Extra;
use turnwheel_conversation::usage::Usage;
use turnwheel_json::foreign::means_error;
use turnwheel_json::raw::RawJson;
use turnwheel_json::text::sanitize_line;

/// Files, widgets and other outputs of one result.
const OUTPUTS_MAX: usize = 20;
/// Names of unknown members in a note.
const NAMES_SHOWN_MAX: usize = 8;
/// Members of a full result. `_meta` is a member of MCP servers and is ignored.
const KEYS: [&str; 10] = [
    "content",
    "details",
    "structuredContent",
    "files",
    "widgets",
    "outputs",
    "usage",
    "isError",
    "terminate",
    "_meta",
];

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct FileMember {
    path: String,
    mime_type: Option<String>,
    text: Option<String>,
    base64: Option<String>,
    description: Option<String>,
}

#[derive(Deserialize)]
struct WidgetMember {
    widget: String,
    data: Option<RawJson>,
    fallback: Option<String>,
}

/// True if JSON is a full result.
///
/// Any object whose `isError` means an error is one, so that no other member turns an error into a
/// success. So is one whose `content` is a list with a text or image block: odd members cost only
/// themselves. Other objects need well-formed lists in `content`, `files` or `widgets`, or an object
/// in `structuredContent`. Without `isError` they may have only known members, whose odd items then cost
/// only themselves if there is another usable part. Other JSON with `content` or `files` is plain
/// data. `outputs` alone do not make a full result.
pub(super) fn is_full_result(value: &Value) -> bool {
    let Some(object) = value.as_object() else { return false };
    let error = object.get("isError").filter(|flag| !flag.is_null());
    if error.is_some_and(means_error) {
        return true;
    }
    let content = object.get("content").and_then(Value::as_array);
    if content.is_some_and(|blocks| blocks.iter().any(is_typed_block)) {
        return true;
    }
    let items_have = |key: &str, member: &str| match object.get(key) {
        None => None,
        Some(Value::Array(items)) => Some(items.iter().all(|item| has_text(item, member))),
        Some(_) => Some(false),
    };
    let lists = [
        items_have("content", "type"),
        items_have("files", "path"),
        items_have("widgets", "widget"),
        object.get("structuredContent").map(Value::is_object),
    ];
    let has_known_members = object.keys().all(|key| KEYS.contains(&key.as_str()));
    let is_known = error.is_some()
        || has_known_members && object.get("terminate").is_none_or(Value::is_boolean);
    let is_well_formed =
        lists.iter().chain([&items_have("outputs", "type")]).flatten().all(|is_list| *is_list);
    (is_known && lists.iter().any(Option::is_some) && is_well_formed)
        || (has_known_members && has_usable_part(object))
}

/// True for a usable file or widget, and for a list like that of a result with one other member.
fn has_usable_part(object: &Map<String, Value>) -> bool {
    let has_item = |key: &str, is_wanted: &dyn Fn(&Value) -> bool| {
        object.get(key).and_then(Value::as_array).is_some_and(|items| items.iter().any(is_wanted))
    };
    let is_empty = |key: &str| object.get(key).and_then(Value::as_array).is_some_and(Vec::is_empty);
    let has_data = |item: &Value| has_text(item, "text") || has_text(item, "base64");
    let has_widget = has_item("widgets", &|item: &Value| has_text(item, "widget"));
    if has_widget || has_item("files", &|item: &Value| has_text(item, "path") && has_data(item)) {
        return true;
    }
    let is_like_result = ["content", "files", "widgets"].into_iter().any(is_empty)
        || has_item("content", &|item: &Value| has_text(item, "type"))
        || has_item("files", &|item: &Value| has_text(item, "path") || has_data(item))
        || object.get("structuredContent").is_some_and(Value::is_object);
    let members = object.iter().filter(|(key, value)| match key.as_str() {
        "_meta" => false,
        "terminate" => value.is_boolean(),
        _ => !value.is_null(),
    });
    is_like_result && members.count() >= 2
}

fn has_text(item: &Value, name: &str) -> bool {
    item.get(name).is_some_and(Value::is_string)
}

/// True for a text or an image block, which no other data has in `content`.
fn is_typed_block(item: &Value) -> bool {
    match item.get("type").and_then(Value::as_str) {
        Some("text") => has_text(item, "text"),
        Some("image") => has_text(item, "data"),
        _ => false,
    }
}

/// The members of a full result. Each is parsed separately: an invalid one does not affect the
/// others, and the model reads a note about it.
struct Members {
    all: BTreeMap<String, RawJson>,
    notes: Vec<String>,
}

impl Members {
    fn parse(text: &str) -> Self {
        Self { all: serde_json::from_str(text).unwrap_or_default(), notes: Vec::new() }
    }

    fn take<T: DeserializeOwned>(&mut self, name: &str, what: &str) -> Option<T> {
        let raw = self.all.remove(name).filter(|raw| raw.text() != "null")?;
        let read = raw.read().ok();
        if read.is_none() {
            self.notes.push(format!("`{name}` was left out: it must be {what}"));
        }
        read
    }

    fn take_is_error(&mut self) -> bool {
        let flag = self.all.remove("isError").map_or(Value::Null, |raw| raw.to_value());
        let is_error = means_error(&flag);
        if !matches!(flag, Value::Null | Value::Bool(_)) {
            let counts = if is_error { "counts" } else { "does not count" };
            self.notes
                .push(format!("`isError` must be true or false: this result {counts} as an error"));
        }
        is_error
    }

    /// Takes `content`: a list of blocks, or one text.
    fn take_content(&mut self) -> Vec<Block> {
        let Some(raw) = self.all.remove("content").filter(|raw| raw.text() != "null") else {
            return Vec::new();
        };
        if let Ok(text) = raw.read::<String>() {
            return vec![Block::text(text)];
        }
        let Ok(blocks) = raw.read::<Vec<RawJson>>() else { return vec![Block::text(raw.text())] };
        let mut content = Vec::new();
        for raw in blocks {
            match accept_block(raw) {
                Ok(block) => content.push(block),
                Err(note) => self.notes.push(note),
            }
        }
        content
    }

    fn take_usage(&mut self) -> Option<Usage> {
        let usage: Usage = self.take("usage", "{input, output, …, cost}")?;
        let usage = usage.validate_tool_report();
        if usage.is_none() {
            self.notes.push("`usage` was left out: its numbers are not plausible".to_owned());
        }
        usage
    }
}

/// Converts a full result. Unusable members are left out, and the model reads a note about each.
pub(crate) async fn convert_full_result(text: &str, context: &ToolContext) -> ToolResult {
    let mut members = Members::parse(text);
    let mut result = ToolResult {
        is_error: members.take_is_error(),
        content: members.take_content(),
        details: members.all.remove("details"),
        structured: members.all.remove("structuredContent").filter(|raw| raw.text() != "null"),
        usage: members.take_usage(),
        terminate: members.take("terminate", "true or false").unwrap_or(false),
        ..ToolResult::default()
    };
    let files: Vec<RawJson> = members.take("files", "a list").unwrap_or_default();
    let widgets: Vec<RawJson> = members.take("widgets", "a list").unwrap_or_default();
    let outputs: Vec<RawJson> = members.take("outputs", "a list").unwrap_or_default();
    members.all.remove("_meta");
    let Members { all: others, mut notes } = members;
    let outputs_max = OUTPUTS_MAX.saturating_sub(widgets.len());
    let files_max = outputs_max.saturating_sub(outputs.len());
    let left_out = (files.len() + widgets.len() + outputs.len()).saturating_sub(OUTPUTS_MAX);
    if left_out > 0 {
        notes
            .push(format!("{left_out} files, widgets or outputs over {OUTPUTS_MAX} were left out"));
    }
    for raw in files.iter().take(files_max) {
        match convert_file(raw, context).await {
            Ok(output) => result.outputs.push(output),
            Err(note) => notes.push(note),
        }
    }
    for raw in widgets.iter().take(OUTPUTS_MAX) {
        match convert_widget(raw) {
            Some(output) => result.outputs.push(output),
            None => {
                notes.push("a widget was left out: it is not {widget, data, fallback}".to_owned());
            }
        }
    }
    for output in outputs.into_iter().take(outputs_max) {
        match custom_output(output) {
            Ok(output) => result.outputs.push(output),
            Err(note) => notes.push(note),
        }
    }
    if result.content.is_empty() {
        // Without content, the model reads the structured value or the whole object.
        let rest = result.structured.clone().or_else(|| {
            (result.is_error || !others.is_empty()).then(|| RawJson::from_text(text).ok()).flatten()
        });
        result.content.extend(rest.map(|rest| Block::text(rest.text())));
    } else if result.is_error && !others.is_empty() {
        // They may have the reason of the error.
        result.content.push(Block::text(RawJson::from_value(&others).text()));
    } else if !others.is_empty() {
        notes.push(unknown_members_note(others.keys()));
    }
    result.content.extend(notes.into_iter().map(|note| Block::text(format!("[{note}]"))));
    result
}

/// Names members of a result that are left out.
fn unknown_members_note<'n>(names: impl ExactSizeIterator<Item = &'n String>) -> String {
    let more = names.len().saturating_sub(NAMES_SHOWN_MAX);
    let shown: Vec<String> =
        names.take(NAMES_SHOWN_MAX).map(|name| format!("`{}`", sanitize_line(name, 64))).collect();
    let more = if more > 0 { format!(" and {more} more") } else { String::new() };
    format!("{}{more}: no member of a result, left out", shown.join(", "))
}

/// Parses a progress report `{content, details?}`. Returns `None` if it has no content.
pub(super) fn parse_progress(text: &str) -> Option<ToolResult> {
    let mut members = Members::parse(text);
    let content = members.take_content();
    let details = members.all.remove("details");
    (!content.is_empty()).then(|| ToolResult { content, details, ..ToolResult::default() })
}

/// Accepts text and images only. A server must not forge tool calls or reasoning of the model.
fn accept_block(raw: RawJson) -> Result<Block, String> {
    let block =
        Block::from_raw(raw).map_err(|error| format!("a content block was left out: {error}"))?;
    match block {
        Block::Text(text) => Ok(Block::text(text.text)),
        Block::Image(image) => match decode_base64(&image.data) {
            Some(bytes) if bytes.len() <= IMAGE_BYTES_MAX => {
                Ok(Block::Image(Image { data: STANDARD.encode(bytes), ..image }))
            }
            Some(_) => Err(format!(
                "an image over {} KB was left out: send it as a file",
                IMAGE_BYTES_MAX / 1024
            )),
            None => Err("an image was left out: its data is not base64".to_owned()),
        },
        Block::Thinking(_) | Block::ToolCall(_) | Block::File(_) | Block::Other(_) => {
            Err("a content block was left out: only text and image are known".to_owned())
        }
    }
}

/// Decodes standard or URL-safe base64, also with line breaks, without padding, or in a `data:` URL.
fn decode_base64(text: &str) -> Option<Vec<u8>> {
    let packed: String = text.lines().map(str::trim).collect();
    let url = packed.split_once(',').filter(|(head, _)| {
        let head = head.to_ascii_lowercase();
        head.starts_with("data:") && head.ends_with(";base64")
    });
    let data = url.map_or(packed.as_str(), |(_, data)| data);
    let alphabets = [STANDARD_PAD_INDIFFERENT, URL_SAFE_PAD_INDIFFERENT];
    alphabets.iter().find_map(|alphabet| alphabet.decode(data).ok())
}

async fn convert_file(raw: &RawJson, context: &ToolContext) -> Result<Output, String> {
    let file: FileMember = raw.read().map_err(|error| format!("a file was left out: {error}"))?;
    let path = sanitize_path(&file.path)
        .ok_or_else(|| "a file was left out: its path is empty or too long".to_owned())?;
    let bytes = match (file.text, file.base64) {
        (Some(text), None) => Bytes::from(text),
        (None, Some(data)) => decode_base64(&data)
            .map(Bytes::from)
            .ok_or_else(|| format!("the file `{path}` was left out: its content is not base64"))?,
        _ => return Err(format!("the file `{path}` was left out: it needs text or base64")),
    };
    let mime_type = file.mime_type.unwrap_or_else(|| {
        mime_guess::from_path(&path).first_or_octet_stream().essence_str().to_owned()
    });
    save_file(&path, &mime_type, bytes, file.description, context).await
}

fn convert_widget(raw: &RawJson) -> Option<Output> {
    let widget: WidgetMember = raw.read().ok()?;
    Some(Output::Widget(WidgetOutput {
        fallback: widget.fallback.unwrap_or_else(|| widget.widget.clone()),
        widget: widget.widget,
        data: widget.data.unwrap_or_else(|| RawJson::from_value(&Value::Null)),
        extra: Extra::new(),
    }))
}

/// Bytes of an image in a result. A larger image is a file for the user only, so that an entry
/// stays small.
pub(super) const IMAGE_BYTES_MAX: usize = 512 * 1024;

/// Saves a file for the user.
///
/// # Errors
/// The file is not saved. The text is a sentence for the model.
pub(super) async fn save_file(
    path: &str,
    mime_type: &str,
    bytes: Bytes,
    description: Option<String>,
    context: &ToolContext,
) -> Result<Output, String> {
    let metadata = context
        .save_artifact(path, mime_type, bytes)
        .await
        .map_err(|error| format!("The file `{path}` could not be saved: {error}."))?;
    Ok(Output::File(FileOutput {
        artifact_id: metadata.id,
        path: path.to_owned(),
        mime_type: metadata.mime_type,
        size: metadata.size,
        description,
        extra: Extra::new(),
    }))
}

/// Removes `.`, `..`, empty parts and control characters from a path. Returns `None` if nothing is
/// left, or more than 255 bytes.
pub(super) fn sanitize_path(path: &str) -> Option<String> {
    let parts: Vec<&str> = path
        .split(['/', '\\'])
        .map(str::trim)
        .filter(|part| !part.is_empty() && *part != "." && *part != "..")
        .collect();
    let sanitized: String = parts.join("/").chars().filter(|letter| !letter.is_control()).collect();
    (!sanitized.is_empty() && sanitized.len() <= 255).then_some(sanitized)
}

#[cfg(test)]
mod tests;
