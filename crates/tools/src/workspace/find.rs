//! The `find` tool: lists files by a glob pattern.

use globset::{GlobBuilder, GlobMatcher};
use schemars::JsonSchema;
use serde::Deserialize;

use super::path::FolderPath;
use super::text::{TEXT_BYTES_MAX, text_prefix};
use crate::approval_summary::ApprovalSummary;
use crate::code::{CallContext, Tool, ToolError, Workspace};
use crate::{CheckContext, ToolResult};
use turnwheel_conversation::request::Effect;

const LIMIT_DEFAULT: u64 = 1_000;
/// Bytes of a pattern. A longer one is a mistake or an attack.
const PATTERN_BYTES_MAX: usize = 1_024;

pub(super) struct FindTool;

#[derive(Deserialize, JsonSchema)]
pub(super) struct FindArgs {
    /// Glob pattern to match files, e.g. '*.ts', '**/*.json', or 'src/**/*.spec.ts'
    pattern: String,
    /// Directory to search in (default: the workspace's root)
    path: Option<String>,
    /// Maximum number of results (default: 1000)
    #[schemars(range(min = 1))]
    limit: Option<u64>,
}

impl Tool for FindTool {
    type Args = FindArgs;

    fn name(&self) -> &'static str {
        "find"
    }

    fn description(&self) -> &'static str {
        "Search for files by glob pattern. Returns matching file paths from the workspace's root. Output is truncated to 1000 \
         results or 50KB (whichever is hit first)."
    }

    fn effect(&self) -> Effect {
        Effect::Read
    }

    fn approval_summary(&self) -> ApprovalSummary {
        ApprovalSummary::Never
    }

    async fn check(&self, args: &FindArgs, _cx: &CheckContext<'_>) -> Result<(), String> {
        FolderPath::parse(args.path.as_deref().unwrap_or_default())?;
        PathGlob::new(&args.pattern).map(drop)
    }

    async fn call(&self, args: FindArgs, cx: CallContext) -> Result<ToolResult, ToolError> {
        let folder = Workspace::parse_folder(args.path.as_deref())?;
        let glob = PathGlob::new(&args.pattern).map_err(ToolError::Failed)?;
        let files = cx.workspace().files();
        if !files.is_folder(&folder) {
            return Err(ToolError::failed(format!("Path not found: {folder}")));
        }
        let paths: Vec<String> = files
            .iter()
            .filter(|(path, _)| folder.strip_folder(path).is_some_and(|below| glob.is_match(below)))
            .map(|(path, _)| path.to_owned())
            .collect();
        if paths.is_empty() {
            return Ok(ToolResult::text("No files found matching pattern"));
        }
        Ok(ToolResult::text(list_items(&paths, args.limit.unwrap_or(LIMIT_DEFAULT), "results")))
    }
}

/// Glob pattern for paths. A pattern without `/` applies to the file name in any folder.
pub(super) struct PathGlob {
    matcher: GlobMatcher,
    is_name_only: bool,
}

impl PathGlob {
    /// # Errors
    /// The pattern is invalid. Return the text to the model; it contains valid examples.
    pub(super) fn new(pattern: &str) -> Result<Self, String> {
        let pattern = pattern.strip_prefix("./").unwrap_or(pattern);
        let pattern = pattern.strip_prefix('/').unwrap_or(pattern);
        if pattern.is_empty() || pattern.len() > PATTERN_BYTES_MAX {
            return Err(format!(
                "The glob pattern must have 1 to {PATTERN_BYTES_MAX} bytes, like '*.md' or 'notes/**'."
            ));
        }
        let glob = GlobBuilder::new(pattern).literal_separator(true).build().map_err(|error| {
            format!("The glob pattern is not usable: {error}. Write one like '*.md' or 'notes/**'.")
        })?;
        Ok(Self { matcher: glob.compile_matcher(), is_name_only: !pattern.contains('/') })
    }

    pub(super) fn is_match(&self, path: &str) -> bool {
        let name = if self.is_name_only { path.rsplit('/').next().unwrap_or(path) } else { path };
        self.matcher.is_match(name)
    }
}

/// Lists items, one per line, with a note about items left out.
pub(super) fn list_items(items: &[String], limit: u64, noun: &str) -> String {
    let limit = usize::try_from(limit).unwrap_or(usize::MAX);
    let shown = items.get(..limit.min(items.len())).unwrap_or_default().join("\n");
    // The line limit applies to the items only; notices come in addition.
    let head = text_prefix(&shown, super::LINES_MAX, TEXT_BYTES_MAX);
    let mut notices = Vec::new();
    if limit < items.len() {
        notices.push(format!(
            "{limit} {noun} limit reached. Use limit={} for more",
            limit.saturating_mul(2)
        ));
    }
    if head.is_cut {
        let limit = if head.is_byte_limited { "50.0KB" } else { "2000 lines" };
        notices.push(format!(
            "{limit} limit reached: {} of {} {noun} shown. Narrow it by path or pattern",
            head.lines_count,
            items.len()
        ));
    }
    if notices.is_empty() {
        return shown;
    }
    format!("{}\n\n[{}]", head.text, notices.join(". "))
}
