//! Reading errors in the forms of services and gateways.

use std::fmt::Write as _;

use serde_json::Value;

use crate::responses::provider_error::{ProviderError, truncate_text};
use turnwheel_json::text::one_line;

/// Members that hold the error itself.
const NESTED: [&str; 5] = ["error", "errors", "detail", "fault", "exception"];
/// Members with the text of an error, the most precise first.
const TEXTS: [&str; 10] = [
    "message",
    "Message",
    "detail",
    "error_description",
    "error_message",
    "errorMessage",
    "errorMsg",
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
        Some(Value::Number(number)) => Some(number.to_string()),
        _ => None,
    };
    let text = |name: &str| error.get(name).and_then(Value::as_str);
    let inner_error = error.get("innererror").or_else(|| error.get("inner_error"));
    let inner_code = inner_error.and_then(|inner| inner.get("code")).and_then(Value::as_str);
    let message = TEXTS.into_iter().filter_map(text).find(|text| !text.is_empty());
    let mut fault = message.map(|text| read_text(text, levels)).unwrap_or_default();
    fault.code = word("code").or_else(|| word("error_code")).or(fault.code);
    // The type of an event is no detail.
    let is_detail = |kind: &String| kind != "error" && !kind.starts_with("response.");
    fault.kind = word("type").filter(is_detail).or(fault.kind);
    fault.param = word("param").or_else(|| find_member(error)).or(fault.param);
    fault.inner_code = inner_code.map(truncate_text).or(fault.inner_code);
    for nested in NESTED.iter().filter_map(|name| error.get(name)) {
        match nested {
            Value::String(text) if message == Some(text.as_str()) || text.is_empty() => {}
            Value::String(text) if message.is_some() && !text.contains(char::is_whitespace) => {
                fault.code = fault.code.or_else(|| Some(truncate_text(text)));
            }
            Value::String(text) if message.is_some() => {
                fault.message = truncate_text(&format!("{text}: {}", fault.message));
            }
            nested if levels > 0 => fault = with_inner(fault, read_level(nested, levels - 1)),
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
    if fault.code.is_none() && fault.kind.is_none() {
        let status = ["status", "status_code", "statusCode"].into_iter().find_map(word);
        fault.code = status.filter(|status| status.parse::<u16>().is_ok());
    }
    fault
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
    let names_error = match body.get("type").and_then(Value::as_str) {
        Some(kind) => {
            let kind = kind.to_lowercase();
            ERROR_WORDS.iter().any(|word| kind.contains(word))
        }
        None => true,
    };
    ["error", "errors", "fault"].into_iter().any(has)
        || (names_error || has("code")) && TEXTS.into_iter().any(has)
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
