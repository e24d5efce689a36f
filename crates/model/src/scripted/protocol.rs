//! A native fake model in protocol mode: it reads the protocol text of a request, responds as to a
//! native request, and writes its response as protocol text.

use serde::Deserialize;
use serde_json::{Map, Value, json};

use crate::protocol::system_prompt::{RESPONSE_FORMAT, RUNTIME_CONSTRAINT, TOOLS};
use crate::protocol::{RESULTS_END, RESULTS_START, encode_response};
use crate::scripted::stream_text;
use crate::{Listener, Model, ModelRequest, ModelResponse, ToolOffer};
use turnwheel_conversation::content::{Block, Content};
use turnwheel_conversation::event::AssistantMessageEvent;
use turnwheel_conversation::message::{AssistantMessage, Message, StopReason, ToolResultMessage};
use turnwheel_conversation::unknown_members::Extra;
use turnwheel_platform::clock::Timestamp;

struct SilentListener;

impl Listener for SilentListener {
    fn on_event(&self, _: AssistantMessageEvent) {}
}

/// A result in protocol text.
#[derive(Deserialize)]
struct TextResult {
    tool: String,
    status: String,
    content: String,
}

/// True if the request is in protocol mode.
pub fn is_protocol(request: &ModelRequest<'_>) -> bool {
    request.system.is_some_and(|system| system.starts_with(RUNTIME_CONSTRAINT))
}

/// The protocol text of the response of `model`.
pub async fn respond(
    model: &dyn Model,
    request: &ModelRequest<'_>,
    listener: &dyn Listener,
) -> ModelResponse {
    let system = request.system.unwrap_or_default();
    let messages: Vec<Message> = request.messages.iter().flat_map(|it| decode(it)).collect();
    let messages: Vec<&Message> = messages.iter().collect();
    let tools = parse_tools(system);
    let tools: Vec<ToolOffer<'_>> = tools
        .iter()
        .map(|(name, parameters)| ToolOffer { name, description: "", parameters, strict: false })
        .collect();
    let schema = parse_schema(system);
    let native = ModelRequest {
        model: request.model,
        system: None,
        messages: &messages,
        tools: &tools,
        thinking: request.thinking,
        temperature: request.temperature,
        max_output_tokens: request.max_output_tokens,
        response_schema: schema.as_ref(),
        session_id: request.session_id,
        traceparent: request.traceparent,
        payload: None,
    };
    let response = model.respond(native, &SilentListener).await;
    if response.failure.is_some() {
        return response;
    }
    let text = encode_response(&response.message);
    let content =
        if text.is_empty() { Vec::new() } else { vec![stream_text(&text, listener, 0).await] };
    let stop_reason = match response.message.stop_reason {
        StopReason::ToolUse => StopReason::Stop,
        reason @ (StopReason::Stop
        | StopReason::Length
        | StopReason::Error
        | StopReason::Aborted) => reason,
    };
    let message = AssistantMessage { content, stop_reason, ..response.message };
    ModelResponse { message, ..response }
}

/// The results of a results message, or the message.
fn decode(message: &Message) -> Vec<Message> {
    let Message::User(user) = message else { return vec![message.clone()] };
    let text = match &user.content {
        Content::Text(text) => text.as_str(),
        Content::Blocks(blocks) => match blocks.first() {
            Some(Block::Text(text)) => text.text.as_str(),
            _ => "",
        },
    };
    let results = text.strip_prefix(RESULTS_START).and_then(|it| it.strip_suffix(RESULTS_END));
    let results = results.and_then(|json| serde_json::from_str::<Vec<TextResult>>(json).ok());
    let Some(results) = results else { return vec![message.clone()] };
    let result = |result: TextResult| {
        Message::ToolResult(ToolResultMessage {
            tool_call_id: String::new(),
            tool_name: result.tool,
            content: vec![Block::text(result.content)],
            details: None,
            structured_content: None,
            usage: None,
            is_error: result.status == "failure",
            terminate: false,
            rejected: None,
            timestamp: Timestamp(0),
            workspace: std::collections::BTreeMap::new(),
            extra: Extra::new(),
        })
    };
    results.into_iter().map(result).collect()
}

/// The names and parameters of the tool lines.
fn parse_tools(system: &str) -> Vec<(String, Value)> {
    let section = system.split("\n\n").find_map(|section| section.strip_prefix(TOOLS));
    let lines = section.unwrap_or_default().lines().filter(|line| !line.is_empty());
    lines.filter_map(parse_tool_line).collect()
}

fn parse_tool_line(line: &str) -> Option<(String, Value)> {
    let (name, rest) = line.split_once('(')?;
    let (parameters, _) = rest.split_once(") - ")?;
    let (mut properties, mut required) = (Map::new(), Vec::new());
    for parameter in parameters.split(", ").filter(|parameter| !parameter.is_empty()) {
        let name = parameter.trim_end_matches('?');
        properties.insert(name.to_owned(), json!({"type": "string"}));
        if name == parameter {
            required.push(name);
        }
    }
    let schema = json!({"type": "object", "properties": properties, "required": required});
    Some((name.to_owned(), schema))
}

fn parse_schema(system: &str) -> Option<Value> {
    let section = system.split_once(RESPONSE_FORMAT)?.1.trim_start();
    serde_json::Deserializer::from_str(section).into_iter().next()?.ok()
}
