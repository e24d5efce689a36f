//! `turnwheel doctor`: runs all checks and prints the report.

use std::io::Write as _;
use std::path::{Path, PathBuf};

use crate::app::App;
use crate::cli::commands::load_agents;
use crate::cli::doctor_checks;
use crate::doctor::{self, Format};
use crate::start::options::read_settings;
use crate::start::{deployed_functions, model};
use turnwheel_azure::credential::Credentials;

/// Options of the command.
pub(super) struct DoctorOptions {
    /// `None`: the folder of the settings.
    pub(super) agents: Option<PathBuf>,
    pub(super) data: PathBuf,
    /// True to make no request to another machine.
    pub(super) is_offline: bool,
}

pub(super) fn run_doctor(app: &App, options: &DoctorOptions, format: Format) -> u8 {
    let is_offline = options.is_offline;
    let read = read_settings();
    let mut checks = doctor::configuration_checks(&read);
    if let Ok(program) = std::env::current_exe() {
        checks.push(doctor::program_check(&program));
    }
    if let Ok(settings) = &read {
        checks.extend(deployed_functions::function_checks(settings, Path::new(".")));
        let credentials = Credentials::default();
        let scope = model::token_scope(settings);
        let identities =
            doctor::identity_checks(settings, scope.as_deref(), &credentials, is_offline);
        checks.extend(doctor_checks::block_on_value(identities).unwrap_or_default());
        let storage = doctor_checks::storage_check(settings, &credentials, is_offline);
        checks.extend(doctor_checks::block_on_value(storage).flatten());
        let shell = doctor_checks::shell_check(settings, &credentials, is_offline);
        checks.extend(doctor_checks::block_on_value(shell).flatten());
        let store = doctor_checks::store_check(settings, &credentials, &options.data, is_offline);
        checks.extend(doctor_checks::block_on_value(store).unwrap_or_default());
        let agents = load_agents(app, settings, options.agents.clone(), !settings.is_in_azure);
        let folder = options.agents.as_ref().unwrap_or(&settings.agents_dir);
        checks.extend(doctor_checks::agent_checks(settings, folder, &agents));
        let servers = agents.as_ref().map(|loaded| &loaded.mcp);
        let (credentials, data) = (&credentials, options.data.as_path());
        let location = doctor_checks::StoreLocation { settings, credentials, data };
        let servers = servers.map(|mcp| doctor_checks::mcp_checks(mcp, is_offline, &location));
        checks.extend(servers.ok().and_then(doctor_checks::block_on_value).unwrap_or_default());
        checks.extend(doctor_checks::model_checks(settings, credentials, is_offline));
        if let Ok(loaded) = agents {
            let catalog = &loaded.catalog;
            checks.extend(doctor_checks::memory_check(settings, catalog));
            checks.extend(doctor_checks::fake_model_check(settings, catalog));
            checks.extend(doctor_checks::price_check(settings, credentials, catalog));
        }
    }
    let report = doctor::DoctorReport::new(checks);
    let _ = write!(std::io::stdout(), "{}", report.render(format));
    report.exit_status()
}
