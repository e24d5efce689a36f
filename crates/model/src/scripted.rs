//! The scripted model: a fake model without network or randomness. The text of the last user
//! message is its script.

use std::fmt::Write as _;
use std::time::Duration;

use async_trait::async_trait;
use http::HeaderMap;

use crate::compat::Compat;
use crate::responses::headers::ModelHeaders;
use crate::responses::provider_error::{ProviderError, classify};
use crate::{
    CallMetadata, Listener, Model, ModelFailure, ModelRecord, ModelRequest, ModelResponse, Prices,
};
use turnwheel_conversation::content::{Block, Text, Thinking, ToolCall, joined_text};
use turnwheel_conversation::event::{AssistantMessageEvent, TypedToolCall};
use turnwheel_conversation::message::{AssistantMessage, Message, StopReason, ToolResultMessage};
use turnwheel_conversation::settings::ThinkingLevel;
use turnwheel_conversation::unknown_members::Extra;
use turnwheel_conversation::usage::Usage;
use turnwheel_json::raw::RawJson;
use turnwheel_platform::clock::Timestamp;

mod learning;
mod payments;
pub mod protocol;
pub mod sample;
mod script;

use script::{Script, ScriptStep, ScriptedCall};

const MODEL_NAME: &str = "scripted";
/// Words of a title.
const TITLE_WORDS: usize = 6;
/// Characters of a quotation.
const QUOTE_MAX: usize = 300;

/// A stateless fake model. The number of tool results since the last user message selects the step
/// of the script.
#[derive(Clone, Copy, Debug, Default)]
pub struct ScriptedModel;

/// One response, before it is streamed.
#[derive(Default)]
struct ScriptedResponse {
    text: String,
    calls: Vec<ScriptedCall>,
}

#[async_trait]
impl Model for ScriptedModel {
    async fn respond(&self, request: ModelRequest<'_>, listener: &dyn Listener) -> ModelResponse {
        if protocol::is_protocol(&request) {
            let response = protocol::respond(self, &request, listener).await;
            let usage = estimate_usage(&request, &response.message.content).into();
            let message = AssistantMessage { usage, ..response.message };
            return ModelResponse { message, ..response };
        }
        let context = ScriptContext::from_request(&request);
        let response = match context.next_response() {
            Ok(response) => response,
            Err(fault) => return failed_response(&fault),
        };
        let mut content = Vec::new();
        if request.thinking > ThinkingLevel::Off {
            content.push(stream_thinking(&response, listener, content.len()).await);
        }
        let (text, is_cut) = truncate_words(
            &response.text,
            request.max_output_tokens.filter(|_| response.calls.is_empty()),
        );
        if !text.is_empty() {
            content.push(stream_text(&text, listener, content.len()).await);
        }
        for (number, call) in response.calls.iter().enumerate() {
            let id = format!("call_{}_{}", request.messages.len(), number + 1);
            content.push(stream_tool_call(call, id, listener, content.len()).await);
        }
        let stop_reason = match (is_cut, response.calls.is_empty()) {
            (true, _) => StopReason::Length,
            (false, true) => StopReason::Stop,
            (false, false) => StopReason::ToolUse,
        };
        let usage = estimate_usage(&request, &content);
        ModelResponse {
            message: AssistantMessage {
                usage: usage.into(),
                ..assistant_message(content, stop_reason)
            },
            failure: None,
            metadata: CallMetadata::default(),
        }
    }

    /// Returns the same record for every model id.
    fn record(&self, _model: &str) -> Result<ModelRecord, String> {
        Ok(ModelRecord {
            id: MODEL_NAME.to_owned(),
            name: "Scripted model".to_owned(),
            api: MODEL_NAME.to_owned(),
            provider: MODEL_NAME.to_owned(),
            base_url: String::new(),
            reasoning: true,
            images: true,
            cost: Prices::default(),
            context_window: 128_000,
            max_tokens: 16_384,
            deployment_name: MODEL_NAME.to_owned(),
            headers: ModelHeaders::default(),
            compat: Compat::default(),
        })
    }
}

/// The request and the parts of it that select the next response.
struct ScriptContext<'a> {
    request: &'a ModelRequest<'a>,
    /// Text of the last user message; empty without one.
    prompt: String,
    images: usize,
    /// Tool results since the last user message.
    results: Vec<&'a ToolResultMessage>,
}

