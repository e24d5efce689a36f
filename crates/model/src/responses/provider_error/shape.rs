//! Reading errors in the forms of services and gateways.

use std::fmt::Write as _;

use serde_json::Value;

use crate::responses::provider_error::{ProviderError, truncate_text};
use turnwheel_json::text::one_line;

/// Members that hold the error itself.
const NESTED: [&str; 5] = ["error", "errors", "detail", "fault", "exception"];
/// Members with the text of an error, the most precise first.
const TEXTS: [&str; 11] = [
    "message",
    "Message",
    "detail",
    "error_description",
    "error_message",
    "errorMessage",
    "errorMsg",
    "error_msg",
    "msg",
    "faultstring",
    "title",
];
/// Parts of the types that gateways give to errors.
const ERROR_WORDS: [&str; 9] = [
    "error",
    "exception",
    "quota",
    "limit",
    "denied",
    "unauthorized",
    "overloaded",
    "unavailable",
    "timeout",
];
/// Levels of nested errors that are read.
const LEVELS_MAX: usize = 4;
/// Characters of a page in which its title is searched.
const TITLE_SEARCH_CHARS: usize = 16 * 1024;
const TITLE_CHARS_MAX: usize = 200;

/// Reads an error: an object, a text, or a list of them, with or without an object around it.
pub(super) fn read_error(error: &Value) -> ProviderError {
    read_level(error, LEVELS_MAX)
}

fn read_level(error: &Value, levels: usize) -> ProviderError {
    match error {
        Value::Object(_) => read_object(error, levels),
        Value::Array(items) => {
            let read: Vec<ProviderError> =
                items.iter().map(|item| read_level(item, levels)).collect();
            // Of the alternatives of a type, the longest path leads to the part that is wrong.
            let param = read.iter().filter_map(|it| it.param.clone()).max_by_key(String::len);
            let first = read.into_iter().find(ProviderError::has_details).unwrap_or_default();
            ProviderError { param, ..first }
        }
        Value::String(text) => read_text(text, levels),
        Value::Null | Value::Bool(_) | Value::Number(_) => ProviderError::default(),
    }
}

/// Reads a text, which may be the JSON of another error.
fn read_text(text: &str, levels: usize) -> ProviderError {
    let json = Some(text.trim()).filter(|text| text.starts_with(['{', '[']));
    let inner = json
        .filter(|_| levels > 0)
        .and_then(|text| serde_json::from_str(text).ok())
        .map(|json: Value| read_level(&json, levels - 1))
        .filter(ProviderError::has_details);
    inner.unwrap_or_else(|| ProviderError {
        message: truncate_text(text),
        ..ProviderError::default()
    })
}

fn read_object(error: &Value, levels: usize) -> ProviderError {
    let word = |name: &str| match error.get(name) {
        Some(Value::String(text)) if !text.is_empty() => Some(truncate_text(text)),
        // A number 0 is an absent code.
        Some(Value::Number(number)) if number.as_i64() != Some(0) => Some(number.to_string()),
        _ => None,
    };
    let inner_error = error.get("innererror").or_else(|| error.get("inner_error"));
    let inner_code = inner_error.and_then(|inner| inner.get("code")).and_then(Value::as_str);
    let (message, read) = read_message(error, levels).unzip();
    let mut fault = read.unwrap_or_default();
    fault.code = word("code").or_else(|| word("error_code")).or(fault.code);
    // The type of an event is no detail.
    let is_detail = |kind: &String| kind != "error" && !kind.starts_with("response.");
    let kind = word("type").filter(is_detail).or_else(|| word("error_type"));
    fault.kind = kind.or(fault.kind);
    fault.param = word("param").or_else(|| find_member(error)).or(fault.param);
    fault.inner_code = inner_code.map(truncate_text).or(fault.inner_code);
    for nested in NESTED.iter().filter_map(|name| error.get(name)) {
        match nested {
            Value::String(text) if message == Some(nested) || text.is_empty() => {}
            Value::String(text) if message.is_some() && !text.contains(char::is_whitespace) => {
                fault.code = fault.code.or_else(|| Some(truncate_text(text)));
            }
            Value::String(text) if message.is_some() => {
                fault.message = truncate_text(&format!("{text}: {}", fault.message));
            }
            nested if levels > 0 => {
                let inner =
                    read_violations(nested).unwrap_or_else(|| read_level(nested, levels - 1));
                fault = with_inner(fault, inner);
            }
            Value::Null
            | Value::Bool(_)
            | Value::Number(_)
            | Value::String(_)
            | Value::Array(_)
            | Value::Object(_) => {}
        }
    }
    // A router wraps the answer of its provider.
    if let Some(raw) = error.pointer("/metadata/raw").and_then(Value::as_str)
        && levels > 0
    {
        fault = with_inner(fault, read_text(raw, levels - 1));
    }
    if let Some(inner) = read_failed_status(error) {
        fault = with_inner(fault, inner);
    }
    if fault.code.is_none() && fault.kind.is_none() {
        let status = ["status", "status_code", "statusCode"].into_iter().find_map(word);
        fault.code = status.filter(|status| status.parse::<u16>().is_ok());
    }
    fault
}

