//! Recovery sweep: finds overdue work in the store and enqueues nudges for it. It makes the queue
//! disposable (invariant 2).

use std::collections::HashMap;
use std::collections::hash_map::Entry;
use std::time::Duration;

use futures_util::{StreamExt as _, stream};

use turnwheel_platform::clock::{Clock, Timestamp};
use turnwheel_platform::telemetry::Telemetry;
use turnwheel_record::documents;
use turnwheel_record::error_domain;
use turnwheel_record::nudge::Nudge;
use turnwheel_record::nudge_sender::NudgeSender;
use turnwheel_record::services::Services;
use turnwheel_storage::queue::{self, Queue};
use turnwheel_storage::store::{ConversationStore, DocumentKind, DueItem, Partition, StoreError};

/// Work that fell due more recently than this is skipped: its own nudge is probably on its way. The
/// lease of a dead worker has no such nudge.
pub const GRACE_PERIOD: Duration = Duration::from_secs(20);
/// Work due within this time is enqueued with the remaining delay.
pub const HORIZON: Duration = Duration::from_secs(90);
/// Longest normal sweep. With one sweep a minute, work read first by one sweep and last by the next
/// is still enqueued in time.
const SLOW_SWEEP: Duration = Duration::from_secs(30);
/// A store with several partitions reads a share of the page from each.
const PAGE_SIZE: usize = 800;
/// Number of nudges sent concurrently.
const SEND_CONCURRENCY: usize = 16;

/// The parts of a process that the sweep needs. A process that runs no turns builds it from its ports.
#[derive(Clone, Copy, Debug)]
pub struct RecoverySweep<'a> {
    pub store: &'a dyn ConversationStore,
    pub queue: &'a dyn Queue,
    pub clock: &'a dyn Clock,
    pub telemetry: &'a Telemetry,
    /// After this time the sweep stops at the end of a page.
    pub time_limit: Duration,
}

impl<'a> From<&'a Services> for RecoverySweep<'a> {
    fn from(services: &'a Services) -> Self {
        Self {
            store: &*services.store,
            queue: &*services.queue,
            clock: &*services.clock,
            telemetry: &services.telemetry,
            time_limit: services.limits.turn_duration,
        }
    }
}

/// Enqueues nudges for all due work. Returns the number of nudges.
///
/// # Errors
/// The store is unavailable: run the next sweep.
pub async fn sweep<'a>(
    parts: impl Into<RecoverySweep<'a>>,
    grace: Duration,
) -> Result<usize, StoreError> {
    let parts = parts.into();
    let span = parts.telemetry.span("sweep").start();
    let result = span.run(Box::pin(enqueue_due_work(parts, grace))).await;
    match &result {
        Ok(enqueued) => {
            span.set_attribute("turnwheel.enqueued", i64::try_from(*enqueued).unwrap_or(i64::MAX));
        }
        Err(error) => span.record_error(&error_domain::classify_store_error(error)),
    }
    result
}

async fn enqueue_due_work(parts: RecoverySweep<'_>, grace: Duration) -> Result<usize, StoreError> {
    let RecoverySweep { store, queue, clock, telemetry, time_limit } = parts;
    let sender = NudgeSender { queue, telemetry };
    let now = clock.now();
    let horizon = now.plus(HORIZON);
    let began = clock.monotonic();
    let mut enqueued = HashMap::new();
    let (mut continuation, mut failure) = (None, None);
    let mut overdue = 0;
    loop {
        let page = match store.list_due(horizon, PAGE_SIZE, continuation.as_deref()).await {
            Ok(page) => page,
            Err(error) => {
                failure = Some(error);
                break;
            }
        };
        overdue += page.items.iter().filter(|document| document.due <= now).count();
        let mut nudges: Vec<DelayedNudge> = Vec::new();
        for nudge in page.items.iter().filter_map(|document| nudge_for(document, now, grace)) {
            add_earliest(&mut nudges, &mut enqueued, nudge);
        }
        stream::iter(nudges)
            .for_each_concurrent(SEND_CONCURRENCY, |(queue, nudge, delay)| async move {
                sender.send(queue, &nudge, delay).await;
            })
            .await;
        continuation = page.continuation;
        if continuation.is_none() {
            break;
        }
        if clock.monotonic() > began + time_limit {
            tracing::warn!(
                count = enqueued.len(),
                "sweep stopped at its time limit; the next sweep continues"
            );
            break;
        }
    }
    if let Some(metrics) = telemetry.metrics()
        && (failure.is_none() || overdue > 0)
    {
        metrics.record_backlog(overdue);
    }
    let duration = clock.monotonic().saturating_sub(began);
    let duration_ms = u64::try_from(duration.as_millis()).unwrap_or(u64::MAX);
    if duration > SLOW_SWEEP {
        tracing::warn!(
            count = enqueued.len(),
            duration_ms,
            "sweep was slow; work that fell due meanwhile may be enqueued late"
        );
    } else if !enqueued.is_empty() {
        tracing::info!(count = enqueued.len(), duration_ms, "sweep enqueued overdue work");
    }
    failure.map_or(Ok(enqueued.len()), Err)
}