impl<'a> ScriptContext<'a> {
    fn from_request(request: &'a ModelRequest<'a>) -> Self {
        let mut context = Self { request, prompt: String::new(), images: 0, results: Vec::new() };
        for message in request.messages {
            match message {
                Message::User(user) => {
                    context.prompt = user.content.joined_text();
                    context.results.clear();
                    context.images = match &user.content {
                        turnwheel_conversation::content::Content::Text(_) => 0,
                        turnwheel_conversation::content::Content::Blocks(blocks) => {
                            blocks.iter().filter(|block| matches!(block, Block::Image(_))).count()
                        }
                    };
                }
                Message::ToolResult(result) => context.results.push(result),
                Message::Assistant(_)
                | Message::BashExecution(_)
                | Message::Custom(_)
                | Message::BranchSummary(_)
                | Message::CompactionSummary(_)
                | Message::Other(_) => {}
            }
        }
        context
    }

    fn next_response(&self) -> Result<ScriptedResponse, Box<ProviderError>> {
        if let Some(profile) = learning::respond(&self.prompt) {
            return Ok(self.text_response(profile));
        }
        if let Some(title) = self.title() {
            return Ok(self.text_response(title));
        }
        let script = Script::parse(&self.prompt, self.request.tools);
        if script.is_empty() {
            let payments = payments::parse_payments(&self.prompt, self.request.tools);
            return Ok(match (payments.is_empty(), self.results.is_empty()) {
                (true, true) => self.text_response(self.introduction_text()),
                (true, false) => self.text_response(self.results_text()),
                (false, true) => payments::request_payments(&payments),
                (false, false) => {
                    self.text_response(payments::report_payments(&payments, &self.results))
                }
            });
        }
        match script.step_after(self.results.len()) {
            Some(ScriptStep::Calls(calls)) => {
                Ok(ScriptedResponse { text: String::new(), calls: calls.clone() })
            }
            Some(ScriptStep::Text(text)) => Ok(self.text_response(text.clone())),
            Some(ScriptStep::Failure(fault)) => Err(fault.clone()),
            None => Ok(self.text_response(self.results_text())),
        }
    }

    /// The first words of the message, if the request is for the title of a conversation.
    fn title(&self) -> Option<String> {
        let message = self.prompt.strip_prefix("<message>\n")?.strip_suffix("\n</message>")?;
        let words: Vec<&str> = message.split_whitespace().take(TITLE_WORDS).collect();
        Some(words.join(" "))
    }

    /// A response with this text, or with a sample value if the request has a response schema and
    /// the text is not JSON.
    fn text_response(&self, text: String) -> ScriptedResponse {
        let text = match self.request.response_schema {
            Some(schema) if serde_json::from_str::<serde_json::Value>(&text).is_err() => {
                sample::sample_value(schema, &text).to_string()
            }
            Some(_) | None => text,
        };
        ScriptedResponse { text, calls: Vec::new() }
    }

    fn introduction_text(&self) -> String {
        let mut text = match self.prompt.split_whitespace().count() {
            0 => "I am the scripted model, and received no text.".to_owned(),
            1 => format!(
                "I am the scripted model, and received one word: “{}”.",
                quote(&self.prompt)
            ),
            words => format!(
                "I am the scripted model, and received {words} words: “{}”.",
                quote(&self.prompt)
            ),
        };
        if self.images > 0 {
            text.push_str(if self.images == 1 {
                " The message has an image."
            } else {
                " The message has images."
            });
        }
        if let Some(first) = self.request.tools.first() {
            let names: Vec<&str> = self.request.tools.iter().map(|tool| tool.name).collect();
            let example = example_prompt(first.name, first.parameters);
            let _ = write!(text, " I can use {}. Try: {example}", names.join(", "));
        }
        text
    }

    fn results_text(&self) -> String {
        let lines: Vec<String> = self
            .results
            .iter()
            .map(|result| {
                let verb = if result.is_error { "failed" } else { "returned" };
                match quote(&joined_text(&result.content)) {
                    text if text.is_empty() => format!("{} {verb}.", result.tool_name),
                    text => format!("{} {verb}: {text}", result.tool_name),
                }
            })
            .collect();
        lines.join("\n")
    }
}

/// Returns a user message that makes this model call the tool.
pub fn example_prompt(tool: &str, parameters: &serde_json::Value) -> String {
    format!("use {tool} with {} then say done", sample::sample_value(parameters, "…"))
}

/// Quotes at most [`QUOTE_MAX`] characters of a text.
fn quote(text: &str) -> String {
    // `loop: prompt` sends error results as JSON strings.
    let text = serde_json::from_str::<String>(text).unwrap_or_else(|_| text.to_owned());
    let text = text.trim();
    let mut head: String = text.chars().take(QUOTE_MAX).collect();
    if head.len() < text.len() {
        head.push('…');
    }
    head
}

