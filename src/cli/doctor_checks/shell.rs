//! Check of the runner of shell commands.

use crate::doctor::{Area, Check};
use crate::start::shell::sandbox;
use turnwheel_azure::credential::Credentials;
use turnwheel_platform::ids::{ConversationId, ConversationKey, TenantId, UserId};
use turnwheel_platform::settings::ServiceSettings;
use turnwheel_platform::settings::shell::ShellMode;
use turnwheel_tools::shell::sessions::client::{PoolClient, PoolFailure};
use turnwheel_tools::shell::{ShellCommandEnd, ShellRequest};

const NAME: &str = "shell commands";

/// Runs a command without effect in the sandbox, or reads the metadata of the session pool, which
/// starts no session. `None`: shell tools are off.
pub(crate) async fn shell_check(
    settings: &ServiceSettings,
    credentials: &Credentials,
    is_offline: bool,
) -> Option<Check> {
    let outcome = match &settings.shell {
        ShellMode::Off => return None,
        ShellMode::Sandbox => check_sandbox().await.map(|()| "the sandbox can be set up"),
        ShellMode::Sessions(_) if is_offline => {
            return Some(Check::skipped(Area::Agents, NAME, "not checked (--offline)"));
        }
        ShellMode::Sessions(pool) => {
            let tokens = credentials.token_source(&settings.identity);
            match PoolClient::new(pool.clone(), tokens) {
                Ok(client) => client.check().await.map_err(PoolFailure::into_text),
                Err(error) => Err(format!("TLS cannot be set up: {error}")),
            }
            .map(|()| "the session pool accepts the app's identity")
        }
    };
    Some(match outcome {
        Ok(text) => Check::ok(Area::Agents, NAME, text),
        Err(text) => Check::fix(Area::Agents, NAME, text),
    })
}

async fn check_sandbox() -> Result<(), String> {
    let runner = sandbox().map_err(|error| error.to_string())?;
    let key = ConversationKey {
        tenant: TenantId::new("doctor"),
        user: UserId::new("doctor"),
        conversation_id: ConversationId::new("doctor"),
    };
    let request = ShellRequest::new(key, "true".to_owned());
    let outcome = runner.run(request).await.map_err(|error| error.to_string())?;
    if outcome.end == ShellCommandEnd::Exited(0) {
        return Ok(());
    }
    let output = String::from_utf8_lossy(&outcome.output);
    Err(format!("a command without effect ended with {:?}: {output}", outcome.end))
}
