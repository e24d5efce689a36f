//! Conversion of responses to tool results: text, JSON, a full result, an image, a file or an
//! error.

use axum::http::{StatusCode, header};
use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use bytes::Bytes;
use serde_json::Value;

use crate::agent::content::{Block, Image};
use crate::agent::entry::{FileOutput, Output};
use crate::agent::raw::{Extra, RawJson};
use crate::agent::request::Effect;
use crate::agent::text::repair_surrogates;
use crate::tools::http::attempt::{ANSWER_BYTES_MAX, Answer};
use crate::tools::http::full_result;
use crate::tools::http::text::{decoded, head, page_words};
use crate::tools::{ToolContext, ToolDefinition, ToolResult};

/// Bytes of an image in a result. A larger image is a file for the user only, so that an entry
/// stays small.
pub(super) const IMAGE_BYTES_MAX: usize = 512 * 1024;
const REFUSAL_TEXT_BYTES: usize = 2 * 1024;
const PAGE_TEXT_BYTES: usize = 20 * 1024;

/// Converts a response with a status from 200 to 299.
pub(super) async fn read(
    answer: &Answer,
    tool: &ToolDefinition,
    context: &ToolContext,
) -> ToolResult {
    // A write with a success status has had its effect, even if its body is unreadable.
    let unreadable = |what: String| match tool.effect {
        Effect::Read => ToolResult::error(format!("{what} Request less, or another format.")),
        Effect::Idempotent | Effect::Write => {
            ToolResult::text(format!("The call succeeded ({}). {what}", answer.status))
        }
    };
    if answer.is_cut {
        let bound = ANSWER_BYTES_MAX / (1024 * 1024);
        return unreadable(format!("Its response is larger than {bound} MB and was not read."));
    }
    let encoding = answer.header(&header::CONTENT_ENCODING);
    if !encoding.is_empty() && !encoding.eq_ignore_ascii_case("identity") {
        return unreadable("Its response is compressed in an unsupported way.".to_owned());
    }
    if answer.body.is_empty() {
        return ToolResult::text(facts(answer));
    }
    let mime_type = answer.mime_type();
    match kind_of(&mime_type, &answer.body) {
        Kind::Json => json(answer, context).await,
        Kind::Text => ToolResult::text(decoded(answer)),
        Kind::Page => {
            let words = page_words(&decoded(answer));
            let shown = head(&words, PAGE_TEXT_BYTES);
            let rest = if shown.len() < words.len() { " (its beginning)" } else { "" };
            ToolResult::text(format!(
                "The response is a web page, not data. Its text{rest}:\n{shown}"
            ))
        }
        Kind::Image if answer.body.len() <= IMAGE_BYTES_MAX => {
            ToolResult { content: vec![image(&answer.body, &mime_type)], ..ToolResult::default() }
        }
        Kind::Image | Kind::Binary => file(answer, &mime_type, tool, context).await,
    }
}

/// The beginning of the body of an error response, as text for the model and for approvers.
pub(super) fn refusal_text(answer: &Answer) -> String {
    let text = match kind_of(&answer.mime_type(), &answer.body) {
        Kind::Json | Kind::Text => decoded(answer).into_owned(),
        Kind::Page => page_words(&decoded(answer)),
        Kind::Image | Kind::Binary => String::new(),
    };
    head(text.trim(), REFUSAL_TEXT_BYTES).to_owned()
}

pub(super) fn image(bytes: &[u8], mime_type: &str) -> Block {
    Block::Image(Image {
        data: STANDARD.encode(bytes),
        mime_type: mime_type.to_owned(),
        extra: Extra::new(),
    })
}

/// Saves a file for the user.
///
/// # Errors
/// The file is not saved. The text is a sentence for the model.
pub(super) async fn keep(
    path: &str,
    mime_type: &str,
    bytes: Bytes,
    description: Option<String>,
    context: &ToolContext,
) -> Result<Output, String> {
    let facts = context
        .keep(path, mime_type, bytes)
        .await
        .map_err(|error| format!("The file `{path}` could not be saved: {error}."))?;
    Ok(Output::File(FileOutput {
        artifact_id: facts.id,
        path: path.to_owned(),
        mime_type: facts.mime_type,
        size: facts.size,
        description,
        extra: Extra::new(),
    }))
}

/// Removes `.`, `..`, empty parts and control characters from a path. Returns `None` if nothing is
/// left, or more than 255 bytes.
pub(super) fn tame_path(path: &str) -> Option<String> {
    let parts: Vec<&str> = path
        .split(['/', '\\'])
        .map(str::trim)
        .filter(|part| !part.is_empty() && *part != "." && *part != "..")
        .collect();
    let tame: String = parts.join("/").chars().filter(|letter| !letter.is_control()).collect();
    (!tame.is_empty() && tame.len() <= 255).then_some(tame)
}

