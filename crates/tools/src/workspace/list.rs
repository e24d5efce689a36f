//! The `list` tool: shows a folder with its subfolders as a tree.

use std::collections::BTreeSet;

use schemars::JsonSchema;
use serde::Deserialize;

use super::files::Files;
use super::find::{PathGlob, list_items};
use super::ls::check_folder;
use super::path::FolderPath;
use crate::ToolResult;
use crate::approval_summary::ApprovalSummary;
use crate::code::{CallContext, Tool, ToolError, Workspace};
use turnwheel_conversation::request::Effect;

/// Levels of the tree. A folder of the last level is shown without its content.
const LEVELS_MAX: usize = 3;
const ITEMS_MAX: u64 = 500;

pub(super) struct ListTool;

#[derive(Deserialize, JsonSchema)]
pub(super) struct ListArgs {
    /// Directory to list (default: the workspace's root)
    path: Option<String>,
    /// Filter files by glob pattern, e.g. '*.md'
    pattern: Option<String>,
}

impl Tool for ListTool {
    type Args = ListArgs;

    fn name(&self) -> &'static str {
        "list"
    }

    fn description(&self) -> &'static str {
        "List files in tree view (depth 3). Pattern filters files. Output is truncated to 500 items or 50KB (whichever is hit \
         first)."
    }

    fn effect(&self) -> Effect {
        Effect::Read
    }

    fn approval_summary(&self) -> ApprovalSummary {
        ApprovalSummary::Never
    }

    async fn call(&self, args: ListArgs, cx: CallContext) -> Result<ToolResult, ToolError> {
        let folder = Workspace::parse_folder(args.path.as_deref())?;
        let glob =
            args.pattern.as_deref().map(PathGlob::new).transpose().map_err(ToolError::Failed)?;
        let files = cx.workspace().files();
        check_folder(&files, &folder)?;
        let lines = tree_lines(&files, &folder, glob.as_ref());
        if lines.is_empty() {
            return Ok(ToolResult::text("No files found"));
        }
        Ok(ToolResult::text(list_items(&lines, ITEMS_MAX, "items")))
    }
}

/// One line for each file and folder, indented by its level. Folders precede the files beside them.
fn tree_lines(files: &Files, folder: &FolderPath, glob: Option<&PathGlob>) -> Vec<String> {
    let mut items = BTreeSet::new();
    for (path, _) in files.iter() {
        let Some(below) = folder.strip_folder(path) else { continue };
        if glob.is_some_and(|glob| !glob.is_match(below)) {
            continue;
        }
        let parts: Vec<&str> = below.split('/').collect();
        for level in 1..=parts.len().min(LEVELS_MAX) {
            let (Some(parents), Some(name)) = (parts.get(..level - 1), parts.get(level - 1)) else {
                continue;
            };
            // `false` sorts before `true`: at each level folders come first.
            let mut key: Vec<(bool, &str)> = parents.iter().map(|part| (false, *part)).collect();
            key.push((level == parts.len(), name));
            items.insert(key);
        }
    }
    items
        .iter()
        .filter_map(|key| {
            let (is_file, name) = key.last()?;
            let indent = "  ".repeat(key.len() - 1);
            Some(format!("{indent}{name}{}", if *is_file { "" } else { "/" }))
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use crate::workspace::tests::env_with_files;

    #[tokio::test]
    async fn list_shows_three_levels_as_a_tree() {
        let mut env = env_with_files(&[
            ("b.md", "x"),
            ("a/z.md", "x"),
            ("a/b/c/d.md", "x"),
            ("a/b/y.txt", "x"),
            ("B/x.md", "x"),
        ])
        .await;
        let text = env.call_builtin_text("list", &json!({})).await;
        assert_eq!(text, "B/\n  x.md\na/\n  b/\n    c/\n    y.txt\n  z.md\nb.md");
        let text = env.call_builtin_text("list", &json!({"path": "a/b"})).await;
        assert_eq!(text, "c/\n  d.md\ny.txt");
        let text = env.call_builtin_text("list", &json!({"pattern": "*.txt"})).await;
        assert_eq!(text, "a/\n  b/\n    y.txt");
        assert_eq!(
            env.call_builtin_text("list", &json!({"pattern": "*.rs"})).await,
            "No files found"
        );
        let text = env.call_builtin_text("list", &json!({"path": "b.md"})).await;
        assert_eq!(text, "ERROR Not a directory: b.md. The read tool shows it.");
        let text = env.call_builtin_text("list", &json!({"path": "c"})).await;
        assert_eq!(text, "ERROR Path not found: c");
    }
}
