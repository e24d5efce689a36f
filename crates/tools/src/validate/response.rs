//! Validation of a model response by the response schema of its agent.

use serde_json::Value;

use crate::validate::bounded_schema::{BoundedSchema, SchemaMistake, SchemaVerdict};
use turnwheel_conversation::content::Block;
use turnwheel_conversation::message::AssistantMessage;
use turnwheel_json::raw::RawJson;
use turnwheel_json::text::strip_code_fence;

/// Number of reported mistakes.
const MISTAKES_MAX: usize = 5;
/// Bytes of one mistake, which may quote the value.
const MISTAKE_BYTES_MAX: usize = 300;

/// Returns the reason why a final response is invalid by the schema. Returns `None` if it is valid,
/// failed, or calls tools.
pub fn find_message_mismatch(schema: &Value, message: &AssistantMessage) -> Option<String> {
    if message.is_failed() || message.tool_calls().next().is_some() {
        return None;
    }
    let last = message.content.iter().rev().find_map(|block| match block {
        Block::Text(text) if !text.text.trim().is_empty() => Some(text.text.as_str()),
        Block::Text(_)
        | Block::Thinking(_)
        | Block::Image(_)
        | Block::ToolCall(_)
        | Block::File(_)
        | Block::Other(_) => None,
    });
    match last {
        Some(text) => find_mismatch(schema, text),
        None => Some("it has no text".to_owned()),
    }
}

/// Returns the reason why a text is not valid JSON by the schema. One surrounding code fence is
/// allowed.
pub fn find_mismatch(schema: &Value, text: &str) -> Option<String> {
    let value: Value = match serde_json::from_str(strip_code_fence(text)) {
        Ok(value) => value,
        Err(error) => return Some(format!("it is not JSON: {error}")),
    };
    // The agent file's loader rejects an invalid schema.
    let bounded = BoundedSchema::new(schema).ok()?;
    let raw = RawJson::from_text(strip_code_fence(text)).ok()?;
    let mistakes: Vec<String> = bounded
        .find_mistakes(&value, MISTAKES_MAX)
        .into_iter()
        .map(|SchemaMistake { pointer, mut text }| {
            if text.len() > MISTAKE_BYTES_MAX {
                text.truncate(text.floor_char_boundary(MISTAKE_BYTES_MAX));
                text.push('…');
            }
            if pointer.is_empty() { text } else { format!("at {pointer}: {text}") }
        })
        .collect();
    if mistakes.is_empty() && bounded.check_written(&raw, &value) != SchemaVerdict::Valid {
        return Some("a number with more than 15 digits does not satisfy the schema".to_owned());
    }
    (!mistakes.is_empty()).then(|| mistakes.join("; "))
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn response_is_valid_with_and_without_fence() {
        let schema = json!({"type": "object", "properties": {"a": {"type": "number"}}, "required": ["a"], "additionalProperties": false});
        for fit in [r#"{"a":1}"#, " {\"a\": 1.5}\n", "```json\n{\"a\":1}\n```", "```\n{\"a\":1}```"]
        {
            assert_eq!(find_mismatch(&schema, fit), None, "{fit}");
        }
        for (text, why) in [
            ("not json", "it is not JSON"),
            (r#"{"a":"#, "it is not JSON"),
            ("5", "5 is not of type \"object\""),
            (r#"{"a":"x"}"#, "at /a: \"x\" is not of type \"number\""),
            (r#"{"a":5,"b":1}"#, "Additional properties"),
            ("Here it is: ```json\n{\"a\":1}\n```", "it is not JSON"),
        ] {
            let found = find_mismatch(&schema, text).unwrap();
            assert!(found.contains(why), "{text}: {found}");
        }
        let long = json!({"a": "x".repeat(10_000)}).to_string();
        assert!(find_mismatch(&schema, &long).unwrap().len() < 400);
    }
}
