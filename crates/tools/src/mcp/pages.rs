//! Pages of a list of tools. An odd page ends the list with what was read before.

use std::collections::HashSet;

use crate::mcp::definitions::{Definitions, TOOLS_MAX};
use crate::mcp::message::plain_text;
use turnwheel_json::raw::RawJson;

/// Pages of a list of tools.
const PAGES_MAX: usize = 20;

/// Tools that were read so far.
#[derive(Default)]
pub(super) struct ToolPages {
    tools: Vec<RawJson>,
    /// The texts of `tools`.
    texts: HashSet<String>,
    /// Cursors that were sent, in order.
    cursors: Vec<String>,
}

pub(super) enum PageProblem {
    /// The list cannot be used at all.
    Unusable(String),
    /// The list ends here. What was read stays.
    End(String),
}

impl ToolPages {
    /// The cursor of the next request.
    pub(super) fn cursor(&self) -> Option<String> {
        self.cursors.last().cloned()
    }

    pub(super) fn is_first(&self) -> bool {
        self.cursors.is_empty()
    }

    /// Adds a page. True: another one follows.
    pub(super) fn add(&mut self, page: &RawJson) -> Result<bool, PageProblem> {
        let no_list = |pages: &Self, reason: &str| {
            let reason = reason.to_owned();
            if pages.is_first() { PageProblem::Unusable(reason) } else { PageProblem::End(reason) }
        };
        let Some(members) = page.members() else {
            return Err(no_list(self, "its response to tools/list is not an object"));
        };
        let find = |name: &str| {
            members.iter().find(|(other, value)| other == name && value.text() != "null")
        };
        if let Some((_, tools)) = find("tools") {
            let Ok(tools) = tools.read::<Vec<RawJson>>() else {
                return Err(no_list(self, "the `tools` of its response to tools/list are no list"));
            };
            self.add_tools(tools);
        } else if !members.iter().any(|(name, _)| name == "tools") {
            return Err(no_list(self, "its response to tools/list has no `tools`"));
        }
        if let Err(reason) = Definitions::check_count(self.tools.len()) {
            self.tools.truncate(TOOLS_MAX);
            return Err(PageProblem::End(reason));
        }
        let Some((_, cursor)) = find("nextCursor") else { return Ok(false) };
        // A cursor is a text. A number is sent as its text.
        if cursor.text().starts_with(['{', '[', 't', 'f']) {
            return Err(PageProblem::End("its cursor is no text".to_owned()));
        }
        let cursor = plain_text(cursor);
        if self.cursors.contains(&cursor) {
            return Err(PageProblem::End("it repeats a cursor".to_owned()));
        }
        self.cursors.push(cursor);
        if self.cursors.len() >= PAGES_MAX {
            return Err(PageProblem::End(format!("it has over {PAGES_MAX} pages")));
        }
        Ok(true)
    }

    /// Adds tools that are not known: a server that ignores the cursor lists the same ones again.
    fn add_tools(&mut self, tools: Vec<RawJson>) {
        for tool in tools {
            if self.texts.insert(tool.text().to_owned()) {
                self.tools.push(tool);
            }
        }
    }

    pub(super) fn into_tools(self) -> Vec<RawJson> {
        self.tools
    }
}
