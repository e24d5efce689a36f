//! The `replace` tool: replaces a text in all files that match a glob pattern.

use std::sync::Arc;

use schemars::JsonSchema;
use serde::Deserialize;

use super::files::FILE_BYTES_MAX;
use super::find::PathGlob;
use super::path::is_reserved;
use super::search_pattern::{SearchPattern, run_search};
use super::text::{TEXT_BYTES_MAX, format_size, is_binary, text_prefix};
use crate::approval_summary::ApprovalSummary;
use crate::code::{CallContext, Tool, ToolError};
use crate::{CheckContext, ToolResult};
use turnwheel_conversation::request::Effect;

/// Files of one call. A pattern that matches more is refused.
const FILES_MAX: usize = 1_000;

pub(super) struct ReplaceTool;

#[derive(Deserialize, JsonSchema)]
pub(super) struct ReplaceArgs {
    /// Glob pattern of the files, e.g. '*.md' or 'src/**/*.py'
    pattern: String,
    /// Text to find
    old: String,
    /// Replacement text. Without exact, $1 or ${name} stands for a group, and $$ for a dollar sign
    new: String,
    /// True: old is a literal text (default). False: old is a regular expression
    exact: Option<bool>,
}

impl Tool for ReplaceTool {
    type Args = ReplaceArgs;

    fn name(&self) -> &'static str {
        "replace"
    }

    fn description(&self) -> &'static str {
        "Find and replace in all files that match a glob pattern. Replaces every occurrence. Either all files are changed, or \
         none."
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

    async fn check(&self, args: &ReplaceArgs, _cx: &CheckContext<'_>) -> Result<(), String> {
        Replacement::new(args)?;
        PathGlob::new(&args.pattern).map(drop)
    }

    async fn call(&self, args: ReplaceArgs, cx: CallContext) -> Result<ToolResult, ToolError> {
        let replacement = Arc::new(Replacement::new(&args).map_err(ToolError::Failed)?);
        let glob = PathGlob::new(&args.pattern).map_err(ToolError::Failed)?;
        let workspace = cx.workspace();
        let paths: Vec<String> = workspace
            .list()
            .into_iter()
            .map(|(path, _)| path)
            .filter(|path| glob.is_match(path) && !is_reserved(path))
            .collect();
        if paths.is_empty() {
            return Err(ToolError::failed(format!("No files match the pattern {}", args.pattern)));
        }
        if paths.len() > FILES_MAX {
            return Err(ToolError::failed(format!(
                "{} files match the pattern, and at most {FILES_MAX} are changed in one call: narrow the pattern.",
                paths.len()
            )));
        }
        let matched = paths.len();
        let mut changes = Vec::new();
        let mut skipped = 0;
        for path in paths {
            let bytes = workspace.read(&path).await?;
            let (replacement, call) = (Arc::clone(&replacement), cx.clone());
            let replace = move || replacement.change_file(&bytes, &|| call.is_cancelled());
            let change = run_search(replace).await?;
            match change.map_err(|problem| ToolError::failed(format!("{path}: {problem}")))? {
                FileChange::NoText => skipped += 1,
                FileChange::Same => {}
                FileChange::Changed(replaced) => changes.push(Change { path, replaced }),
            }
        }
        // A failed call stores none of its changes.
        for change in &mut changes {
            workspace.write(&change.path, std::mem::take(&mut change.replaced.text)).await?;
        }
        Ok(ToolResult::text(report(matched, skipped, &changes)))
    }
}

struct Change {
    path: String,
    replaced: ReplacedText,
}

struct Replacement {
    pattern: SearchPattern,
    new: String,
    is_exact: bool,
}

struct ReplacedText {
    text: String,
    count: usize,
}

/// Result of a replacement in one file.
enum FileChange {
    /// The file is no UTF-8 text.
    NoText,
    Same,
    Changed(ReplacedText),
}

impl Replacement {
    fn new(args: &ReplaceArgs) -> Result<Self, String> {
        let is_exact = args.exact.unwrap_or(true);
        let pattern = SearchPattern::new(&args.old, is_exact, false)?;
        Ok(Self { pattern, new: args.new.clone(), is_exact })
    }

    /// # Errors
    /// As for [`Self::apply`].
    fn change_file(
        &self,
        bytes: &[u8],
        is_cancelled: &dyn Fn() -> bool,
    ) -> Result<FileChange, String> {
        let Some(before) = std::str::from_utf8(bytes).ok().filter(|_| !is_binary(bytes)) else {
            return Ok(FileChange::NoText);
        };
        let replaced = self.apply(before, is_cancelled)?;
        let is_same = replaced.text == before;
        Ok(if is_same { FileChange::Same } else { FileChange::Changed(replaced) })
    }

    /// # Errors
    /// The text is too large for the expression, or it would be larger than a file may be. Its size is checked
    /// before it is built, because a few bytes can stand for many.
    fn apply(&self, before: &str, is_cancelled: &dyn Fn() -> bool) -> Result<ReplacedText, String> {
        let regex = self.pattern.for_text(before.len()).ok_or(
            "the file is too large for this expression: write a simpler one, or a literal text.",
        )?;
        let groups_count = if self.is_exact { 0 } else { self.new.matches('$').count() };
        let mut replaced = ReplacedText { text: String::new(), count: 0 };
        let mut end = 0;
        for captures in regex.captures_iter(before) {
            if is_cancelled() {
                return Err("the call has ended: nothing was changed.".to_owned());
            }
            let Some(found) = captures.get(0) else { continue };
            replaced.text.push_str(before.get(end..found.start()).unwrap_or_default());
            let bytes_max = self.new.len().saturating_add(groups_count.saturating_mul(found.len()));
            let size = (replaced.text.len() as u64).saturating_add(bytes_max as u64);
            if size > FILE_BYTES_MAX {
                return Err(format!(
                    "the replacement makes it larger than {}: nothing was changed.",
                    format_size(FILE_BYTES_MAX)
                ));
            }
            if self.is_exact {
                replaced.text.push_str(&self.new);
            } else {
                captures.expand(&self.new, &mut replaced.text);
            }
            replaced.count += 1;
            end = found.end();
        }
        replaced.text.push_str(before.get(end..).unwrap_or_default());
        Ok(replaced)
    }
}

