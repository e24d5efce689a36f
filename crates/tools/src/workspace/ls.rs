//! The `ls` tool: lists a folder.

use std::collections::BTreeSet;

use schemars::JsonSchema;
use serde::Deserialize;

use super::files::Files;
use super::find::list_items;
use super::path::FolderPath;
use crate::ToolResult;
use crate::approval_summary::ApprovalSummary;
use crate::code::{CallContext, Tool, ToolError, Workspace};
use turnwheel_conversation::request::Effect;

const LIMIT_DEFAULT: u64 = 500;

pub(super) struct LsTool;

#[derive(Deserialize, JsonSchema)]
pub(super) struct LsArgs {
    /// Directory to list (default: the workspace's root)
    path: Option<String>,
    /// Maximum number of entries to return (default: 500)
    #[schemars(range(min = 1))]
    limit: Option<u64>,
}

impl Tool for LsTool {
    type Args = LsArgs;

    fn name(&self) -> &'static str {
        "ls"
    }

    fn description(&self) -> &'static str {
        "List directory contents. Returns entries sorted alphabetically, with '/' suffix for directories. Includes dotfiles. \
         Output is truncated to 500 entries or 50KB (whichever is hit first)."
    }

    fn effect(&self) -> Effect {
        Effect::Read
    }

    fn approval_summary(&self) -> ApprovalSummary {
        ApprovalSummary::Never
    }

    async fn call(&self, args: LsArgs, cx: CallContext) -> Result<ToolResult, ToolError> {
        let folder = Workspace::parse_folder(args.path.as_deref())?;
        let files = cx.workspace().files();
        check_folder(&files, &folder)?;
        let names: BTreeSet<(String, String)> = files
            .iter()
            .filter_map(|(path, _)| {
                let below = folder.strip_folder(path)?;
                let name = match below.split_once('/') {
                    Some((name, _)) => format!("{name}/"),
                    None => below.to_owned(),
                };
                Some((name.to_lowercase(), name))
            })
            .collect();
        if names.is_empty() {
            return Ok(ToolResult::text("(empty directory)"));
        }
        let names: Vec<String> = names.into_iter().map(|(_, name)| name).collect();
        Ok(ToolResult::text(list_items(&names, args.limit.unwrap_or(LIMIT_DEFAULT), "entries")))
    }
}

/// # Errors
/// The folder does not exist, or it is a file. The text contains the remedy for the model.
pub(super) fn check_folder(files: &Files, folder: &FolderPath) -> Result<(), ToolError> {
    if files.contains(folder.as_str()) {
        return Err(ToolError::failed(format!(
            "Not a directory: {folder}. The read tool shows it."
        )));
    }
    if !files.is_folder(folder) {
        return Err(ToolError::failed(format!("Path not found: {folder}")));
    }
    Ok(())
}
