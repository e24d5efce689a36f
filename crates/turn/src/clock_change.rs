//! A wall clock that was set back: no stored wait may last until the clock has caught up.
//!
//! A wait is a stored time. It is over if the document was written by a clock that was ahead of the
//! current one by more than the difference between machines.

use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use crate::sweep::HORIZON;
use turnwheel_commands::schedules;
use turnwheel_conversation::clock_correction::CLOCK_DIFFERENCE_MAX;
use turnwheel_conversation::notification::Notification;
use turnwheel_platform::clock::{Clock, Timestamp};
use turnwheel_platform::ids::ConversationKey;
use turnwheel_record::documents;
use turnwheel_record::lease::LEASE_DURATION;
use turnwheel_record::notifications::is_due_ahead;
use turnwheel_record::nudge::Nudge;
use turnwheel_record::nudge_sender::enqueue_nudge;
use turnwheel_record::services::Services;
use turnwheel_storage::queue;
use turnwheel_storage::store::{
    DocumentKind, DueItem, Freshness, HEAD_ID, Partition, StoreError, TAKE_OVER_DELAY, Write,
};

const PAGE_SIZE: usize = 800;
/// Work that is due later is not pending: no wait is that long.
const WAIT_MAX: Duration = Duration::from_hours(24 * 365 * 100);

/// Compares the wall clock with the monotonic one.
#[derive(Debug)]
pub struct ClockWatch(Mutex<(Timestamp, Duration)>);

impl ClockWatch {
    pub fn new(clock: &dyn Clock) -> Self {
        Self(Mutex::new((clock.now(), clock.monotonic())))
    }

    /// True if the wall clock was set back since the last call.
    pub fn was_set_back(&self, clock: &dyn Clock) -> bool {
        let mut last = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let (wall, monotonic) = (clock.now(), clock.monotonic());
        let expected = last.0.plus(monotonic.saturating_sub(last.1));
        *last = (wall, monotonic);
        wall.plus(CLOCK_DIFFERENCE_MAX) < expected
    }
}

/// Ends the waits of a clock that was ahead, and enqueues their work.
///
/// # Errors
/// The store is unavailable: try again.
pub async fn end_waits(services: &Services) -> Result<(), StoreError> {
    for key in repair_waits(services).await? {
        let nudge = Nudge::for_conversation(key, None);
        enqueue_nudge(services, queue::TURNS, &nudge, Duration::ZERO).await;
    }
    Ok(())
}

/// Moves the schedules and notifications whose times a clock that was ahead has set. Returns the
/// conversations with such waits, which their next delivery corrects.
///
/// # Errors
/// The store is unavailable: try again.
pub(crate) async fn repair_waits(services: &Services) -> Result<Vec<ConversationKey>, StoreError> {
    let now = services.clock.now();
    let mut conversations = Vec::new();
    let mut continuation = None;
    loop {
        let horizon = now.plus(WAIT_MAX);
        let page = services.store.list_due(horizon, PAGE_SIZE, continuation.as_deref()).await?;
        for item in page.items.iter().filter(|item| item.due > now.plus(HORIZON)) {
            conversations.extend(repair_wait(services, item, now).await?);
        }
        continuation = page.continuation;
        if continuation.is_none() {
            break;
        }
    }
    if !conversations.is_empty() {
        tracing::warn!(
            count = conversations.len(),
            "wall clock was set back: waits of the earlier time end now"
        );
    }
    Ok(conversations)
}

/// Enqueues a nudge for the time at which the lease of a live worker has another end, if a clock that
/// was ahead has set this one: the wait would last until the clock has caught up.
pub(crate) async fn recheck_lease_ahead(
    services: &Services,
    key: &ConversationKey,
    now: Timestamp,
    until: Timestamp,
) {
    let is_ahead = until > now.plus(LEASE_DURATION + CLOCK_DIFFERENCE_MAX);
    if !is_ahead || !services.store.has_leases_in_heads() {
        return;
    }
    let nudge = Nudge { expired_lease: Some(until), ..Nudge::for_conversation(key.clone(), None) };
    enqueue_nudge(services, queue::TURNS, &nudge, LEASE_DURATION + TAKE_OVER_DELAY).await;
}

async fn repair_wait(
    services: &Services,
    item: &DueItem,
    now: Timestamp,
) -> Result<Option<ConversationKey>, StoreError> {
    let key = match &item.partition {
        Partition::Scope(tenant) if documents::is_schedule_id(&item.id) => {
            schedules::correct_schedule(services, tenant, &item.id).await?;
            return Ok(None);
        }
        Partition::Scope(_) | Partition::User { .. } => return Ok(None),
        Partition::Conversation(key) => key,
    };
    let found = services.store.read(&item.partition, &item.id, Freshness::Latest).await?;
    let Some(stored) = found else { return Ok(None) };
    if item.kind == DocumentKind::Notification {
        let Some(due) = stored.document.due else { return Ok(None) };
        let notification: Notification = documents::read(&stored.document)?;
        if is_due_ahead(&notification, due, now) {
            let corrected = Notification { at: notification.at.min(now), ..notification };
            let document = documents::notice_document(&corrected, Some(now));
            // Another writer that came first has set a new time.
            let write = Write::Replace(document, Some(stored.etag));
            let _lost = services.store.write(&item.partition, vec![write]).await;
            let nudge = Nudge::for_conversation(key.clone(), None);
            enqueue_nudge(services, queue::NOTIFY, &nudge, Duration::ZERO).await;
        }
        return Ok(None);
    }
    if item.id != HEAD_ID {
        return Ok(None);
    }
    let Ok(head) = documents::read_head(&stored) else { return Ok(None) };
    Ok(head.is_ahead_of(now).then(|| key.clone()))
}
