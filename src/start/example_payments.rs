//! The payments server of the example, which `dev` and `certify` start.

use std::path::Path;

use crate::start::start_error::{StartError, io_error};
use turnwheel_agent_files::payments::PaymentsServer;
use turnwheel_platform::digest::sha256_hex;
use turnwheel_platform::settings::ServiceSettings;

/// Settings with the address of the payments server, and that server if this process started it.
pub(crate) struct PreparedSettings {
    pub(crate) settings: ServiceSettings,
    pub(crate) payments: Option<PaymentsServer>,
}

/// The port of the payments server for a data folder. It is the same after a restart: an approval
/// covers the address of its call.
pub(crate) fn port_of(data: &Path) -> u16 {
    let folder = std::path::absolute(data).unwrap_or_else(|_| data.to_owned());
    let hash = sha256_hex(folder.to_string_lossy().as_bytes());
    let offset = hash.get(..3).and_then(|digits| u16::from_str_radix(digits, 16).ok());
    20_000 + offset.unwrap_or_default()
}

/// Starts the payments server of the example, unless the settings contain the address of another
/// server. A served app must not pay an example.
pub(crate) async fn start(
    settings: ServiceSettings,
    port: u16,
) -> Result<PreparedSettings, StartError> {
    let is_served = settings.port.is_some() || settings.is_in_azure;
    if settings.app_setting("PAYMENTS_URL").is_some() || is_served {
        return Ok(PreparedSettings { settings, payments: None });
    }
    let server = PaymentsServer::start_on(port)
        .await
        .map_err(io_error("start the payments server of the example"))?;
    let settings = settings.with_app_setting("PAYMENTS_URL", server.base_url.clone());
    Ok(PreparedSettings { settings, payments: Some(server) })
}
