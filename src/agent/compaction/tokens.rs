//! How much a model is sent: what the last answer told, and an estimate of what came after it.

use std::sync::Arc;

use crate::agent::compaction::Count;
use crate::agent::content::{Block, Content};
use crate::agent::entry::{Entry, EntryBody};
use crate::agent::message::{AssistantMessage, Message};
use crate::agent::projection::wording::{FileAccess, branch_text, compaction_text, file_text};
use crate::agent::usage::Usage;

/// An image counts as 4,800 characters do.
const IMAGE_TOKENS: u64 = 1_200;

/// What the provider counted, input and output together.
pub fn of_usage(usage: &Usage) -> u64 {
    match usage.total_tokens {
        0 => usage.input + usage.output + usage.cache_read + usage.cache_write,
        total => total,
    }
}

/// Of one message as the model is sent it; none of what it is not sent.
pub fn of_message(message: &Message, count: Count<'_>) -> u64 {
    match message {
        Message::User(user) => of_content(&user.content, count),
        Message::Assistant(answer) if answer.is_failed() => 0,
        Message::Assistant(answer) => of_blocks(&answer.content, count),
        Message::ToolResult(result) => of_blocks(&result.content, count),
        Message::BashExecution(bash) if bash.exclude_from_context == Some(true) => 0,
        Message::BashExecution(bash) => count(&bash.command) + count(&bash.output),
        Message::Custom(custom) => of_content(&custom.content, count),
        Message::BranchSummary(branch) => count(&branch_text(&branch.summary)),
        Message::CompactionSummary(summary) => count(&compaction_text(&summary.summary)),
        Message::Other(_) => 0,
    }
}

/// Of what an entry says.
pub fn of_entry(entry: &Entry, count: Count<'_>) -> u64 {
    if let Some(message) = entry.body.message() {
        of_message(message, count)
    } else if let EntryBody::CustomMessage(custom) = &entry.body {
        of_content(&custom.content, count)
    } else if let EntryBody::BranchSummary(branch) = &entry.body {
        count(&branch_text(&branch.summary))
    } else {
        0
    }
}

fn of_content(content: &Content, count: Count<'_>) -> u64 {
    match content {
        Content::Text(text) => count(text),
        Content::Blocks(blocks) => of_blocks(blocks, count),
    }
}

fn of_blocks(blocks: &[Block], count: Count<'_>) -> u64 {
    let of_block = |block: &Block| match block {
        Block::Text(text) => count(&text.text),
        Block::Thinking(thinking) => count(&thinking.thinking),
        Block::Image(_) => IMAGE_TOKENS,
        Block::ToolCall(call) => count(&call.name) + count(call.arguments.text()),
        Block::File(file) => count(&file_text(file, FileAccess::WithRead)),
        Block::Other(_) => 0,
    };
    blocks.iter().map(of_block).sum()
}

/// Of all that the model is sent next. `back` is the path from the leaf to the root: it is followed only as far as the last
/// answer that tells its usage, so what it costs does not grow with the conversation. `frame` is what comes beside the
/// messages: instructions and tools.
pub fn in_context<'a>(
    back: impl Iterator<Item = &'a Arc<Entry>>,
    frame: &dyn Fn() -> u64,
    count: Count<'_>,
) -> u64 {
    let mut after = 0;
    let mut back = back;
    while let Some(entry) = back.next() {
        if let Some(usage) = told_usage(entry) {
            return of_usage(&usage) + after;
        }
        if let Some(compaction) = entry.body.compaction() {
            // What answers told before it was of a context that is no more.
            let mut kept = 0;
            let mut is_kept = entry.base.entry_id == compaction.first_kept_entry_id;
            while !is_kept && let Some(earlier) = back.next() {
                kept += of_entry(earlier, count);
                is_kept = earlier.base.entry_id == compaction.first_kept_entry_id;
            }
            let summary = count(&compaction_text(&compaction.summary));
            return frame() + summary + if is_kept { kept } else { 0 } + after;
        }
        after += of_entry(entry, count);
    }
    frame() + after
}

/// Of an answer that counts: it did not fail, and its provider said what it took.
fn told_usage(entry: &Entry) -> Option<Usage> {
    let answer: &AssistantMessage = entry.body.message()?.as_assistant()?;
    (!answer.is_failed() && of_usage(&answer.usage) > 0).then_some(answer.usage)
}