/// The most precise violation of a map from paths to lists of texts, as ASP.NET and Laravel send it.
fn read_violations(errors: &Value) -> Option<ProviderError> {
    let violations: Option<Vec<(&str, &str)>> = errors
        .as_object()?
        .iter()
        .map(|(path, texts)| Some((path.as_str(), texts.as_array()?.first()?.as_str()?)))
        .collect();
    let (path, text) = violations?.into_iter().max_by_key(|(path, _)| path.len())?;
    let path = path.strip_prefix("$.").unwrap_or(path);
    Some(ProviderError {
        param: Some(truncate_text(path)).filter(|path| !path.is_empty()),
        message: truncate_text(text),
        ..ProviderError::default()
    })
}

/// The member with the text of an error, and the error that it holds. In place of a text, some
/// services send an object or a list.
fn read_message(error: &Value, levels: usize) -> Option<(&Value, ProviderError)> {
    TEXTS.into_iter().find_map(|name| {
        let member = error.get(name)?;
        let read = match member {
            Value::String(text) if !text.is_empty() => {
                return Some((member, read_text(text, levels)));
            }
            Value::Array(_) | Value::Object(_) if levels > 0 && !NESTED.contains(&name) => {
                read_level(member, levels - 1)
            }
            Value::Null
            | Value::Bool(_)
            | Value::Number(_)
            | Value::String(_)
            | Value::Array(_)
            | Value::Object(_) => return None,
        };
        (!read.message.is_empty()).then_some((member, read))
    })
}

/// The status that `MiniMax` adds to each response, also to one with status 200. `None`: absent, or
/// that of success.
fn read_failed_status(body: &Value) -> Option<ProviderError> {
    let status = body.get("base_resp")?;
    let code = status.get("status_code")?.as_i64().filter(|code| *code != 0)?;
    let text = status.get("status_msg").and_then(Value::as_str).unwrap_or_default();
    Some(ProviderError {
        code: Some(code.to_string()),
        message: truncate_text(text),
        ..ProviderError::default()
    })
}

/// The shortened JSON of an error without a text that is known. `None`: it is empty.
pub(super) fn describe(body: &Value) -> Option<String> {
    match body {
        Value::Object(members) if members.is_empty() => None,
        Value::Array(items) if items.is_empty() => None,
        Value::Object(_) | Value::Array(_) => Some(truncate_text(&body.to_string())),
        Value::Null | Value::Bool(_) | Value::Number(_) | Value::String(_) => None,
    }
}

/// The path to the member that validation refuses, such as `input[2].output`.
fn find_member(error: &Value) -> Option<String> {
    let text = |name: &str| error.get(name).and_then(Value::as_str);
    let pointer = error.pointer("/source/pointer").and_then(Value::as_str);
    let violations = ["details", "fieldViolations", "field_violations"].into_iter();
    ["loc", "path"]
        .into_iter()
        .find_map(|name| join_path(error.get(name)?.as_array()?))
        .or_else(|| {
            ["field", "instancePath"].into_iter().find_map(text).or(pointer).map(truncate_text)
        })
        .or_else(|| {
            let mut lists = violations.filter_map(|name| error.get(name)?.as_array());
            lists.find_map(|items| items.iter().find_map(find_member))
        })
        .filter(|path| !path.is_empty())
}

