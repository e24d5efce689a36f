//! The conversation as the model is told it when it sums up: one text, so that it does not go on with it.

use std::borrow::Cow;

use serde::Serialize;
use serde_json::{Map, Value};

use crate::agent::compaction::Count;
use crate::agent::content::{Block, Content};
use crate::agent::message::Message;
use crate::agent::projection::wording::{FileAccess, file_text};

/// What stays of a part that is too long, half of it from its beginning and half from its end. In characters.
const SHORT: usize = 2_000;

/// What the model was not told, because the whole would not fit the window.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Shortened {
    /// Tool results of which only beginning and end were told.
    pub tool_results: usize,
    /// Other parts of which only beginning and end were told.
    pub others: usize,
    /// Of the oldest parts, those that were left out.
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

/// The messages as one text of at most `room` tokens, and what was left out for that: first the middle of long tool
/// results, the oldest first, then of other long parts, then the oldest parts altogether.
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
    // Each with the blank line before it.
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
        // Converted before: they speak as the user, or not at all.
        Message::BashExecution(_)
        | Message::Custom(_)
        | Message::BranchSummary(_)
        | Message::CompactionSummary(_)
        | Message::Other(_) => {}
    }
}

/// Text, and what stands for files: the summary is to keep where they are read.
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

/// `None`: it is short.
fn middle_out(text: &str) -> Option<String> {
    let length = text.chars().count();
    if length <= SHORT * 2 {
        return None;
    }
    let head: String = text.chars().take(SHORT / 2).collect();
    let tail: String = text.chars().skip(length - SHORT / 2).collect();
    Some(format!("{head}\n[… {} characters are left out …]\n{tail}", length - SHORT))
}
