//! The checks of `turnwheel doctor` for requests. A child process runs them: it reads the files and settings of the service
//! anew, as the command does.

use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use tokio::process::Command;
use tokio::sync::Mutex;

use crate::start::isolation::program_path;
use turnwheel_http::doctor::{Doctor, ServiceChecks};

/// The checks read files only. A busy machine takes seconds.
const TIMEOUT: Duration = Duration::from_secs(30);

/// The checks of a program that runs the commands of [`App::main`](crate::App::main).
pub(crate) fn create_doctor(data: &Path, agents: Option<&Path>) -> Arc<dyn Doctor> {
    Arc::new(ChildDoctor::new(data, agents))
}

/// Runs one child process at a time.
#[derive(Debug)]
struct ChildDoctor {
    arguments: Vec<PathBuf>,
    running: Mutex<()>,
}

impl ChildDoctor {
    /// `agents`: the folder of the agent files, if it is not that of the settings.
    fn new(data: &Path, agents: Option<&Path>) -> Self {
        let mut arguments: Vec<PathBuf> =
            ["doctor", "--offline", "--format", "json", "--data"].map(PathBuf::from).to_vec();
        arguments.push(data.to_owned());
        arguments.extend(agents.into_iter().flat_map(|it| ["--agents".into(), it.to_owned()]));
        Self { arguments, running: Mutex::new(()) }
    }
}

#[async_trait]
impl Doctor for ChildDoctor {
    async fn run_checks(&self) -> Result<ServiceChecks, String> {
        let _running = self.running.lock().await;
        let program = program_path().map_err(|error| format!("find the program: {error}"))?;
        let child = Command::new(program)
            .args(&self.arguments)
            .stdin(Stdio::null())
            // Ctrl-C in a terminal reaches only the parent.
            .process_group(0)
            .kill_on_drop(true)
            .output();
        let output = tokio::time::timeout(TIMEOUT, child).await;
        let output = output.map_err(|_| format!("no report within {TIMEOUT:?}"))?;
        let output = output.map_err(|error| format!("start the checks: {error}"))?;
        serde_json::from_slice(&output.stdout).map_err(|error| {
            format!("{}: {error}: {}", output.status, String::from_utf8_lossy(&output.stderr))
        })
    }
}
