//! Conversion of responses to tool results: text, JSON, a full result, an image, a file or an
//! error.

use axum::http::{StatusCode, header};
use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;

use crate::http::full_result;
use crate::http::full_result::{IMAGE_BYTES_MAX, sanitize_path, save_file};
use crate::http::text::{byte_prefix, decode_body, extract_page_text};
use crate::http::tool_response::{RESPONSE_BYTES_MAX, ToolResponse};
use crate::{ToolContext, ToolDefinition, ToolResult};
use turnwheel_conversation::content::{Block, Image};
use turnwheel_conversation::request::Effect;
use turnwheel_conversation::unknown_members::Extra;
use turnwheel_json::foreign::{ForeignJson, read_foreign_json};
use turnwheel_json::text::repair_surrogates;

const ERROR_TEXT_BYTES_MAX: usize = 2 * 1024;
const PAGE_TEXT_BYTES_MAX: usize = 20 * 1024;

/// Converts a response with a status from 200 to 299.
pub(super) async fn convert_response(
    response: &ToolResponse,
    tool: &ToolDefinition,
    context: &ToolContext,
) -> ToolResult {
    // A write with a success status has had its effect, even if its body is unreadable.
    let unreadable = |what: String| match tool.effect {
        Effect::Read => ToolResult::error(format!("{what} Request less, or another format.")),
        Effect::Idempotent | Effect::Write => {
            ToolResult::text(format!("The call succeeded ({}). {what}", response.status))
        }
    };
    if response.is_cut {
        let bound = RESPONSE_BYTES_MAX / (1024 * 1024);
        return unreadable(format!("Its response is larger than {bound} MB and was not read."));
    }
    if response.has_unknown_encoding() {
        return unreadable("Its response is compressed in an unsupported way.".to_owned());
    }
    if response.body.is_empty() {
        return ToolResult::text(describe_headers(response));
    }
    let mime_type = response.mime_type();
    match classify_content(&mime_type, &response.body) {
        ContentKind::Json => convert_json(response, context).await,
        ContentKind::Text if is_full_result_text(response) => convert_json(response, context).await,
        ContentKind::Text => ToolResult::text(decode_body(response)),
        ContentKind::Page => {
            let words = extract_page_text(&decode_body(response));
            let shown = byte_prefix(&words, PAGE_TEXT_BYTES_MAX);
            let rest = if shown.len() < words.len() { " (its beginning)" } else { "" };
            ToolResult::text(format!(
                "The response is a web page, not data. Its text{rest}:\n{shown}"
            ))
        }
        ContentKind::Image if response.body.len() <= IMAGE_BYTES_MAX => ToolResult {
            content: vec![image_block(&response.body, &mime_type)],
            ..ToolResult::default()
        },
        ContentKind::Image | ContentKind::Binary => {
            convert_file(response, &mime_type, tool, context).await
        }
    }
}

/// True for a full result under a label of text: its error must not count as a success.
fn is_full_result_text(response: &ToolResponse) -> bool {
    let text = decode_body(response);
    let is_object = text.trim_start_matches('\u{feff}').trim_start().starts_with('{');
    let is_full = |foreign: ForeignJson| full_result::is_full_result(&foreign.json.to_value());
    is_object && read_foreign_json(&text).is_some_and(is_full)
}

/// The beginning of the body of an error response, as text for the model and for approvers.
pub(super) fn error_text(response: &ToolResponse) -> String {
    let text = match classify_content(&response.mime_type(), &response.body) {
        ContentKind::Json | ContentKind::Text => decode_body(response).into_owned(),
        ContentKind::Page => extract_page_text(&decode_body(response)),
        ContentKind::Image | ContentKind::Binary => String::new(),
    };
    byte_prefix(text.trim(), ERROR_TEXT_BYTES_MAX).to_owned()
}

pub(super) fn image_block(bytes: &[u8], mime_type: &str) -> Block {
    Block::Image(Image {
        data: STANDARD.encode(bytes),
        mime_type: mime_type.to_owned(),
        extra: Extra::new(),
    })
}

