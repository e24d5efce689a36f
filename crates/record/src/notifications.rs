//! Notifications: outgoing webhooks, sent until the receiver accepts them or the attempts of three
//! days have failed.

mod chat_message;
pub mod sender;
pub mod webhook;

use std::time::Duration;

use crate::notifications::sender::{NotificationSender, SendOutcome};
use crate::nudge::{NUDGE_WITHIN, Nudge};
use crate::nudge_sender::enqueue_nudge;
use crate::services::Services;
use crate::{documents, error_domain};
use turnwheel_conversation::clock_correction::CLOCK_DIFFERENCE_MAX;
use turnwheel_conversation::notification::{Notification, PROMPT_REJECTED};
use turnwheel_platform::clock::Timestamp;
use turnwheel_platform::ids::ConversationKey;
use turnwheel_platform::telemetry::trace::{self, SpanRole};
use turnwheel_storage::queue;
use turnwheel_storage::store::conditional::write_once;
use turnwheel_storage::store::outage_retry::repeat_while_store_is_away;
use turnwheel_storage::store::{
    DocumentKind, Freshness, Partition, Selection, StoreError, StoredDocument, Write,
};

/// A notification is given up when the sum of its waits exceeds this.
pub const GIVE_UP_AFTER: Duration = Duration::from_hours(3 * 24);

/// Waits between attempts; the last one repeats.
const RETRY_WAITS: [Duration; 7] = [
    Duration::from_secs(5),
    Duration::from_mins(1),
    Duration::from_mins(5),
    Duration::from_mins(30),
    Duration::from_hours(2),
    Duration::from_hours(5),
    Duration::from_hours(10),
];

/// A delivery reserves an attempt for this long: the request has 15 s, and a commit follows it.
const RESERVATION: Duration = Duration::from_secs(30);

/// The part of a reservation that its write may take, so that the request ends within it.
const RESERVATION_WRITE_MAX: Duration = Duration::from_secs(10);

/// Sends the due notifications of one conversation. Receivers may get duplicates, which have the
/// same id.
///
/// # Errors
/// The store is unavailable: deliver the message again. Notifications stay pending.
pub async fn notify(services: &Services, nudge: &Nudge) -> Result<(), StoreError> {
    let id = nudge.key.conversation_id.to_string();
    let span = services
        .telemetry
        .span("notify")
        .with_role(SpanRole::Consumer)
        .with_parent(nudge.traceparent.as_deref())
        .with_link(trace::current_traceparent().as_deref())
        .with_attribute("messaging.system", "azure_storage_queue")
        .with_attribute("messaging.operation.name", "process")
        .with_attribute("messaging.destination.name", queue::NOTIFY)
        .with_attribute("conversation.id", id)
        .start();
    let outcome = span.run(Box::pin(send_due(services, nudge))).await;
    if let Err(error) = &outcome {
        span.record_error(&error_domain::classify_store_error(error));
    }
    outcome
}

async fn send_due(services: &Services, nudge: &Nudge) -> Result<(), StoreError> {
    let key = &nudge.key;
    let began = services.clock.monotonic();
    let partition = Partition::Conversation(key.clone());
    let selection = Selection::all(DocumentKind::Notification);
    let read = || services.store.select(&partition, &selection, Freshness::Latest);
    let all = repeat_while_store_is_away(&services.shutdown, read).await?;
    let mut reserved = None;
    for stored in all {
        let now = services.clock.now();
        let Some(due) = stored.document.due else { continue };
        if due > now {
            reserved = Some(earliest(reserved, now.until(due)));
            continue;
        }
        // Each attempt to an unavailable receiver takes its whole time-out, so the rest gets a
        // delivery of its own.
        if services.clock.monotonic() > began + services.limits.turn_duration / 2 {
            enqueue_nudge(services, queue::NOTIFY, nudge, Duration::ZERO).await;
            return Ok(());
        }
        let notification: Notification = documents::read(&stored.document)?;
        let reserved_at = services.clock.monotonic();
        let attempt = reserve(services, key, stored, &notification).await?;
        services.fail_points.hit("notification.before").await;
        let took = services.clock.monotonic().saturating_sub(reserved_at);
        // After a slow write another delivery could send before this one ends.
        let Some(stored) = attempt.filter(|_| took <= RESERVATION_WRITE_MAX) else {
            reserved = Some(earliest(reserved, RESERVATION));
            continue;
        };
        let outcome = match &services.notification_sender {
            Some(sender) => send(services, &**sender, key, &notification).await,
            // A webhook was configured when the notification was written, and may be again.
            None => SendOutcome::RetryLater("no webhook is configured".to_owned()),
        };
        services.fail_points.hit("notification.after").await;
        record_outcome(services, nudge, &stored, notification, outcome).await?;
    }
    // The worker that reserved an attempt may have died.
    if let Some(wait) = reserved.filter(|wait| *wait <= RESERVATION) {
        enqueue_nudge(services, queue::NOTIFY, nudge, wait).await;
    }
    Ok(())
}

