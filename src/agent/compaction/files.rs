//! Files read and changed in the summarised part. Summaries tend to omit them, so they are listed
//! below each summary.

use std::collections::BTreeSet;

use serde::Deserialize;

use crate::agent::entry::Compaction;
use crate::agent::message::AssistantMessage;

/// Paths in the calls of the file tools.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Files {
    read: BTreeSet<String>,
    modified: BTreeSet<String>,
}

impl Files {
    /// The files listed by an earlier compaction. An extension's own summary has details of another
    /// shape, which are ignored.
    pub fn of(compaction: &Compaction) -> Self {
        #[derive(Default, Deserialize)]
        #[serde(rename_all = "camelCase", default)]
        struct Noted {
            read_files: BTreeSet<String>,
            modified_files: BTreeSet<String>,
        }
        let details = compaction.details.as_ref().filter(|_| compaction.from_hook != Some(true));
        let noted: Noted = details.and_then(|details| details.read().ok()).unwrap_or_default();
        Self { read: noted.read_files, modified: noted.modified_files }
    }

    pub fn note(&mut self, answer: &AssistantMessage) {
        for call in answer.tool_calls() {
            let files = match call.name.as_str() {
                "read" => &mut self.read,
                "write" | "edit" => &mut self.modified,
                _ => continue,
            };
            files.extend(call.arguments.string_member("path"));
        }
    }

    /// Paths that were read and not changed.
    pub fn read(&self) -> Vec<&str> {
        self.read.difference(&self.modified).map(String::as_str).collect()
    }

    pub fn modified(&self) -> Vec<&str> {
        self.modified.iter().map(String::as_str).collect()
    }

    /// The lists below a summary. Empty without files.
    pub fn told(&self) -> String {
        let list = |tag: &str, files: &[&str]| match files {
            [] => String::new(),
            files => format!("\n\n<{tag}>\n{}\n</{tag}>", files.join("\n")),
        };
        list("read-files", &self.read()) + &list("modified-files", &self.modified())
    }
}

/// Removes the file lists below a summary, because the next summary renders them anew.
pub fn without_lists(summary: &str) -> &str {
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
