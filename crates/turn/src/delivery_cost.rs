//! Cost of a delivery at the services, logged in one line at its end.

use std::future::Future;
use std::sync::Arc;

use turnwheel_platform::clock::millis;
use turnwheel_platform::ids::ConversationKey;
use turnwheel_platform::telemetry::cost_meter::{self, CostMeter};
use turnwheel_record::error::{DeliveryOutcome, TurnError};
use turnwheel_record::services::Services;

/// Totals of a meter; they only grow.
struct MeterTotals {
    requests: u32,
    request_units: f64,
    queue_operations: u32,
}

impl MeterTotals {
    fn read(meter: &CostMeter) -> Self {
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
pub(crate) async fn log_delivery_cost(
    services: &Services,
    key: &ConversationKey,
    work: impl Future<Output = Result<DeliveryOutcome, TurnError>>,
) -> Result<DeliveryOutcome, TurnError> {
    let began = services.clock.monotonic();
    let meter = cost_meter::current_meter().unwrap_or_default();
    let before = MeterTotals::read(&meter);
    let outcome = cost_meter::with_meter(Arc::clone(&meter), work).await;
    let after = MeterTotals::read(&meter);
    let duration_ms = millis(services.clock.monotonic().saturating_sub(began));
    let requests = after.requests - before.requests;
    let request_units = after.request_units - before.request_units;
    let queue_operations = after.queue_operations - before.queue_operations;
    let id = &key.conversation_id;
    if matches!(outcome, Ok(DeliveryOutcome::NoWork)) {
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
