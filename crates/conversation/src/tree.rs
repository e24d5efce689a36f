//! The session tree: a view of all entries with their branches, small enough to show at once.

use std::collections::{BTreeSet, HashMap};
use std::sync::Arc;

use crate::content::{Content, joined_text};
use crate::entry::{Entry, EntryBody};
use crate::message::Message;

#[cfg(test)]
mod tests;

/// Characters of a preview.
const PREVIEW_CHARS_MAX: usize = 120;

/// The entries of a conversation with their children.
#[derive(Debug)]
pub struct SessionTree<'e> {
    entries: &'e [Arc<Entry>],
    /// Index of the parent of each entry. `None`: a root. An entry without its parent is a root, and
    /// so is the first entry of a loop.
    parents: Vec<Option<usize>>,
    /// Indices of the children of each entry, by time.
    children: Vec<Vec<usize>>,
    roots: Vec<usize>,
}

impl<'e> SessionTree<'e> {
    /// `entries` are in order of `seq`.
    pub fn new(entries: &'e [Arc<Entry>]) -> Self {
        let positions = entries.iter().enumerate();
        let by_id: HashMap<&str, usize> =
            positions.map(|(at, entry)| (entry.base.entry_id.as_str(), at)).collect();
        let parent_of = |entry: &Arc<Entry>| {
            let parent = entry.base.parent_id.as_ref()?;
            by_id.get(parent.as_str()).copied()
        };
        let mut parents: Vec<Option<usize>> = entries.iter().map(parent_of).collect();
        break_loops(&mut parents);
        let mut tree =
            Self { entries, children: vec![Vec::new(); entries.len()], roots: Vec::new(), parents };
        for (at, parent) in tree.parents.iter().enumerate() {
            match parent.and_then(|parent| tree.children.get_mut(parent)) {
                Some(children) => children.push(at),
                None => tree.roots.push(at),
            }
        }
        let time =
            |at: &usize| entries.get(*at).map(|entry| (entry.base.timestamp, entry.base.seq));
        tree.roots.sort_by_key(time);
        for children in &mut tree.children {
            children.sort_by_key(time);
        }
        tree
    }

    pub fn entry(&self, at: usize) -> Option<&'e Arc<Entry>> {
        self.entries.get(at)
    }

    pub fn find(&self, id: &str) -> Option<usize> {
        self.entries.iter().position(|entry| entry.base.entry_id.as_str() == id)
    }

    pub fn children(&self, at: usize) -> &[usize] {
        self.children.get(at).map(Vec::as_slice).unwrap_or_default()
    }

    /// The entries in the order of the tree, each before its children: those below `from`, or all.
    pub fn walk(&self, from: Option<usize>) -> impl Iterator<Item = usize> {
        let mut stack: Vec<usize> = match from {
            Some(from) => vec![from],
            None => self.roots.iter().rev().copied().collect(),
        };
        std::iter::from_fn(move || {
            let at = stack.pop()?;
            stack.extend(self.children(at).iter().rev());
            Some(at)
        })
    }

    /// True for the last entry of a branch.
    pub fn is_end(&self, at: usize) -> bool {
        self.children(at).is_empty()
    }

    /// True for the entries that show the shape of the tree: roots, ends and forks of branches, and
    /// summaries.
    pub fn is_structural(&self, at: usize) -> bool {
        let is_summary = |entry: &Arc<Entry>| {
            matches!(entry.body, EntryBody::Compaction(_) | EntryBody::BranchSummary(_))
        };
        self.children(at).len() != 1
            || self.parents.get(at).is_some_and(Option::is_none)
            || self.entry(at).is_some_and(is_summary)
    }

    /// The selected entries, each with the nearest selected entry above it.
    pub fn with_ancestors(
        &self,
        from: Option<usize>,
        selected: &BTreeSet<usize>,
    ) -> Vec<(usize, Option<usize>)> {
        let mut nearest: Vec<Option<usize>> = vec![None; self.entries.len()];
        let mut found = Vec::with_capacity(selected.len());
        for at in self.walk(from) {
            let parent = self.parents.get(at).copied().flatten().filter(|_| Some(at) != from);
            let above = parent.and_then(|parent| nearest.get(parent).copied().flatten());
            let is_selected = selected.contains(&at);
            if is_selected {
                found.push((at, above));
            }
            if let Some(slot) = nearest.get_mut(at) {
                *slot = if is_selected { Some(at) } else { above };
            }
        }
        found
    }
}

/// Makes one entry of each loop a root. Only an imported tree can have a loop.
fn break_loops(parents: &mut [Option<usize>]) {
    const UNSEEN: usize = usize::MAX;
    let mut seen_from = vec![UNSEEN; parents.len()];
    for start in 0..parents.len() {
        let mut at = start;
        while let Some(seen) = seen_from.get_mut(at).filter(|seen| **seen == UNSEEN) {
            *seen = start;
            match parents.get(at).copied().flatten() {
                Some(parent) => at = parent,
                None => break,
            }
        }
        // The walk ends at a root, at an entry of an earlier walk, or where it meets itself.
        if seen_from.get(at) == Some(&start)
            && let Some(parent) = parents.get_mut(at)
        {
            *parent = None;
        }
    }
}

/// The role of the message of an entry.
pub fn role(entry: &Entry) -> Option<String> {
    entry.body.message().map(Message::role)
}

pub fn is_user_message(entry: &Entry) -> bool {
    matches!(entry.body.message(), Some(Message::User(_)))
}

/// The text of a message of a user.
pub fn user_text(entry: &Entry) -> Option<String> {
    let Some(Message::User(message)) = entry.body.message() else { return None };
    Some(message.content.joined_text())
}

/// The beginning of the text of an entry, in one line.
#[expect(clippy::wildcard_enum_match_arm, reason = "most kinds of entry have no text")]
pub fn preview(entry: &Entry) -> Option<String> {
    let text = match &entry.body {
        EntryBody::Message(entry) => message_text(&entry.message)?,
        EntryBody::CustomMessage(custom) => custom.content.joined_text(),
        EntryBody::Compaction(compaction) => compaction.summary.clone(),
        EntryBody::BranchSummary(branch) => branch.summary.clone(),
        EntryBody::SessionInfo(info) => info.name.clone()?,
        EntryBody::Label(label) => label.label.clone()?,
        _ => return None,
    };
    let mut words = text.split(|letter: char| letter.is_whitespace() || letter.is_control());
    let mut line = words.next().unwrap_or_default().to_owned();
    for word in words.filter(|word| !word.is_empty()) {
        // One line of a long text is enough.
        if line.len() > 4 * PREVIEW_CHARS_MAX {
            break;
        }
        line.push(' ');
        line.push_str(word);
    }
    let preview: String = line.trim_start().chars().take(PREVIEW_CHARS_MAX).collect();
    Some(preview).filter(|preview| !preview.is_empty())
}

fn message_text(message: &Message) -> Option<String> {
    let content = |content: &Content| content.joined_text();
    Some(match message {
        Message::User(message) => content(&message.content),
        Message::Assistant(message) => joined_text(&message.content),
        Message::ToolResult(message) => joined_text(&message.content),
        Message::BashExecution(message) => message.command.clone(),
        Message::Custom(message) => content(&message.content),
        Message::BranchSummary(message) => message.summary.clone(),
        Message::CompactionSummary(message) => message.summary.clone(),
        Message::Other(_) => return None,
    })
}