enum Kind {
    Json,
    Text,
    Page,
    Image,
    Binary,
}

fn kind_of(mime_type: &str, body: &[u8]) -> Kind {
    match mime_type {
        "application/json" | "text/json" => Kind::Json,
        "text/html" | "application/xhtml+xml" => Kind::Page,
        "image/png" | "image/jpeg" | "image/gif" | "image/webp" => Kind::Image,
        "application/xml"
        | "application/yaml"
        | "application/x-yaml"
        | "application/javascript"
        | "application/x-ndjson"
        | "application/x-www-form-urlencoded"
        | "application/graphql"
        | "application/toml"
        | "application/sql" => Kind::Text,
        "" if body.contains(&0) || std::str::from_utf8(body).is_err() => Kind::Binary,
        "" if body.trim_ascii_start().starts_with(b"{")
            || body.trim_ascii_start().starts_with(b"[") =>
        {
            Kind::Json
        }
        other if other.ends_with("+json") => Kind::Json,
        other
            if other.is_empty()
                || other.starts_with("text/")
                || other.ends_with("+xml")
                || other.ends_with("+yaml") =>
        {
            Kind::Text
        }
        _ => Kind::Binary,
    }
}

/// The status and descriptive headers, as the text of a response without a body.
fn facts(answer: &Answer) -> String {
    let mut lines = vec![format!("{} (no content)", answer.status)];
    for name in [header::CONTENT_TYPE, header::CONTENT_LENGTH, header::LAST_MODIFIED, header::ETAG]
    {
        let value = answer.header(&name);
        if !value.is_empty() && answer.status != StatusCode::NO_CONTENT && value != "0" {
            lines.push(format!("{name}: {value}"));
        }
    }
    lines.join("\n")
}

/// Converts a JSON body. `limit_result` later turns a long text into a file that `read` can open.
async fn json(answer: &Answer, context: &ToolContext) -> ToolResult {
    let decoded = decoded(answer);
    let text = repair_surrogates(&decoded);
    let Ok(value) = serde_json::from_str::<Value>(&text) else {
        // The body is not JSON, or nested too deeply: the model reads it as text.
        return ToolResult::text(text);
    };
    if full_result::is_one(&value) {
        return full_result::read(&text, context).await;
    }
    let structured = RawJson::from_text(text.trim()).ok();
    ToolResult { structured, ..ToolResult::text(text) }
}

async fn file(
    answer: &Answer,
    mime_type: &str,
    tool: &ToolDefinition,
    context: &ToolContext,
) -> ToolResult {
    let mime_type = if mime_type.is_empty() { "application/octet-stream" } else { mime_type };
    let path = file_name(answer.header(&header::CONTENT_DISPOSITION))
        .unwrap_or_else(|| format!("{}.{}", tool.name, extension(mime_type).unwrap_or("bin")));
    let size = answer.body.len();
    match keep(&path, mime_type, answer.body.clone(), None, context).await {
        Ok(output) => {
            let mut result = ToolResult::text(format!(
                "The response is a file for the user: {path} ({mime_type}, {size} bytes)."
            ));
            result.outputs.push(output);
            result
        }
        Err(reason) if tool.effect == Effect::Read => ToolResult::error(reason),
        Err(reason) => {
            ToolResult::text(format!("The call succeeded ({}). {reason}", answer.status))
        }
    }
}

/// Parses a `Content-Disposition`: `report.pdf` of `attachment; filename="report.pdf"`.
fn file_name(disposition: &str) -> Option<String> {
    let name = disposition.split(';').find_map(|part| part.trim().strip_prefix("filename="))?;
    let tame = tame_path(name.trim_matches('"'))?;
    tame.rsplit('/').next().map(ToOwned::to_owned)
}

fn extension(mime_type: &str) -> Option<&'static str> {
    Some(match mime_type {
        "application/json" => "json",
        "application/pdf" => "pdf",
        "application/zip" => "zip",
        "application/xml" | "text/xml" => "xml",
        "text/csv" => "csv",
        "text/plain" | "" => "txt",
        "text/markdown" => "md",
        "image/png" => "png",
        "image/jpeg" => "jpg",
        "image/gif" => "gif",
        "image/webp" => "webp",
        "audio/mpeg" => "mp3",
        "video/mp4" => "mp4",
        _ => return None,
    })
}
