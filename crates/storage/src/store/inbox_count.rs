//! The count of inbox changes in the head: how each store applies [`Write::CountInboxChange`].

use std::ops::Range;

use crate::store::validate::DELETED;
use crate::store::{Document, StoreError, Write, head_lease};
use turnwheel_platform::clock::Timestamp;

/// True if the conversation of this head accepts the change of its inbox: it is not deleted, and the
/// count is in `room`. An unknown count is in each room.
pub fn accepts_change(head: &Document, room: Option<&Range<u32>>) -> bool {
    let has_room = room.zip(head.inbox_count).is_none_or(|(room, count)| room.contains(&count));
    has_room && head.state.as_deref() != Some(DELETED)
}

/// Counts one change. Does not touch the body, which a newer version may have written.
///
/// # Errors
/// [`StoreError::Conflict`]: the conversation does not accept the change.
pub(super) fn count_change(
    head: &mut Document,
    due: Option<Timestamp>,
    room: Option<&Range<u32>>,
) -> Result<(), StoreError> {
    if !accepts_change(head, room) {
        return Err(StoreError::Conflict);
    }
    head.inbox_count = head.inbox_count.map(|count| count.saturating_add(1));
    if let Some(due) = due
        && head_lease::read_lease(head)?.is_none()
    {
        head.due = Some(head.due.map_or(due, |earlier| earlier.min(due)));
    }
    Ok(())
}

/// The change that a batch counts.
#[derive(Debug)]
pub(super) struct CountedChange {
    pub(super) position: usize,
    pub(super) due: Option<Timestamp>,
    pub(super) room: Option<Range<u32>>,
}

/// `None`: the batch counts no change.
pub(super) fn find_count(writes: &[Write]) -> Option<CountedChange> {
    writes.iter().enumerate().find_map(|(position, write)| match write {
        Write::CountInboxChange { due, room } => {
            Some(CountedChange { position, due: *due, room: room.clone() })
        }
        Write::Create(_) | Write::Replace(..) | Write::Delete(..) => None,
    })
}
