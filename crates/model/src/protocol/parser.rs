//! Incremental parser of protocol text. The same text gives the same blocks, whatever its deltas.
//!
//! `<think>…</think>` becomes a thinking block, `<execute>[…]</execute>` tool calls, and all other
//! text text blocks. The parser holds back only a suffix that could begin a tag, and an execute
//! block until its end.

mod execute_block;

use std::borrow::Cow;

use self::execute_block::ExecuteBlock;
use super::calls::ProtocolCall;
use turnwheel_conversation::content::{Block, Thinking, ToolCall};
use turnwheel_conversation::event::{AssistantMessageEvent, TypedToolCall};
use turnwheel_conversation::protocol_details::ProtocolDetails;
use turnwheel_conversation::unknown_members::Extra;

/// Start of the text that replaces a malformed execute block (PC-05).
const MALFORMED: &str = "Error: Malformed tool call syntax. ";

#[derive(Clone, Copy, Debug, PartialEq)]
enum Tag {
    Think,
    Execute,
    Results,
    End,
    Close,
}

const OPENING: [(&str, Tag); 4] = [
    ("<think>", Tag::Think),
    ("<execute>", Tag::Execute),
    ("<results>", Tag::Results),
    ("<end>", Tag::End),
];
const THINK_CLOSING: [(&str, Tag); 1] = [("</think>", Tag::Close)];
const RESULTS_CLOSING: [(&str, Tag); 1] = [("</results>", Tag::Close)];

/// Where the parser is.
#[derive(Debug)]
enum Position {
    Text,
    Think,
    Execute(ExecuteBlock),
    /// Results are the runtime's: those that a model writes are dropped.
    Results,
    /// After the calls or `<end>`: the rest is dropped.
    Done,
}

/// The kind of a block that receives text.
#[derive(Clone, Copy, Debug, PartialEq)]
enum TextKind {
    Text,
    Thinking,
}

/// The blocks of a response.
#[derive(Debug, PartialEq)]
pub struct ParsedResponse {
    pub content: Vec<Block>,
    pub details: ProtocolDetails,
    /// True if the model wrote members of calls that no block contains.
    pub has_other_members: bool,
}

/// See the module.
#[derive(Debug)]
pub struct ProtocolParser {
    /// Start of the ids of the calls.
    call_prefix: String,
    position: Position,
    /// A suffix that could begin a tag.
    held: String,
    content: Vec<Block>,
    /// Index of the block that receives text.
    open: Option<usize>,
    details: ProtocolDetails,
    has_other_members: bool,
}

impl ProtocolParser {
    /// The ids of the calls are `<call_prefix>_1` and so on.
    pub fn new(call_prefix: impl Into<String>) -> Self {
        Self {
            call_prefix: call_prefix.into(),
            position: Position::Text,
            held: String::new(),
            content: Vec::new(),
            open: None,
            details: ProtocolDetails::default(),
            has_other_members: false,
        }
    }

    /// Adds a block of another kind. Returns its index.
    pub(crate) fn push_block(&mut self, block: Block) -> usize {
        self.content.push(block);
        self.content.len() - 1
    }

    /// Parses the next text. Appends the live events to `events`.
    pub fn push(&mut self, delta: &str, events: &mut Vec<AssistantMessageEvent>) {
        let held = std::mem::take(&mut self.held);
        let text = if held.is_empty() { Cow::Borrowed(delta) } else { Cow::Owned(held + delta) };
        let mut rest: &str = &text;
        while !rest.is_empty() {
            rest = match &mut self.position {
                Position::Text => self.scan_text(rest, events),
                Position::Think => self.scan_thinking(rest, events),
                Position::Execute(_) => self.scan_execute(rest, events),
                Position::Results => self.scan_results(rest),
                Position::Done => {
                    self.drop_text(rest);
                    ""
                }
            };
        }
    }

