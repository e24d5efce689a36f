//! The `write` tool: creates or replaces a file.

use schemars::JsonSchema;
use serde::Deserialize;

use super::path::WorkspacePath;
use crate::approval_summary::ApprovalSummary;
use crate::code::{CallContext, Tool, ToolError};
use crate::{CheckContext, ToolResult};
use turnwheel_conversation::request::Effect;

pub(super) struct WriteTool;

#[derive(Deserialize, JsonSchema)]
pub(super) struct WriteArgs {
    /// Path to the file to write, from the workspace's root
    path: String,
    /// Content to write to the file
    content: String,
}

impl Tool for WriteTool {
    type Args = WriteArgs;

    fn name(&self) -> &'static str {
        "write"
    }

    fn description(&self) -> &'static str {
        "Write content to a file. Creates the file if it doesn't exist, overwrites if it does. Automatically creates parent \
         directories."
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

    async fn check(&self, args: &WriteArgs, _cx: &CheckContext<'_>) -> Result<(), String> {
        WorkspacePath::parse(&args.path).map(drop)
    }

    async fn call(&self, args: WriteArgs, cx: CallContext) -> Result<ToolResult, ToolError> {
        let bytes_count = args.content.len();
        cx.workspace().write(&args.path, args.content).await?;
        Ok(ToolResult::text(format!("Successfully wrote {bytes_count} bytes to {}", args.path)))
    }
}
