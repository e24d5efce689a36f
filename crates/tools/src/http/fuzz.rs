//! Fuzz tests of tool responses and of arguments in requests.

use std::sync::LazyLock;
use std::time::Duration;

use axum::http::{HeaderMap, HeaderName, HeaderValue, Method, StatusCode, header};
use bytes::Bytes;
use serde_json::{Value, json};
use tokio::runtime::{Builder, Runtime};

use super::request::{BodyTemplate, RequestTemplate};
use super::response;
use super::template::{CallArguments, Template};
use super::url_template::UrlTemplate;
use crate::http::tool_response::ToolResponse;
use crate::result_limits::{IMAGE_BYTES_MAX, ReadAccess, limit_result};
use crate::test_env::TestEnv;
use crate::validate::validate;
use crate::workspace::TEXT_BYTES_MAX;
use crate::{Arguments, ToolDefinition};
use turnwheel_conversation::content::Block;
use turnwheel_conversation::entry::Output;
use turnwheel_conversation::phase::OnUnknown;
use turnwheel_conversation::request::Effect;
use turnwheel_json::raw::RawJson;
use turnwheel_test_support::fuzz::check;

static RUNTIME: LazyLock<Runtime> =
    LazyLock::new(|| Builder::new_current_thread().enable_time().build().unwrap());

pub(super) fn definition() -> ToolDefinition {
    ToolDefinition {
        is_strict: false,
        name: "pay".to_owned(),
        label: "pay".to_owned(),
        description: String::new(),
        parameters: json!({
            "type": "object",
            "properties": {
                "to": {"type": "string", "maxLength": 40},
                "note": {"type": "string"},
                "amount": {"anyOf": [{"type": "number"}, {"type": "integer"}]},
                "tags": {"type": "array", "items": {"type": "string"}},
            },
            "required": ["to"],
        }),
        effect: Effect::Read,
        on_unknown: OnUnknown::Ask,
        timeout: Duration::from_secs(1),
        revision: String::new(),
    }
}

/// The first line is the content type; the rest is the body.
fn tool_answer(input: &[u8]) {
    let end = input.iter().position(|byte| *byte == b'\n').unwrap_or(input.len());
    let (kind, body) = input.split_at(end);
    let body = Bytes::copy_from_slice(body.get(1..).unwrap_or_default());
    let mut headers = HeaderMap::new();
    if let Ok(kind) = HeaderValue::from_bytes(kind) {
        headers.insert(header::CONTENT_TYPE, kind.clone());
        headers.insert(header::CONTENT_DISPOSITION, kind);
    }
    let size = body.len();
    let response = ToolResponse { status: StatusCode::OK, headers, body, is_cut: false };
    assert!(response::error_text(&response).len() <= 2 * 1024);
    let context = TestEnv::new().context();
    let result = RUNTIME.block_on(async {
        let result = response::convert_response(&response, &definition(), &context).await;
        limit_result(result, &context, ReadAccess::Available).await
    });
    let (mut text_bytes, mut image_bytes) = (0, 0);
    for block in &result.content {
        match block {
            Block::Text(text) => text_bytes += text.text.len(),
            Block::Image(image) => image_bytes += image.data.len(),
            Block::Thinking(_) | Block::ToolCall(_) | Block::File(_) | Block::Other(_) => {
                panic!("a server can add only text and images")
            }
        }
    }
    assert!(text_bytes <= TEXT_BYTES_MAX + 16 * 1024, "{text_bytes} of {size}");
    assert!(image_bytes <= 2 * IMAGE_BYTES_MAX, "{image_bytes} of {size}");
    for output in &result.outputs {
        if let Output::File(file) = output {
            let is_sanitized =
                !file.path.starts_with('/') && file.path.split('/').all(|part| part != "..");
            assert!(is_sanitized && !file.path.contains('\\'), "{}", file.path);
        }
    }
    assert!(result.outputs.len() <= 60 && result.content.len() <= size + 60);
    let kept: usize = [&result.details, &result.structured]
        .into_iter()
        .flatten()
        .map(|json| json.text().len())
        .sum();
    assert!(kept <= 2 * 128 * 1024 + 1_024, "{kept} of {size}");
}

fn template(text: &str) -> Template {
    Template::parse(text, &|_| Ok("setting".to_owned())).unwrap()
}

static PAY: LazyLock<RequestTemplate> = LazyLock::new(|| RequestTemplate {
    method: Method::POST,
    url: UrlTemplate::new(&template("https://x.example/pay/{to}/now?fixed=1&note={note}")).unwrap(),
    headers: vec![(HeaderName::from_static("x-note"), template("a {note}"))],
    body: Some(BodyTemplate::Map(vec![
        ("to".to_owned(), BodyTemplate::Text(template("{to}"))),
        (
            "about".to_owned(),
            BodyTemplate::List(vec![
                BodyTemplate::Text(template("<{note}>")),
                BodyTemplate::Text(template("{tags}")),
            ]),
        ),
    ])),
    entra: None,
});

/// Checks that every argument stays in its place in the request.
fn tool_request(input: &[u8]) {
    let Ok(text) = std::str::from_utf8(input) else { return };
    let Ok(text) = RawJson::from_text(text.trim()) else { return };
    if let Ok(arguments) = validate(&definition(), &text) {
        assert!(arguments.value.is_object());
        assert_eq!(arguments.text.to_value(), arguments.value);
    }
    let Ok(value) = text.read::<Value>() else { return };
    let Ok(given) = CallArguments::from_arguments(&Arguments { value, text }) else { return };
    let Ok(request) = PAY.build_request(&given, &TestEnv::new().context()) else { return };
    let url = &request.url;
    assert_eq!(
        (url.scheme(), url.host_str(), url.port(), url.fragment()),
        ("https", Some("x.example"), None, None)
    );
    assert_eq!((url.username(), url.password()), ("", None));
    let segments: Vec<&str> = url.path_segments().unwrap().collect();
    assert!(segments.len() == 3 && segments[0] == "pay" && segments[2] == "now", "{url}");
    let to = given.argument_text("to").unwrap().unwrap();
    assert_eq!(percent_encoding::percent_decode_str(segments[1]).decode_utf8().unwrap(), to);
    let pairs: Vec<(String, String)> = url.query_pairs().into_owned().collect();
    let note = given.argument_text("note").unwrap();
    let mut expected = vec![("fixed".to_owned(), "1".to_owned())];
    expected.extend(note.clone().map(|note| ("note".to_owned(), note)));
    assert_eq!(pairs, expected);
    let shown = request.headers["x-note"].to_str().unwrap();
    assert_eq!(shown, format!("a {}", note.unwrap_or_default()));
    assert!(request.headers.len() <= 7, "{:?}", request.headers);
    let body: Value = serde_json::from_slice(&request.body.unwrap()).unwrap();
    assert!(body.as_object().unwrap().keys().all(|key| ["to", "about"].contains(&key.as_str())));
}

#[test]
fn fuzz_tool_answer() {
    check("tool_answer", tool_answer);
}

#[test]
fn fuzz_tool_request() {
    check("tool_request", tool_request);
}