/// Truncates a text to one word per token of the limit. The flag is true if words were removed.
fn truncate_words(text: &str, tokens_max: Option<u64>) -> (String, bool) {
    let words_max =
        tokens_max.and_then(|tokens| usize::try_from(tokens).ok()).unwrap_or(usize::MAX);
    let words: Vec<&str> = text.split_inclusive(' ').collect();
    (words.iter().take(words_max).copied().collect(), words.len() > words_max)
}

async fn stream_thinking(
    response: &ScriptedResponse,
    listener: &dyn Listener,
    content_index: usize,
) -> Block {
    let thinking = match response.calls.len() {
        0 => "Nothing is left to call, so I answer.".to_owned(),
        1 => "One tool is to be called.".to_owned(),
        calls => format!("{calls} tools are to be called."),
    };
    listener.on_event(AssistantMessageEvent::ThinkingStart { content_index });
    for word in thinking.split_inclusive(' ') {
        listener.on_event(AssistantMessageEvent::ThinkingDelta {
            content_index,
            delta: word.to_owned(),
        });
        tokio::task::yield_now().await;
    }
    listener
        .on_event(AssistantMessageEvent::ThinkingEnd { content_index, content: thinking.clone() });
    Block::Thinking(Thinking { thinking, thinking_signature: None, extra: Extra::new() })
}

async fn stream_text(text: &str, listener: &dyn Listener, content_index: usize) -> Block {
    listener.on_event(AssistantMessageEvent::TextStart { content_index });
    for word in text.split_inclusive(' ') {
        listener
            .on_event(AssistantMessageEvent::TextDelta { content_index, delta: word.to_owned() });
        tokio::task::yield_now().await;
    }
    listener.on_event(AssistantMessageEvent::TextEnd { content_index, content: text.to_owned() });
    Block::Text(Text { text: text.to_owned(), text_signature: None, extra: Extra::new() })
}

async fn stream_tool_call(
    call: &ScriptedCall,
    id: String,
    listener: &dyn Listener,
    content_index: usize,
) -> Block {
    listener.on_event(AssistantMessageEvent::ToolcallStart {
        content_index,
        id: id.clone(),
        tool_name: call.tool.clone(),
    });
    let letters: Vec<char> = call.arguments.text().chars().collect();
    for delta in letters.chunks(16) {
        listener.on_event(AssistantMessageEvent::ToolcallDelta {
            content_index,
            delta: delta.iter().collect(),
        });
        tokio::task::yield_now().await;
    }
    let call = ToolCall {
        id,
        name: call.tool.clone(),
        arguments: call.arguments.clone(),
        thought_signature: None,
        extra: Extra::new(),
    };
    listener.on_event(AssistantMessageEvent::ToolcallEnd {
        content_index,
        tool_call: TypedToolCall { call: call.clone() },
    });
    Block::ToolCall(call)
}

/// Estimated usage: four characters count as one token.
fn estimate_usage(request: &ModelRequest<'_>, content: &[Block]) -> Usage {
    let tokens = |characters: usize| (characters as u64).div_ceil(4);
    let length = |message: &&Message| RawJson::from_value(*message).text().len();
    let sent =
        request.messages.iter().map(length).sum::<usize>() + request.system.map_or(0, str::len);
    let (mut output, mut reasoning) = (0, 0);
    for block in content {
        match block {
            Block::Text(text) => output += tokens(text.text.len()),
            Block::Thinking(thinking) => reasoning += tokens(thinking.thinking.len()),
            Block::ToolCall(call) => {
                output += tokens(call.name.len() + call.arguments.text().len());
            }
            Block::Image(_) | Block::File(_) | Block::Other(_) => {}
        }
    }
    let (input, output) = (tokens(sent), output + reasoning);
    Usage { input, output, reasoning, total_tokens: input + output, ..Usage::default() }
}

fn assistant_message(content: Vec<Block>, stop_reason: StopReason) -> AssistantMessage {
    AssistantMessage::new_synthetic(MODEL_NAME, content, stop_reason)
}

fn failed_response(fault: &ProviderError) -> ModelResponse {
    let failure = match classify(fault, &HeaderMap::new(), Timestamp(0)) {
        ModelFailure::Retryable { .. } if fault.status == Some(429) => {
            ModelFailure::Retryable { after: Some(Duration::from_secs(1)) }
        }
        failure @ (ModelFailure::Retryable { .. }
        | ModelFailure::ContextOverflow
        | ModelFailure::Permanent) => failure,
    };
    let error_message = Some(fault.text.clone());
    ModelResponse {
        message: AssistantMessage {
            error_message,
            ..assistant_message(Vec::new(), StopReason::Error)
        },
        failure: Some(failure),
        metadata: CallMetadata {
            status: fault.status,
            error: fault.name(),
            ..CallMetadata::default()
        },
    }
}

#[cfg(test)]
mod tests;
