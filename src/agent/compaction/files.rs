//! Which files the summed-up part read and changed: a summary forgets them easily, and the next one starts from them.

use std::collections::BTreeSet;

use serde::Deserialize;

use crate::agent::entry::Compaction;
use crate::agent::message::AssistantMessage;

/// Paths, from the calls of the tools that work on files.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Files {
    read: BTreeSet<String>,
    modified: BTreeSet<String>,
}

impl Files {
    /// What an earlier compaction had noted. What an extension wrote beside a summary of its own has its own shape.
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

    /// Those that were only read.
    pub fn read(&self) -> Vec<&str> {
        self.read.difference(&self.modified).map(String::as_str).collect()
    }

    pub fn modified(&self) -> Vec<&str> {
        self.modified.iter().map(String::as_str).collect()
    }

    /// As it stands below a summary; empty without files.
    pub fn told(&self) -> String {
        let list = |tag: &str, files: &[&str]| match files {
            [] => String::new(),
            files => format!("\n\n<{tag}>\n{}\n</{tag}>", files.join("\n")),
        };
        list("read-files", &self.read()) + &list("modified-files", &self.modified())
    }
}

/// A summary without the lists below it: they are made anew.
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