    /// Ends the text. Without `is_complete` the response failed, and an open execute block is no
    /// error of the model.
    pub fn finish(
        mut self,
        is_complete: bool,
        events: &mut Vec<AssistantMessageEvent>,
    ) -> ParsedResponse {
        let held = std::mem::take(&mut self.held);
        match std::mem::replace(&mut self.position, Position::Done) {
            Position::Text => self.append(TextKind::Text, &held, events),
            Position::Think => {
                self.append(TextKind::Thinking, &held, events);
                self.details.unclosed_tag = Some("think".to_owned());
            }
            Position::Execute(mut block) => {
                block.append(&held);
                self.details.unclosed_tag = Some("execute".to_owned());
                if block.is_dropped || !is_complete {
                    self.drop_text(&block.content);
                } else {
                    self.append_malformed(&block.unclosed_reason(), events);
                }
            }
            Position::Results => {
                self.drop_text(&held);
                self.details.unclosed_tag = Some("results".to_owned());
            }
            Position::Done => {}
        }
        self.close_open(events);
        let Self { content, details, has_other_members, .. } = self;
        ParsedResponse { content, details, has_other_members }
    }

    fn scan_text<'t>(&mut self, text: &'t str, events: &mut Vec<AssistantMessageEvent>) -> &'t str {
        let found = find_tag(text, &OPENING);
        self.append(TextKind::Text, found.before, events);
        let Some(tag) = found.tag else {
            found.rest.clone_into(&mut self.held);
            return "";
        };
        self.details.has_end |= tag == Tag::End;
        // The error text of a malformed block belongs to the text around it.
        if tag != Tag::Execute {
            self.close_open(events);
        }
        self.position = match tag {
            Tag::Think => Position::Think,
            Tag::Execute => Position::Execute(ExecuteBlock::new(self.details.has_malformed_calls)),
            Tag::Results => Position::Results,
            Tag::End | Tag::Close => Position::Done,
        };
        found.rest
    }

    fn scan_thinking<'t>(
        &mut self,
        text: &'t str,
        events: &mut Vec<AssistantMessageEvent>,
    ) -> &'t str {
        let found = find_tag(text, &THINK_CLOSING);
        self.append(TextKind::Thinking, found.before, events);
        if found.tag.is_none() {
            found.rest.clone_into(&mut self.held);
            return "";
        }
        self.close_open(events);
        self.position = Position::Text;
        found.rest
    }

    fn scan_results<'t>(&mut self, text: &'t str) -> &'t str {
        let found = find_tag(text, &RESULTS_CLOSING);
        self.drop_text(found.before);
        if found.tag.is_none() {
            found.rest.clone_into(&mut self.held);
            return "";
        }
        self.position = Position::Text;
        found.rest
    }

    fn scan_execute<'t>(
        &mut self,
        text: &'t str,
        events: &mut Vec<AssistantMessageEvent>,
    ) -> &'t str {
        let Position::Execute(block) = &mut self.position else { return text };
        let found = block.scan(text);
        if found.tag.is_none() {
            found.rest.clone_into(&mut self.held);
            return "";
        }
        let block = std::mem::take(block);
        self.position = Position::Text;
        if block.is_dropped {
            self.drop_text(&block.content);
            return found.rest;
        }
        match block.parse() {
            Ok(calls) => {
                self.close_open(events);
                self.append_calls(calls, events);
                self.position = Position::Done;
            }
            Err(reason) => self.append_malformed(&reason, events),
        }
        found.rest
    }

    /// Appends to the open block, or begins one with the first character that is no white space.
    fn append(&mut self, kind: TextKind, text: &str, events: &mut Vec<AssistantMessageEvent>) {
        let text = if self.open.is_some() { text } else { text.trim_start() };
        if text.is_empty() {
            return;
        }
        let content_index = if let Some(open) = self.open {
            open
        } else {
            let index = self.push_block(kind.empty_block());
            self.open = Some(index);
            events.push(match kind {
                TextKind::Text => AssistantMessageEvent::TextStart { content_index: index },
                TextKind::Thinking => AssistantMessageEvent::ThinkingStart { content_index: index },
            });
            index
        };
        if let Some(content) = self.content.get_mut(content_index).and_then(text_of) {
            content.push_str(text);
        }
        let delta = text.to_owned();
        events.push(match kind {
            TextKind::Text => AssistantMessageEvent::TextDelta { content_index, delta },
            TextKind::Thinking => AssistantMessageEvent::ThinkingDelta { content_index, delta },
        });
    }

    /// Ends the open block. White space at its end is removed.
    fn close_open(&mut self, events: &mut Vec<AssistantMessageEvent>) {
        let Some(content_index) = self.open.take() else { return };
        let Some(block) = self.content.get_mut(content_index) else { return };
        let is_thinking = matches!(block, Block::Thinking(_));
        let Some(text) = text_of(block) else { return };
        text.truncate(text.trim_end().len());
        let content = text.clone();
        events.push(if is_thinking {
            AssistantMessageEvent::ThinkingEnd { content_index, content }
        } else {
            AssistantMessageEvent::TextEnd { content_index, content }
        });
    }

    fn append_calls(&mut self, calls: Vec<ProtocolCall>, events: &mut Vec<AssistantMessageEvent>) {
        for (number, ProtocolCall { name, arguments, has_other_members }) in (1..).zip(calls) {
            self.has_other_members |= has_other_members;
            let call = ToolCall {
                id: format!("{}_{number}", self.call_prefix),
                name,
                arguments,
                thought_signature: None,
                extra: Extra::new(),
            };
            let content_index = self.push_block(Block::ToolCall(call.clone()));
            events.extend([
                AssistantMessageEvent::ToolcallStart {
                    content_index,
                    id: call.id.clone(),
                    tool_name: call.name.clone(),
                },
                AssistantMessageEvent::ToolcallDelta {
                    content_index,
                    delta: call.arguments.text().to_owned(),
                },
                AssistantMessageEvent::ToolcallEnd {
                    content_index,
                    tool_call: TypedToolCall { call },
                },
            ]);
        }
    }

    /// The error becomes part of the text around the block, as in the source.
    fn append_malformed(&mut self, reason: &str, events: &mut Vec<AssistantMessageEvent>) {
        self.details.has_malformed_calls = true;
        self.append(TextKind::Text, &format!("{MALFORMED}{reason}"), events);
    }

    fn drop_text(&mut self, text: &str) {
        let dropped = text.chars().filter(|letter| !letter.is_whitespace()).count();
        self.details.dropped_characters += dropped as u64;
    }
}

