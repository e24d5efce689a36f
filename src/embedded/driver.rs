//! Tasks of an agent: one processes nudges, one publishes events.

use std::sync::Arc;
use std::time::Duration;

use futures_util::StreamExt as _;
use futures_util::stream::FuturesUnordered;

use crate::embedded::AgentInner;
use turnwheel_queries::event_stream::{EventReader, StreamEnd, StreamItem};
use turnwheel_record::nudge::Nudge;
use turnwheel_storage::queue;
use turnwheel_turn::delivery::handle;
use turnwheel_turn::sweep;

/// Time without a nudge until the recovery sweep runs.
const SWEEP_INTERVAL: Duration = Duration::from_mins(1);
/// Delay before the next attempt after a failed read of the conversation.
const RETRY_DELAY: Duration = Duration::from_secs(1);
/// Visibility timeout of a received nudge: longer than any turn.
const VISIBILITY_TIMEOUT: Duration = Duration::from_mins(10);

/// Deliveries at a time: a turn need not wait for a title that the one before still makes.
const DELIVERIES_MAX: usize = 2;

/// Runs one delivery for each nudge.
pub(super) async fn process_nudges(inner: Arc<AgentInner>) {
    let mut deliveries = FuturesUnordered::new();
    let mut next = Box::pin(next_nudge(Arc::clone(&inner)));
    loop {
        tokio::select! {
            biased;
            Some(()) = deliveries.next(), if !deliveries.is_empty() => {}
            nudge = &mut next, if deliveries.len() < DELIVERIES_MAX => {
                next.set(next_nudge(Arc::clone(&inner)));
                deliveries.push(deliver(&inner, nudge));
            }
        }
    }
}

async fn deliver(inner: &AgentInner, nudge: Nudge) {
    if let Err(error) = Box::pin(handle(&inner.services, &nudge)).await {
        tracing::warn!(conversation.id = %nudge.key.conversation_id, error = %error, "turn failed; will retry");
    }
}

/// Waits for a nudge and removes it from the queue. Runs the recovery sweep meanwhile.
async fn next_nudge(inner: Arc<AgentInner>) -> Nudge {
    let mut arrivals = inner.services.queue.arrivals(queue::TURNS);
    loop {
        if let Some(arrivals) = &mut arrivals {
            arrivals.borrow_and_update();
        }
        let received = inner.services.queue.receive(queue::TURNS, 1, VISIBILITY_TIMEOUT).await;
        let Some(message) = received.ok().and_then(|messages| messages.into_iter().next()) else {
            let arrived = async {
                match &mut arrivals {
                    Some(arrivals) => drop(arrivals.changed().await),
                    None => std::future::pending().await,
                }
            };
            if tokio::time::timeout(SWEEP_INTERVAL, arrived).await.is_err()
                && let Err(error) = sweep::sweep(&inner.services, sweep::GRACE_PERIOD).await
            {
                tracing::warn!(error = %error, "recovery sweep failed; will retry in a minute");
            }
            continue;
        };
        let _ = inner.services.queue.delete(queue::TURNS, &message.id, &message.pop_receipt).await;
        if let Ok(nudge) = serde_json::from_str(&message.text) {
            return nudge;
        }
    }
}

/// Publishes the new events of the current conversation.
pub(super) async fn publish_events(inner: Arc<AgentInner>) {
    let mut current = inner.conversation.subscribe();
    let mut conversation = current.borrow_and_update().clone();
    let mut after = conversation.last_event;
    loop {
        let (services, key) = (inner.services.clone(), conversation.key.clone());
        let mut reader = EventReader::new(services, key, after, StreamEnd::OnDrop);
        loop {
            let item = tokio::select! {
                biased;
                item = reader.next() => item,
                changed = current.changed() => {
                    if changed.is_err() {
                        return;
                    }
                    break;
                }
            };
            match item {
                // The read failed; a new reader continues after the last event.
                None => {
                    tokio::time::sleep(RETRY_DELAY).await;
                    break;
                }
                Some(StreamItem::Event(event)) => {
                    after = event.number.unwrap_or(after);
                    inner.on_event(&event);
                }
                Some(StreamItem::Confirmed(number)) => after = number,
            }
        }
        let next = current.borrow_and_update().clone();
        if next != conversation {
            after = next.last_event;
            conversation = next;
        }
    }
}
