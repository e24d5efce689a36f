//! A timer trigger: runs its function by the schedule, one run at a time, regardless of the
//! outcome.

use std::sync::Arc;
use std::time::Duration;

use super::envelope::TimerStatus;
use super::{Function, HostState, Schedule, envelope};
use crate::clock::Timestamp;

/// Interval at which the wall clock is read again, so that a run is not late after the machine
/// slept.
const CLOCK_CHECK_INTERVAL: Duration = Duration::from_secs(1);

/// Runs the schedule until the host stops.
pub(super) async fn run_schedule(
    host: Arc<HostState>,
    function: Function,
    schedule: Box<Schedule>,
) {
    let mut status = TimerStatus::default();
    loop {
        let Some(next) = schedule.next_after(host.clock.now()) else {
            tracing::warn!(faas.name = %function.name, "timer has no further run");
            return host.stop.cancelled().await;
        };
        tokio::select! {
            () = host.stop.cancelled() => return,
            () = wait_until(&host, next) => {}
        }
        status.next_run = schedule.next_after(next);
        run_once(&host, &function, status).await;
        status.last_run = Some(host.clock.now());
    }
}

/// Runs the function once. `invoke` has logged a failure.
pub(super) async fn run_once(host: &HostState, function: &Function, status: TimerStatus) {
    let ids = host.ids.as_ref();
    let body = envelope::timer_envelope(function, status, false, (host.clock.now(), ids));
    let id = envelope::new_guid(ids);
    drop(Box::pin(host.invoke(function, &id, &body)).await);
}

async fn wait_until(host: &HostState, moment: Timestamp) {
    loop {
        let remaining = host.clock.now().until(moment);
        if remaining.is_zero() {
            return;
        }
        tokio::time::sleep(remaining.min(CLOCK_CHECK_INTERVAL)).await;
    }
}
