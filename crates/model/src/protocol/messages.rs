//! The messages of a request as protocol text.

use std::borrow::Cow;

use super::python_json::{push_json, push_string};
use crate::ModelRequest;
use turnwheel_conversation::content::{Block, Content, ToolCall, joined_text};
use turnwheel_conversation::message::{AssistantMessage, Message, ToolResultMessage, UserMessage};
use turnwheel_conversation::projection::render::{FileAccess, render_file};
use turnwheel_conversation::protocol_details::ProtocolDetails;
use turnwheel_conversation::unknown_members::Extra;
use turnwheel_platform::clock::Timestamp;

pub(crate) const RESULTS_START: &str = "<results>\n";
pub(crate) const RESULTS_END: &str = "\n</results>";
/// Content of a result that has none.
const NO_OUTPUT: &str = "(no output)";
const IMAGES_FOLLOW: &str = "(the images follow)";
/// Follows a response whose calls could not be read, because some services reject a request that
/// ends with a response.
const CORRECTION: &str = "Write the calls again as valid JSON, or respond without calls.";

/// Converts the messages of a request. The results of a batch become one user message. Of the
/// messages the newest `window` are kept; `None`: all.
pub(super) fn encode<'m>(request: &ModelRequest<'m>, window: Option<u32>) -> Vec<Cow<'m, Message>> {
    let can_read = request.tools.iter().any(|tool| tool.name == "read");
    let file_access = if can_read { FileAccess::ReadTool } else { FileAccess::Unavailable };
    let mut encoder = Encoder {
        messages: Vec::new(),
        results: Vec::new(),
        needs_correction: false,
        file_access,
        accepts_images: request.model.images,
    };
    for message in request.messages {
        encoder.add(message);
    }
    encoder.flush_pending();
    let mut messages = encoder.messages;
    if let Some(window) = window.and_then(|window| usize::try_from(window).ok()) {
        messages.drain(..messages.len().saturating_sub(window));
    }
    messages
}

struct Encoder<'m> {
    messages: Vec<Cow<'m, Message>>,
    /// Results of the last response that are not converted yet.
    results: Vec<&'m ToolResultMessage>,
    /// True if the last response has calls that could not be read.
    needs_correction: bool,
    file_access: FileAccess,
    accepts_images: bool,
}

impl<'m> Encoder<'m> {
    fn add(&mut self, message: &'m Message) {
        match message {
            Message::ToolResult(result) => self.results.push(result),
            Message::Assistant(response) => {
                self.flush_pending();
                self.needs_correction = ProtocolDetails::needs_correction(response);
                let text = encode_response(response);
                if !text.is_empty() {
                    self.messages.push(Cow::Owned(Message::Assistant(AssistantMessage {
                        content: vec![Block::text(text)],
                        ..response.clone()
                    })));
                }
            }
            Message::User(user) => {
                self.needs_correction = false;
                self.flush_pending();
                self.messages.push(self.encode_user(message, user));
            }
            Message::BashExecution(_)
            | Message::Custom(_)
            | Message::BranchSummary(_)
            | Message::CompactionSummary(_)
            | Message::Other(_) => {
                self.flush_pending();
                self.messages.push(Cow::Borrowed(message));
            }
        }
    }

