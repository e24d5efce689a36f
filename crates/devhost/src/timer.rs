//! A timer trigger: runs its function by the schedule, one run at a time, regardless of the
//! outcome.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use super::envelope::{TimerRun, TimerStatus};
use super::{Function, HostState, TimerSchedule, envelope};
use turnwheel_platform::clock::Timestamp;

/// Interval at which the wall clock is read again, so that a run is not late after the machine
/// slept.
const CLOCK_CHECK_INTERVAL: Duration = Duration::from_secs(1);

/// The status of each timer. The Functions host keeps it in the storage account: it outlives a
/// host, and the next one starts missed runs.
#[derive(Clone, Debug, Default)]
pub struct TimerStatuses(Arc<Mutex<BTreeMap<String, TimerStatus>>>);

impl TimerStatuses {
    /// An empty status: the timer has not run yet.
    pub(super) fn find(&self, function: &str) -> TimerStatus {
        let statuses = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        statuses.get(function).copied().unwrap_or_default()
    }

    fn store(&self, function: &str, status: TimerStatus) {
        let mut statuses = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        statuses.insert(function.to_owned(), status);
    }
}

/// Runs the schedule until the host stops.
pub(super) async fn run_schedule(
    host: Arc<HostState>,
    function: Function,
    schedule: Box<TimerSchedule>,
) {
    let mut status = host.timers.find(&function.name);
    if status.next_run.is_some_and(|next| next < host.clock.now()) {
        status = run_on_schedule(&host, &function, status, true).await;
    }
    loop {
        let Some(next) = schedule.next_after(host.clock.now()) else {
            tracing::warn!(faas.name = %function.name, "timer has no further run");
            return host.stop.cancelled().await;
        };
        status.next_run = Some(next);
        host.timers.store(&function.name, status);
        tokio::select! {
            () = host.stop.cancelled() => return,
            () = wait_until(&host, next) => {}
        }
        status = run_on_schedule(&host, &function, status, false).await;
    }
}

/// Returns the status after the run, which began now.
async fn run_on_schedule(
    host: &HostState,
    function: &Function,
    status: TimerStatus,
    is_past_due: bool,
) -> TimerStatus {
    let started_at = host.clock.now();
    run_once(host, function, TimerRun { status, is_past_due, input: None }).await;
    TimerStatus { last_run: Some(started_at), next_run: None }
}

/// Runs the function once. `invoke` has logged a failure.
pub(super) async fn run_once(host: &HostState, function: &Function, run: TimerRun<'_>) {
    let body = envelope::timer_envelope(function, run, host.envelope_context());
    let id = envelope::new_guid(host.ids.as_ref());
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
