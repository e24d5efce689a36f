//! Cost of a delivery at the services, logged in one line at its end.

use std::future::Future;
use std::sync::Arc;

use crate::clock::millis;
use crate::ids::ConversationKey;
use crate::telemetry::meter::{self, Meter};
use crate::turn::World;
use crate::turn::delivery::{Handled, TurnError};

/// Totals of a meter; they only grow.
struct Spent {
    requests: u32,
    request_units: f64,
    queue_operations: u32,
}

impl Spent {
    fn on(meter: &Meter) -> Self {
        let (store, queue) = (meter.total("cosmos."), meter.total("queue."));
        Self {
            requests: store.requests,
            request_units: store.request_units,
            queue_operations: queue.requests,
        }
    }
}

/// Runs one delivery on a meter and logs its cost. A delivery without pending work is logged at
/// DEBUG.
pub(super) async fn told(
    world: &World,
    key: &ConversationKey,
    work: impl Future<Output = Result<Handled, TurnError>>,
) -> Result<Handled, TurnError> {
    let began = world.clock.monotonic();
    let meter = meter::running().unwrap_or_default();
    let before = Spent::on(&meter);
    let outcome = meter::metered(Arc::clone(&meter), work).await;
    let after = Spent::on(&meter);
    let duration_ms = millis(world.clock.monotonic().saturating_sub(began));
    let requests = after.requests - before.requests;
    let request_units = after.request_units - before.request_units;
    let queue_operations = after.queue_operations - before.queue_operations;
    let id = &key.conversation_id;
    if matches!(outcome, Ok(Handled::Nothing)) {
        tracing::debug!(conversation.id = %id, requests, request_units, queue_operations, duration_ms, "delivery found no pending work");
    } else if requests == 0 {
        // The embedded store and its queue cost nothing, and the conversation's events have lines
        // of their own.
        tracing::debug!(conversation.id = %id, queue_operations, duration_ms, "delivery completed");
    } else {
        tracing::info!(conversation.id = %id, requests, request_units, queue_operations, duration_ms, "delivery completed");
    }
    outcome
}
