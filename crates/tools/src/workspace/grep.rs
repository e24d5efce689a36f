//! The `grep` tool: finds lines of files by a regular expression.

use futures_util::{StreamExt as _, stream};
use schemars::JsonSchema;
use serde::Deserialize;

use super::files::Files;
use super::find::PathGlob;
use super::path::{FolderPath, WorkspacePath};
use super::search_pattern::{SearchPattern, run_search};
use super::text::{TEXT_BYTES_MAX, is_binary, text_prefix};
use crate::approval_summary::ApprovalSummary;
use crate::code::{CallContext, Tool, ToolError, Workspace};
use crate::{CheckContext, ToolResult};
use turnwheel_conversation::request::Effect;

const LIMIT_DEFAULT: u64 = 100;
/// Largest `limit`, so that the output stays within the line limit of one result.
const LIMIT_MAX: u64 = 1_000;
const CONTEXT_MAX: u64 = 20;
/// Characters of one line.
const LINE_CHARS_MAX: usize = 500;
/// Files that are fetched concurrently.
const FETCHES_MAX: usize = 8;

pub(super) struct GrepTool;

#[derive(Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub(super) struct GrepArgs {
    /// Search pattern (regex or literal string)
    pattern: String,
    /// Directory or file to search (default: the workspace's root)
    path: Option<String>,
    /// Filter files by glob pattern, e.g. '*.ts' or '**/*.spec.ts'
    glob: Option<String>,
    /// Case-insensitive search (default: false)
    ignore_case: Option<bool>,
    /// Treat pattern as literal string instead of regex (default: false)
    literal: Option<bool>,
    /// Number of lines to show before and after each match (default: 0)
    context: Option<u64>,
    /// Maximum number of matches to return (default: 100)
    #[schemars(range(min = 1))]
    limit: Option<u64>,
}

impl GrepArgs {
    fn compile(&self) -> Result<SearchPattern, String> {
        let (literal, ignore_case) = (self.literal, self.ignore_case);
        SearchPattern::new(&self.pattern, literal.unwrap_or(false), ignore_case.unwrap_or(false))
    }
}

impl Tool for GrepTool {
    type Args = GrepArgs;

    fn name(&self) -> &'static str {
        "grep"
    }

    fn description(&self) -> &'static str {
        "Search file contents for a pattern. Returns matching lines with file paths and line numbers. Output is truncated to \
         100 matches or 50KB (whichever is hit first). Long lines are truncated to 500 chars."
    }

    fn effect(&self) -> Effect {
        Effect::Read
    }

    fn approval_summary(&self) -> ApprovalSummary {
        ApprovalSummary::Never
    }

    async fn check(&self, args: &GrepArgs, _cx: &CheckContext<'_>) -> Result<(), String> {
        args.compile()?;
        FolderPath::parse(args.path.as_deref().unwrap_or_default())?;
        args.glob.as_deref().map(PathGlob::new).transpose().map(drop)
    }

    async fn call(&self, args: GrepArgs, cx: CallContext) -> Result<ToolResult, ToolError> {
        let pattern = args.compile().map_err(ToolError::Failed)?;
        let glob =
            args.glob.as_deref().map(PathGlob::new).transpose().map_err(ToolError::Failed)?;
        let files = cx.workspace().files();
        let folder = Workspace::parse_folder(args.path.as_deref())?;
        let paths = select_paths(&files, &folder, glob.as_ref()).map_err(ToolError::Failed)?;
        let mut search = Search {
            pattern,
            context: usize::try_from(args.context.unwrap_or(0).min(CONTEXT_MAX)).unwrap_or(0),
            matches_left: usize::try_from(args.limit.unwrap_or(LIMIT_DEFAULT).min(LIMIT_MAX))
                .unwrap_or(1),
            output: SearchOutput::default(),
        };
        let limit = search.matches_left;
        let workspace = cx.workspace();
        let context = workspace.context();
        let mut contents = stream::iter(paths)
            .map(|path| {
                let files = &files;
                async move {
                    let path = path?;
                    let bytes = files.read(context, &path).await?;
                    Ok((path, bytes))
                }
            })
            .buffered(FETCHES_MAX);
        while let Some(content) = contents.next().await {
            match content {
                Ok((path, bytes)) => {
                    let call = cx.clone();
                    search = run_search(move || {
                        search.search_file(path.as_str(), &bytes, &|| call.is_cancelled());
                        search
                    })
                    .await?;
                }
                Err(problem) => search.output.read_errors.push(problem),
            }
            if search.matches_left == 0 {
                break;
            }
        }
        Ok(ToolResult::text(search.output.render(limit, search.matches_left == 0)))
    }
}

fn select_paths(
    files: &Files,
    folder: &FolderPath,
    glob: Option<&PathGlob>,
) -> Result<Vec<Result<WorkspacePath, String>>, String> {
    let is_file = files.contains(folder.as_str());
    if !is_file && !files.is_folder(folder) {
        return Err(format!("Path not found: {folder}"));
    }
    Ok(files
        .iter()
        .filter(|(path, _)| {
            if is_file {
                return *path == folder.as_str();
            }
            folder
                .strip_folder(path)
                .is_some_and(|below| glob.is_none_or(|glob| glob.is_match(below)))
        })
        .map(|(path, _)| WorkspacePath::parse(path))
        .collect())
}

