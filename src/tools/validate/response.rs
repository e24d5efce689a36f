//! Validation of a model response by the response schema of its agent.

use jsonschema::ValidationError;
use serde_json::Value;

use super::exact;
use crate::agent::content::Block;
use crate::agent::exact_json::ExactJson;
use crate::agent::message::AssistantMessage;
use crate::agent::raw::RawJson;
use crate::agent::text::strip_code_fence;

/// Number of reported mistakes.
const MISTAKES_MAX: usize = 5;
/// Bytes of one mistake, which may quote the value.
const MISTAKE_BYTES_MAX: usize = 300;

/// Returns the reason why a final response is invalid by the schema. Returns `None` if it is valid,
/// failed, or calls tools.
pub(crate) fn find_message_mismatch(schema: &Value, message: &AssistantMessage) -> Option<String> {
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
pub(crate) fn find_mismatch(schema: &Value, text: &str) -> Option<String> {
    let json = strip_code_fence(text);
    let value: Value = match serde_json::from_str(json) {
        Ok(value) => value,
        Err(error) => return Some(format!("it is not JSON: {error}")),
    };
    let written = RawJson::from_text(json).ok().and_then(|raw| ExactJson::parse(&raw));
    // The agent file's loader rejects an invalid schema.
    let validator = jsonschema::validator_for(schema).ok()?;
    let written = written.filter(ExactJson::has_long_number);
    let exact = written.as_ref().and_then(|it| Some((exact::options().build(schema).ok()?, it)));
    let errors: Vec<ValidationError<'_>> = match &exact {
        Some((exact, written)) => exact.iter_errors(written).take(MISTAKES_MAX).collect(),
        None => validator.iter_errors(&value).take(MISTAKES_MAX).collect(),
    };
    let mistakes: Vec<String> = errors
        .iter()
        .map(|error| {
            let place = error.instance_path().to_string();
            let mut text = error.to_string();
            if text.len() > MISTAKE_BYTES_MAX {
                text.truncate(text.floor_char_boundary(MISTAKE_BYTES_MAX));
                text.push('…');
            }
            if place.is_empty() { text } else { format!("at {place}: {text}") }
        })
        .collect();
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
