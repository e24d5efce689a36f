//! The transcript for a summary: one text instead of messages, so that the model does not continue
//! the conversation.

use std::borrow::Cow;

use serde::Serialize;

use crate::compaction::TokenCounter;
use crate::content::{Block, Content};
use crate::message::Message;
use crate::projection::render::{FileAccess, render_file};
use turnwheel_json::exact::ExactJson;
use turnwheel_json::raw::RawJson;

/// Characters kept of a part that is too long, half from its beginning and half from its end.
const EXCERPT_CHARS: usize = 2_000;

/// Content omitted so that the transcript fits the context window.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct OmittedContent {
    /// Tool results reduced to beginning and end.
    pub tool_results: usize,
    /// Other parts reduced to beginning and end.
    #[serde(rename = "others")]
    pub other_parts: usize,
    /// Oldest parts omitted entirely.
    #[serde(rename = "leftOut")]
    pub dropped: usize,
}

impl std::ops::AddAssign for OmittedContent {
    fn add_assign(&mut self, other: Self) {
        self.tool_results += other.tool_results;
        self.other_parts += other.other_parts;
        self.dropped += other.dropped;
    }
}

struct TranscriptPart {
    text: String,
    is_result: bool,
}

/// Renders the messages as one text of at most `tokens_max` tokens, and returns the omissions. It
/// first cuts the middle of long tool results, oldest first, then of other long parts, then drops
/// the oldest parts.
pub fn render_transcript(
    messages: &[Cow<'_, Message>],
    tokens_max: u64,
    count: TokenCounter<'_>,
) -> (String, OmittedContent) {
    let mut parts: Vec<TranscriptPart> = Vec::new();
    for message in messages {
        append_parts(message, &mut parts);
    }
    let mut omitted = OmittedContent::default();
    // Each size includes the blank line before the part.
    let mut sizes: Vec<u64> = parts.iter().map(|part| count(&part.text) + 1).collect();
    let mut total: u64 = sizes.iter().sum();
    for results in [true, false] {
        for (part, size) in parts.iter_mut().zip(&mut sizes) {
            if total <= tokens_max {
                break;
            }
            if part.is_result != results {
                continue;
            }
            let Some(short) = cut_middle(&part.text) else { continue };
            part.text = short;
            let before = std::mem::replace(size, count(&part.text) + 1);
            total = total - before + *size;
            if results {
                omitted.tool_results += 1;
            } else {
                omitted.other_parts += 1;
            }
        }
    }
    for size in &sizes {
        if total <= tokens_max {
            break;
        }
        total -= size;
        omitted.dropped += 1;
    }
    let mut texts: Vec<String> = Vec::with_capacity(parts.len() + 1);
    if omitted.dropped > 0 {
        texts.push(format!("[{} earlier messages are left out]", omitted.dropped));
    }
    texts.extend(parts.into_iter().skip(omitted.dropped).map(|part| part.text));
    (texts.join("\n\n"), omitted)
}

fn append_parts(message: &Message, parts: &mut Vec<TranscriptPart>) {
    let mut push_part = |who: &str, text: String, is_result: bool| {
        if !text.is_empty() {
            parts.push(TranscriptPart { text: format!("[{who}]: {text}"), is_result });
        }
    };
    match message {
        Message::User(user) => {
            let text = match &user.content {
                Content::Text(text) => text.clone(),
                Content::Blocks(blocks) => block_texts(blocks).concat(),
            };
            push_part("User", text, false);
        }
        Message::Assistant(response) => {
            let thoughts = response.content.iter().filter_map(|block| match block {
                Block::Thinking(thinking) => Some(thinking.thinking.as_str()),
                Block::Text(_)
                | Block::Image(_)
                | Block::ToolCall(_)
                | Block::File(_)
                | Block::Other(_) => None,
            });
            push_part("Assistant thinking", thoughts.collect::<Vec<_>>().join("\n"), false);
            push_part("Assistant", block_texts(&response.content).join("\n"), false);
            let calls = response
                .tool_calls()
                .map(|call| format!("{}({})", call.name, render_arguments(&call.arguments)));
            push_part("Assistant tool calls", calls.collect::<Vec<_>>().join("; "), false);
        }
        Message::ToolResult(result) => {
            push_part("Tool result", block_texts(&result.content).concat(), true);
        }
        // The projection has already converted or dropped these.
        Message::BashExecution(_)
        | Message::Custom(_)
        | Message::BranchSummary(_)
        | Message::CompactionSummary(_)
        | Message::Other(_) => {}
    }
}

/// Texts of the blocks. Files become their path, so that the summary can keep it.
fn block_texts(blocks: &[Block]) -> Vec<Cow<'_, str>> {
    let mut texts = Vec::new();
    for block in blocks {
        if let Block::Text(text) = block {
            texts.push(Cow::Borrowed(text.text.as_str()));
        } else if let Block::File(file) = block {
            texts.push(Cow::Owned(format!("\n{}", render_file(file, FileAccess::ReadTool))));
        }
    }
    texts
}

/// `name=value` for each member.
fn render_arguments(arguments: &RawJson) -> String {
    let Some(ExactJson::Object(members)) = ExactJson::parse(arguments.text()) else {
        return String::new();
    };
    let rendered = members.iter().map(|(name, value)| {
        let value = RawJson::from_value(value);
        format!("{name}={}", value.text())
    });
    rendered.collect::<Vec<_>>().join(", ")
}

/// Cuts the middle of a long text. `None`: the text is short.
fn cut_middle(text: &str) -> Option<String> {
    let length = text.chars().count();
    if length <= EXCERPT_CHARS * 2 {
        return None;
    }
    let head: String = text.chars().take(EXCERPT_CHARS / 2).collect();
    let tail: String = text.chars().skip(length - EXCERPT_CHARS / 2).collect();
    Some(format!("{head}\n[… {} characters are left out …]\n{tail}", length - EXCERPT_CHARS))
}