fn report(matched: usize, skipped: usize, changes: &[Change]) -> String {
    let total: usize = changes.iter().map(|change| change.replaced.count).sum();
    let mut lines = vec![
        format!("Matched {matched} files"),
        format!("Changed {} files", changes.len()),
        format!("Made {total} replacements"),
    ];
    if skipped > 0 {
        lines.push(format!("Skipped {skipped} files that are not UTF-8 text"));
    }
    lines.extend(
        changes
            .iter()
            .map(|change| format!("{}: {} replacements", change.path, change.replaced.count)),
    );
    let text = lines.join("\n");
    let shown = text_prefix(&text, super::LINES_MAX, TEXT_BYTES_MAX);
    if shown.is_cut {
        return format!(
            "{}\n\n[{} of {} lines shown]",
            shown.text, shown.lines_count, shown.lines_total
        );
    }
    text
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::{ReplaceArgs, Replacement};
    use crate::workspace::tests::env_with_files;

    #[tokio::test]
    async fn replace_changes_every_occurrence_in_the_matching_files() {
        let mut env = env_with_files(&[
            ("a.md", "one $1 one"),
            ("sub/b.md", "one"),
            ("sub/c.txt", "one"),
            ("sub/d.md", "two"),
            ("e.md", "one\0"),
        ])
        .await;
        let args = json!({"pattern": "*.md", "old": "one", "new": "$1"});
        assert_eq!(
            env.call_builtin_text("replace", &args).await,
            "Matched 4 files\nChanged 2 files\nMade 3 replacements\nSkipped 1 files that are not UTF-8 text\n\
             a.md: 2 replacements\nsub/b.md: 1 replacements"
        );
        assert_eq!(env.call_builtin_text("read", &json!({"path": "a.md"})).await, "$1 $1 $1");
        assert_eq!(env.call_builtin_text("read", &json!({"path": "sub/c.txt"})).await, "one");
        let args = json!({"pattern": "sub/*", "old": "t(w)o", "new": "${1}o$$", "exact": false});
        let text = env.call_builtin_text("replace", &args).await;
        assert!(text.ends_with("sub/d.md: 1 replacements"), "{text}");
        assert_eq!(env.call_builtin_text("read", &json!({"path": "sub/d.md"})).await, "wo$");
    }

    #[tokio::test]
    async fn rejected_replacement_changes_no_file() {
        let mut env =
            env_with_files(&[("a.md", "x"), ("b.md", &"x".repeat(200)), ("c.md", "")]).await;
        let before = env.files.clone();
        let long = "y".repeat(100_000);
        for (args, reason) in [
            (json!({"pattern": "*.rs", "old": "x", "new": "y"}), "No files match the pattern *.rs"),
            (json!({"pattern": "", "old": "x", "new": "y"}), "The glob pattern must have"),
            (json!({"pattern": "*.md", "old": "", "new": "y"}), "The pattern must have 1 to"),
            (json!({"pattern": "*.md", "old": "(", "new": "y", "exact": false}), "not usable"),
            (json!({"pattern": "*.md", "old": "x", "new": long}), "larger than 10.0MB"),
            (
                json!({"pattern": "b.md", "old": "x+", "new": "$0".repeat(60_000), "exact": false}),
                "larger than",
            ),
        ] {
            let text = env.call_builtin_text("replace", &args).await;
            assert!(text.starts_with("ERROR ") && text.contains(reason), "{text}");
            assert_eq!(env.files, before);
        }
    }

    #[tokio::test]
    async fn replace_leaves_files_of_turnwheel_alone() {
        let mut env =
            env_with_files(&[(".turnwheel/outputs/x.txt", "one"), ("a.txt", "one")]).await;
        let args = json!({"pattern": "**", "old": "one", "new": "two"});
        assert_eq!(
            env.call_builtin_text("replace", &args).await,
            "Matched 1 files\nChanged 1 files\nMade 1 replacements\na.txt: 1 replacements"
        );
    }

    #[test]
    fn replacement_stops_between_matches_when_cancelled() {
        let args = json!({"pattern": "*", "old": "a", "new": "b"});
        let args: ReplaceArgs = serde_json::from_value(args).unwrap();
        let replacement = Replacement::new(&args).unwrap();
        let looks = std::cell::Cell::new(0);
        let stopped = replacement.change_file("a".repeat(1_000).as_bytes(), &|| {
            looks.set(looks.get() + 1);
            looks.get() > 5
        });
        assert!(stopped.is_err_and(|reason| reason.contains("the call has ended")));
        assert_eq!(looks.get(), 6);
    }

    #[tokio::test]
    async fn file_too_large_for_an_expression_is_reported() {
        let mut env = env_with_files(&[("a.txt", &"ab".repeat(500_000))]).await;
        let old = "[ab]*[ab]a[ab]{5000}[cd]";
        let args = json!({"pattern": "*", "old": old, "new": "", "exact": false});
        let text = env.call_builtin_text("replace", &args).await;
        assert!(text.contains("a.txt: the file is too large for this expression"), "{text}");
    }
}
