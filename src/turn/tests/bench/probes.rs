//! What happens at boundaries: a crash, a pause, a hook; and clocks that are wrong.

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

/// Wall and monotonic time of the paused runtime: sleeping moves it.
#[derive(Clone, Copy, Debug)]
pub(in crate::turn::tests) struct RuntimeClock {
    pub(super) began: Instant,
    /// How much the wall clock is ahead of the slowest.
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

/// Stops its worker at a boundary, some of the time.
#[derive(Debug)]
pub(super) struct CrashProbe {
    pub(super) dice: Mutex<fastrand::Rng>,
    /// Decides in the place of the dice.
    pub(super) fate: Option<Fate>,
    /// The conversation that its worker was called for.
    pub(super) at: String,
    pub(super) in_a_hundred: u8,
    /// Whether each of its tool calls stops it.
    pub(super) is_killed_by_calls: bool,
    /// Whether a conversation of this bench kills its processes, so that blame is judged.
    pub(super) is_judged: bool,
    /// How often it stands still instead.
    pub(super) still_in_a_hundred: u8,
    /// Shared by workers of one process: they die together.
    pub(super) crashed: Arc<watch::Sender<Option<&'static str>>>,
    pub(super) scene: Scene,
}

/// Between the last look at the claim and the call.
const SENDING_MAX: Duration = Duration::from_secs(15);
/// Longer than a claim holds.
const STILL_MAX: Duration = Duration::from_secs(150);

impl CrashProbe {
    async fn stand_still(&self, boundary: &str) {
        const STILL: &str = "a worker stood still";
        let Some(fate) = self.fate.as_ref().filter(|_| self.still_in_a_hundred > 0) else { return };
        let at = format!("{} {boundary}", self.at);
        if fate.says(STILL, &at, f64::from(self.still_in_a_hundred) / 100.0) {
            // What a claim and a tool's time-out allow lies behind the last look at them: no promise goes further.
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

/// Holds its worker at the first time it comes by, until it is let go.
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

/// Does something each time a worker comes by.
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
