//! The tree of imported entries, without their content.

use std::collections::HashMap;
use std::sync::Arc;

use turnwheel_conversation::context_ranges::{SeqRange, ranges_of};
use turnwheel_conversation::entry::{Entry, EntryBody, ModelChange};
use turnwheel_conversation::message::Message;
use turnwheel_platform::ids::EntryId;

#[derive(Debug, Default)]
pub struct ImportedTree {
    indexes: HashMap<EntryId, usize>,
    nodes: Vec<Node>,
}

#[derive(Debug)]
struct Node {
    parent: Option<usize>,
    /// A small entry that decides about the settings or the name at the end of a path.
    fact: Option<Arc<Entry>>,
    is_compaction: bool,
}

/// Facts about the conversation at the end of a path.
#[derive(Debug, Default)]
pub struct ImportedPath {
    /// Changes of model, thinking level and name, root first.
    pub facts: Vec<Arc<Entry>>,
    pub is_compacted: bool,
    /// Numbers of its entries: the first imported one has 1.
    pub context: Vec<SeqRange>,
}

impl ImportedTree {
    pub fn is_empty(&self) -> bool {
        self.nodes.is_empty()
    }

    /// True if the entry is the leaf or before it. Also true if the steps up the tree are used up.
    pub fn is_on_path(&self, id: &EntryId, leaf: &EntryId, steps_left: &mut usize) -> bool {
        let Some(wanted) = self.indexes.get(id).copied() else { return false };
        let mut next = self.indexes.get(leaf).copied();
        // A parent has a smaller index.
        while let Some(index) = next.filter(|index| *index > wanted) {
            let Some(left) = steps_left.checked_sub(1) else { return true };
            *steps_left = left;
            next = self.nodes.get(index).and_then(|node| node.parent);
        }
        next == Some(wanted)
    }

    /// Adds an entry after its parent.
    pub fn add(&mut self, entry: &Entry) {
        let parent = entry.base.parent_id.as_ref().and_then(|id| self.indexes.get(id).copied());
        let is_compaction = entry.body.compaction().is_some();
        self.indexes.insert(entry.base.entry_id.clone(), self.nodes.len());
        self.nodes.push(Node { parent, fact: fact_of(entry).map(Arc::new), is_compaction });
    }

    pub fn path(&self, leaf: Option<&EntryId>) -> ImportedPath {
        let mut path = ImportedPath::default();
        let mut numbers = Vec::new();
        let mut next = leaf.and_then(|id| self.indexes.get(id).copied());
        // Each parent has a smaller index, so this ends.
        while let Some((index, node)) = next.and_then(|index| Some((index, self.nodes.get(index)?)))
        {
            numbers.push(index as u64 + 1);
            path.facts.extend(node.fact.clone());
            path.is_compacted |= node.is_compaction;
            next = node.parent;
        }
        path.facts.reverse();
        numbers.reverse();
        path.context = ranges_of(numbers);
        path
    }
}

#[expect(clippy::wildcard_enum_match_arm, reason = "most kinds of entry decide nothing")]
fn fact_of(entry: &Entry) -> Option<Entry> {
    match &entry.body {
        EntryBody::ModelChange(_)
        | EntryBody::ThinkingLevelChange(_)
        | EntryBody::SessionInfo(_) => Some(entry.clone()),
        body => {
            let response = body.message().and_then(Message::as_assistant)?;
            if response.is_failed() {
                return None;
            }
            let change = ModelChange::new(&response.provider, &response.model);
            Some(Entry { base: entry.base.clone(), body: EntryBody::ModelChange(change) })
        }
    }
}
