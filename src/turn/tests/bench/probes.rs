//! What happens at boundaries: a crash, a pause, a hook; and clocks that are wrong.

use std::fmt;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use async_trait::async_trait;
use tokio::sync::{Notify, watch};
use tokio::time::Instant;

use crate::clock::{Clock, Timestamp, millis};
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
    pub(super) in_a_hundred: u8,
    /// Shared by workers of one process: they die together.
    pub(super) crashed: Arc<watch::Sender<Option<&'static str>>>,
}

#[async_trait]
impl Probe for CrashProbe {
    async fn reached(&self, boundary: &'static str) {
        let is_crash = self.dice.lock().unwrap().u8(0..100) < self.in_a_hundred;
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
