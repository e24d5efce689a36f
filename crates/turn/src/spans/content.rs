//! Content on spans, if OpenTelemetry's own switch enables it: the conventions' JSON, of bounded
//! length.

use serde_json::{Value, json};

use turnwheel_conversation::content::{Block, Content};
use turnwheel_conversation::message::{AssistantMessage, Message};
use turnwheel_model::ModelRequest;
use turnwheel_platform::telemetry::trace::Span;
use turnwheel_tools::{Arguments, ToolOutcome};

/// Bytes of one attribute. Application Insights cuts at 8,192 characters, and truncated JSON is
/// invalid.
const ATTRIBUTE_BYTES_MAX: usize = 8_000;
/// Bytes of one text in an attribute.
const TEXT_BYTES_MAX: usize = 2_000;

pub(super) fn set_request(span: &Span, request: &ModelRequest<'_>) {
    if let Some(system) = request.system {
        let parts = json!([{"type": "text", "content": truncate(system)}]);
        span.set_attribute("gen_ai.system_instructions", parts.to_string());
    }
    let messages = request.messages.iter().rev().filter_map(|message| message_json(message));
    span.set_attribute("gen_ai.input.messages", newest_as_json(messages));
}

pub(super) fn set_response(span: &Span, message: &AssistantMessage) {
    let finish_reason = super::finish_reason(message);
    let value = json!({"role": "assistant", "parts": block_parts(&message.content), "finish_reason": finish_reason});
    span.set_attribute("gen_ai.output.messages", newest_as_json(std::iter::once(value)));
}

pub(super) fn set_arguments(span: &Span, arguments: &Arguments) {
    span.set_attribute("gen_ai.tool.call.arguments", truncate(arguments.text.text()));
}

pub(super) fn set_outcome(span: &Span, outcome: &ToolOutcome) {
    let text = match outcome {
        ToolOutcome::Returned(result) => {
            turnwheel_conversation::content::joined_text(&result.content)
        }
        ToolOutcome::Failed(text) | ToolOutcome::Unknown { reason: text } => text.clone(),
    };
    span.set_attribute("gen_ai.tool.call.result", truncate(&text));
}

/// JSON array of the newest messages that fit, in the order sent. `newest_first` has the reverse
/// order.
fn newest_as_json(newest_first: impl Iterator<Item = Value>) -> String {
    let mut fitting = Vec::new();
    let mut bytes = 2;
    for message in newest_first {
        bytes += message.to_string().len() + 1;
        if bytes > ATTRIBUTE_BYTES_MAX {
            break;
        }
        fitting.push(message);
    }
    fitting.reverse();
    Value::Array(fitting).to_string()
}

fn message_json(message: &Message) -> Option<Value> {
    match message {
        Message::User(user) => {
            let parts = match &user.content {
                Content::Text(text) => vec![json!({"type": "text", "content": truncate(text)})],
                Content::Blocks(blocks) => block_parts(blocks),
            };
            Some(json!({"role": "user", "parts": parts}))
        }
        Message::Assistant(response) => {
            Some(json!({"role": "assistant", "parts": block_parts(&response.content)}))
        }
        Message::ToolResult(result) => {
            let text = turnwheel_conversation::content::joined_text(&result.content);
            let part = json!({
                "type": "tool_call_response", "id": result.tool_call_id, "response": truncate(&text),
            });
            Some(json!({"role": "tool", "parts": [part]}))
        }
        // The projection has converted these into the three above.
        Message::BashExecution(_)
        | Message::Custom(_)
        | Message::BranchSummary(_)
        | Message::CompactionSummary(_)
        | Message::Other(_) => None,
    }
}

/// Omits images and files: they are large, and not text.
fn block_parts(blocks: &[Block]) -> Vec<Value> {
    let values = blocks.iter().filter_map(|block| match block {
        Block::Text(text) => Some(json!({"type": "text", "content": truncate(&text.text)})),
        Block::Thinking(thinking) => {
            Some(json!({"type": "reasoning", "content": truncate(&thinking.thinking)}))
        }
        Block::ToolCall(call) => Some(json!({
            "type": "tool_call", "id": call.id, "name": call.name, "arguments": truncate(call.arguments.text()),
        })),
        Block::Image(_) | Block::File(_) | Block::Other(_) => None,
    });
    values.collect()
}

fn truncate(text: &str) -> String {
    match text.char_indices().find(|(at, letter)| at + letter.len_utf8() > TEXT_BYTES_MAX) {
        Some((at, _)) => format!("{}…", text.split_at(at).0),
        None => text.to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn span_content_is_bounded_json_of_newest_messages() {
        let messages =
            (0..100).map(|number| json!({"role": "user", "parts": [number, "x".repeat(500)]}));
        let text = newest_as_json(messages);
        assert!(text.len() <= ATTRIBUTE_BYTES_MAX);
        let kept: Vec<Value> = serde_json::from_str(&text).unwrap();
        assert_eq!(kept.last().unwrap()["parts"][0], 0);
        assert!(kept.len() > 10);
        assert_eq!(truncate(&"é".repeat(2_000)).len(), 2_000 + "…".len());
        assert_eq!(truncate("short"), "short");
    }
}
