//! Checks of the settings, without network requests.

use std::path::Path;

use super::{Area, Check};
use turnwheel_devhost::program;
use turnwheel_platform::settings::ServiceSettings;
use turnwheel_platform::settings::links::{Auth, is_loopback};
use turnwheel_platform::settings::mistake::SettingMistake;
use turnwheel_platform::settings::model::Provider;

const AREA: Area = Area::Configuration;

/// Returns every mistake, or the effect of the settings. Never empty.
pub(crate) fn configuration_checks(
    read: &Result<ServiceSettings, Vec<SettingMistake>>,
) -> Vec<Check> {
    match read {
        Ok(settings) => {
            let mut checks = vec![Check::ok(AREA, "settings", "all settings are valid")];
            checks.extend([
                model_check(settings),
                auth_check(settings),
                public_url_check(settings),
                signing_keys_check(settings),
                webhook_check(settings),
            ]);
            checks.extend(missing_settings_checks(settings));
            checks
        }
        Err(mistakes) => mistakes
            .iter()
            .map(|mistake| Check::fix(AREA, &mistake.name, &mistake.problem))
            .collect(),
    }
}

/// Checks if Azure could start this program; on a machine with another system it need not.
pub(crate) fn program_check(program: &Path) -> Check {
    let found = match program::read_requirements(program) {
        Ok(needs) => needs.warning().unwrap_or_else(|| format!("{needs}: Azure can start it")),
        Err(misfit) => format!("runs here, but not in Azure: it {misfit}"),
    };
    Check::ok(AREA, "program", found)
}

/// Settings without which an app in Azure cannot serve requests.
fn missing_settings_checks(settings: &ServiceSettings) -> Vec<Check> {
    if !settings.is_in_azure {
        return Vec::new();
    }
    let missing = settings.missing_required();
    missing.iter().map(|mistake| Check::fix(AREA, &mistake.name, &mistake.problem)).collect()
}

fn model_check(settings: &ServiceSettings) -> Check {
    let name = "model";
    match &settings.model.provider {
        Provider::Scripted => {
            Check::ok(AREA, name, "the fake model (scripted), which TURNWHEEL_MODEL chooses")
        }
        Provider::Azure(azure) => Check::ok(AREA, name, azure.to_string()),
        Provider::Unset => Check::ok(
            AREA,
            name,
            "none: `dev` uses the fake model (scripted); for a real one set TURNWHEEL_MODEL and AZURE_OPENAI_BASE_URL, AZURE_OPENAI_ENDPOINT or AZURE_OPENAI_RESOURCE_NAME",
        ),
    }
}

fn auth_check(settings: &ServiceSettings) -> Check {
    let name = "auth";
    match settings.auth {
        None => Check::ok(AREA, name, "keys (`dev`: header)"),
        Some(Auth::SignIn) if settings.is_in_azure && !settings.is_sign_in_on => Check::fix(
            AREA,
            name,
            "TURNWHEEL_AUTH is easyauth, but the platform's sign-in is off, so no user can call: turn on Authentication for the app",
        ),
        Some(auth @ Auth::Header) if settings.is_in_azure => Check::ok(
            AREA,
            name,
            format!(
                "{}: a caller with a function key can act as any user, so give one only to a gateway",
                auth.into_str()
            ),
        ),
        Some(auth) => Check::ok(AREA, name, auth.into_str()),
    }
}

fn public_url_check(settings: &ServiceSettings) -> Check {
    let name = "public address";
    match settings.public_url.as_deref() {
        Some(url) if url.starts_with("http://") && !is_loopback(url) => Check::fix(
            AREA,
            name,
            format!(
                "{url} sends approval links without encryption: use https in TURNWHEEL_PUBLIC_URL"
            ),
        ),
        Some(url) => Check::ok(AREA, name, url),
        None => Check::skipped(
            AREA,
            name,
            "neither TURNWHEEL_PUBLIC_URL nor WEBSITE_HOSTNAME is set; `dev` uses its own address",
        ),
    }
}

fn signing_keys_check(settings: &ServiceSettings) -> Check {
    let name = "signing keys";
    match settings.signing_keys.len() {
        0 => Check::skipped(
            AREA,
            name,
            "none: `dev` makes one; to serve, set TURNWHEEL_SIGNING_KEYS (`head -c 32 /dev/urandom | base64`)",
        ),
        1 => Check::ok(AREA, name, "one; it signs and verifies"),
        count => Check::ok(AREA, name, format!("{count}; the first signs, all verify")),
    }
}

fn webhook_check(settings: &ServiceSettings) -> Check {
    let name = "webhook";
    match &settings.webhook {
        None => Check::skipped(
            AREA,
            name,
            "TURNWHEEL_WEBHOOK_URL is not set: no notifications of approval requests are sent",
        ),
        Some(webhook)
            if webhook.url.reveal().scheme() == "http"
                && !is_loopback(webhook.url.reveal().as_str()) =>
        {
            Check::fix(
                AREA,
                name,
                "TURNWHEEL_WEBHOOK_URL sends approval links without encryption: use https",
            )
        }
        // Its path may be a secret; the host name is not.
        Some(webhook) => Check::ok(
            AREA,
            name,
            format!(
                "{}, signed with {} secret(s)",
                webhook.url.reveal().host_str().unwrap_or("an address"),
                webhook.secrets.len()
            ),
        ),
    }
}
