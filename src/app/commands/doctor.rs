//! `turnwheel doctor`: runs all checks and prints the report.

use std::io::Write as _;
use std::path::PathBuf;

use crate::app::commands::{agents, read_settings};
use crate::app::{App, checks, model};
use crate::azure::credential::Credentials;
use crate::doctor::{self, Format};

/// Options of the command.
pub(super) struct Examined {
    /// `None`: the folder of the settings.
    pub(super) agents: Option<PathBuf>,
    pub(super) data: PathBuf,
    /// True to make no request to another machine.
    pub(super) is_offline: bool,
}

pub(super) fn examine(app: &App, examined: &Examined, format: Format) -> u8 {
    let is_offline = examined.is_offline;
    let read = read_settings();
    let mut checks = doctor::configuration_checks(&read);
    if let Ok(program) = std::env::current_exe() {
        checks.push(doctor::program_check(&program));
    }
    if let Ok(settings) = &read {
        let credentials = Credentials::default();
        let scope = model::token_scope(settings);
        let identities =
            doctor::identity_checks(settings, scope.as_deref(), &credentials, is_offline);
        checks.extend(checks::block_on_value(identities).unwrap_or_default());
        let storage = checks::storage_check(settings, &credentials, is_offline);
        checks.extend(checks::block_on_value(storage).flatten());
        let store = checks::store_check(settings, &credentials, (&examined.data, is_offline));
        checks.extend(checks::block_on_value(store).unwrap_or_default());
        let agents = agents(app, settings, examined.agents.clone());
        let folder = examined.agents.as_ref().unwrap_or(&settings.agents_dir);
        checks.extend(checks::agent_checks(settings, folder, &agents));
        checks.push(checks::model_check(settings, &credentials, is_offline));
        checks.extend(
            agents
                .ok()
                .and_then(|loaded| checks::price_check(settings, &credentials, &loaded.catalog)),
        );
    }
    let report = doctor::Report::new(checks);
    let _ = write!(std::io::stdout(), "{}", report.render(format));
    report.exit_status()
}
