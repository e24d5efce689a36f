//! The sweep: finds what is owed in the store and rings for it. The queue is disposable because of it (invariant 2).

use std::collections::HashSet;
use std::time::Duration;

use crate::clock::Timestamp;
use crate::queue;
use crate::store::{Kind, Owed, Partition, StoreError};
use crate::turn::commit::ring;
use crate::turn::{Nudge, World};

/// What fell due less than this ago is left alone: its own nudge is probably under way.
pub const GRACE: Duration = Duration::from_secs(20);
/// What falls due within this is rung for with that delay.
pub const AHEAD: Duration = Duration::from_secs(90);
const PAGE: usize = 200;

/// Rings for everything that is owed; answers how often it rang.
///
/// # Errors
/// The store did not answer: the next sweep does it again.
pub async fn sweep(world: &World, grace: Duration) -> Result<usize, StoreError> {
    let now = world.clock.now();
    let horizon = now.plus(AHEAD);
    let mut rung = HashSet::new();
    let mut continuation = None;
    loop {
        let page = world.store.due(horizon, PAGE, continuation.as_deref()).await?;
        for owed in &page.items {
            ring_for(world, owed, now, grace, &mut rung).await;
        }
        continuation = page.continuation;
        if continuation.is_none() {
            break;
        }
    }
    if !rung.is_empty() {
        tracing::info!(count = rung.len(), "the sweep rang for {} conversations", rung.len());
    }
    Ok(rung.len())
}

async fn ring_for(
    world: &World,
    owed: &Owed,
    now: Timestamp,
    grace: Duration,
    rung: &mut HashSet<(String, &'static str)>,
) {
    let Partition::Conversation(key) = &owed.partition else { return };
    let is_recent = owed.due <= now && now.minus(grace) < owed.due && !grace.is_zero();
    let queue = if owed.kind == Kind::Notice { queue::NOTIFY } else { queue::TURNS };
    if is_recent || !rung.insert((key.to_string(), queue)) {
        return;
    }
    let nudge = Nudge { key: key.clone(), traceparent: None };
    ring(world, queue, &nudge, now.until(owed.due)).await;
}
