//! The end of a process that the Functions host started. The host kills it without a signal, or
//! leaves it behind: see `docs/operating.md`, "Stopping".

use std::sync::Arc;
use std::time::Duration;

use tokio_util::sync::CancellationToken;

use crate::app::work_file::WorkFile;
use crate::digest::sha256_hex;
use crate::services::Services;
use crate::settings::Settings;
use crate::shutdown::{Shutdown, StopTimes};
use crate::turn::crash_count;

/// Exit code of a process that ends by itself. After 0 the host starts no other one, and after the
/// third of any other code it stops.
pub(super) const RESTART: u8 = 200;

/// After a stop signal. The host lets invocations run for 10 s.
const AFTER_SIGNAL: StopTimes =
    StopTimes { repeatable: Duration::from_secs(4), writes: Duration::from_secs(9) };
/// Time after a stop signal in which the host ends this process.
const HOST_END_MAX: Duration = Duration::from_secs(12);
/// Without a host nobody reads the outcome of a call.
const WITHOUT_HOST: StopTimes =
    StopTimes { repeatable: Duration::from_secs(3), writes: Duration::from_secs(4) };
/// Time in which a process without its host ends.
const LEAVE_MAX: Duration = Duration::from_secs(5);
/// Interval of the checks for the host.
const PARENT_CHECK_INTERVAL: Duration = Duration::from_secs(1);

/// Time in which a start looks for dead processes: the former one may still be ending.
const DEAD_CHECKS: u32 = 10;
const DEAD_CHECK_INTERVAL: Duration = Duration::from_secs(1);

/// The file of this process, in a folder of this app in the machine's temporary folder.
pub(super) fn create_work_file(settings: &Settings, services: &Services) -> Option<Arc<WorkFile>> {
    let folder = std::env::current_dir().unwrap_or_default();
    let site = settings.app_setting("WEBSITE_SITE_NAME").unwrap_or_default();
    let app = sha256_hex(format!("{site}\n{}", folder.display()).as_bytes());
    let name: String = app.chars().take(16).collect();
    let folder = std::env::temp_dir().join(format!("turnwheel-{name}"));
    match WorkFile::create(&folder, &services.worker) {
        Ok(file) => Some(Arc::new(file)),
        Err(error) => {
            tracing::warn!(error = %error, folder = %folder.display(), "work file not created: after a crash, turns continue when their leases end");
            None
        }
    }
}

/// Ends the leases of dead processes of this machine, so that their turns continue at once.
pub(super) async fn recover_dead_processes(services: Arc<Services>, work_file: Arc<WorkFile>) {
    for _ in 0..DEAD_CHECKS {
        for process in work_file.take_dead() {
            for key in process.conversations {
                let recovered =
                    crash_count::recover_from_process(&services, &key, &process.worker).await;
                if let Err(error) = recovered {
                    tracing::warn!(conversation.id = %key.conversation_id, error = %error, "turn of a dead process not taken over: it continues when its lease ends");
                }
            }
        }
        tokio::time::sleep(DEAD_CHECK_INTERVAL).await;
    }
}

/// Serves until this process has to end: some time after a stop signal, or when the host is gone.
/// The port stays open meanwhile, since the host still sends requests.
pub(super) async fn wait_for_end(shutdown: &Shutdown, stop: CancellationToken) {
    let host = HostProcess::parent();
    tokio::select! {
        () = stop.cancelled() => {
            shutdown.begin(AFTER_SIGNAL);
            tokio::select! {
                () = tokio::time::sleep(HOST_END_MAX) => return,
                () = host.wait_until_gone() => {}
            }
        }
        () = host.wait_until_gone() => {}
    }
    tracing::warn!("service stopping: the Functions host is gone");
    shutdown.begin(WITHOUT_HOST);
    let _ = tokio::time::timeout(LEAVE_MAX, shutdown.wait_for_work()).await;
}

/// The process that started this one.
#[derive(Clone, Copy, Debug)]
struct HostProcess {
    #[cfg(unix)]
    id: u32,
}

impl HostProcess {
    fn parent() -> Self {
        Self {
            #[cfg(unix)]
            id: std::os::unix::process::parent_id(),
        }
    }

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
