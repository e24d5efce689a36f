//! The `edit` tool: replaces one unique text in a file.

use schemars::JsonSchema;
use serde::Deserialize;
use serde_json::json;

use super::path::WorkspacePath;
use super::text::is_binary;
use crate::approval_summary::ApprovalSummary;
use crate::code::{CallContext, Tool, ToolError};
use crate::{CheckContext, ToolResult};
use turnwheel_conversation::request::Effect;
use turnwheel_json::raw::RawJson;

/// Unchanged lines around a change in the diff.
const CONTEXT_LINES: usize = 4;

const NO_OLD_TEXT: &str =
    "old_text is empty: give the text to replace, or use the write tool for a whole file.";

pub(super) struct EditTool;

#[derive(Deserialize, JsonSchema)]
pub(super) struct EditArgs {
    /// Path to the file to edit, from the workspace's root
    path: String,
    /// Exact text to find and replace (must match exactly, and only once)
    old_text: String,
    /// New text to replace the old text with
    new_text: String,
}

impl Tool for EditTool {
    type Args = EditArgs;

    fn name(&self) -> &'static str {
        "edit"
    }

    fn description(&self) -> &'static str {
        "Edit a file by replacing exact text. The old_text must match exactly (including whitespace). Use this for precise, \
         surgical edits."
    }

    fn effect(&self) -> Effect {
        Effect::Idempotent
    }

    fn approval_summary(&self) -> ApprovalSummary {
        ApprovalSummary::Never
    }

    fn changes_workspace(&self) -> bool {
        true
    }

    async fn check(&self, args: &EditArgs, _cx: &CheckContext<'_>) -> Result<(), String> {
        WorkspacePath::parse(&args.path)?;
        if args.old_text.is_empty() { Err(NO_OLD_TEXT.to_owned()) } else { Ok(()) }
    }

    async fn call(&self, args: EditArgs, cx: CallContext) -> Result<ToolResult, ToolError> {
        let path = &args.path;
        let bytes = cx.workspace().read(path).await?;
        let before =
            std::str::from_utf8(&bytes).ok().filter(|_| !is_binary(&bytes)).ok_or_else(|| {
                ToolError::failed(format!("{path} is not UTF-8 text, so it cannot be edited."))
            })?;
        let after = replace_unique(before, &args).map_err(ToolError::Failed)?;
        let (diff, first_changed_line) = line_diff(before, &after);
        cx.workspace().write(path, after).await?;
        Ok(ToolResult {
            details: Some(RawJson::from_value(
                &json!({"diff": diff, "firstChangedLine": first_changed_line}),
            )),
            ..ToolResult::text(format!("Successfully replaced text in {path}."))
        })
    }
}

/// Returns the text with its unique match replaced. CRLF and LF match each other, and the file
/// keeps its own line endings.
fn replace_unique(before: &str, args: &EditArgs) -> Result<String, String> {
    let EditArgs { path, old_text, new_text } = args;
    if old_text.is_empty() {
        return Err(NO_OLD_TEXT.to_owned());
    }
    let plain = before.replace("\r\n", "\n");
    let old_plain = old_text.replace("\r\n", "\n");
    let Some(at) = plain.find(&old_plain) else {
        return Err(format!(
            "Could not find the exact text in {path}. The old text must match exactly including all whitespace and newlines: read the file and copy it."
        ));
    };
    // Overlapping matches count too, because the intended one is unknown.
    let next_letter = plain.ceil_char_boundary(at + 1);
    if plain.get(next_letter..).is_some_and(|rest| rest.contains(&old_plain)) {
        let count = plain.matches(&old_plain).count().max(2);
        return Err(format!(
            "Found {count} occurrences of the text in {path}. The text must be unique. Please provide more context to make it unique."
        ));
    }
    let has_crlf = before
        .find('\n')
        .is_some_and(|at| before.get(..at).is_some_and(|line| line.ends_with('\r')));
    let new_text = if has_crlf {
        new_text.replace("\r\n", "\n").replace('\n', "\r\n")
    } else {
        new_text.clone()
    };
    let start = offset_in_original(before, at);
    let end = offset_in_original(before, at + old_plain.len());
    let (Some(head), Some(tail)) = (before.get(..start), before.get(end..)) else {
        return Err(format!("Could not edit {path}: use the write tool."));
    };
    let after = format!("{head}{new_text}{tail}");
    if after == before {
        return Err(format!(
            "No changes made to {path}. The replacement produced identical content."
        ));
    }
    Ok(after)
}

/// Maps a byte offset in the text with LF line endings to the original text.
fn offset_in_original(text: &str, plain: usize) -> usize {
    let mut left = plain;
    let mut bytes = text.bytes().enumerate().peekable();
    while let Some((at, byte)) = bytes.next() {
        if left == 0 {
            return at;
        }
        let is_half = byte == b'\r' && bytes.peek().is_some_and(|(_, next)| *next == b'\n');
        left -= usize::from(!is_half);
    }
    text.len()
}

/// Returns a diff with line numbers and context lines, and the number of the first changed line.
fn line_diff(before: &str, after: &str) -> (String, usize) {
    let old: Vec<&str> = before.lines().collect();
    let new: Vec<&str> = after.lines().collect();
    let same = old.iter().zip(&new).take_while(|(a, b)| a == b).count();
    let rest = old.len().min(new.len()) - same;
    let same_end =
        old.iter().rev().zip(new.iter().rev()).take(rest).take_while(|(a, b)| a == b).count();
    let width = old.len().max(new.len()).to_string().len();
    let from = same.saturating_sub(CONTEXT_LINES);
    let mut lines = Vec::new();
    let mut show = |sign: char, list: &[&str], first: usize, end: usize| {
        for (at, line) in list.iter().enumerate().take(end).skip(first) {
            lines.push(format!("{sign}{:>width$} {line}", at + 1));
        }
    };
    show(' ', &old, from, same);
    show('-', &old, same, old.len() - same_end);
    show('+', &new, same, new.len() - same_end);
    show(' ', &old, old.len() - same_end, old.len() - same_end + CONTEXT_LINES);
    (lines.join("\n"), same + 1)
}
