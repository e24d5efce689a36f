//! Workspace: the files of a conversation, and the built-in tools for them.
//!
//! Only a tool's result changes a file, so a repeated call is harmless and branches do not see each
//! other's files.

mod document;
mod edit;
mod files;
mod find;
#[cfg(test)]
mod fuzz;
mod grep;
mod ls;
mod path;
mod read;
mod text;
mod write;

#[cfg(test)]
mod tests;

use std::sync::{Arc, LazyLock};

use crate::tools::RunTool;
use crate::tools::code::{Tool, code_tool};

pub use files::{FILE_BYTES_MAX, FILES_MAX, Files, TOTAL_BYTES_MAX};
pub use path::{FolderPath, WorkspacePath};
pub(crate) use text::{LINES_MAX, TEXT_BYTES_MAX, head, shown_size};

static BUILTINS: LazyLock<Vec<Arc<dyn RunTool>>> = LazyLock::new(|| {
    [
        ready(read::Read),
        ready(write::Write),
        ready(edit::Edit),
        ready(ls::Ls),
        ready(find::Find),
        ready(grep::Grep),
    ]
    .into_iter()
    .flatten()
    .collect()
});

fn ready(tool: impl Tool) -> Option<Arc<dyn RunTool>> {
    let made = code_tool(tool);
    debug_assert!(made.is_ok(), "{made:?}");
    made.ok()
}

/// The built-in tools `read`, `write`, `edit`, `ls`, `find` and `grep`.
pub fn builtins() -> Vec<Arc<dyn RunTool>> {
    BUILTINS.clone()
}

/// Returns the built-in tool of that name, if there is one.
pub fn builtin(name: &str) -> Option<Arc<dyn RunTool>> {
    BUILTINS.iter().find(|tool| tool.definition().name == name).map(Arc::clone)
}
