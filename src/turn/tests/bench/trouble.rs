//! Usual rates of injected faults, and a worker that is killed at a given fail point.

use std::time::Duration;

use super::{Bench, PauseProbe};
use crate::artifacts;
use crate::queue::Faults as QueueFaults;
use crate::store::memory::Faults;
use crate::turn::World;
use crate::turn::delivery::handle;

/// Number of deliveries in which the fail point must be hit.
const DELIVERIES: u32 = 3;

pub(in crate::turn::tests) fn bad_store() -> Faults {
    Faults {
        conflict: 0.03,
        conflict_after: 0.03,
        throttled: 0.01,
        unavailable_before: 0.03,
        unavailable_after: 0.03,
        unavailable_late: 0.02,
        unavailable_reads: 0.02,
        stale_reads: 0.2,
        short_pages: 0.2,
        step_aside: 0.2,
    }
}

pub(in crate::turn::tests) fn bad_queue() -> QueueFaults {
    QueueFaults {
        lose: 20,
        double: 20,
        delay: 20,
        delay_max: Duration::from_secs(100),
        reorder: 20,
        unavailable: 5,
    }
}

pub(in crate::turn::tests) fn bad_blobs() -> artifacts::Faults {
    artifacts::Faults {
        cut: 0.1,
        unheard: 0.1,
        late: 0.1,
        unavailable: 0.1,
        slow: 0.2,
        // Longer than a result waits for its artifacts.
        slow_max: Duration::from_secs(15),
    }
}

/// Delivers nudges until the worker hits its fail point, and then drops it.
pub(in crate::turn::tests) async fn die(victim: World, pause: &PauseProbe) {
    let nudge = Bench::nudge();
    for _ in 0..DELIVERIES {
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
