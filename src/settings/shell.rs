//! `TURNWHEEL_SHELL` and `TURNWHEEL_SHELL_POOL`: where shell tools run commands.

use url::Url;

use super::azure::parse_endpoint;
use super::mistake::Mistake;
use super::reader::Reader;

const MODE: &str = "TURNWHEEL_SHELL";
const POOL: &str = "TURNWHEEL_SHELL_POOL";
const EXPECTED_IN_AZURE: &str = "`off` or `sessions`: in Azure no command runs beside the app's identity";
const EXPECTED: &str = "`off`, `sandbox` or `sessions`";
const EXPECTED_POOL: &str = "the management endpoint of a session pool, such as https://my-pool.my-environment.westeurope.azurecontainerapps.io (`az containerapp sessionpool show --query properties.poolManagementEndpoint`)";

/// Runner of shell tools.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum ShellMode {
    #[default]
    Off,
    /// On this machine; never in Azure, where the process has the identity of the app.
    Sandbox,
    /// In the session pool of Container Apps with that management endpoint.
    Sessions(Url),
}

pub(super) fn read(reader: &mut Reader<'_>) -> ShellMode {
    let is_in_azure = reader.is_in_azure();
    let pool_text = reader.get(POOL);
    let pool = reader.parse(POOL, EXPECTED_POOL, parse_endpoint);
    let expected = if is_in_azure { EXPECTED_IN_AZURE } else { EXPECTED };
    let mode = reader.parse(MODE, expected, |text| parse(text, is_in_azure)).unwrap_or_default();
    match (mode, pool) {
        (Mode::Off, _) => ShellMode::Off,
        (Mode::Sandbox, _) => ShellMode::Sandbox,
        (Mode::Sessions, Some(pool)) => ShellMode::Sessions(pool),
        (Mode::Sessions, None) => {
            if pool_text.is_none() {
                let mistake = format!("is missing, but {MODE} is `sessions`: set {EXPECTED_POOL}");
                reader.add_mistake(Mistake::new(POOL, &mistake));
            }
            ShellMode::Off
        }
    }
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum Mode {
    #[default]
    Off,
    Sandbox,
    Sessions,
}

fn parse(text: &str, is_in_azure: bool) -> Option<Mode> {
    match text {
        "off" => Some(Mode::Off),
        "sandbox" if !is_in_azure => Some(Mode::Sandbox),
        "sessions" => Some(Mode::Sessions),
        _ => None,
    }
}
