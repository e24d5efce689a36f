//! The end of a process that the Functions host started. The host kills it without a signal, or
//! leaves it behind: see `docs/operating.md`, "Stopping".

use std::time::Duration;

use tokio_util::sync::CancellationToken;

use turnwheel_platform::shutdown::{Shutdown, StopTimes};

/// Exit code of a process that ends by itself. After 0 the host starts no other one, and after the
/// third of any other code it stops.
pub(crate) const RESTART: u8 = 200;

/// After a stop signal. The host lets invocations run for 10 s.
const AFTER_SIGNAL: StopTimes =
    StopTimes { repeatable: Duration::from_secs(4), writes: Duration::from_secs(9) };
/// Time after a stop signal in which the host ends this process.
const HOST_END_MAX: Duration = Duration::from_secs(12);
/// Without a host nobody reads the outcome of a call. With a check interval before and the flush of
/// telemetry after it, the process ends within 5 s.
const WITHOUT_HOST: StopTimes =
    StopTimes { repeatable: Duration::from_secs(2), writes: Duration::from_secs(3) };
/// Time in which work ends in a process without its host.
const LEAVE_MAX: Duration = Duration::from_millis(3_500);
/// Time in which telemetry is flushed in a process without its host.
const FLUSH_WITHOUT_HOST: Duration = Duration::from_secs(2);
/// Interval of the checks for the host.
const PARENT_CHECK_INTERVAL: Duration = Duration::from_secs(1);

/// Serves until this process has to end: some time after a stop signal, or when the host is gone.
/// The port stays open meanwhile, since the host still sends requests.
pub(crate) async fn wait_for_end(host: HostProcess, shutdown: &Shutdown, stop: CancellationToken) {
    tokio::select! {
        () = stop.cancelled() => {
            shutdown.begin(AFTER_SIGNAL);
            tokio::select! {
                () = tokio::time::sleep_until(shutdown.began_at() + HOST_END_MAX) => return,
                () = host.wait_until_gone() => {}
            }
        }
        () = host.wait_until_gone() => {}
    }
    leave_without_host(shutdown).await;
}

/// Completes when the host is gone and work has ended. For a process with the built-in host.
pub(crate) async fn leave_with_host(host: HostProcess, shutdown: &Shutdown) {
    host.wait_until_gone().await;
    leave_without_host(shutdown).await;
}

async fn leave_without_host(shutdown: &Shutdown) {
    tracing::warn!("service stopping: the Functions host is gone");
    shutdown.limit_flush(FLUSH_WITHOUT_HOST);
    shutdown.begin(WITHOUT_HOST);
    let _ = tokio::time::timeout(LEAVE_MAX, shutdown.wait_for_work()).await;
}

/// The process that started this one. Its id is read at the start: later, another process may be the
/// parent.
#[derive(Clone, Copy, Debug)]
pub struct HostProcess {
    #[cfg(unix)]
    id: u32,
}

impl Default for HostProcess {
    fn default() -> Self {
        Self {
            #[cfg(unix)]
            id: std::os::unix::process::parent_id(),
        }
    }
}

impl HostProcess {
    /// Completes when another process has become the parent: the host has ended.
    async fn wait_until_gone(self) {
        #[cfg(not(unix))]
        std::future::pending::<()>().await;
        #[cfg(unix)]
        while std::os::unix::process::parent_id() == self.id {
            tokio::time::sleep(PARENT_CHECK_INTERVAL).await;
        }
    }
}
