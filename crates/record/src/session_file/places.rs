//! Places of entries in the tree of a file, those of lost lines included: what follows a lost line
//! keeps what is before it.

use std::collections::HashMap;

use turnwheel_json::raw::RawJson;
use turnwheel_platform::ids::EntryId;

const BEGINS_BRANCH: &str = "no earlier line has the `parentId`: the entry begins a branch";
const AFTER_LOST_LINE: &str =
    "the line of its `parentId` is not imported: the entry follows the one before";
const ODD_PARENT: &str = "a `parentId` is a text or null: the entry follows the one before";

#[derive(Debug, Default)]
pub(super) struct Places {
    /// Line numbers of the entries.
    lines: HashMap<EntryId, u64>,
    /// Ids in the file that no entry has, and the entry in their place: the parent of a lost line, or
    /// the entry that got another id. `None`: the place before the first entry.
    replaced: HashMap<String, Option<EntryId>>,
    previous: Option<EntryId>,
    /// True if a line without a readable id was lost after the previous entry.
    is_after_loss: bool,
}

impl Places {
    pub(super) fn ids(&self) -> impl Iterator<Item = &EntryId> {
        self.lines.keys()
    }

    pub(super) fn line_of(&self, id: &EntryId) -> Option<u64> {
        self.lines.get(id).copied()
    }

    /// Records an entry. `written`: the id that it has in the file, if that is another one.
    pub(super) fn add(&mut self, id: EntryId, written: Option<&RawJson>, line: u64) {
        if let Some(written) = written {
            self.replaced.insert(key(written), Some(id.clone()));
        }
        self.lines.insert(id.clone(), line);
        self.previous = Some(id);
        self.is_after_loss = false;
    }

    /// Records a line that is not imported, with its id and parent as far as they are readable.
    pub(super) fn lose(&mut self, id: Option<&RawJson>, parent: Option<&RawJson>) {
        let Some(id) = id else {
            self.is_after_loss = true;
            return;
        };
        let (parent, _) = self.find_parent(parent);
        if self.find(id).is_none() {
            self.replaced.insert(key(id), parent);
        }
    }

    /// The entry that has or had the id. Outer `None`: there is none.
    #[expect(clippy::option_option, reason = "an entry may be the root")]
    pub(super) fn find(&self, id: &RawJson) -> Option<Option<EntryId>> {
        if id.text() == "null" {
            return Some(None);
        }
        let key = key(id);
        let id = EntryId::new(key.as_str());
        if self.lines.contains_key(&id) { Some(Some(id)) } else { self.replaced.get(&key).cloned() }
    }

    /// The parent of the next entry, which precedes it, so loops are impossible. With a warning if it
    /// is not the one in the file.
    pub(super) fn find_parent(
        &mut self,
        given: Option<&RawJson>,
    ) -> (Option<EntryId>, Option<&'static str>) {
        let Some(given) = given else { return (self.previous.clone(), None) };
        if let Some(parent) = self.find(given) {
            return (parent, None);
        }
        if self.is_after_loss {
            self.replaced.insert(key(given), self.previous.clone());
            return (self.previous.clone(), Some(AFTER_LOST_LINE));
        }
        if given.text().starts_with('"') {
            (None, Some(BEGINS_BRANCH))
        } else {
            (self.previous.clone(), Some(ODD_PARENT))
        }
    }
}

/// An id as text, whatever its type in the file is.
fn key(id: &RawJson) -> String {
    id.read().unwrap_or_else(|_| id.text().to_owned())
}