/// Joins the parts of a path. Names of types are no part of it.
fn join_path(parts: &[Value]) -> Option<String> {
    let mut path = String::new();
    for part in parts {
        match part {
            Value::Number(index) => {
                let _infallible = write!(path, "[{index}]");
            }
            Value::String(name) if name == "body" || name.contains(['[', '(']) => {}
            Value::String(name) if path.is_empty() => path.push_str(name),
            Value::String(name) => {
                let _infallible = write!(path, ".{name}");
            }
            Value::Null | Value::Bool(_) | Value::Array(_) | Value::Object(_) => return None,
        }
    }
    Some(truncate_text(&path))
}

/// The error with the details of the one inside it.
fn with_inner(outer: ProviderError, inner: ProviderError) -> ProviderError {
    ProviderError {
        code: inner.code.or(outer.code),
        kind: inner.kind.or(outer.kind),
        param: inner.param.or(outer.param),
        inner_code: inner.inner_code.or(outer.inner_code),
        message: if inner.message.is_empty() { outer.message } else { inner.message },
        ..ProviderError::default()
    }
}

/// True if an event reports an error, although its type does not say so.
pub(super) fn is_error(body: &Value) -> bool {
    if let Value::Array(items) = body {
        return items.iter().any(is_error);
    }
    let has = |name: &str| match body.get(name) {
        Some(Value::String(text)) => !text.is_empty(),
        Some(Value::Array(items)) => !items.is_empty(),
        Some(Value::Object(members)) => !members.is_empty(),
        Some(Value::Number(_)) => true,
        Some(Value::Null | Value::Bool(_)) | None => false,
    };
    let is_chunk = body.get("choices").is_some_and(Value::is_array);
    let names_error = match body.get("type").and_then(Value::as_str) {
        Some(kind) => {
            let kind = kind.to_lowercase();
            ERROR_WORDS.iter().any(|word| kind.contains(word))
        }
        // Some services add a code, a text or a title to chunks.
        None => !is_chunk,
    };
    let is_success = ["code", "error_code"]
        .into_iter()
        .filter(|name| has(name))
        .filter_map(|name| body.get(name))
        .map(is_success_code)
        .reduce(|one, other| one && other);
    let has_kind = names_error || is_success == Some(false) || has("error_type");
    ["error", "errors", "fault"].into_iter().any(has)
        || read_failed_status(body).is_some()
        || is_success != Some(true) && has_kind && TEXTS.into_iter().any(has)
}

fn is_success_code(code: &Value) -> bool {
    match code {
        Value::Number(number) => matches!(number.as_i64(), Some(0 | 200)),
        Value::String(text) => {
            matches!(text.to_ascii_lowercase().as_str(), "0" | "200" | "success")
        }
        Value::Null | Value::Bool(_) | Value::Array(_) | Value::Object(_) => false,
    }
}

/// The title of an HTML page. `None`: the text is no page, or has no title.
pub(super) fn page_title(page: &str) -> Option<String> {
    let page = page.trim_start();
    if !page.starts_with('<') {
        return None;
    }
    let head: String = page.chars().take(TITLE_SEARCH_CHARS).collect();
    let lower = head.to_ascii_lowercase();
    let start = lower.find("<title")?;
    let start = start + lower.get(start..)?.find('>')? + 1;
    let end = start + lower.get(start..)?.find("</title")?;
    let title: String = one_line(head.get(start..end)?).chars().take(TITLE_CHARS_MAX).collect();
    (!title.is_empty()).then_some(title)
}

#[cfg(test)]
mod tests {
    use http::HeaderMap;
    use serde_json::json;

    use super::*;
    use crate::ModelFailure;
    use crate::responses::provider_error::classify;
    use turnwheel_platform::clock::Timestamp;

