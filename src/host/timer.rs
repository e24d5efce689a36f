//! A timer trigger: runs its function by the schedule, one run at a time, regardless of the
//! outcome.

use std::sync::Arc;
use std::time::Duration;

use super::envelope::TimerStatus;
use super::{Function, Schedule, Shared, envelope};
use crate::clock::Timestamp;

/// Interval at which the wall clock is read again, so that a run is not late after the machine
/// slept.
const LOOK_INTERVAL: Duration = Duration::from_secs(1);

/// Runs the schedule until the host stops.
pub(super) async fn tick(host: Arc<Shared>, function: Function, schedule: Box<Schedule>) {
    let mut status = TimerStatus::default();
    loop {
        let Some(next) = schedule.after(host.clock.now()) else {
            tracing::warn!(faas.name = %function.name, "timer has no further run");
            return host.stop.cancelled().await;
        };
        tokio::select! {
            () = host.stop.cancelled() => return,
            () = reached(&host, next) => {}
        }
        status.next = schedule.after(next);
        run(&host, &function, status).await;
        status.last = Some(host.clock.now());
    }
}

/// Runs the function once. `invoke` has logged a failure.
pub(super) async fn run(host: &Shared, function: &Function, status: TimerStatus) {
    let ids = host.ids.as_ref();
    let body = envelope::of_timer(function, status, false, (host.clock.now(), ids));
    let id = envelope::guid(ids);
    drop(Box::pin(host.invoke(function, &id, &body)).await);
}

async fn reached(host: &Shared, moment: Timestamp) {
    loop {
        let left = host.clock.now().until(moment);
        if left.is_zero() {
            return;
        }
        tokio::time::sleep(left.min(LOOK_INTERVAL)).await;
    }
}
