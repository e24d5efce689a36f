//! Fail points that crash, pause or run a closure; and clocks with an offset.

use std::fmt;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use async_trait::async_trait;
use tokio::sync::{Notify, watch};
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use super::WorkerPosition;
use turnwheel_platform::clock::{Clock, Timestamp, millis};
use turnwheel_platform::fail_points::FailPoints;
use turnwheel_platform::ids::fault_plan::FaultPlan;

/// Wall and monotonic time of the paused runtime; only sleeping advances it.
#[derive(Clone, Copy, Debug)]
pub(crate) struct RuntimeClock {
    pub(super) started_at: Instant,
    /// Offset of the wall clock from the slowest.
    pub(super) offset: Duration,
}

impl RuntimeClock {
    /// The same clock with its wall time ahead.
    pub(crate) fn ahead(self, offset: Duration) -> Self {
        Self { offset, ..self }
    }
}

impl Clock for RuntimeClock {
    fn now(&self) -> Timestamp {
        Timestamp(1_800_000_000_000 + millis(self.started_at.elapsed() + self.offset))
    }

    fn monotonic(&self) -> Duration {
        self.started_at.elapsed()
    }
}

/// Crashes its worker at fail points, with the configured chance.
#[derive(Debug)]
pub(super) struct CrashFailPoints {
    pub(super) rng: Mutex<fastrand::Rng>,
    /// Replaces `rng`.
    pub(super) fault_plan: Option<FaultPlan>,
    /// The conversation of the worker's delivery.
    pub(super) conversation: String,
    pub(super) crash_percent: u8,
    /// True if each tool call crashes the worker.
    pub(super) is_killed_by_calls: bool,
    /// True if a conversation of this environment kills its processes, so that the blame is
    /// checked.
    pub(super) is_blame_checked: bool,
    /// Chance in percent that the worker stalls.
    pub(super) stall_percent: u8,
    /// Shared by the workers of one process, which crash together.
    pub(super) crashed: Arc<watch::Sender<Option<&'static str>>>,
    pub(super) position: WorkerPosition,
    /// The client for which the delivery runs. It leaves at fail points, with a chance of 10 %.
    pub(super) client: Option<CancellationToken>,
}

/// Longest stall between the last lease check and the call.
const STALL_BEFORE_SEND_MAX: Duration = Duration::from_secs(15);
/// Longer than a lease lasts.
const STALL_MAX: Duration = Duration::from_secs(150);

impl CrashFailPoints {
    async fn stall(&self, fail_point: &str) {
        const STILL: &str = "a worker stalled";
        let Some(fault_plan) = self.fault_plan.as_ref().filter(|_| self.stall_percent > 0) else {
            return;
        };
        let location = format!("{} {fail_point}", self.conversation);
        if fault_plan.should_inject(STILL, &location, f64::from(self.stall_percent) / 100.0) {
            // The margins of lease and tool time-out bound the time after the last check; no
            // guarantee covers a longer stall.
            let max_millis =
                if fail_point == "tool.before" { STALL_BEFORE_SEND_MAX } else { STALL_MAX };
            let max_millis = u64::try_from(max_millis.as_millis()).unwrap();
            tokio::time::sleep(Duration::from_millis(
                fault_plan.fault_size(STILL, &location, max_millis),
            ))
            .await;
        }
    }
}

#[async_trait]
impl FailPoints for CrashFailPoints {
    async fn hit(&self, fail_point: &'static str) {
        self.position.set_fail_point(fail_point);
        if let (Some(client), Some(plan)) = (&self.client, &self.fault_plan) {
            let at = format!("{} {fail_point}", self.conversation);
            if plan.should_inject("a waiting client left", &at, 0.1) {
                client.cancel();
            }
        }
        let is_killed = self.is_killed_by_calls && fail_point == "tool.before";
        let is_crash = is_killed
            || match &self.fault_plan {
                Some(_) if self.crash_percent == 0 => false,
                Some(fault_plan) => {
                    let at = format!("{} {fail_point}", self.conversation);
                    fault_plan.should_inject(
                        "a worker crashed",
                        &at,
                        f64::from(self.crash_percent) / 100.0,
                    )
                }
                None => self.rng.lock().unwrap().u8(0..100) < self.crash_percent,
            };
        self.stall(fail_point).await;
        if is_crash && self.crashed.send_if_modified(|at| at.replace(fail_point).is_none()) {
            std::future::pending::<()>().await;
        }
    }
}

/// The fail points of a turn with a tool call, in their order.
pub(crate) const TURN_FAIL_POINTS: [&str; 17] = [
    "lease.before",
    "lease.after",
    "inbox.after",
    "pending-work.before",
    "pending-work.after",
    "model.before",
    "model.after",
    "response.before",
    "response.after",
    "tool.before",
    "tool.after",
    "result.before",
    "result.after",
    "release.before",
    "release.after",
    "nudge.before",
    "nudge.after",
];

/// Pauses its worker at the first hit, until it is resumed.
#[derive(Debug)]
pub(crate) struct PauseFailPoint {
    fail_point: &'static str,
    was_hit: AtomicBool,
    pub reached: Notify,
    pub resume: Notify,
}

impl PauseFailPoint {
    pub(crate) fn new(fail_point: &'static str) -> Self {
        Self {
            fail_point,
            was_hit: AtomicBool::new(false),
            reached: Notify::new(),
            resume: Notify::new(),
        }
    }

    /// Runs the work until it reaches the fail point, and drops it there, as a kill does.
    pub(crate) async fn kill<T: fmt::Debug>(&self, work: impl Future<Output = T>) {
        tokio::select! {
            ended = work => panic!("{} was not reached: {ended:?}", self.fail_point),
            () = self.reached.notified() => {}
        }
    }
}

#[async_trait]
impl FailPoints for PauseFailPoint {
    async fn hit(&self, fail_point: &'static str) {
        if fail_point == self.fail_point && !self.was_hit.swap(true, Ordering::SeqCst) {
            self.reached.notify_one();
            self.resume.notified().await;
        }
    }
}

/// Runs a closure at each hit.
pub(crate) struct HookFailPoint<F>(pub &'static str, pub F);

impl<F> fmt::Debug for HookFailPoint<F> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.0)
    }
}

#[async_trait]
impl<F: Fn() + Send + Sync> FailPoints for HookFailPoint<F> {
    async fn hit(&self, fail_point: &'static str) {
        if fail_point == self.0 {
            (self.1)();
        }
    }
}
