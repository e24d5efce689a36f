//! How the model is told what is no message of its own kind: it all speaks as the user.

use std::fmt::Write as _;

use crate::agent::content::{Block, Content};
use crate::agent::message::{BashExecutionMessage, Message, UserMessage};
use crate::agent::raw::Extra;
use crate::clock::Timestamp;

/// What stands for all that lies before a compaction's cut.
pub fn compaction_text(summary: &str) -> String {
    format!(
        "The conversation history before this point was compacted into the following summary:\n\n<summary>\n{summary}\n</summary>"
    )
}

/// What stands for a branch that was left. Without a line end before the closing tag: the sources have none.
pub fn branch_text(summary: &str) -> String {
    format!(
        "The following is a summary of a branch that this conversation came back from:\n\n<summary>\n{summary}</summary>"
    )
}

fn bash_text(bash: &BashExecutionMessage) -> String {
    let mut text = format!("Ran `{}`\n", bash.command);
    match bash.output.as_str() {
        "" => text.push_str("(no output)"),
        output => {
            let _ = write!(text, "```\n{output}\n```");
        }
    }
    if bash.cancelled {
        text.push_str("\n\n(command cancelled)");
    } else if let Some(code) = bash.exit_code.filter(|code| *code != 0) {
        let _ = write!(text, "\n\nCommand exited with code {code}");
    }
    if let Some(path) = bash.full_output_path.as_ref().filter(|_| bash.truncated) {
        let _ = write!(text, "\n\n[Output truncated. Full output: {path}]");
    }
    text
}

/// The user's message that speaks for it; `None`: the model is not told.
pub(super) fn as_user(message: &Message) -> Option<Message> {
    let of_text = |text: String, timestamp: Timestamp| {
        let content = Content::Blocks(vec![Block::text(text)]);
        Some(Message::User(UserMessage { content, timestamp, extra: Extra::new() }))
    };
    match message {
        Message::BashExecution(bash) if bash.exclude_from_context == Some(true) => None,
        Message::BashExecution(bash) => of_text(bash_text(bash), bash.timestamp),
        Message::Custom(custom) => match &custom.content {
            Content::Text(text) => of_text(text.clone(), custom.timestamp),
            Content::Blocks(blocks) if blocks.is_empty() => None,
            content @ Content::Blocks(_) => Some(Message::User(UserMessage {
                content: content.clone(),
                timestamp: custom.timestamp,
                extra: Extra::new(),
            })),
        },
        Message::BranchSummary(branch) => of_text(branch_text(&branch.summary), branch.timestamp),
        Message::CompactionSummary(summary) => {
            of_text(compaction_text(&summary.summary), summary.timestamp)
        }
        Message::User(_) | Message::Assistant(_) | Message::ToolResult(_) | Message::Other(_) => {
            None
        }
    }
}
