//! What waits in the inbox: looking at it, and sorting out what lands now.

use std::sync::Arc;

use crate::agent::draft::{Draft, Rules};
use crate::agent::head::Head;
use crate::agent::inbox::InboxItem;
use crate::agent::step::{Input, can_land, is_understood, step};
use crate::clock::Timestamp;
use crate::ids::ConversationKey;
use crate::store::{
    BATCH_BYTES_MAX, BATCH_OPERATIONS_MAX, ETag, Freshness, Kind, Partition, Selection, StoreError,
    Stored, Write,
};
use crate::turn::admission::write::bytes_of;
use crate::turn::{World, record};

/// Operations that taking in may fill, so that a prepared call still fits.
const LANDING_OPERATIONS: usize = BATCH_OPERATIONS_MAX - 20;
/// Bytes of the same: an item is written as entry and as receipt.
const LANDING_BYTES: usize = BATCH_BYTES_MAX / 3;

/// An accepted request in the inbox.
#[derive(Clone, Debug)]
pub(super) struct Waiting {
    pub(super) item: Arc<InboxItem>,
    /// The version that was looked at.
    pub(super) etag: ETag,
    /// Whether it still owes a look by itself.
    pub(super) is_due: bool,
    bytes: usize,
}

/// What waits and this version takes in, oldest first.
pub(super) async fn look(world: &World, key: &ConversationKey) -> Result<Vec<Waiting>, StoreError> {
    let partition = Partition::Conversation(key.clone());
    let selection = Selection::all(Kind::Inbox);
    in_order(&world.store.select(&partition, &selection, Freshness::Latest).await?)
}

/// The same of what was read already.
pub(super) fn in_order(stored: &[Stored]) -> Result<Vec<Waiting>, StoreError> {
    let mut items = Vec::with_capacity(stored.len());
    for stored in stored {
        let item: InboxItem = record::read(&stored.document)?;
        if is_understood(&item.body) {
            items.push(Waiting {
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

/// Which items land now, and which wait. At least one lands if any can.
pub(super) fn sort_out(
    head: &Head,
    inbox: Vec<Waiting>,
    rules: Rules,
    now: Timestamp,
) -> (Vec<Arc<InboxItem>>, Vec<Waiting>) {
    let mut draft = Draft::new(head.clone(), None, rules, now);
    let (mut landing, mut waiting) = (Vec::new(), Vec::new());
    let mut bytes = 0;
    for waits in inbox {
        let fits = draft.operations() < LANDING_OPERATIONS
            && (landing.is_empty() || bytes + waits.bytes <= LANDING_BYTES);
        if fits && can_land(&draft.head, &waits.item) {
            bytes += waits.bytes;
            step(&mut draft, &Input::Landed(Arc::clone(&waits.item)));
            landing.push(waits.item);
        } else {
            waiting.push(waits);
        }
    }
    (landing, waiting)
}

/// Takes the `due` from what was looked at and left waiting: the phase that will take it in owes it. What the batch has no
/// room for stays due, and is looked at again.
pub(super) fn hand_over<'a>(
    writes: &mut Vec<Write>,
    left_waiting: impl Iterator<Item = &'a Waiting>,
) {
    let mut bytes: usize = writes.iter().map(bytes_of).sum();
    for waiting in left_waiting {
        let document = record::inbox_document(&waiting.item, None);
        let write = Write::Replace(document, Some(waiting.etag.clone()));
        bytes += bytes_of(&write);
        if writes.len() >= BATCH_OPERATIONS_MAX || bytes > BATCH_BYTES_MAX {
            return;
        }
        writes.push(write);
    }
}