struct Search {
    pattern: SearchPattern,
    context: usize,
    /// Number of matches that may still be added.
    matches_left: usize,
    output: SearchOutput,
}

#[derive(Default)]
struct SearchOutput {
    lines: Vec<String>,
    has_truncated_lines: bool,
    /// Number of lines that are too long for the pattern.
    unsearched_lines: usize,
    binary_count: usize,
    /// Reasons of files that could not be read.
    read_errors: Vec<String>,
}

impl Search {
    fn search_file(&mut self, path: &str, bytes: &[u8], is_cancelled: &dyn Fn() -> bool) {
        if is_binary(bytes) {
            self.output.binary_count += 1;
            return;
        }
        let text = String::from_utf8_lossy(bytes);
        let lines: Vec<&str> = text.lines().collect();
        // The first line that is not in the output, so that contexts of near matches do not
        // overlap.
        let mut next = 0;
        for (at, line) in lines.iter().enumerate() {
            if self.matches_left == 0 || is_cancelled() {
                return;
            }
            match self.is_match(line) {
                Some(true) => {}
                Some(false) => continue,
                None => {
                    self.output.unsearched_lines += 1;
                    continue;
                }
            }
            self.matches_left -= 1;
            let end = (at + self.context + 1).min(lines.len());
            for shown in next.max(at.saturating_sub(self.context))..end {
                let Some(line) = lines.get(shown) else { break };
                // A later match is added in its own iteration, with its context.
                if shown > at && self.is_match(line) == Some(true) {
                    break;
                }
                self.output.add_line(path, shown, line, shown == at);
                next = shown + 1;
            }
        }
    }

    /// `None`: the line is too long for the pattern.
    fn is_match(&self, line: &str) -> Option<bool> {
        self.pattern.for_text(line.len()).map(|regex| regex.is_match(line))
    }
}

impl SearchOutput {
    fn add_line(&mut self, path: &str, at: usize, line: &str, is_match: bool) {
        let text = match line.char_indices().nth(LINE_CHARS_MAX) {
            Some((end, _)) => {
                self.has_truncated_lines = true;
                format!("{}... [truncated]", line.get(..end).unwrap_or_default())
            }
            None => line.to_owned(),
        };
        let number = at + 1;
        self.lines.push(if is_match {
            format!("{path}:{number}: {text}")
        } else {
            format!("{path}-{number}- {text}")
        });
    }

    fn render(&self, limit: usize, is_limited: bool) -> String {
        let all = if self.lines.is_empty() {
            "No matches found".to_owned()
        } else {
            self.lines.join("\n")
        };
        let head = text_prefix(&all, super::LINES_MAX, TEXT_BYTES_MAX);
        let mut notices = Vec::new();
        if is_limited {
            notices.push(format!(
                "{limit} matches limit reached. Use a larger limit (at most {LIMIT_MAX}), or refine pattern"
            ));
        }
        if head.is_cut {
            notices.push(format!(
                "Output limit reached: {} of {} lines shown. Refine the pattern or the path",
                head.lines_count, head.lines_total
            ));
        }
        if self.has_truncated_lines {
            notices.push(format!(
                "Some lines truncated to {LINE_CHARS_MAX} chars. Use read tool to see full lines"
            ));
        }
        if self.unsearched_lines > 0 {
            notices.push(format!(
                "{} lines are too long for this pattern and were not searched. Write a simpler pattern, or a literal text",
                self.unsearched_lines
            ));
        }
        if self.binary_count > 0 {
            notices.push(format!("{} binary files were not searched", self.binary_count));
        }
        if let Some(first) = self.read_errors.first() {
            notices.push(format!(
                "{} files were not searched, the first: {first}",
                self.read_errors.len()
            ));
        }
        if notices.is_empty() {
            return all;
        }
        format!("{}\n\n[{}]", head.text, notices.join(". "))
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::{GrepArgs, Search, SearchOutput};
    use crate::workspace::tests::env_with_files;

    #[tokio::test]
    async fn grep_reports_lines_too_long_for_its_pattern() {
        let long = "ab".repeat(500_000);
        let mut env = env_with_files(&[("a.txt", &format!("{long}\nab\n"))]).await;
        let args = json!({"pattern": "[ab]*[ab]a[ab]{5000}[cd]"});
        assert_eq!(
            env.call_builtin_text("grep", &args).await,
            "No matches found\n\n[1 lines are too long for this pattern and were not searched. Write a simpler pattern, or a literal text]"
        );
        let args = json!({"pattern": "abab", "limit": 5});
        let text = env.call_builtin_text("grep", &args).await;
        assert!(text.starts_with("a.txt:1: abab"), "{text:.80}");
    }

    #[test]
    fn grep_stops_between_lines_when_cancelled() {
        let args: GrepArgs = serde_json::from_value(json!({"pattern": "a"})).unwrap();
        let pattern = args.compile().unwrap();
        let output = SearchOutput::default();
        let mut search = Search { pattern, context: 0, matches_left: 10, output };
        let looks = std::cell::Cell::new(0);
        search.search_file("x", b"a\na\na\na\n", &|| {
            looks.set(looks.get() + 1);
            looks.get() > 2
        });
        assert_eq!((search.output.lines.len(), search.matches_left), (2, 8));
    }
}
