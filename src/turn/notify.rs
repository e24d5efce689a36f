//! Notices: outgoing webhooks that are owed, sent until they are taken or three days are over.

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

/// After this a notice is given up, visibly.
pub const GIVE_UP_AFTER: Duration = Duration::from_hours(3 * 24);

/// Waits between tries; the last one repeats.
const WAITS: [Duration; 7] = [
    Duration::from_secs(5),
    Duration::from_mins(1),
    Duration::from_mins(5),
    Duration::from_mins(30),
    Duration::from_hours(2),
    Duration::from_hours(5),
    Duration::from_hours(10),
];

/// A repeated try belongs to the delivery that reserves it: the request has 15 s, and a commit comes after it.
const RESERVED: Duration = Duration::from_secs(30);

/// What became of a try.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Told {
    Taken,
    /// Nobody wants it any more.
    Unwanted,
    /// Try again later; says why.
    NotNow(String),
}

/// Who carries notices to people.
#[async_trait]
pub trait Herald: Send + Sync + fmt::Debug {
    async fn tell(&self, key: &ConversationKey, notice: &Notice) -> Told;
}

/// Sends what is due of one conversation. Doubles are possible, their id tells them.
///
/// # Errors
/// The store did not answer; what is owed stays owed.
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
            // A receiver that is down takes its whole time for each: the rest gets a delivery of its own.
            if world.clock.monotonic() > began + world.limits.turn / 2 {
                ring(world, queue::NOTIFY, nudge, Duration::ZERO).await;
                return Ok(());
            }
            let notice: Notice = record::read(&stored.document)?;
            let Some(stored) = reserve(world, key, stored, &notice).await? else { continue };
            world.probe.reached("notice.before").await;
            let told = match &world.herald {
                Some(herald) => tell(world, &**herald, (key, &notice)).await,
                // It was written when there was somebody to tell, and there may be again.
                None => Told::NotNow("no webhook is set".to_owned()),
            };
            world.probe.reached("notice.after").await;
            settle(world, nudge, &stored, (notice, told)).await?;
        }
    }
    Ok(())
}

/// A wake-up message and the sweep may find the same retry due in the same moment: the first to write has it. A first try
/// is not reserved, because nothing but its own message looks at it that soon. `None`: another delivery has it.
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

/// The address is a secret: nothing of it is told.
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
            tracing::warn!(conversation.id = %key.conversation_id, attempt = notice.attempts, "notice {} was not taken: {reason}", notice.id);
            if now.plus(wait) > notice.at.plus(GIVE_UP_AFTER) {
                give_up(&mut notice, now)
            } else {
                Some(now.plus(wait))
            }
        }
    };
    let write = Write::Replace(record::notice_document(&notice, due), Some(stored.etag.clone()));
    match world.store.write(&Partition::Conversation(key.clone()), vec![write]).await {
        // Another delivery told it too, and has said so.
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
    tracing::error!("notice {} was given up after {} tries", notice.id, notice.attempts);
    None
}

fn wait_after(attempts: u32) -> Duration {
    let tried = usize::try_from(attempts.saturating_sub(1)).unwrap_or(usize::MAX);
    WAITS.get(tried).or(WAITS.last()).copied().unwrap_or_default()
}
