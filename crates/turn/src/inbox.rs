//! Inbox of a leased conversation: reads it, and converts it into inputs.

use std::sync::Arc;

use turnwheel_conversation::inbox::InboxItem;
use turnwheel_conversation::step::{Input, is_supported};
use turnwheel_conversation::transition::PendingItem;
use turnwheel_platform::ids::ConversationKey;
use turnwheel_record::certain_write::write_size;
use turnwheel_record::documents;
use turnwheel_record::services::Services;
use turnwheel_storage::store::{
    BATCH_BYTES_MAX, BATCH_OPERATIONS_MAX, DocumentKind, ETag, Freshness, Partition, Selection,
    StoreError, StoredDocument, Write,
};

/// An accepted request in the inbox.
#[derive(Clone, Debug)]
pub struct WaitingItem {
    pub item: Arc<InboxItem>,
    /// The version that was read.
    pub etag: ETag,
    /// True if the item has a `due` of its own.
    pub is_due: bool,
    bytes: usize,
}

/// The items that this version supports, oldest first.
///
/// # Errors
/// The store is unavailable.
pub async fn read_inbox(
    services: &Services,
    key: &ConversationKey,
) -> Result<Vec<WaitingItem>, StoreError> {
    let partition = Partition::Conversation(key.clone());
    let selection = Selection::all(DocumentKind::Inbox);
    parse_inbox(&services.store.select(&partition, &selection, Freshness::Latest).await?)
}

/// As [`read_inbox`], from items that were already read.
pub(crate) fn parse_inbox(stored: &[StoredDocument]) -> Result<Vec<WaitingItem>, StoreError> {
    let mut items = Vec::with_capacity(stored.len());
    for stored in stored {
        let item: InboxItem = documents::read(&stored.document)?;
        if is_supported(&item.body) {
            items.push(WaitingItem {
                item: Arc::new(item),
                etag: stored.etag.clone(),
                is_due: stored.document.due.is_some(),
                bytes: stored.document.body.text().len(),
            });
        }
    }
    items.sort_by(|a, b| {
        (a.item.accepted_at, &a.item.input_id).cmp(&(b.item.accepted_at, &b.item.input_id))
    });
    Ok(items)
}

/// The input that reports these items to the state machine.
pub(crate) fn inbox_input(waiting: &[WaitingItem]) -> Input {
    let pending =
        |waits: &WaitingItem| PendingItem { item: Arc::clone(&waits.item), bytes: waits.bytes };
    Input::InboxRead(waiting.iter().map(pending).collect())
}

/// The inputs that drain the inbox.
pub(crate) fn drain_inputs(inbox: &[WaitingItem]) -> [Input; 2] {
    [inbox_input(inbox), Input::DrainInbox]
}

/// Clears the `due` of items that were read and stay in the inbox, because the `due` of the head's
/// phase covers them. Items beyond the batch's limits stay due and are read again.
pub(crate) fn clear_due<'a>(
    writes: &mut Vec<Write>,
    left_waiting: impl Iterator<Item = &'a WaitingItem>,
) {
    let mut bytes: usize = writes.iter().map(write_size).sum();
    for waiting in left_waiting {
        let document = documents::inbox_document(&waiting.item, None);
        let write = Write::Replace(document, Some(waiting.etag.clone()));
        bytes += write_size(&write);
        if writes.len() >= BATCH_OPERATIONS_MAX || bytes > BATCH_BYTES_MAX {
            return;
        }
        writes.push(write);
    }
}
