//! The path: the entries from a root to the leaf, linked by `parentId`.

use std::collections::HashMap;
use std::sync::Arc;

use crate::entry::{Entry, EntryBody};
use crate::message::{AssistantMessage, Message};
use crate::settings::ThinkingLevel;
use turnwheel_json::raw::RawJson;
use turnwheel_platform::ids::EntryId;

/// The path, root first. Empty without a leaf. A missing parent ends it.
pub fn path_to_leaf(entries: &[Arc<Entry>], leaf: Option<&EntryId>) -> Vec<Arc<Entry>> {
    let Some(leaf) = leaf else { return Vec::new() };
    if let Some(straight) = straight_path(entries, leaf) {
        return straight;
    }
    let by_id: HashMap<&EntryId, &Arc<Entry>> =
        entries.iter().map(|entry| (&entry.base.entry_id, entry)).collect();
    let mut path = Vec::new();
    let mut at = by_id.get(leaf).copied();
    while let Some(entry) = at {
        path.push(Arc::clone(entry));
        // Only an imported tree can have a cycle. It ends here.
        if path.len() > entries.len() {
            break;
        }
        at = entry.base.parent_id.as_ref().and_then(|parent| by_id.get(parent).copied());
    }
    path.reverse();
    path
}

/// The path, leaf first, as an iterator for callers that read only its end. `entries` are in order
/// of `seq`, and each parent precedes its children.
pub fn path_from_leaf<'a>(
    entries: impl DoubleEndedIterator<Item = &'a Arc<Entry>>,
    leaf: Option<&'a EntryId>,
) -> impl Iterator<Item = &'a Arc<Entry>> {
    let mut wanted = leaf;
    entries.rev().filter(move |entry| {
        let is_next = wanted == Some(&entry.base.entry_id);
        if is_next {
            wanted = entry.base.parent_id.as_ref();
        }
        is_next
    })
}

/// The common case, without an index: every entry's parent is the previous entry, and the last
/// entry is the leaf. The parent of the first one, if any, is not among the entries.
fn straight_path(entries: &[Arc<Entry>], leaf: &EntryId) -> Option<Vec<Arc<Entry>>> {
    let is_leaf_last = entries.last().is_some_and(|last| &last.base.entry_id == leaf);
    let is_chain = entries.windows(2).all(|pair| match pair {
        [before, after] => after.base.parent_id.as_ref() == Some(&before.base.entry_id),
        _ => true,
    });
    (is_leaf_last && is_chain).then(|| entries.to_vec())
}

/// Model that was set or that responded last. Some programs record none: an empty name.
pub fn last_model(path: &[Arc<Entry>]) -> Option<&str> {
    let mut models = path.iter().rev().filter_map(|entry| {
        if let EntryBody::ModelChange(change) = &entry.body {
            return Some(change.model_id.as_str());
        }
        let response = entry.body.message().and_then(Message::as_assistant);
        let is_of_model = |it: &&AssistantMessage| !it.is_failed() && it.is_from_model();
        response.filter(is_of_model).map(|response| response.model.as_str())
    });
    models.find(|model| !model.trim().is_empty())
}

/// Thinking level that was set last.
pub fn last_thinking_level(path: &[Arc<Entry>]) -> Option<ThinkingLevel> {
    let level = path.iter().rev().find_map(|entry| {
        let EntryBody::ThinkingLevelChange(change) = &entry.body else { return None };
        Some(change.thinking_level.as_str())
    });
    RawJson::from_value(&level?).read().ok()
}