fn earliest(found: Option<Duration>, wait: Duration) -> Duration {
    found.map_or(wait, |found| found.min(wait))
}

/// Reserves an attempt: several wake-up messages and the sweep may find it due at the same moment, and the first write wins.
/// Returns `None` if another delivery has it.
async fn reserve(
    services: &Services,
    key: &ConversationKey,
    stored: StoredDocument,
    notification: &Notification,
) -> Result<Option<StoredDocument>, StoreError> {
    if services.notification_sender.is_none() {
        return Ok(Some(stored));
    }
    let due = services.clock.now().plus(RESERVATION);
    let document = documents::notice_document(notification, Some(due));
    let write = Write::Replace(document.clone(), Some(stored.etag));
    let partition = Partition::Conversation(key.clone());
    let etags = write_once(&*services.store, &partition, vec![write]).await?;
    let etag = etags.and_then(|etags| etags.into_iter().next());
    Ok(etag.map(|etag| StoredDocument { document, etag }))
}

/// The span omits the address, which is a secret.
async fn send(
    services: &Services,
    sender: &dyn NotificationSender,
    key: &ConversationKey,
    notification: &Notification,
) -> SendOutcome {
    let span = services
        .telemetry
        .span("webhook")
        .with_role(SpanRole::Client)
        .with_attribute("turnwheel.notice.type", notification.kind.clone())
        .with_attribute("attempt", i64::from(notification.attempts) + 1)
        .start();
    let outcome = span.run(sender.send(key, notification)).await;
    if let Some(fault) = error_domain::classify_send_outcome(&outcome) {
        span.record_error(&fault);
    }
    outcome
}

async fn record_outcome(
    services: &Services,
    nudge: &Nudge,
    stored: &StoredDocument,
    mut notification: Notification,
    outcome: SendOutcome,
) -> Result<(), StoreError> {
    let key = &nudge.key;
    let now = services.clock.now();
    notification.attempts += 1;
    let due = match outcome {
        SendOutcome::Accepted => {
            notification.settled_at = Some(now);
            None
        }
        SendOutcome::Gone => give_up(&mut notification, now),
        SendOutcome::RetryLater(reason) => {
            let wait = retry_wait(notification.attempts);
            tracing::warn!(conversation.id = %key.conversation_id, notification.id = %notification.id, attempt = notification.attempts, error = %reason, "notification failed");
            // The age of the notification is no measure: a clock that is ahead would give it up early.
            if total_wait(notification.attempts) > GIVE_UP_AFTER {
                give_up(&mut notification, now)
            } else {
                Some(now.plus(wait))
            }
        }
    };
    let etag = Some(stored.etag.clone());
    let write = if due.is_none() && notification.kind == PROMPT_REJECTED {
        // Its conversation may not exist, so that no deletion would remove it.
        Write::Delete(notification.id.clone(), etag)
    } else {
        Write::Replace(documents::notice_document(&notification, due), etag)
    };
    // Lost: another delivery sent it too and recorded the outcome.
    write_once(&*services.store, &Partition::Conversation(key.clone()), vec![write]).await?;
    if let Some(wait) = due.map(|due| now.until(due)).filter(|wait| *wait < NUDGE_WITHIN) {
        enqueue_nudge(services, queue::NOTIFY, nudge, wait).await;
    }
    Ok(())
}

fn give_up(notification: &mut Notification, now: Timestamp) -> Option<Timestamp> {
    notification.settled_at = Some(now);
    notification.is_given_up = true;
    tracing::error!(notification.id = %notification.id, attempts = notification.attempts, "notification given up");
    None
}

/// True if a clock that was ahead has set the time of the next attempt: it is further away than any
/// wait after that many attempts.
pub fn is_due_ahead(notification: &Notification, due: Timestamp, now: Timestamp) -> bool {
    let wait = retry_wait(notification.attempts).max(RESERVATION);
    due > now.plus(wait + CLOCK_DIFFERENCE_MAX)
}

/// Sum of the waits after each of that many attempts.
fn total_wait(attempts: u32) -> Duration {
    (1..=attempts).map(retry_wait).sum()
}

fn retry_wait(attempts: u32) -> Duration {
    let completed = usize::try_from(attempts.saturating_sub(1)).unwrap_or(usize::MAX);
    RETRY_WAITS.get(completed).or(RETRY_WAITS.last()).copied().unwrap_or_default()
}
