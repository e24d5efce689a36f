//! Texts for messages and files that have no form of their own in a model request.

use std::fmt::Write as _;

use crate::content::{Block, Content, FileBlock};
use crate::message::{BashExecutionMessage, Message, UserMessage};
use crate::unknown_members::Extra;
use crate::workspace::input_path;
use turnwheel_platform::clock::Timestamp;

/// Text that replaces everything before a compaction's cut.
pub fn render_compaction_summary(summary: &str) -> String {
    format!(
        "The conversation history before this point was compacted into the following summary:\n\n<summary>\n{summary}\n</summary>"
    )
}

/// Text that replaces an abandoned branch. It has no line end before the closing tag, as in the
/// source projects.
pub fn render_branch_summary(summary: &str) -> String {
    format!(
        "The following is a summary of a branch that this conversation came back from:\n\n<summary>\n{summary}</summary>"
    )
}

/// How the model can read the content of a file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FileAccess {
    /// The image follows in the next block.
    Inline,
    /// Through the tool `read`.
    ReadTool,
    /// Not at all: the agent has no tool that reads files.
    Unavailable,
}

/// Text that replaces a file block: name, type, size, and how to read it.
pub fn render_file(file: &FileBlock, access: FileAccess) -> String {
    let path = input_path(file);
    let name = file.path.as_deref().or_else(|| path.rsplit('/').next()).unwrap_or_default();
    let kind = file.mime_type.as_deref().unwrap_or("unknown type");
    let size = file.size.map(|size| format!(", {size} bytes")).unwrap_or_default();
    let how = match access {
        FileAccess::Inline => "It is the image that follows.".to_owned(),
        FileAccess::ReadTool => format!("Read it with the tool `read`: path=\"{path}\"."),
        FileAccess::Unavailable => {
            "Its content is not visible to you: this agent has no tool `read`. Say so where it matters."
                .to_owned()
        }
    };
    format!("[File {name:?} ({kind}{size}). {how}]")
}

fn render_bash(bash: &BashExecutionMessage) -> String {
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

/// Converts to a user message. `None`: the message is not sent to the model.
pub(super) fn to_user_message(message: &Message) -> Option<Message> {
    let of_text = |text: String, timestamp: Timestamp| {
        let content = Content::Blocks(vec![Block::text(text)]);
        Some(Message::User(UserMessage { content, timestamp, extra: Extra::new() }))
    };
    match message {
        Message::BashExecution(bash) if bash.exclude_from_context == Some(true) => None,
        Message::BashExecution(bash) => of_text(render_bash(bash), bash.timestamp),
        Message::Custom(custom) => match &custom.content {
            Content::Text(text) => of_text(text.clone(), custom.timestamp),
            Content::Blocks(blocks) if blocks.is_empty() => None,
            content @ Content::Blocks(_) => Some(Message::User(UserMessage {
                content: content.clone(),
                timestamp: custom.timestamp,
                extra: Extra::new(),
            })),
        },
        Message::BranchSummary(branch) => {
            of_text(render_branch_summary(&branch.summary), branch.timestamp)
        }
        Message::CompactionSummary(summary) => {
            of_text(render_compaction_summary(&summary.summary), summary.timestamp)
        }
        Message::User(_) | Message::Assistant(_) | Message::ToolResult(_) | Message::Other(_) => {
            None
        }
    }
}
