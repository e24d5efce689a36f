//! Facts about the leaf of an idle conversation, on which the next requests depend.

use std::sync::Arc;

use crate::why::read_entry;
use turnwheel_conversation::context_ranges::has_context;
use turnwheel_conversation::continue_check::check_continue;
use turnwheel_conversation::entry::{Entry, EntryBody, PromptState};
use turnwheel_conversation::head::Head;
use turnwheel_conversation::inbox::InboxItem;
use turnwheel_conversation::path::path_to_leaf;
use turnwheel_conversation::phase::Phase;
use turnwheel_record::contract::CommandError;
use turnwheel_record::load;
use turnwheel_storage::store::{ConversationStore, Partition, StoreError};

#[derive(Clone, Debug, Default)]
pub(crate) struct LeafFacts {
    /// True if the command `continue` would be accepted.
    pub can_continue: bool,
    /// True if the path to the leaf ends with the last prompt, and this has failed.
    pub has_failed: bool,
    /// The entry before that prompt, if its model call failed; `root` before the first entry.
    pub before_failure: Option<String>,
}

/// Reads the context of the leaf if a prompt has failed or inputs are held. Otherwise no request depends on it.
pub(super) async fn find_leaf_facts(
    store: &dyn ConversationStore,
    partition: &Partition,
    head: &Head,
    inbox: &[InboxItem],
) -> Result<LeafFacts, CommandError> {
    let failed = head.prompts.last().filter(|last| last.state == PromptState::Failed);
    if head.phase != Phase::Idle || (failed.is_none() && inbox.is_empty()) {
        return Ok(LeafFacts::default());
    }
    let entries = read_context(store, partition, head).await?;
    let path = path_to_leaf(&entries, head.leaf_id.as_ref());
    let can_continue = check_continue(&path, inbox).is_ok();
    let end = path.iter().rev().find_map(|entry| {
        let EntryBody::PromptEnd(end) = &entry.body else { return None };
        Some((entry.base.seq, end.error.as_ref()))
    });
    let failed = failed.zip(end).filter(|(span, (seq, _))| span.to_seq == Some(*seq));
    let Some((span, (_, error))) = failed else {
        return Ok(LeafFacts { can_continue, ..LeafFacts::default() });
    };
    // Each next prompt sends the same messages, and may fail in the same way.
    let before_failure = if error.is_some_and(|error| error.kind == "model") {
        let start = read_entry(store, partition, span.from_seq).await?;
        let before = start.map(|start| start.base.parent_id.clone());
        before.map(|parent| parent.map_or_else(|| "root".to_owned(), |id| id.to_string()))
    } else {
        None
    };
    Ok(LeafFacts { can_continue, has_failed: true, before_failure })
}

/// Entries that include the context of the path to the leaf, as far as a replica has them.
async fn read_context(
    store: &dyn ConversationStore,
    partition: &Partition,
    head: &Head,
) -> Result<Vec<Arc<Entry>>, StoreError> {
    let mut entries = Vec::new();
    if head.leaf_id.is_none() {
        return Ok(entries);
    }
    // The last range can begin after the newest entry.
    for range in head.context.iter().filter(|range| range.from <= head.seq) {
        let to = range.to.unwrap_or(head.seq);
        entries.extend(load::stored_entries(store, partition, range.from, to).await?);
    }
    if head.context.is_empty() || !has_context(entries.iter(), head.leaf_id.as_ref()) {
        return load::stored_entries(store, partition, 1, head.seq).await;
    }
    Ok(entries)
}
