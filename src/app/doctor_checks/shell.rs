//! Check of the session pool for shell commands.

use crate::azure::credential::Credentials;
use crate::doctor::{Area, Check};
use crate::settings::Settings;
use crate::tools::shell::sessions::client::PoolClient;

/// Reads the pool's metadata, which starts no session. `None`: no pool is configured.
pub(crate) async fn shell_pool_check(
    settings: &Settings,
    credentials: &Credentials,
    is_offline: bool,
) -> Option<Check> {
    let endpoint = settings.shell_pool.clone()?;
    let name = "session pool";
    if is_offline {
        return Some(Check::skipped(Area::Agents, name, "not checked (--offline)"));
    }
    let tokens = credentials.token_source(&settings.identity);
    let client = match PoolClient::new(endpoint, tokens) {
        Ok(client) => client,
        Err(error) => {
            return Some(Check::fix(Area::Agents, name, format!("TLS cannot be set up: {error}")));
        }
    };
    Some(match client.check().await {
        Ok(()) => Check::ok(Area::Agents, name, "accepts the app's identity"),
        Err(failure) => Check::fix(Area::Agents, name, failure.into_text()),
    })
}
