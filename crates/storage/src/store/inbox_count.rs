//! The count of inbox changes in the head: how each store applies [`Write::CountInboxChange`].

use crate::store::validate::DELETED;
use crate::store::{Document, StoreError, Write, head_lease};
use turnwheel_platform::clock::Timestamp;

/// True if the conversation of this head accepts changes of its inbox.
pub fn accepts_changes(head: &Document) -> bool {
    head.state.as_deref() != Some(DELETED)
}

/// Counts one change. Does not touch the body, which a newer version may have written.
///
/// # Errors
/// [`StoreError::Conflict`]: the conversation is deleted.
pub(super) fn count_change(head: &mut Document, due: Option<Timestamp>) -> Result<(), StoreError> {
    if !accepts_changes(head) {
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

/// The change that a batch counts: its position and its `due`. `None`: it counts none.
pub(super) fn find_count(writes: &[Write]) -> Option<(usize, Option<Timestamp>)> {
    writes.iter().enumerate().find_map(|(position, write)| match write {
        Write::CountInboxChange { due } => Some((position, *due)),
        Write::Create(_) | Write::Replace(..) | Write::Delete(..) => None,
    })
}