pub(super) enum ContentKind {
    Json,
    Text,
    Page,
    Image,
    Binary,
}

pub(super) fn classify_content(mime_type: &str, body: &[u8]) -> ContentKind {
    match mime_type {
        "application/json" | "text/json" => ContentKind::Json,
        "text/html" | "application/xhtml+xml" => ContentKind::Page,
        "image/png" | "image/jpeg" | "image/gif" | "image/webp" => ContentKind::Image,
        "application/xml"
        | "application/yaml"
        | "application/x-yaml"
        | "application/javascript"
        | "application/x-ndjson"
        | "application/x-www-form-urlencoded"
        | "application/graphql"
        | "application/toml"
        | "application/sql" => ContentKind::Text,
        "" if body.contains(&0) || std::str::from_utf8(body).is_err() => ContentKind::Binary,
        "" if body.trim_ascii_start().starts_with(b"{")
            || body.trim_ascii_start().starts_with(b"[") =>
        {
            ContentKind::Json
        }
        other if other.ends_with("+json") => ContentKind::Json,
        other
            if other.is_empty()
                || other.starts_with("text/")
                || other.ends_with("+xml")
                || other.ends_with("+yaml") =>
        {
            ContentKind::Text
        }
        _ => ContentKind::Binary,
    }
}

/// The status and descriptive headers, as the text of a response without a body.
fn describe_headers(response: &ToolResponse) -> String {
    let mut lines = vec![format!("{} (no content)", response.status)];
    for name in [header::CONTENT_TYPE, header::CONTENT_LENGTH, header::LAST_MODIFIED, header::ETAG]
    {
        let value = response.header(&name);
        if !value.is_empty() && response.status != StatusCode::NO_CONTENT && value != "0" {
            lines.push(format!("{name}: {value}"));
        }
    }
    lines.join("\n")
}

/// Converts a JSON body. `limit_result` later turns a long text into a file that `read` can open.
async fn convert_json(response: &ToolResponse, context: &ToolContext) -> ToolResult {
    let decoded = decode_body(response);
    let Some(foreign) = read_foreign_json(&decoded) else {
        return ToolResult::text(decoded);
    };
    if full_result::is_full_result(&foreign.json.to_value()) {
        let mut result = full_result::convert_full_result(foreign.json.text(), context).await;
        result.content.extend(foreign.notes.iter().map(|note| Block::text(format!("[{note}]"))));
        return result;
    }
    // The model reads what the server sent, and programs read JSON.
    ToolResult { structured: Some(foreign.json), ..ToolResult::text(repair_surrogates(&decoded)) }
}

async fn convert_file(
    response: &ToolResponse,
    mime_type: &str,
    tool: &ToolDefinition,
    context: &ToolContext,
) -> ToolResult {
    let mime_type = if mime_type.is_empty() { "application/octet-stream" } else { mime_type };
    let path = parse_file_name(response.header(&header::CONTENT_DISPOSITION))
        .unwrap_or_else(|| format!("{}.{}", tool.name, extension_for(mime_type).unwrap_or("bin")));
    let size = response.body.len();
    match save_file(&path, mime_type, response.body.clone(), None, context).await {
        Ok(output) => {
            let mut result = ToolResult::text(format!(
                "The response is a file for the user: {path} ({mime_type}, {size} bytes)."
            ));
            result.outputs.push(output);
            result
        }
        Err(reason) if tool.effect == Effect::Read => ToolResult::error(reason),
        Err(reason) => {
            ToolResult::text(format!("The call succeeded ({}). {reason}", response.status))
        }
    }
}

/// Parses a `Content-Disposition`: `report.pdf` of `attachment; filename="report.pdf"`.
fn parse_file_name(disposition: &str) -> Option<String> {
    let name = disposition.split(';').find_map(|part| part.trim().strip_prefix("filename="))?;
    let sanitized = sanitize_path(name.trim_matches('"'))?;
    sanitized.rsplit('/').next().map(ToOwned::to_owned)
}

