//! Usual rates of injected faults, and a worker that is killed at a given fail point.

use std::time::Duration;

use super::{PauseFailPoint, TestEnv};
use crate::delivery::handle;
use turnwheel_record::services::Services;
use turnwheel_storage::artifacts;
use turnwheel_storage::queue::QueueFaults;
use turnwheel_storage::store::memory::StoreFaults;

/// Number of deliveries in which the fail point must be hit.
const DELIVERIES_MAX: u32 = 3;

pub(crate) fn usual_store_faults() -> StoreFaults {
    StoreFaults {
        conflict: 0.03,
        conflict_after: 0.03,
        throttled: 0.01,
        unavailable_before: 0.03,
        unavailable_after: 0.03,
        unavailable_late: 0.02,
        unavailable_reads: 0.02,
        stale_reads: 0.2,
        short_pages: 0.2,
        yield_to_others: 0.2,
    }
}

pub(crate) fn usual_queue_faults() -> QueueFaults {
    QueueFaults {
        lose: 20,
        double: 20,
        delay: 20,
        delay_max: Duration::from_secs(100),
        reorder: 20,
        unavailable: 5,
    }
}

pub(crate) fn usual_artifact_faults() -> artifacts::ArtifactFaults {
    artifacts::ArtifactFaults {
        interrupted: 0.1,
        response_lost: 0.1,
        late: 0.1,
        unavailable: 0.1,
        slow: 0.2,
        // Longer than a result waits for its artifacts.
        slow_max: Duration::from_secs(15),
    }
}

/// Delivers nudges until the worker hits its fail point, and then drops it.
pub(crate) async fn kill_at(victim: Services, pause: &PauseFailPoint) {
    let nudge = TestEnv::nudge();
    for _ in 0..DELIVERIES_MAX {
        tokio::select! {
            biased;
            () = pause.reached.notified() => return,
            handled = handle(&victim, &nudge) => {
                handled.unwrap();
            }
        }
    }
    panic!("{pause:?} was not hit");
}
