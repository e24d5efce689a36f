//! Shell tools of an app, by its settings.

use std::sync::Arc;

use crate::start::start_error::{StartError, io_error};
use turnwheel_azure::credential::Credentials;
use turnwheel_platform::settings::ServiceSettings;
use turnwheel_platform::settings::shell::ShellMode;
use turnwheel_tools::CallableTool;
use turnwheel_tools::shell::ShellRunner;
#[cfg(target_os = "linux")]
use turnwheel_tools::shell::sandbox::SandboxRunner;
use turnwheel_tools::shell::sessions::SessionRunner;
use turnwheel_tools::shell::sessions::client::PoolClient;
use turnwheel_tools::shell::tool::shell_tools;

/// The tools `bash` and `shell`; none if they are off.
///
/// # Errors
/// Returns the error to print before exit: there is no sandbox on this system, no randomness, or
/// the TLS set-up failed.
pub(crate) fn find_shell_tools(
    settings: &ServiceSettings,
    credentials: &Credentials,
) -> Result<Vec<Arc<dyn CallableTool>>, StartError> {
    let runner: Arc<dyn ShellRunner> = match &settings.shell {
        ShellMode::Off => return Ok(Vec::new()),
        ShellMode::Sandbox => sandbox()?,
        ShellMode::Sessions(pool) => {
            let tokens = credentials.token_source(&settings.identity);
            let client = PoolClient::new(pool.clone(), tokens).map_err(io_error("set up TLS"))?;
            let signing_key = settings.signing_keys.first().map(|key| key.reveal().as_slice());
            let runner = SessionRunner::new(client, signing_key);
            Arc::new(runner.map_err(io_error("create the key of the sessions"))?)
        }
    };
    Ok(shell_tools(&runner))
}

#[cfg(target_os = "linux")]
#[expect(clippy::unnecessary_wraps, reason = "other systems have no sandbox")]
pub(crate) fn sandbox() -> Result<Arc<dyn ShellRunner>, StartError> {
    Ok(Arc::new(SandboxRunner::new()))
}

#[cfg(not(target_os = "linux"))]
pub(crate) fn sandbox() -> Result<Arc<dyn ShellRunner>, StartError> {
    Err(StartError::Settings(vec![
        "TURNWHEEL_SHELL=sandbox needs Linux: set TURNWHEEL_SHELL=off".to_owned(),
    ]))
}
