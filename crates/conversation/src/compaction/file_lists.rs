//! Files read and changed in the summarised part. Summaries tend to omit them, so they are listed
//! below each summary.

use std::collections::BTreeSet;

use serde::Deserialize;

use crate::entry::Compaction;
use crate::message::AssistantMessage;

/// Paths in the calls of the file tools.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct FileLists {
    read: BTreeSet<String>,
    modified: BTreeSet<String>,
}

impl FileLists {
    /// The files listed by an earlier compaction. An extension's own summary has details of another
    /// shape, which are ignored.
    pub(crate) fn from_compaction(compaction: &Compaction) -> Self {
        #[derive(Default, Deserialize)]
        #[serde(rename_all = "camelCase", default)]
        struct StoredLists {
            read_files: BTreeSet<String>,
            modified_files: BTreeSet<String>,
        }
        let details = compaction.details.as_ref().filter(|_| compaction.from_hook != Some(true));
        let stored: StoredLists =
            details.and_then(|details| details.read().ok()).unwrap_or_default();
        Self { read: stored.read_files, modified: stored.modified_files }
    }

    pub fn add_calls(&mut self, response: &AssistantMessage) {
        for call in response.tool_calls() {
            let files = match call.name.as_str() {
                "read" => &mut self.read,
                "write" | "edit" => &mut self.modified,
                _ => continue,
            };
            files.extend(call.arguments.string_member("path"));
        }
    }

    /// Paths that were read and not changed.
    pub fn read_only(&self) -> Vec<&str> {
        self.read.difference(&self.modified).map(String::as_str).collect()
    }

    pub fn modified(&self) -> Vec<&str> {
        self.modified.iter().map(String::as_str).collect()
    }

    /// The lists below a summary. Empty without files.
    pub fn render(&self) -> String {
        let list = |tag: &str, files: &[&str]| match files {
            [] => String::new(),
            files => format!("\n\n<{tag}>\n{}\n</{tag}>", files.join("\n")),
        };
        list("read-files", &self.read_only()) + &list("modified-files", &self.modified())
    }
}

/// Removes the file lists below a summary, because the next summary renders them anew.
pub fn strip_file_lists(summary: &str) -> &str {
    let mut text = summary;
    for tag in ["modified-files", "read-files"] {
        let bare = text.trim_end();
        if let Some(before) = bare
            .strip_suffix(&format!("\n</{tag}>"))
            .and_then(|rest| rest.rfind(&format!("\n\n<{tag}>\n")).and_then(|at| rest.get(..at)))
        {
            text = before;
        }
    }
    text
}