impl TextKind {
    fn empty_block(self) -> Block {
        match self {
            Self::Text => Block::text(""),
            Self::Thinking => Block::Thinking(Thinking {
                thinking: String::new(),
                thinking_signature: None,
                extra: Extra::new(),
            }),
        }
    }
}

/// The text of a block.
fn text_of(block: &mut Block) -> Option<&mut String> {
    match block {
        Block::Text(text) => Some(&mut text.text),
        Block::Thinking(thinking) => Some(&mut thinking.thinking),
        Block::ToolCall(_) | Block::Image(_) | Block::File(_) | Block::Other(_) => None,
    }
}

/// A tag in a text. Without a tag, `rest` could begin one.
struct FoundTag<'t> {
    before: &'t str,
    tag: Option<Tag>,
    rest: &'t str,
}

/// Finds the first of the tags.
fn find_tag<'t>(text: &'t str, tags: &[(&str, Tag)]) -> FoundTag<'t> {
    for (at, _) in text.match_indices('<') {
        let (before, rest) = text.split_at(at);
        for (name, tag) in tags {
            if let Some(rest) = rest.strip_prefix(name) {
                return FoundTag { before, tag: Some(*tag), rest };
            }
            if name.starts_with(rest) {
                return FoundTag { before, tag: None, rest };
            }
        }
    }
    FoundTag { before: text, tag: None, rest: "" }
}

#[cfg(test)]
mod tests;
