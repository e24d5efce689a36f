//! Options of the service, from the command line or an app in Rust.

use std::path::{Path, PathBuf};
use std::time::Duration;

use crate::start::hosted_process::HostProcess;
use crate::start::ports::Storage;
use crate::start::supervisor::ReplacedProcess;
use turnwheel_platform::settings::ServiceSettings;
use turnwheel_platform::settings::mistake::SettingMistake;
use turnwheel_platform::shutdown::Shutdown;
use turnwheel_platform::telemetry::Telemetry;

/// A process with a supervisor.
#[derive(Clone, Debug)]
pub struct Supervision {
    /// The killed process that this one replaces.
    pub(crate) replaced: Option<ReplacedProcess>,
}

/// How long the child of a supervisor waits for the port of its killed predecessor.
const PORT_WAIT: Duration = Duration::from_secs(15);

/// Folders, ports and mode of the service.
#[derive(Clone, Debug, Default)]
pub struct ServiceOptions {
    /// Folder of `host.json` and `functions/`. If they are missing, the embedded copies are used.
    pub root: PathBuf,
    /// Data folder.
    pub data: PathBuf,
    /// Folder of the agent files. `None`: the folder of the settings.
    pub agents: Option<PathBuf>,
    /// Port of the local host; 0 selects a free port.
    pub port: u16,
    /// Port of the handler; 0 selects a free port.
    pub handler_port: u16,
    pub storage: Storage,
    /// True if a Functions host drives the handler. Then no local host is started.
    pub is_hosted: bool,
    /// True for a developer's machine: changed agent files take effect at once, and the start fails
    /// without a model.
    pub is_dev: bool,
    /// Set in a process that a supervisor starts again after a kill.
    pub supervision: Option<Supervision>,
    /// Telemetry. The default emits nothing.
    pub telemetry: Telemetry,
    /// Begins the end of the process.
    pub shutdown: Shutdown,
    /// The process that started this one, which ends without it if a Functions host is in front.
    pub host_process: HostProcess,
}

impl ServiceOptions {
    /// How long the start waits for a port that is taken.
    pub(crate) fn port_wait(&self) -> Duration {
        let replaced = self.supervision.as_ref().and_then(|it| it.replaced.as_ref());
        replaced.map_or(Duration::ZERO, |_| PORT_WAIT)
    }
}

/// Settings of this machine: environment variables, then `local.settings.json`.
pub(crate) fn read_settings() -> Result<ServiceSettings, Vec<SettingMistake>> {
    ServiceSettings::from_folder(Path::new("."))
}
