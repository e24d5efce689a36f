//! Token counts of the model's input: the last response's reported usage plus an estimate of later
//! messages.

use std::sync::Arc;

use crate::compaction::TokenCounter;
use crate::content::{Block, Content};
use crate::entry::{Entry, EntryBody};
use crate::input_repair::InputRepairs;
use crate::message::{AssistantMessage, Message};
use crate::projection::render::{
    FileAccess, render_branch_summary, render_compaction_summary, render_file,
};
use crate::usage::Usage;

/// Tokens of an image: as many as of 4,800 characters.
const IMAGE_TOKENS: u64 = 1_200;

/// Tokens that the provider counted, input and output together.
pub(crate) fn count_usage(usage: &Usage) -> u64 {
    match usage.total_tokens {
        0 => usage.input + usage.output + usage.cache_read + usage.cache_write,
        total => total,
    }
}

/// Tokens of one message in the model's input. 0 if it is not sent.
pub fn count_message(message: &Message, count: TokenCounter<'_>) -> u64 {
    match message {
        Message::User(user) => count_content(&user.content, count),
        Message::Assistant(response) if response.is_failed() => 0,
        Message::Assistant(response) => count_blocks(&response.content, count),
        Message::ToolResult(result) => count_blocks(&result.content, count),
        Message::BashExecution(bash) if bash.exclude_from_context == Some(true) => 0,
        Message::BashExecution(bash) => count(&bash.command) + count(&bash.output),
        Message::Custom(custom) => count_content(&custom.content, count),
        Message::BranchSummary(branch) => count(&render_branch_summary(&branch.summary)),
        Message::CompactionSummary(summary) => count(&render_compaction_summary(&summary.summary)),
        Message::Other(_) => 0,
    }
}

/// Tokens of an entry in the model's input.
pub fn count_entry(entry: &Entry, count: TokenCounter<'_>) -> u64 {
    if let Some(message) = entry.body.message() {
        count_message(message, count)
    } else if let EntryBody::CustomMessage(custom) = &entry.body {
        count_content(&custom.content, count)
    } else if let EntryBody::BranchSummary(branch) = &entry.body {
        count(&render_branch_summary(&branch.summary))
    } else {
        0
    }
}

fn count_content(content: &Content, count: TokenCounter<'_>) -> u64 {
    match content {
        Content::Text(text) => count(text),
        Content::Blocks(blocks) => count_blocks(blocks, count),
    }
}

fn count_blocks(blocks: &[Block], count: TokenCounter<'_>) -> u64 {
    let of_block = |block: &Block| match block {
        Block::Text(text) => count(&text.text),
        Block::Thinking(thinking) => count(&thinking.thinking),
        Block::Image(_) => IMAGE_TOKENS,
        Block::ToolCall(call) => count(&call.name) + count(call.arguments.text()),
        Block::File(file) => count(&render_file(file, FileAccess::ReadTool)),
        Block::Other(_) => 0,
    };
    blocks.iter().map(of_block).sum()
}

/// Tokens of the next model input. `back` is the path from the leaf to the root. It is read only up
/// to the last response with usage, so the cost does not grow with the conversation. `frame` counts
/// instructions and tools. Entries that a note replaces count nothing.
pub fn count_context<'a>(
    back: impl Iterator<Item = &'a Arc<Entry>>,
    frame: &dyn Fn() -> u64,
    count: TokenCounter<'_>,
) -> u64 {
    let mut after = 0;
    let mut back = back;
    // A repair follows the entries that it leaves out.
    let mut repairs = InputRepairs::default();
    while let Some(entry) = back.next() {
        repairs.add(entry);
        if let Some(usage) = reported_usage(entry) {
            return count_usage(&usage) + after;
        }
        if let Some(compaction) = entry.body.compaction() {
            let is_replaced = repairs.replace(entry);
            // Usage reported before the compaction counts a context that no longer applies.
            let mut kept = 0;
            let mut is_kept = entry.base.entry_id == compaction.first_kept_entry_id;
            while !is_kept && let Some(earlier) = back.next() {
                repairs.add(earlier);
                kept += if repairs.replace(earlier) { 0 } else { count_entry(earlier, count) };
                is_kept = earlier.base.entry_id == compaction.first_kept_entry_id;
            }
            let summary = if is_replaced {
                0
            } else {
                count(&render_compaction_summary(&compaction.summary))
            };
            return frame() + summary + if is_kept { kept } else { 0 } + after;
        }
        after += if repairs.replace(entry) { 0 } else { count_entry(entry, count) };
    }
    frame() + after
}

/// Usage of a response that did not fail and whose provider reported its tokens.
fn reported_usage(entry: &Entry) -> Option<Usage> {
    let response: &AssistantMessage = entry.body.message()?.as_assistant()?;
    (!response.is_failed() && count_usage(&response.usage) > 0).then_some(*response.usage)
}
