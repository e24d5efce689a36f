//! Isolation of suspect steps: a step during which worker processes died runs where another death
//! ends no other turn.
//!
//! Blame is exact: a death counts only if the process ran nothing but the step, and its parent
//! process lived on.

use std::time::Duration;

use crate::crash_count;
use crate::delivery;
use turnwheel_platform::ids::WorkerId;
use turnwheel_record::error::{DeliveryOutcome, TurnError};
use turnwheel_record::isolator::{IsolatedOutcome, Isolation};
use turnwheel_record::nudge::Nudge;
use turnwheel_record::nudge_sender::enqueue_nudge;
use turnwheel_record::services::Services;
use turnwheel_storage::queue;

/// Runs the suspect step of the nudged conversation in isolation, and counts the death of its
/// process.
///
/// # Errors
/// The store is unavailable or the lease was lost: deliver the nudge again.
pub(crate) async fn run_isolated(
    services: &Services,
    nudge: &Nudge,
    ends: Duration,
) -> Result<DeliveryOutcome, TurnError> {
    let Isolation::Isolator(isolator) = &services.isolation else {
        return Ok(DeliveryOutcome::NoWork);
    };
    let worker = WorkerId::new(format!("{}.{}", services.worker, services.ids.new_id()));
    match isolator.run(services, nudge, &worker).await {
        IsolatedOutcome::Completed(outcome) => outcome,
        IsolatedOutcome::ProcessDied(how) => {
            let id = &nudge.key.conversation_id;
            tracing::warn!(conversation.id = %id, %how, "isolated process died");
            Box::pin(crash_count::count_process_death(services, nudge, &worker)).await?;
            Ok(DeliveryOutcome::Worked)
        }
        IsolatedOutcome::RetryLater { wait } => {
            enqueue_nudge(services, queue::TURNS, nudge, wait).await;
            Ok(DeliveryOutcome::NoWork)
        }
        IsolatedOutcome::RunHere(guard) => {
            let outcome = Box::pin(delivery::deliver_alone(services, nudge, ends)).await;
            drop(guard);
            outcome
        }
    }
}
