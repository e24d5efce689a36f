//! `TURNWHEEL_SHELL` and `TURNWHEEL_SHELL_POOL`: where shell tools run commands.

use url::Url;

use super::azure::parse_endpoint;
use super::mistake::SettingMistake;
use super::reader::Reader;

const MODE: &str = "TURNWHEEL_SHELL";
const POOL: &str = "TURNWHEEL_SHELL_POOL";
const EXPECTED_IN_AZURE: &str =
    "`off` or `sessions`: in Azure no command runs beside the app's identity";
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
                reader.add_mistake(SettingMistake::new(POOL, &mistake));
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

#[cfg(test)]
mod tests {
    use super::super::ServiceSettings;
    use super::*;

    fn read(pairs: &[(&'static str, &'static str)]) -> Result<ShellMode, String> {
        let pairs = pairs.to_vec();
        let read = ServiceSettings::read(move |wanted| {
            pairs.iter().find(|(name, _)| *name == wanted).map(|(_, value)| (*value).to_owned())
        });
        read.map(|settings| settings.shell)
            .map_err(|mistakes| mistakes.iter().map(ToString::to_string).collect())
    }

    const POOL_ADDRESS: &str = "https://pool.env.westeurope.azurecontainerapps.io";

    #[test]
    fn shell_is_off_unless_it_is_set() {
        assert_eq!(read(&[]), Ok(ShellMode::Off));
        assert_eq!(read(&[(POOL, POOL_ADDRESS)]), Ok(ShellMode::Off));
        assert_eq!(read(&[(MODE, "sandbox")]), Ok(ShellMode::Sandbox));
        let sessions = read(&[(MODE, "sessions"), (POOL, POOL_ADDRESS)]);
        assert_eq!(sessions, Ok(ShellMode::Sessions(Url::parse(POOL_ADDRESS).unwrap())));
        let error = read(&[(MODE, "on")]).unwrap_err();
        assert!(error.contains("`off`, `sandbox` or `sessions`"), "{error}");
    }

    #[test]
    fn sandbox_is_refused_in_azure() {
        let in_azure = |mode| read(&[("WEBSITE_SKU", "FlexConsumption"), (MODE, mode)]);
        let error = in_azure("sandbox").unwrap_err();
        assert!(error.contains("in Azure no command runs beside the app's identity"), "{error}");
        assert!(!in_azure("off").err().unwrap_or_default().contains(MODE));
    }

    #[test]
    fn sessions_need_a_pool_that_is_no_plain_http_address() {
        let error = read(&[(MODE, "sessions")]).unwrap_err();
        assert!(error.contains("TURNWHEEL_SHELL_POOL is missing"), "{error}");
        let error = read(&[(MODE, "sessions"), (POOL, "http://pool.example")]).unwrap_err();
        assert!(error.contains("TURNWHEEL_SHELL_POOL is"), "{error}");
        assert!(!error.contains("is missing"), "one finding: {error}");
    }
}