fn extension_for(mime_type: &str) -> Option<&'static str> {
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

#[cfg(test)]
mod tests {
    use axum::http::{HeaderMap, HeaderValue};
    use bytes::Bytes;

    use super::*;
    use crate::http::fuzz::definition;
    use crate::test_env::TestEnv;
    use turnwheel_conversation::content::joined_text;

    async fn convert(body: &[u8]) -> ToolResult {
        let mut headers = HeaderMap::new();
        headers.insert(header::CONTENT_TYPE, HeaderValue::from_static("application/json"));
        let body = Bytes::copy_from_slice(body);
        let mut response = ToolResponse { status: StatusCode::OK, headers, body, is_cut: false };
        let hide =
            |text: &str| text.contains("12345678").then(|| text.replace("12345678", "[PIN]"));
        response.rewrite_text(&hide);
        convert_json(&response, &TestEnv::new().context()).await
    }

    #[tokio::test]
    async fn mistakes_in_json_hide_no_error_and_no_file() {
        for template in [
            r#"{"content":[{"type":"text","text":"declined"}],ODD"isError":true}"#,
            r#"{"isError":true,ODD"content":[{"type":"text","text":"declined"}]}"#,
        ] {
            for odd in [
                "\"details\":{\"score\":NaN},",
                "\"details\":[Infinity,-Infinity,1e999],",
                "\"details\":{\"a\":1,\"a\":2},",
                "\"details\":\"\\ud83d\",",
                "\"details\":\"a\tb\",",
                "\"details\":12345678,",
                "\"details\":[1,],",
                "\"details\":1,\"isError\":false,",
            ] {
                for end in ["", "\n\0", "\n"] {
                    let body = format!("\u{feff}{}{end}", template.replace("ODD", odd));
                    let result = convert(body.as_bytes()).await;
                    let text = joined_text(&result.content);
                    assert!(result.is_error && text.starts_with("declined"), "{body}: {text}");
                    assert!(result.details.is_some(), "{body}");
                }
            }
        }
        let deep =
            format!(r#"{{"isError":true,"details":{}1{}}}"#, "[".repeat(300), "]".repeat(300));
        assert!(convert(deep.as_bytes()).await.is_error);
        let bytes = [&b"{\"isError\":true,\"details\":{\"a\":\"12345678"[..], b"\xff\"}}"].concat();
        let result = convert(&bytes).await;
        assert!(
            result.is_error && !format!("{:?}", result.details.unwrap().text()).contains("1234")
        );
        let file = br#"{"content":[{"type":"text","text":"made"}],"files":[{"path":"a.txt","text":"A"}],"details":{"x":Infinity}}"#;
        assert_eq!(convert(file).await.outputs.len(), 1);
    }

    #[tokio::test]
    async fn declined_call_is_an_error_under_each_label() {
        let declined =
            r#"{"content":[{"type":"text","text":"declined"}],"isError":true,"isError":false}"#;
        for (mime_type, body, is_error) in [
            ("text/plain", declined, true),
            ("text/plain; charset=utf-8", declined, true),
            ("application/x-ndjson", declined, true),
            ("text/plain", r#"{"content":"a note","id":5}"#, false),
        ] {
            let mut headers = HeaderMap::new();
            headers.insert(header::CONTENT_TYPE, HeaderValue::from_static(mime_type));
            let body = Bytes::from_static(body.as_bytes());
            let response = ToolResponse { status: StatusCode::OK, headers, body, is_cut: false };
            let context = TestEnv::new().context();
            let result = convert_response(&response, &definition(), &context).await;
            assert_eq!(result.is_error, is_error, "{mime_type}");
        }
    }

    #[tokio::test]
    async fn plain_json_keeps_its_text() {
        let result = convert(br#"{"mean": NaN, "n": 98765432109876543210123.4500}"#).await;
        assert!(joined_text(&result.content).contains("\"mean\": NaN"));
        let structured = result.structured.unwrap();
        assert_eq!(structured.text(), r#"{"mean":"NaN","n":98765432109876543210123.4500}"#);
    }
}
