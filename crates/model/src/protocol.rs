//! Protocol mode: a codec around any model port. The model receives and writes text with markers in
//! place of native tool calls; all other parts of the service see the same blocks and events as of
//! a native model.

mod calls;
#[cfg(test)]
mod fuzz;
mod messages;
pub mod parser;
mod python_json;
pub mod system_prompt;
#[cfg(test)]
mod tests;

use std::sync::{Mutex, PoisonError};

use async_trait::async_trait;

use crate::{Listener, Model, ModelConnection, ModelRecord, ModelRequest, ModelResponse};
use turnwheel_conversation::content::{Block, Thinking};
use turnwheel_conversation::event::AssistantMessageEvent;
use turnwheel_conversation::message::{Message, StopReason};
use turnwheel_conversation::protocol_details::ProtocolDetails;
use turnwheel_conversation::unknown_members::Extra;

pub(crate) use self::messages::{RESULTS_END, RESULTS_START, encode_response};
pub use self::messages::{call_escape_bytes, encode_call, encode_results, result_bytes};
use self::parser::{ParsedResponse, ProtocolParser};

/// A model that is called in protocol mode. The request's system prompt is that of
/// [`system_prompt`].
#[derive(Debug)]
pub struct ProtocolModel<'m> {
    model: &'m dyn Model,
    /// Number of messages that the model receives, the newest ones. `None`: all.
    history_window: Option<u32>,
    /// The delivery's connection. `None`: each request has the whole input.
    connection: Option<&'m ModelConnection>,
}

impl<'m> ProtocolModel<'m> {
    pub fn new(model: &'m dyn Model, history_window: Option<u32>) -> Self {
        Self { model, history_window, connection: None }
    }

    #[must_use]
    pub fn with_connection(self, connection: Option<&'m ModelConnection>) -> Self {
        Self { connection, ..self }
    }
}

#[async_trait]
impl Model for ProtocolModel<'_> {
    async fn respond(&self, request: ModelRequest<'_>, listener: &dyn Listener) -> ModelResponse {
        let messages = messages::encode(&request, self.history_window);
        let messages: Vec<&Message> = messages.iter().map(AsRef::as_ref).collect();
        // The number of messages differs between the calls of a prompt.
        let call_prefix = format!("call_{}", request.messages.len());
        let decoder = StreamDecoder { state: Mutex::new(StreamState::new(&call_prefix)), listener };
        // The system prompt has the tools and the response schema.
        let request =
            ModelRequest { messages: &messages, tools: &[], response_schema: None, ..request };
        let Some(connection) = self.connection else {
            let response = self.model.respond(request, &decoder).await;
            return decoder.finish(response, &call_prefix).0;
        };
        let response = self.model.respond_on_connection(connection, request, &decoder).await;
        let (response, is_whole) = decoder.finish(response, &call_prefix);
        if is_whole {
            connection.confirm_response(encode_response(&response.message));
        }
        response
    }

    fn record(&self, model: &str) -> Result<ModelRecord, String> {
        self.model.record(model)
    }

    fn is_configured(&self, model: &str) -> bool {
        self.model.is_configured(model)
    }

    fn models(&self) -> Vec<ModelRecord> {
        self.model.models()
    }
}

/// Decodes the events of the wrapped model.
struct StreamDecoder<'l> {
    state: Mutex<StreamState>,
    listener: &'l dyn Listener,
}

struct StreamState {
    parser: ProtocolParser,
    /// The text received so far.
    text: String,
    /// Content index of each native thinking block: that of the wrapped model, and the one here.
    thinking: Vec<(usize, usize)>,
}

impl StreamState {
    fn new(call_prefix: &str) -> Self {
        let parser = ProtocolParser::new(call_prefix);
        Self { parser, text: String::new(), thinking: Vec::new() }
    }

    fn thinking_index(&self, of_model: usize) -> Option<usize> {
        self.thinking.iter().find(|(index, _)| *index == of_model).map(|(_, index)| *index)
    }