/// Queue, nudge and delay.
type DelayedNudge = (&'static str, Nudge, Duration);

/// Keeps one nudge for each conversation and queue, the earliest: the store may return due work in
/// any order.
fn add_earliest(
    nudges: &mut Vec<DelayedNudge>,
    enqueued: &mut HashMap<(String, &'static str), Duration>,
    (queue, nudge, delay): DelayedNudge,
) {
    match enqueued.entry((nudge.key.to_string(), queue)) {
        Entry::Occupied(earlier) if *earlier.get() <= delay => return,
        Entry::Occupied(mut later) => {
            later.insert(delay);
            nudges
                .retain(|(other, other_nudge, _)| *other != queue || other_nudge.key != nudge.key);
        }
        Entry::Vacant(vacant) => {
            vacant.insert(delay);
        }
    }
    nudges.push((queue, nudge, delay));
}

fn nudge_for(document: &DueItem, now: Timestamp, grace: Duration) -> Option<DelayedNudge> {
    let nudge = match &document.partition {
        Partition::Conversation(key) => Nudge::for_conversation(key.clone(), None),
        // No grace period: a duplicate nudge is harmless, and a schedule may fire at most a minute
        // late.
        Partition::Scope(tenant) if documents::is_schedule_id(&document.id) => {
            let nudge = Nudge::for_schedule(tenant, &document.id);
            return Some((queue::TURNS, nudge, now.until(document.due)));
        }
        Partition::Scope(_) | Partition::User { .. } => return None,
    };
    let is_recent = document.due <= now && now.minus(grace) < document.due && !grace.is_zero();
    let is_skipped = is_recent && !document.is_leased;
    let queue =
        if document.kind == DocumentKind::Notification { queue::NOTIFY } else { queue::TURNS };
    (!is_skipped).then(|| (queue, nudge, now.until(document.due)))
}

#[cfg(test)]
mod tests {
    use super::*;
    use turnwheel_platform::ids::{ConversationId, ConversationKey, TenantId, UserId};

    #[test]
    fn sweep_enqueues_earliest_nudge_per_conversation_and_queue() {
        let key = |id: &str| ConversationKey {
            tenant: TenantId::new("t"),
            user: UserId::new("u"),
            conversation_id: ConversationId::new(id),
        };
        let mut enqueued = HashMap::new();
        let mut add_all = |due: &[(&str, &'static str, u64)]| {
            let mut nudges = Vec::new();
            for (id, queue, delay) in due {
                let nudge =
                    (*queue, Nudge::for_conversation(key(id), None), Duration::from_secs(*delay));
                add_earliest(&mut nudges, &mut enqueued, nudge);
            }
            let row = |(queue, nudge, delay): &DelayedNudge| {
                (nudge.key.conversation_id.as_str().to_owned(), *queue, delay.as_secs())
            };
            nudges.iter().map(row).collect::<Vec<_>>()
        };
        let (turns, notify) = (queue::TURNS, queue::NOTIFY);
        let first = add_all(&[
            ("c", turns, 80),
            ("d", turns, 5),
            ("c", turns, 0),
            ("c", notify, 9),
            ("c", turns, 3),
        ]);
        let row = |id: &str, queue, delay| (id.to_owned(), queue, delay);
        assert_eq!(first, [row("d", turns, 5), row("c", turns, 0), row("c", notify, 9)]);
        let next = add_all(&[("c", turns, 0), ("d", turns, 2)]);
        assert_eq!(next, [row("d", turns, 2)]);
    }
}
