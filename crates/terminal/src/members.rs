//! Members of JSON values of the service. A later version may add some: absent and unknown ones are no errors.

use serde_json::Value;

/// Text of a member; empty if it is absent.
pub(crate) fn text<'a>(value: &'a Value, name: &str) -> &'a str {
    value.get(name).and_then(Value::as_str).unwrap_or_default()
}

/// Elements of a member; none if it is absent.
pub(crate) fn items<'a>(value: &'a Value, name: &str) -> &'a [Value] {
    value.get(name).and_then(Value::as_array).map(Vec::as_slice).unwrap_or_default()
}

/// Number of a member; 0 if it is absent.
pub(crate) fn number(value: &Value, name: &str) -> u64 {
    value.get(name).and_then(Value::as_u64).unwrap_or_default()
}

pub(crate) fn flag(value: &Value, name: &str) -> bool {
    value.get(name).and_then(Value::as_bool).unwrap_or_default()
}

/// The cost of a usage in USD.
pub(crate) fn cost(usage: &Value) -> f64 {
    usage.pointer("/cost/total").and_then(Value::as_f64).unwrap_or_default()
}

/// The text blocks of a content, which is a string or a list of blocks; one line for each.
pub(crate) fn content_text(content: &Value) -> String {
    if let Some(text) = content.as_str() {
        return text.to_owned();
    }
    let blocks = content.as_array().map(Vec::as_slice).unwrap_or_default();
    let texts: Vec<&str> = blocks
        .iter()
        .filter(|block| text(block, "type") == "text")
        .map(|it| text(it, "text"))
        .collect();
    texts.join("\n")
}
