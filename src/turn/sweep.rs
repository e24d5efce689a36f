//! The sweep: finds what is owed in the store and rings for it. The queue is disposable because of it (invariant 2).

use std::collections::HashSet;
use std::time::Duration;

use futures_util::{StreamExt as _, stream};

use crate::clock::Timestamp;
use crate::queue;
use crate::store::{Kind, Owed, Partition, StoreError};
use crate::turn::commit::ring;
use crate::turn::{Nudge, World, faults, schedules};

/// What fell due less than this ago is left alone: its own nudge is probably under way.
pub const GRACE: Duration = Duration::from_secs(20);
/// What falls due within this is rung for with that delay.
pub const AHEAD: Duration = Duration::from_secs(90);
const PAGE: usize = 200;
/// Nudges that are sent at the same time.
const RING_AT_ONCE: usize = 16;

/// Rings for everything that is owed; answers how often it rang.
///
/// # Errors
/// The store did not answer: the next sweep does it again.
pub async fn sweep(world: &World, grace: Duration) -> Result<usize, StoreError> {
    let span = world.telemetry.span("sweep").start();
    let swept = span.run(Box::pin(all(world, grace))).await;
    match &swept {
        Ok(rung) => span.set("turnwheel.rung", i64::try_from(*rung).unwrap_or(i64::MAX)),
        Err(error) => span.fail(&faults::of_store(error)),
    }
    swept
}

async fn all(world: &World, grace: Duration) -> Result<usize, StoreError> {
    let now = world.clock.now();
    let horizon = now.plus(AHEAD);
    let stop_at = world.clock.monotonic() + world.limits.turn;
    let mut rung = HashSet::new();
    let mut continuation = None;
    let mut overdue = 0;
    loop {
        let page = world.store.due(horizon, PAGE, continuation.as_deref()).await?;
        overdue += page.items.iter().filter(|owed| owed.due <= now).count();
        let bells = page.items.iter().filter_map(|owed| bell_for(owed, now, grace, &mut rung));
        let bells: Vec<Bell> = bells.collect();
        stream::iter(bells)
            .for_each_concurrent(RING_AT_ONCE, |(queue, nudge, delay)| async move {
                ring(world, queue, &nudge, delay).await;
            })
            .await;
        continuation = page.continuation;
        if continuation.is_none() {
            break;
        }
        if world.clock.monotonic() > stop_at {
            tracing::warn!(
                count = rung.len(),
                "the sweep ran out of time; the next one begins with what is owed longest"
            );
            break;
        }
    }
    if let Some(metrics) = world.telemetry.metrics() {
        metrics.backlog(overdue);
    }
    if !rung.is_empty() {
        tracing::info!(
            count = rung.len(),
            "the sweep rang for {} conversations and schedules",
            rung.len()
        );
    }
    Ok(rung.len())
}

/// Queue, nudge and delay.
type Bell = (&'static str, Nudge, Duration);

fn bell_for(
    owed: &Owed,
    now: Timestamp,
    grace: Duration,
    rung: &mut HashSet<(String, &'static str)>,
) -> Option<Bell> {
    let nudge = match &owed.partition {
        Partition::Conversation(key) => Nudge::of(key.clone(), None),
        Partition::Scope(tenant) if schedules::is_schedule(&owed.id) => {
            Nudge::of_schedule(tenant, &owed.id)
        }
        Partition::Scope(_) => return None,
    };
    let is_recent = owed.due <= now && now.minus(grace) < owed.due && !grace.is_zero();
    let queue = if owed.kind == Kind::Notice { queue::NOTIFY } else { queue::TURNS };
    if is_recent || !rung.insert((nudge.key.to_string(), queue)) {
        return None;
    }
    Some((queue, nudge, now.until(owed.due)))
}
