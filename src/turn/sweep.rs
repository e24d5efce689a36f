//! The sweep: finds what is owed in the store and rings for it. The queue is disposable because of it (invariant 2).

use std::collections::HashMap;
use std::collections::hash_map::Entry;
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
/// One a minute may take so long: what is asked first by one and last by the next is rung for by then.
const LONG: Duration = Duration::from_secs(30);
/// A store that asks many partitions takes a share of it from each.
const PAGE: usize = 800;
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
    let began = world.clock.monotonic();
    let mut rung = HashMap::new();
    let (mut continuation, mut failure) = (None, None);
    let mut overdue = 0;
    loop {
        let page = match world.store.due(horizon, PAGE, continuation.as_deref()).await {
            Ok(page) => page,
            Err(error) => {
                failure = Some(error);
                break;
            }
        };
        overdue += page.items.iter().filter(|owed| owed.due <= now).count();
        let mut bells: Vec<Bell> = Vec::new();
        for bell in page.items.iter().filter_map(|owed| bell_for(owed, now, grace)) {
            add(&mut bells, &mut rung, bell);
        }
        stream::iter(bells)
            .for_each_concurrent(RING_AT_ONCE, |(queue, nudge, delay)| async move {
                ring(world, queue, &nudge, delay).await;
            })
            .await;
        continuation = page.continuation;
        if continuation.is_none() {
            break;
        }
        if world.clock.monotonic() > began + world.limits.turn {
            tracing::warn!(
                count = rung.len(),
                "the sweep ran out of time; the next one looks again"
            );
            break;
        }
    }
    if let Some(metrics) = world.telemetry.metrics()
        && (failure.is_none() || overdue > 0)
    {
        metrics.backlog(overdue);
    }
    let took = world.clock.monotonic().saturating_sub(began);
    let duration_ms = u64::try_from(took.as_millis()).unwrap_or(u64::MAX);
    if took > LONG {
        tracing::warn!(
            count = rung.len(),
            duration_ms,
            "the sweep took long: what fell due meanwhile may be rung for late"
        );
    } else if !rung.is_empty() {
        tracing::info!(count = rung.len(), duration_ms, "the sweep rang for what is owed");
    }
    failure.map_or(Ok(rung.len()), Err)
}

/// Queue, nudge and delay.
type Bell = (&'static str, Nudge, Duration);

/// One bell for each conversation is enough, the earliest of what it is owed: a store may tell it in any order.
fn add(
    bells: &mut Vec<Bell>,
    rung: &mut HashMap<(String, &'static str), Duration>,
    (queue, nudge, delay): Bell,
) {
    match rung.entry((nudge.key.to_string(), queue)) {
        Entry::Occupied(earlier) if *earlier.get() <= delay => return,
        Entry::Occupied(mut later) => {
            later.insert(delay);
            bells.retain(|(other, bell, _)| *other != queue || bell.key != nudge.key);
        }
        Entry::Vacant(none) => {
            none.insert(delay);
        }
    }
    bells.push((queue, nudge, delay));
}

fn bell_for(owed: &Owed, now: Timestamp, grace: Duration) -> Option<Bell> {
    let nudge = match &owed.partition {
        Partition::Conversation(key) => Nudge::of(key.clone(), None),
        // Twice is as good as once, and a minute is all that a firing may be late.
        Partition::Scope(tenant) if schedules::is_schedule(&owed.id) => {
            let nudge = Nudge::of_schedule(tenant, &owed.id);
            return Some((queue::TURNS, nudge, now.until(owed.due)));
        }
        Partition::Scope(_) => return None,
    };
    let is_recent = owed.due <= now && now.minus(grace) < owed.due && !grace.is_zero();
    let queue = if owed.kind == Kind::Notice { queue::NOTIFY } else { queue::TURNS };
    (!is_recent).then(|| (queue, nudge, now.until(owed.due)))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ids::{ConversationId, ConversationKey, TenantId, UserId};

    #[test]
    fn a_conversation_has_one_bell_for_the_first_that_it_is_owed() {
        let key = |id: &str| ConversationKey {
            tenant: TenantId::new("t"),
            user: UserId::new("u"),
            conversation_id: ConversationId::new(id),
        };
        let mut rung = HashMap::new();
        let mut add_all = |owed: &[(&str, &'static str, u64)]| {
            let mut bells = Vec::new();
            for (id, queue, delay) in owed {
                let bell = (*queue, Nudge::of(key(id), None), Duration::from_secs(*delay));
                add(&mut bells, &mut rung, bell);
            }
            let told = |(queue, nudge, delay): &Bell| {
                (nudge.key.conversation_id.as_str().to_owned(), *queue, delay.as_secs())
            };
            bells.iter().map(told).collect::<Vec<_>>()
        };
        let (turns, notify) = (queue::TURNS, queue::NOTIFY);
        let first = add_all(&[
            ("c", turns, 80),
            ("d", turns, 5),
            ("c", turns, 0),
            ("c", notify, 9),
            ("c", turns, 3),
        ]);
        let told = |id: &str, queue, delay| (id.to_owned(), queue, delay);
        assert_eq!(first, [told("d", turns, 5), told("c", turns, 0), told("c", notify, 9)]);
        // The next page.
        let next = add_all(&[("c", turns, 0), ("d", turns, 2)]);
        assert_eq!(next, [told("d", turns, 2)]);
    }
}
