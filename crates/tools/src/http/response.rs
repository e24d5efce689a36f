//! Conversion of responses to tool results: text, JSON, a full result, an image, a file or an
//! error.

use axum::http::{StatusCode, header};
use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;

use crate::http::full_result;
use crate::http::full_result::{IMAGE_BYTES_MAX, sanitize_path, save_file};
use crate::http::stream::{STREAMED_RESULT, StreamedResult};
use crate::http::text::{byte_prefix, decode_body, extract_page_text};
use crate::http::tool_response::{RESPONSE_BYTES_MAX, ToolResponse};
use crate::{ToolContext, ToolDefinition, ToolResult};
use turnwheel_conversation::content::{Block, Image};
use turnwheel_conversation::request::Effect;
use turnwheel_conversation::unknown_members::Extra;
use turnwheel_json::foreign::{ForeignJson, read_foreign_json};
use turnwheel_json::raw::RawJson;
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
    if let Some(StreamedResult { result, texts }) = read_streamed_result(response, &mime_type) {
        return convert_full_result(&result, texts, context).await;
    }
    let kind = classify_content(&mime_type, &response.body);
    let is_json = matches!(kind, ContentKind::Json) || may_be_object(&response.body);
    let json = if is_json { read_foreign_json(trim_blank(&decode_body(response))) } else { None };
    if let Some(foreign) = &json
        && full_result::is_full_result(&foreign.json.to_value())
    {
        return convert_full_result(&foreign.json, note_texts(foreign), context).await;
    }
    match kind {
        ContentKind::Json => convert_json(response, json),
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

/// Converts a full result. The model reads `texts` after its content.
async fn convert_full_result(
    result: &RawJson,
    texts: Vec<String>,
    context: &ToolContext,
) -> ToolResult {
    let mut converted = full_result::convert_full_result(result.text(), context).await;
    converted.content.extend(texts.into_iter().map(Block::text));
    converted
}

pub(super) fn read_streamed_result(
    response: &ToolResponse,
    mime_type: &str,
) -> Option<StreamedResult> {
    if mime_type != STREAMED_RESULT {
        return None;
    }
    serde_json::from_str(&decode_body(response)).ok()
}

/// Notes about repairs, as texts for the model.
pub(super) fn note_texts(foreign: &ForeignJson) -> Vec<String> {
    foreign.notes.iter().map(|note| format!("[{note}]")).collect()
}

/// Reads a full result. `None`: the text is something else.
pub(super) fn read_full_result(text: &str) -> Option<ForeignJson> {
    let text = trim_blank(text);
    if !text.starts_with('{') {
        return None;
    }
    read_foreign_json(text).filter(|it| full_result::is_full_result(&it.json.to_value()))
}

/// Text without the white space, NUL characters and byte order marks around it.
pub(super) fn trim_blank(text: &str) -> &str {
    text.trim_matches(|c: char| c.is_whitespace() || matches!(c, '\0' | '\u{feff}'))
}

/// True if an object of JSON may begin a body, in UTF-8 or UTF-16, after blanks as in [`trim_blank`].
fn may_be_object(body: &[u8]) -> bool {
    let is_blank = |byte: u8| {
        byte.is_ascii_whitespace() || matches!(byte, 0 | 0xb | 0xef | 0xbb | 0xbf | 0xfe | 0xff)
    };
    body.iter().find(|byte| !is_blank(**byte)) == Some(&b'{')
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

/// Converts the body of a JSON response that is no full result. `limit_result` later turns a long text
/// into a file that `read` can open.
fn convert_json(response: &ToolResponse, json: Option<ForeignJson>) -> ToolResult {
    let text = decode_body(response);
    let Some(foreign) = json else { return ToolResult::text(text) };
    // The model reads what the server sent, and programs read JSON.
    ToolResult { structured: Some(foreign.json), ..ToolResult::text(repair_surrogates(&text)) }
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
    use std::convert::Infallible;

    use axum::http::{HeaderMap, HeaderValue};
    use bytes::Bytes;
    use futures_util::stream;

    use super::*;
    use crate::http::fuzz::definition;
    use crate::http::stream::read_body;
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
        convert_response(&response, &definition(), &TestEnv::new().context()).await
    }

    /// The result of a call whose response has this label and body.
    async fn receive(mime_type: &'static str, body: &'static str) -> ToolResult {
        let mut headers = HeaderMap::new();
        headers.insert(header::CONTENT_TYPE, HeaderValue::from_static(mime_type));
        let empty =
            ToolResponse { status: StatusCode::OK, headers, body: Bytes::new(), is_cut: false };
        let body = stream::iter([Ok::<_, Infallible>(Bytes::from_static(body.as_bytes()))]);
        let response = read_body(empty, body, &|_| {}).await.unwrap();
        convert_response(&response, &definition(), &TestEnv::new().context()).await
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
        let declined = "\u{feff}\n{\"content\":[{\"type\":\"text\",\"text\":\"declined\"}],\"isError\":true,\"isError\":false}\n\0";
        for mime_type in [
            "",
            "text/plain",
            "text/plain; charset=utf-8",
            "text/html",
            "text/html; charset=utf-8",
            "application/xhtml+xml",
            "application/xml",
            "application/x-ndjson",
            "application/json",
            "application/octet-stream",
            "application/vnd.unknown",
            "application/vnd.turnwheel.streamed-result+json",
            "image/png",
            "text/event-stream",
        ] {
            let result = receive(mime_type, declined).await;
            let text = joined_text(&result.content);
            let note = "declined\n[of members with one name only the last counts]";
            assert_eq!((text.as_str(), result.is_error), (note, true), "{mime_type}");
            assert!(result.outputs.is_empty(), "{mime_type}");
        }
        let utf16 = b"\xff\xfe{\0\"\0i\0s\0E\0r\0r\0o\0r\0\"\0:\x001\0}\0";
        assert!(may_be_object(utf16));
    }

    #[tokio::test]
    async fn other_objects_keep_the_kind_of_their_label() {
        let note = r#"{"content":"a note","id":5}"#;
        for (mime_type, expected, outputs) in [
            ("text/plain", note.to_owned(), 0),
            ("text/html", format!("The response is a web page, not data. Its text:\n{note}"), 0),
            (
                "application/octet-stream",
                "The response is a file for the user: pay.bin (application/octet-stream, 27 bytes)."
                    .to_owned(),
                1,
            ),
        ] {
            let result = receive(mime_type, note).await;
            assert_eq!(joined_text(&result.content), expected);
            assert_eq!((result.is_error, result.outputs.len()), (false, outputs));
        }
    }

    #[tokio::test]
    async fn error_among_records_is_an_error() {
        for (mime_type, body, others) in [
            ("text/event-stream", "data: ping\n\ndata: DECLINED\n\n", "ping"),
            ("text/event-stream", "data: DECLINED\n\ndata: [DONE]\n\n", "[DONE]"),
            ("application/json", "data: ping\n\ndata: DECLINED\n\n", "ping"),
            ("application/x-ndjson", "{\"s\":1}\nDECLINED\n", "{\"s\":1}"),
            ("application/json", "{\"s\":1}\nDECLINED\n", "{\"s\":1}"),
            ("", "{\"s\":1}\nDECLINED\n", "{\"s\":1}"),
            ("text/event-stream", "{\"progress\":1}\n{\"s\":1}\nDECLINED", "{\"s\":1}"),
        ] {
            let declined =
                r#"{"content":[{"type":"text","text":"declined"}],"details":1.50,"isError":true}"#;
            let body = body.replace("DECLINED", declined);
            let result = receive(mime_type, body.leak()).await;
            assert!(result.is_error, "{mime_type} {others}");
            let text = joined_text(&result.content);
            assert_eq!(text, format!("declined\n[other records of the response]\n{others}"));
            assert_eq!(result.details.unwrap().text(), "1.50");
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
