//! Notifications: outgoing webhooks, sent until the receiver accepts them or three days have
//! passed.

pub mod webhook;

use std::fmt;
use std::time::Duration;

use async_trait::async_trait;

use crate::agent::notice::Notice;
use crate::clock::Timestamp;
use crate::ids::ConversationKey;
use crate::queue;
use crate::store::{Freshness, Kind, Partition, Selection, StoreError, Stored, Write};
use crate::telemetry::trace::{self, Role};
use crate::turn::commit::{NUDGE_WITHIN, ring};
use crate::turn::{Nudge, World, faults, record};

/// Age at which a notification is given up, with an error in the log.
pub const GIVE_UP_AFTER: Duration = Duration::from_hours(3 * 24);

/// Waits between attempts; the last one repeats.
const WAITS: [Duration; 7] = [
    Duration::from_secs(5),
    Duration::from_mins(1),
    Duration::from_mins(5),
    Duration::from_mins(30),
    Duration::from_hours(2),
    Duration::from_hours(5),
    Duration::from_hours(10),
];

/// A delivery reserves a retry for this long: the request has 15 s, and a commit follows it.
const RESERVED: Duration = Duration::from_secs(30);

/// Outcome of one attempt.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Told {
    Taken,
    /// The receiver wants no further attempt (HTTP 410).
    Unwanted,
    /// Try again later. Holds the reason.
    NotNow(String),
}

/// Sends notifications to their receiver.
#[async_trait]
pub trait Herald: Send + Sync + fmt::Debug {
    async fn tell(&self, key: &ConversationKey, notice: &Notice) -> Told;
}

/// Sends the due notifications of one conversation. Receivers may get duplicates, which have the
/// same id.
///
/// # Errors
/// The store is unavailable: deliver the message again. Notifications stay pending.
pub async fn notify(world: &World, nudge: &Nudge) -> Result<(), StoreError> {
    let id = nudge.key.conversation_id.to_string();
    let span = world
        .telemetry
        .span("notify")
        .role(Role::Consumer)
        .under(nudge.traceparent.as_deref())
        .link(trace::traceparent().as_deref())
        .with("messaging.system", "azure_storage_queue")
        .with("messaging.operation.name", "process")
        .with("messaging.destination.name", queue::NOTIFY)
        .with("conversation.id", id)
        .start();
    let outcome = span.run(Box::pin(tell_all(world, nudge))).await;
    if let Err(error) = &outcome {
        span.fail(&faults::of_store(error));
    }
    outcome
}

async fn tell_all(world: &World, nudge: &Nudge) -> Result<(), StoreError> {
    let key = &nudge.key;
    let began = world.clock.monotonic();
    let partition = Partition::Conversation(key.clone());
    let all =
        world.store.select(&partition, &Selection::all(Kind::Notice), Freshness::Latest).await?;
    for stored in all {
        let now = world.clock.now();
        if stored.document.due.is_some_and(|due| due <= now) {
            // Each attempt to an unavailable receiver takes its whole time-out, so the rest gets a
            // delivery of its own.
            if world.clock.monotonic() > began + world.limits.turn / 2 {
                ring(world, queue::NOTIFY, nudge, Duration::ZERO).await;
                return Ok(());
            }
            let notice: Notice = record::read(&stored.document)?;
            let Some(stored) = reserve(world, key, stored, &notice).await? else { continue };
            world.probe.reached("notice.before").await;
            let told = match &world.herald {
                Some(herald) => tell(world, &**herald, (key, &notice)).await,
                // A webhook was configured when the notification was written, and may be again.
                None => Told::NotNow("no webhook is configured".to_owned()),
            };
            world.probe.reached("notice.after").await;
            settle(world, nudge, &stored, (notice, told)).await?;
        }
    }
    Ok(())
}

/// Reserves a retry: a wake-up message and the sweep may find it due at the same moment, and the
/// first write wins. A first attempt needs no reservation, because only its own message finds it
/// that early. Returns `None` if another delivery has it.
async fn reserve(
    world: &World,
    key: &ConversationKey,
    stored: Stored,
    notice: &Notice,
) -> Result<Option<Stored>, StoreError> {
    if notice.attempts == 0 || world.herald.is_none() {
        return Ok(Some(stored));
    }
    let due = world.clock.now().plus(RESERVED);
    let document = record::notice_document(notice, Some(due));
    let write = Write::Replace(document.clone(), Some(stored.etag));
    match world.store.write(&Partition::Conversation(key.clone()), vec![write]).await {
        Ok(etags) => Ok(etags.into_iter().next().map(|etag| Stored { document, etag })),
        Err(StoreError::Conflict) => Ok(None),
        Err(error) => Err(error),
    }
}

/// The span omits the address, which is a secret.
async fn tell(
    world: &World,
    herald: &dyn Herald,
    (key, notice): (&ConversationKey, &Notice),
) -> Told {
    let span = world
        .telemetry
        .span("webhook")
        .role(Role::Client)
        .with("turnwheel.notice.type", notice.kind.clone())
        .with("attempt", i64::from(notice.attempts) + 1)
        .start();
    let told = span.run(herald.tell(key, notice)).await;
    if let Some(fault) = faults::of_told(&told) {
        span.fail(&fault);
    }
    told
}

async fn settle(
    world: &World,
    nudge: &Nudge,
    stored: &Stored,
    (mut notice, told): (Notice, Told),
) -> Result<(), StoreError> {
    let key = &nudge.key;
    let now = world.clock.now();
    notice.attempts += 1;
    let due = match told {
        Told::Taken => {
            notice.settled_at = Some(now);
            None
        }
        Told::Unwanted => give_up(&mut notice, now),
        Told::NotNow(reason) => {
            let wait = wait_after(notice.attempts);
            tracing::warn!(conversation.id = %key.conversation_id, notification.id = %notice.id, attempt = notice.attempts, error = %reason, "notification failed");
            if now.plus(wait) > notice.at.plus(GIVE_UP_AFTER) {
                give_up(&mut notice, now)
            } else {
                Some(now.plus(wait))
            }
        }
    };
    let write = Write::Replace(record::notice_document(&notice, due), Some(stored.etag.clone()));
    match world.store.write(&Partition::Conversation(key.clone()), vec![write]).await {
        // Another delivery sent it too and recorded the outcome.
        Ok(_) | Err(StoreError::Conflict) => {}
        Err(error) => return Err(error),
    }
    if let Some(wait) = due.map(|due| now.until(due)).filter(|wait| *wait < NUDGE_WITHIN) {
        ring(world, queue::NOTIFY, nudge, wait).await;
    }
    Ok(())
}

fn give_up(notice: &mut Notice, now: Timestamp) -> Option<Timestamp> {
    notice.settled_at = Some(now);
    notice.gave_up = true;
    tracing::error!(notification.id = %notice.id, attempts = notice.attempts, "notification given up");
    None
}

fn wait_after(attempts: u32) -> Duration {
    let tried = usize::try_from(attempts.saturating_sub(1)).unwrap_or(usize::MAX);
    WAITS.get(tried).or(WAITS.last()).copied().unwrap_or_default()
}
