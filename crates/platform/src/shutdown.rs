//! The end of a process that the Functions host runs: no work begins, and work under way is given
//! back to another process.

use std::sync::Arc;
use std::time::Duration;

use serde::{Deserialize, Serialize};
use tokio::sync::watch;
use tokio::time::Instant;
use tokio_util::task::TaskTracker;

/// Time that work under way has from the beginning of the end.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct StopTimes {
    /// Model calls, and tool calls that can be repeated.
    pub repeatable: Duration,
    /// Tool calls whose lost response an approver has to settle.
    pub writes: Duration,
}

#[derive(Clone, Copy, Debug)]
struct Deadlines {
    began: Instant,
    repeatable: Instant,
    writes: Instant,
}

impl Deadlines {
    fn times_left(self) -> StopTimes {
        let now = Instant::now();
        StopTimes {
            repeatable: self.repeatable.saturating_duration_since(now),
            writes: self.writes.saturating_duration_since(now),
        }
    }
}

/// The state that all parts of the process share.
#[derive(Clone, Debug)]
pub struct Shutdown {
    deadlines: Arc<watch::Sender<Option<Deadlines>>>,
    /// `None`: the flush of telemetry has its usual time.
    flush_until: Arc<watch::Sender<Option<Instant>>>,
    work: TaskTracker,
}

impl Default for Shutdown {
    fn default() -> Self {
        Self {
            deadlines: Arc::new(watch::Sender::new(None)),
            flush_until: Arc::new(watch::Sender::new(None)),
            work: TaskTracker::new(),
        }
    }
}

impl Shutdown {
    /// Begins the end. Of two calls the earlier deadlines count.
    pub fn begin(&self, times: StopTimes) {
        let now = Instant::now();
        self.deadlines.send_modify(|current| {
            let new = Deadlines {
                began: now,
                repeatable: now + times.repeatable,
                writes: now + times.writes,
            };
            *current = Some(current.map_or(new, |before| Deadlines {
                began: before.began,
                repeatable: before.repeatable.min(new.repeatable),
                writes: before.writes.min(new.writes),
            }));
        });
    }

    /// True if no work may begin.
    pub fn is_begun(&self) -> bool {
        self.deadlines.borrow().is_some()
    }

    /// The moment from which no work may begin: now, if the end has not begun.
    pub fn began_at(&self) -> Instant {
        self.deadlines.borrow().map_or_else(Instant::now, |deadlines| deadlines.began)
    }

    /// Completes when no work may begin.
    pub async fn wait_until_begun(self) {
        let mut deadlines = self.deadlines.subscribe();
        // Fails only without a sender, which `self` holds.
        let _ = deadlines.wait_for(Option::is_some).await;
    }

    /// Time that work under way has from now. `None`: the end has not begun.
    pub fn times_left(&self) -> Option<StopTimes> {
        self.deadlines.borrow().map(Deadlines::times_left)
    }

    /// Forwards the times that are left when the end begins, and again when it is begun anew. Never
    /// completes.
    pub async fn forward_times(&self, mut forward: impl FnMut(StopTimes)) {
        let mut deadlines = self.deadlines.subscribe();
        loop {
            let current = *deadlines.borrow_and_update();
            if let Some(current) = current {
                forward(current.times_left());
            }
            // Fails only without a sender, which `self` has.
            let _ = deadlines.changed().await;
        }
    }

    /// Completes when work under way must stop.
    pub async fn wait_for_deadline(&self, has_write: bool) {
        let mut deadlines = self.deadlines.subscribe();
        loop {
            let current = *deadlines.borrow_and_update();
            let until = current.map(|it| if has_write { it.writes } else { it.repeatable });
            let over = async {
                match until {
                    Some(until) => tokio::time::sleep_until(until).await,
                    None => std::future::pending().await,
                }
            };
            tokio::select! {
                () = over => return,
                _ = deadlines.changed() => {}
            }
        }
    }

    /// True if work under way has stopped. Requests that still arrive begin after that.
    pub fn is_work_stopped(&self) -> bool {
        self.deadlines.borrow().is_some_and(|deadlines| deadlines.writes <= Instant::now())
    }

    /// Telemetry is flushed within this time from now.
    pub fn limit_flush(&self, time: Duration) {
        self.flush_until.send_replace(Some(Instant::now() + time));
    }

    /// Time that is left for the flush of telemetry. `None`: its usual time.
    pub fn flush_time_left(&self) -> Option<Duration> {
        self.flush_until.borrow().map(|until| until.saturating_duration_since(Instant::now()))
    }

    /// Runs a task that ends by itself, also if nobody waits for it any more.
    pub fn spawn(&self, task: impl Future<Output = ()> + Send + 'static) {
        self.work.spawn(task);
    }

    /// Completes when all tasks have ended and no further one begins.
    pub async fn wait_for_work(&self) {
        self.work.close();
        self.work.wait().await;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn seconds(repeatable: u64, writes: u64) -> StopTimes {
        StopTimes {
            repeatable: Duration::from_secs(repeatable),
            writes: Duration::from_secs(writes),
        }
    }

    #[tokio::test(start_paused = true)]
    async fn earlier_deadlines_count() {
        let shutdown = Shutdown::default();
        let start = Instant::now();
        let writer = shutdown.clone();
        #[expect(clippy::disallowed_methods, reason = "the test awaits the task")]
        let writer = tokio::task::spawn(async move {
            writer.wait_for_deadline(true).await;
            Instant::now()
        });
        assert!(!shutdown.is_begun());
        tokio::time::sleep(Duration::from_secs(1)).await;
        shutdown.begin(seconds(4, 9));
        assert!(shutdown.is_begun());
        shutdown.wait_for_deadline(false).await;
        assert_eq!(start.elapsed(), Duration::from_secs(5));
        shutdown.begin(seconds(4, 4));
        shutdown.begin(seconds(60, 60));
        assert_eq!(writer.await.unwrap() - start, Duration::from_secs(9));
    }

    #[tokio::test(start_paused = true)]
    async fn times_left_are_forwarded_at_each_begin() {
        let shutdown = Shutdown::default();
        assert_eq!(shutdown.times_left(), None);
        let second = Duration::from_secs(1);
        let mut forwarded = Vec::new();
        let ending = async {
            tokio::time::sleep(second).await;
            shutdown.begin(seconds(4, 9));
            tokio::time::sleep(second).await;
            shutdown.begin(seconds(2, 60));
            tokio::time::sleep(second).await;
        };
        tokio::select! {
            () = shutdown.forward_times(|times| forwarded.push(times)) => {}
            () = ending => {}
        }
        assert_eq!(forwarded, [seconds(4, 9), seconds(2, 8)]);
        assert_eq!(shutdown.times_left(), Some(seconds(1, 7)));
    }

    #[tokio::test(start_paused = true)]
    async fn work_is_waited_for() {
        let shutdown = Shutdown::default();
        shutdown.spawn(tokio::time::sleep(Duration::from_secs(3)));
        let start = Instant::now();
        shutdown.wait_for_work().await;
        assert_eq!(start.elapsed(), Duration::from_secs(3));
    }
}
