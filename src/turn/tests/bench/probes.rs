//! Fail points that crash, pause or run a closure; and clocks with an offset.

use std::fmt;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use async_trait::async_trait;
use tokio::sync::{Notify, watch};
use tokio::time::Instant;

use super::Scene;
use crate::clock::{Clock, Timestamp, millis};
use crate::ids::fate::Fate;
use crate::turn::Probe;

/// Wall and monotonic time of the paused runtime; only sleeping advances it.
#[derive(Clone, Copy, Debug)]
pub(in crate::turn::tests) struct RuntimeClock {
    pub(super) began: Instant,
    /// Offset of the wall clock from the slowest.
    pub(super) ahead: Duration,
}

impl Clock for RuntimeClock {
    fn now(&self) -> Timestamp {
        Timestamp(1_800_000_000_000 + millis(self.began.elapsed() + self.ahead))
    }

    fn monotonic(&self) -> Duration {
        self.began.elapsed()
    }
}

/// Crashes its worker at fail points, with the configured chance.
#[derive(Debug)]
pub(super) struct CrashProbe {
    pub(super) dice: Mutex<fastrand::Rng>,
    /// Replaces `rng`.
    pub(super) fate: Option<Fate>,
    /// The conversation of the worker's delivery.
    pub(super) at: String,
    pub(super) in_a_hundred: u8,
    /// True if each tool call crashes the worker.
    pub(super) is_killed_by_calls: bool,
    /// True if a conversation of this environment kills its processes, so that the blame is
    /// checked.
    pub(super) is_judged: bool,
    /// Chance in percent that the worker stalls.
    pub(super) still_in_a_hundred: u8,
    /// Shared by the workers of one process, which crash together.
    pub(super) crashed: Arc<watch::Sender<Option<&'static str>>>,
    pub(super) scene: Scene,
}

/// Longest stall between the last lease check and the call.
const SENDING_MAX: Duration = Duration::from_secs(15);
/// Longer than a lease lasts.
const STILL_MAX: Duration = Duration::from_secs(150);

impl CrashProbe {
    async fn stand_still(&self, boundary: &str) {
        const STILL: &str = "a worker stood still";
        let Some(fate) = self.fate.as_ref().filter(|_| self.still_in_a_hundred > 0) else { return };
        let at = format!("{} {boundary}", self.at);
        if fate.says(STILL, &at, f64::from(self.still_in_a_hundred) / 100.0) {
            // The margins of lease and tool time-out bound the time after the last check; no
            // guarantee covers a longer stall.
            let most = if boundary == "tool.before" { SENDING_MAX } else { STILL_MAX };
            let most = u64::try_from(most.as_millis()).unwrap();
            tokio::time::sleep(Duration::from_millis(fate.size(STILL, &at, most))).await;
        }
    }
}

#[async_trait]
impl Probe for CrashProbe {
    async fn reached(&self, boundary: &'static str) {
        self.scene.reached(boundary);
        let is_killed = self.is_killed_by_calls && boundary == "tool.before";
        let is_crash = is_killed
            || match &self.fate {
                Some(_) if self.in_a_hundred == 0 => false,
                Some(fate) => {
                    let at = format!("{} {boundary}", self.at);
                    fate.says("a worker crashed", &at, f64::from(self.in_a_hundred) / 100.0)
                }
                None => self.dice.lock().unwrap().u8(0..100) < self.in_a_hundred,
            };
        self.stand_still(boundary).await;
        if is_crash && self.crashed.send_if_modified(|at| at.replace(boundary).is_none()) {
            std::future::pending::<()>().await;
        }
    }
}

/// Pauses its worker at the first hit, until it is resumed.
#[derive(Debug)]
pub(in crate::turn::tests) struct PauseProbe {
    at: &'static str,
    was_reached: AtomicBool,
    pub(in crate::turn::tests) reached: Notify,
    pub(in crate::turn::tests) go: Notify,
}

impl PauseProbe {
    pub(in crate::turn::tests) fn new(at: &'static str) -> Self {
        Self { at, was_reached: AtomicBool::new(false), reached: Notify::new(), go: Notify::new() }
    }
}

#[async_trait]
impl Probe for PauseProbe {
    async fn reached(&self, boundary: &'static str) {
        if boundary == self.at && !self.was_reached.swap(true, Ordering::SeqCst) {
            self.reached.notify_one();
            self.go.notified().await;
        }
    }
}

/// Runs a closure at each hit.
pub(in crate::turn::tests) struct HookProbe<F>(
    pub(in crate::turn::tests) &'static str,
    pub(in crate::turn::tests) F,
);

impl<F> fmt::Debug for HookProbe<F> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.0)
    }
}

#[async_trait]
impl<F: Fn() + Send + Sync> Probe for HookProbe<F> {
    async fn reached(&self, boundary: &'static str) {
        if boundary == self.0 {
            (self.1)();
        }
    }
}
