//! Recovery sweep: finds overdue work in the store and enqueues nudges for it. It makes the queue
//! disposable (invariant 2).

use std::collections::HashMap;
use std::collections::hash_map::Entry;
use std::time::Duration;

use futures_util::{StreamExt as _, stream};

use crate::clock::Timestamp;
use crate::queue;
use crate::store::{Kind, Owed, Partition, StoreError};
use crate::turn::commit::ring;
use crate::turn::{Nudge, World, faults, schedules};

/// Work that fell due more recently than this is skipped: its own nudge is probably on its way.
pub const GRACE: Duration = Duration::from_secs(20);
/// Work due within this time is enqueued with the remaining delay.
pub const AHEAD: Duration = Duration::from_secs(90);
/// Longest normal sweep. With one sweep a minute, work read first by one sweep and last by the next
/// is still enqueued in time.
const LONG: Duration = Duration::from_secs(30);
/// A store with several partitions reads a share of the page from each.
const PAGE: usize = 800;
/// Number of nudges sent concurrently.
const RING_AT_ONCE: usize = 16;

/// Enqueues nudges for all due work. Returns the number of nudges.
///
/// # Errors
/// The store is unavailable: run the next sweep.
pub async fn sweep(world: &World, grace: Duration) -> Result<usize, StoreError> {
    let span = world.telemetry.span("sweep").start();
    let swept = span.run(Box::pin(all(world, grace))).await;
    match &swept {
        Ok(rung) => span.set("turnwheel.enqueued", i64::try_from(*rung).unwrap_or(i64::MAX)),
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
                "sweep stopped at its time limit; the next sweep continues"
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
            "sweep was slow; work that fell due meanwhile may be enqueued late"
        );
    } else if !rung.is_empty() {
        tracing::info!(count = rung.len(), duration_ms, "sweep enqueued overdue work");
    }
    failure.map_or(Ok(rung.len()), Err)
}

/// Queue, nudge and delay.
type Bell = (&'static str, Nudge, Duration);

/// Keeps one nudge for each conversation and queue, the earliest: the store may return due work in
/// any order.
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
        // No grace period: a duplicate nudge is harmless, and a schedule may fire at most a minute
        // late.
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
        let next = add_all(&[("c", turns, 0), ("d", turns, 2)]);
        assert_eq!(next, [told("d", turns, 2)]);
    }
}