    #[test]
    fn object_or_list_in_place_of_message_is_read() {
        let detail = json!([{ "loc": ["body", "messages", 2, "assistant", "content"], "msg": "Field required" }]);
        let path = Some("messages[2].assistant.content");
        let mistral = json!({ "object": "error", "message": { "detail": detail }, "type": "invalid_request_error" });
        let nest = json!({ "statusCode": 422, "message": ["messages.2.content must be a string", "x"], "error": "Bad Request" });
        for (body, param, text) in [
            (&mistral, path, "HTTP 422: invalid_request_error: Field required"),
            (&json!({ "error": mistral }), path, "HTTP 422: invalid_request_error: Field required"),
            (&json!({ "message": detail }), path, "HTTP 422: Field required"),
            (&nest, None, "HTTP 422: Bad Request: messages.2.content must be a string"),
            (&json!({ "error": { "message": { "error": { "msg": "x" } } } }), None, "HTTP 422: x"),
            (&json!({ "message": { "code": 7 }, "msg": "x" }), None, "HTTP 422: x"),
            (&json!({ "error_code": "c", "error_msg": "x" }), None, "HTTP 422: c: x"),
        ] {
            let fault = ProviderError::from_http(422, &body.to_string());
            assert_eq!((fault.param.as_deref(), fault.text.as_str()), (param, text), "{body}");
            assert!(is_error(body), "{body}");
        }
        let overflow = json!({ "message": { "detail": [{ "msg": "Prompt is too long" }] } });
        let fault = ProviderError::from_http(400, &overflow.to_string());
        let class = classify(&fault, &HeaderMap::new(), Timestamp(0));
        assert_eq!(class, ModelFailure::ContextOverflow);
    }

    #[test]
    fn violations_by_path_are_read() {
        let title = "One or more validation errors occurred.";
        let path = "$.messages[2].content";
        for (errors, param, text) in [
            (
                json!({ "": ["The input is invalid."], path: ["It is empty.", "x"] }),
                Some("messages[2].content"),
                "HTTP 400: It is empty.",
            ),
            (json!({ "": ["The input is invalid."] }), None, "HTTP 400: The input is invalid."),
            (json!({ "code": "c", "message": "x" }), None, "HTTP 400: c: x"),
            (json!({ "content": [] }), None, "HTTP 400: One or more validation errors occurred."),
        ] {
            let body = json!({ "title": title, "status": 400, "errors": errors });
            let fault = ProviderError::from_http(400, &body.to_string());
            assert_eq!((fault.param.as_deref(), fault.text.as_str()), (param, text), "{errors}");
        }
    }

    #[test]
    fn error_without_known_text_has_its_json() {
        let unknown = json!({ "type": "refused", "message": [{ "property": "content" }] });
        let fault = ProviderError::from_http(400, &unknown.to_string());
        let json = r#"{"type":"refused","message":[{"property":"content"}]}"#;
        assert_eq!(fault.text, format!("HTTP 400: refused: {json}"));
        let fault = ProviderError::from_error_event(&unknown).unwrap();
        assert_eq!(fault.text, format!("Error Code refused: {json}"));
        let failed =
            ProviderError::from_failed_response(&json!({ "error": { "code": "c", "n": 1 } }));
        assert_eq!(failed.unwrap().text, r#"c: {"code":"c","n":1}"#);
        for empty in ["{}", "[]", ""] {
            assert_eq!(
                ProviderError::from_http(500, empty).text,
                "HTTP 500 without an explanation"
            );
        }
        let long = json!({ "reasons": "x".repeat(9_000) }).to_string();
        assert!(ProviderError::from_http(400, &long).text.chars().count() < 2_100);
    }

    #[test]
    fn failed_status_of_minimax_is_an_error() {
        let body = |code: i64, text: &str| json!({ "choices": null, "base_resp": { "status_code": code, "status_msg": text } });
        let retry = ModelFailure::Retryable { after: None };
        for (code, text, expected) in [
            (1008, "insufficient balance", ModelFailure::Permanent),
            (1004, "login fail", ModelFailure::Permanent),
            (2013, "invalid params", ModelFailure::Permanent),
            (2013, "invalid params, context window exceeds limit", ModelFailure::ContextOverflow),
            (1002, "rate limit", retry.clone()),
            (1013, "internal service error", retry),
        ] {
            let fault = ProviderError::from_other_event(&body(code, text)).unwrap();
            assert_eq!(classify(&fault, &HeaderMap::new(), Timestamp(0)), expected, "{text}");
            assert_eq!((fault.code, fault.message), (Some(code.to_string()), text.to_owned()));
        }
        assert_eq!(ProviderError::from_other_event(&body(0, "success")), None);
        let error = json!({ "error": { "message": "x" }, "base_resp": { "status_code": 0, "status_msg": "success" } });
        assert_eq!(ProviderError::from_other_event(&error).unwrap().message, "x");
    }
}
