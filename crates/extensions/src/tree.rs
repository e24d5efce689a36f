//! A move of the leaf, as extensions see it before it is committed.

use std::sync::Arc;

use turnwheel_conversation::entry::Entry;
use turnwheel_platform::ids::EntryId;

/// A move of the leaf that is about to be committed.
#[derive(Debug)]
pub struct PendingLeafMove<'a> {
    /// The entry that was requested. `None`: the position before the first entry.
    pub target_id: Option<&'a EntryId>,
    pub old_leaf_id: Option<&'a EntryId>,
    /// The new leaf: for a message of a user, the entry before it.
    pub new_leaf_id: Option<&'a EntryId>,
    /// The last entry that the old and the new path share.
    pub common_ancestor_id: Option<&'a EntryId>,
    /// The entries of the old path after that, in order.
    pub entries_left: &'a [Arc<Entry>],
    /// True if the request wants a summary of these entries.
    pub wants_summary: bool,
    /// Label that the request sets.
    pub label: Option<&'a str>,
}
