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
mod list;
mod ls;
mod package_files;
mod path;
mod read;
mod replace;
mod search_pattern;
mod text;
mod write;

#[cfg(test)]
mod tests;

use std::sync::{Arc, LazyLock};

use crate::CallableTool;
use crate::code::{Tool, build_code_tool};

pub use files::{FILE_BYTES_MAX, Files};
pub use package_files::{PackageFile, PackageFiles, read_file_below};
pub(crate) use path::FolderPath;
pub use path::{WorkspacePath, is_reserved};
pub(crate) use text::text_prefix;
pub use text::{LINES_MAX, TEXT_BYTES_MAX, format_size};

static BUILTINS: LazyLock<Vec<Arc<dyn CallableTool>>> = LazyLock::new(|| {
    [
        build_builtin(read::ReadTool),
        build_builtin(write::WriteTool),
        build_builtin(edit::EditTool),
        build_builtin(ls::LsTool),
        build_builtin(find::FindTool),
        build_builtin(grep::GrepTool),
        build_builtin(list::ListTool),
        build_builtin(replace::ReplaceTool),
    ]
    .into_iter()
    .flatten()
    .collect()
});

fn build_builtin(tool: impl Tool) -> Option<Arc<dyn CallableTool>> {
    let built_tool = build_code_tool(tool);
    debug_assert!(built_tool.is_ok(), "{built_tool:?}");
    built_tool.ok()
}

/// The built-in tools `read`, `write`, `edit`, `ls`, `find`, `grep`, `list` and `replace`.
pub fn builtins() -> Vec<Arc<dyn CallableTool>> {
    BUILTINS.clone()
}

/// True for the built-in tool of that name, and not for another one with its name.
pub fn is_builtin(tool: &Arc<dyn CallableTool>, name: &str) -> bool {
    let mut named = BUILTINS.iter().filter(|known| known.definition().name == name);
    named.any(|known| std::ptr::addr_eq(Arc::as_ptr(known), Arc::as_ptr(tool)))
}

/// Returns the built-in tool of that name, if there is one.
#[cfg(any(test, feature = "testing"))]
pub fn find_builtin(name: &str) -> Option<Arc<dyn CallableTool>> {
    BUILTINS.iter().find(|tool| tool.definition().name == name).map(Arc::clone)
}
