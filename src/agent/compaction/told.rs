//! The transcript for a summary: one text instead of messages, so that the model does not continue
//! the conversation.

use std::borrow::Cow;

use serde::Serialize;
use serde_json::{Map, Value};

use crate::agent::compaction::Count;
use crate::agent::content::{Block, Content};
use crate::agent::message::Message;
use crate::agent::projection::wording::{FileAccess, file_text};

/// Characters kept of a part that is too long, half from its beginning and half from its end.
const SHORT: usize = 2_000;

/// Content omitted so that the transcript fits the context window.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Shortened {
    /// Tool results reduced to beginning and end.
    pub tool_results: usize,
    /// Other parts reduced to beginning and end.
    pub others: usize,
    /// Oldest parts omitted entirely.
    pub left_out: usize,
}

impl std::ops::AddAssign for Shortened {
    fn add_assign(&mut self, other: Self) {
        self.tool_results += other.tool_results;
        self.others += other.others;
        self.left_out += other.left_out;
    }
}

struct Part {
    text: String,
    is_result: bool,
}

/// Renders the messages as one text of at most `tokens_max` tokens, and returns the omissions. It
/// first cuts the middle of long tool results, oldest first, then of other long parts, then drops
/// the oldest parts.
pub fn conversation(
    messages: &[Cow<'_, Message>],
    room: u64,
    count: Count<'_>,
) -> (String, Shortened) {
    let mut parts: Vec<Part> = Vec::new();
    for message in messages {
        told(message, &mut parts);
    }
    let mut shortened = Shortened::default();
    // Each size includes the blank line before the part.
    let mut sizes: Vec<u64> = parts.iter().map(|part| count(&part.text) + 1).collect();
    let mut total: u64 = sizes.iter().sum();
    for results in [true, false] {
        for (part, size) in parts.iter_mut().zip(&mut sizes) {
            if total <= room {
                break;
            }
            if part.is_result != results {
                continue;
            }
            let Some(short) = middle_out(&part.text) else { continue };
            part.text = short;
            let before = std::mem::replace(size, count(&part.text) + 1);
            total = total - before + *size;
            if results {
                shortened.tool_results += 1;
            } else {
                shortened.others += 1;
            }
        }
    }
    for size in &sizes {
        if total <= room {
            break;
        }
        total -= size;
        shortened.left_out += 1;
    }
    let mut texts: Vec<String> = Vec::with_capacity(parts.len() + 1);
    if shortened.left_out > 0 {
        texts.push(format!("[{} earlier messages are left out]", shortened.left_out));
    }
    texts.extend(parts.into_iter().skip(shortened.left_out).map(|part| part.text));
    (texts.join("\n\n"), shortened)
}

fn told(message: &Message, parts: &mut Vec<Part>) {
    let mut say = |who: &str, text: String, is_result: bool| {
        if !text.is_empty() {
            parts.push(Part { text: format!("[{who}]: {text}"), is_result });
        }
    };
    match message {
        Message::User(user) => {
            let text = match &user.content {
                Content::Text(text) => text.clone(),
                Content::Blocks(blocks) => texts(blocks).concat(),
            };
            say("User", text, false);
        }
        Message::Assistant(answer) => {
            let thoughts = answer.content.iter().filter_map(|block| match block {
                Block::Thinking(thinking) => Some(thinking.thinking.as_str()),
                Block::Text(_)
                | Block::Image(_)
                | Block::ToolCall(_)
                | Block::File(_)
                | Block::Other(_) => None,
            });
            say("Assistant thinking", thoughts.collect::<Vec<_>>().join("\n"), false);
            say("Assistant", texts(&answer.content).join("\n"), false);
            let calls = answer
                .tool_calls()
                .map(|call| format!("{}({})", call.name, arguments(&call.arguments.value())));
            say("Assistant tool calls", calls.collect::<Vec<_>>().join("; "), false);
        }
        Message::ToolResult(result) => say("Tool result", texts(&result.content).concat(), true),
        // The projection has already converted or dropped these.
        Message::BashExecution(_)
        | Message::Custom(_)
        | Message::BranchSummary(_)
        | Message::CompactionSummary(_)
        | Message::Other(_) => {}
    }
}

/// Texts of the blocks. Files become their path, so that the summary can keep it.
fn texts(blocks: &[Block]) -> Vec<Cow<'_, str>> {
    let mut texts = Vec::new();
    for block in blocks {
        if let Block::Text(text) = block {
            texts.push(Cow::Borrowed(text.text.as_str()));
        } else if let Block::File(file) = block {
            texts.push(Cow::Owned(format!("\n{}", file_text(file, FileAccess::WithRead))));
        }
    }
    texts
}

/// `name=value` for each member.
fn arguments(value: &Value) -> String {
    let empty = Map::new();
    let members = value.as_object().unwrap_or(&empty);
    let told: Vec<String> = members.iter().map(|(name, value)| format!("{name}={value}")).collect();
    told.join(", ")
}

/// Cuts the middle of a long text. `None`: the text is short.
fn middle_out(text: &str) -> Option<String> {
    let length = text.chars().count();
    if length <= SHORT * 2 {
        return None;
    }
    let head: String = text.chars().take(SHORT / 2).collect();
    let tail: String = text.chars().skip(length - SHORT / 2).collect();
    Some(format!("{head}\n[… {} characters are left out …]\n{tail}", length - SHORT))
}