    fn decode(&mut self, event: AssistantMessageEvent) -> Vec<AssistantMessageEvent> {
        let mut events = Vec::new();
        match event {
            AssistantMessageEvent::TextDelta { delta, .. } => {
                self.text.push_str(&delta);
                self.parser.push(&delta, &mut events);
            }
            AssistantMessageEvent::ThinkingStart { content_index } => {
                let index = self.parser.push_block(empty_thinking());
                self.thinking.push((content_index, index));
                events.push(AssistantMessageEvent::ThinkingStart { content_index: index });
            }
            AssistantMessageEvent::ThinkingDelta { content_index, delta } => {
                let index = self.thinking_index(content_index);
                events.extend(index.map(|content_index| AssistantMessageEvent::ThinkingDelta {
                    content_index,
                    delta,
                }));
            }
            AssistantMessageEvent::ThinkingEnd { content_index, content } => {
                let index = self.thinking_index(content_index);
                events.extend(index.map(|content_index| AssistantMessageEvent::ThinkingEnd {
                    content_index,
                    content,
                }));
            }
            // The deltas hold the text. No tools are offered, so a native call is not valid.
            AssistantMessageEvent::TextStart { .. }
            | AssistantMessageEvent::TextEnd { .. }
            | AssistantMessageEvent::ToolcallStart { .. }
            | AssistantMessageEvent::ToolcallDelta { .. }
            | AssistantMessageEvent::ToolcallEnd { .. } => {}
        }
        events
    }
}

fn empty_thinking() -> Block {
    Block::Thinking(Thinking {
        thinking: String::new(),
        thinking_signature: None,
        extra: Extra::new(),
    })
}

impl Listener for StreamDecoder<'_> {
    fn on_event(&self, event: AssistantMessageEvent) {
        let events = self.state.lock().unwrap_or_else(PoisonError::into_inner).decode(event);
        for event in events {
            self.listener.on_event(event);
        }
    }
}

impl StreamDecoder<'_> {
    /// The response with decoded blocks, and whether they have all that the model wrote. The blocks of
    /// the finished response count: some services stream no deltas.
    fn finish(self, response: ModelResponse, call_prefix: &str) -> (ModelResponse, bool) {
        let StreamState { mut parser, text, .. } =
            self.state.into_inner().unwrap_or_else(PoisonError::into_inner);
        let is_complete = !response.message.is_failed();
        let whole: String = response.message.content.iter().filter_map(text_of).collect();
        let mut events = Vec::new();
        if let Some(rest) = whole.strip_prefix(text.as_str()) {
            parser.push(rest, &mut events);
        }
        parser.finish(is_complete, &mut events);
        for event in events {
            self.listener.on_event(event);
        }
        let has_only_text = (response.message.content.iter())
            .all(|block| matches!(block, Block::Text(_) | Block::Thinking(_)));
        let ParsedResponse { content, details, has_other_members } =
            parse_blocks(response.message.content, call_prefix, is_complete);
        let is_whole = is_complete
            && has_only_text
            && !has_other_members
            && details == ProtocolDetails::default();
        let mut message =
            turnwheel_conversation::message::AssistantMessage { content, ..response.message };
        if message.stop_reason == StopReason::Stop && message.tool_calls().next().is_some() {
            message.stop_reason = StopReason::ToolUse;
        }
        details.record(&mut message);
        (ModelResponse { message, ..response }, is_whole)
    }
}

fn text_of(block: &Block) -> Option<&str> {
    if let Block::Text(text) = block { Some(&text.text) } else { None }
}

/// Parses the text of a finished response. Other blocks stay, except native calls, which no tool
/// definition allows.
fn parse_blocks(content: Vec<Block>, call_prefix: &str, is_complete: bool) -> ParsedResponse {
    let mut parser = ProtocolParser::new(call_prefix);
    let mut events = Vec::new();
    for block in content {
        match block {
            Block::Text(text) => parser.push(&text.text, &mut events),
            Block::ToolCall(_) => {}
            Block::Thinking(_) | Block::Image(_) | Block::File(_) | Block::Other(_) => {
                parser.push_block(block);
            }
        }
    }
    parser.finish(is_complete, &mut events)
}