    /// Replaces the files by texts, because the request has no native tool that reads them.
    fn encode_user(&self, message: &'m Message, user: &UserMessage) -> Cow<'m, Message> {
        let Content::Blocks(blocks) = &user.content else { return Cow::Borrowed(message) };
        if !blocks.iter().any(|block| matches!(block, Block::File(_))) {
            return Cow::Borrowed(message);
        }
        let content = Content::Blocks(self.without_files(blocks));
        Cow::Owned(Message::User(UserMessage { content, ..user.clone() }))
    }

    fn without_files(&self, blocks: &[Block]) -> Vec<Block> {
        let next = blocks.iter().skip(1).map(Some).chain([None]);
        let convert = |(block, next): (&Block, Option<&Block>)| {
            let Block::File(file) = block else { return block.clone() };
            let is_shown = self.accepts_images && matches!(next, Some(Block::Image(_)));
            let access = if is_shown { FileAccess::Inline } else { self.file_access };
            Block::text(render_file(file, access))
        };
        blocks.iter().zip(next).map(convert).collect()
    }

    /// Adds the results and the correction that wait for the end of their turn.
    fn flush_pending(&mut self) {
        if std::mem::take(&mut self.needs_correction) {
            self.push_user(vec![Block::text(CORRECTION)]);
        }
        let results = std::mem::take(&mut self.results);
        if results.is_empty() {
            return;
        }
        let mut content = vec![Block::text(encode_results(&results))];
        for result in results {
            let others = result.content.iter().filter(|block| !matches!(block, Block::Text(_)));
            let others: Vec<Block> = others.cloned().collect();
            content.extend(self.without_files(&others));
        }
        self.push_user(content);
    }

    fn push_user(&mut self, content: Vec<Block>) {
        self.messages.push(Cow::Owned(Message::User(UserMessage {
            content: Content::Blocks(content),
            timestamp: Timestamp(0),
            extra: Extra::new(),
        })));
    }
}

/// The text of a response: its blocks in order, with blank lines between them, and its calls as one
/// execute block. Native reasoning of a model is not sent back.
pub(crate) fn encode_response(response: &AssistantMessage) -> String {
    let mut parts: Vec<String> = Vec::new();
    for block in &response.content {
        match block {
            Block::Text(text) if !text.text.is_empty() => parts.push(text.text.clone()),
            Block::Thinking(thinking)
                if thinking.thinking_signature.is_none() && !thinking.thinking.is_empty() =>
            {
                parts.push(format!("<think>{}</think>", thinking.thinking));
            }
            Block::Text(_)
            | Block::Thinking(_)
            | Block::ToolCall(_)
            | Block::Image(_)
            | Block::File(_)
            | Block::Other(_) => {}
        }
    }
    let calls: Vec<&ToolCall> = response.tool_calls().collect();
    if !calls.is_empty() {
        parts.push(encode_calls(&calls));
    }
    parts.join("\n\n")
}

fn encode_calls(calls: &[&ToolCall]) -> String {
    let calls: Vec<String> = calls.iter().map(|call| encode_call(call)).collect();
    format!("<execute>[{}]</execute>", calls.join(", "))
}

/// One call, as in an execute block.
pub fn encode_call(call: &ToolCall) -> String {
    let mut text = String::from("{\"name\": ");
    push_string(&mut text, &call.name);
    text.push_str(", \"args\": ");
    push_json(&mut text, call.arguments.text());
    text + "}"
}

/// The results in the order of their calls (PC-08).
pub fn encode_results(results: &[&ToolResultMessage]) -> String {
    let mut text = format!("{RESULTS_START}[");
    for (number, result) in results.iter().enumerate() {
        text.push_str(if number == 0 { "{\"tool\": " } else { ", {\"tool\": " });
        push_string(&mut text, &result.tool_name);
        let status = if result.is_error { "failure" } else { "success" };
        text.push_str(", \"status\": \"");
        text.push_str(status);
        text.push_str("\", \"content\": ");
        push_string(&mut text, &result_content(result));
        text.push('}');
    }
    text + "]" + RESULTS_END
}

/// The text of a result: its content, or else its outcome (PC-08).
fn result_content(result: &ToolResultMessage) -> String {
    let has_images = result.content.iter().any(|block| matches!(block, Block::Image(_)));
    let outcome = || result.details.as_ref()?.string_member("outcome");
    match joined_text(&result.content) {
        text if !text.is_empty() => text,
        _ if has_images => IMAGES_FOLLOW.to_owned(),
        _ => outcome().filter(|text| !text.is_empty()).unwrap_or_else(|| NO_OUTPUT.to_owned()),
    }
}

/// Bytes of an escape for an estimate of its tokens: its six bytes are about five tokens, as many as
/// of fifteen bytes of other text.
const ESCAPE_BYTES: usize = 15;

/// Bytes of a result for an estimate of its tokens.
pub fn result_bytes(result: &ToolResultMessage) -> usize {
    let mut text = String::new();
    push_string(&mut text, &result_content(result));
    text.len() + (ESCAPE_BYTES - "\\u0000".len()) * text.matches("\\u").count()
}

/// Bytes of the escapes in a response's calls for an estimate of their tokens. The model may have
/// written the characters themselves.
pub fn call_escape_bytes(response: &AssistantMessage) -> usize {
    let escapes = response.tool_calls().map(|call| encode_call(call).matches("\\u").count());
    ESCAPE_BYTES * escapes.sum::<usize>()
}
