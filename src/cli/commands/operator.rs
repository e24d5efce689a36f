//! Commands for operators: inspect stored conversations and usage, and re-enqueue work.

use std::path::{Path, PathBuf};

use crate::app::App;
use crate::cli::arguments::{MaintenanceArguments, RedriveQueue, SessionPlace};
use crate::cli::commands::{SUCCESS, block_on, load_agents};
use crate::cli::maintenance;
use crate::cli::pending_work::{self, ConversationSelector};
use crate::cli::session_files::{self, SessionFileAccess};
use crate::cli::show_agents::{preview_agents, render_agents};
use crate::cli::usage::{self, UsageQuery};
use crate::start::console::print_line;
use crate::start::options::read_settings;
use crate::start::start_error::StartError;
use turnwheel_platform::settings::ServiceSettings;
use turnwheel_queries::backlog::BacklogQuery;
use turnwheel_terminal::clean_text;

/// Runs `work` with the settings of this machine.
fn with_settings(
    work: impl AsyncFnOnce(&ServiceSettings) -> Result<u8, StartError>,
) -> Result<u8, StartError> {
    let settings = read_settings()?;
    block_on(async { work(&settings).await })
}

pub(super) fn run_maintenance(
    arguments: &MaintenanceArguments,
    redrive_queue: Option<RedriveQueue>,
) -> Result<u8, StartError> {
    with_settings(async |settings| {
        let storage = arguments.storage.maintenance_storage(settings);
        let storage = storage.map_err(|text| StartError::Arguments(text.to_owned()))?;
        let done = match redrive_queue {
            None => Box::pin(maintenance::rebuild_queue(settings, &storage, &arguments.data)).await,
            Some(queue) => {
                Box::pin(maintenance::redrive(settings, &storage, &arguments.data, queue.name()))
                    .await
            }
        };
        print_line(&done?);
        Ok(SUCCESS)
    })
}

pub(super) fn print_why(
    selector: &ConversationSelector,
    data: &Path,
    is_json: bool,
) -> Result<u8, StartError> {
    with_settings(async |settings| {
        let mut address = None;
        let result = Box::pin(pending_work::query_why(settings, data, selector)).await;
        let result = result.map(|(view, found)| {
            address = found;
            view
        });
        print_result(result, is_json, |view| {
            let options = address.map(|_| pending_work::service_options(&view.owner, data));
            pending_work::render_why(view, options.as_deref())
        })
    })
}

pub(super) fn print_agents(
    app: &App,
    name: Option<&str>,
    folder: Option<PathBuf>,
    is_json: bool,
) -> Result<u8, StartError> {
    with_settings(async |settings| {
        let loaded = load_agents(app, settings, folder, !settings.is_in_azure);
        let loaded = loaded.map_err(StartError::Agents)?;
        let result = Box::pin(preview_agents(app, &loaded.catalog, name)).await;
        print_result(result, is_json, |previews| render_agents(previews))
    })
}

pub(super) fn print_backlog(
    query: BacklogQuery,
    data: &Path,
    is_json: bool,
) -> Result<u8, StartError> {
    let is_stuck = query.stuck.is_some();
    with_settings(async |settings| {
        let result = Box::pin(pending_work::query_backlog(settings, data, query)).await;
        print_result(result, is_json, |report| pending_work::render_backlog(report, is_stuck))
    })
}

pub(super) fn export_conversation(
    id: &str,
    format: &str,
    place: &SessionPlace,
) -> Result<u8, StartError> {
    block_on(async {
        let mut out = std::io::stdout();
        session_access(place).export(id, format, &mut out).await.map(|()| SUCCESS)
    })
}

pub(super) fn import_file(
    file: &Path,
    agent: Option<&str>,
    place: &SessionPlace,
    is_json: bool,
) -> Result<u8, StartError> {
    block_on(async {
        let result = session_access(place).import(file, agent).await;
        print_result(result, is_json, session_files::render_import)
    })
}

fn session_access(place: &SessionPlace) -> SessionFileAccess<'_> {
    let SessionPlace { tenant, user, data } = place;
    SessionFileAccess { data, tenant, user: user.as_deref() }
}

/// Prints a result as JSON, or as rendered text without escape sequences, and returns the exit code.
pub(super) fn print_result<T: serde::Serialize>(
    result: Result<T, StartError>,
    is_json: bool,
    render: impl FnOnce(&T) -> String,
) -> Result<u8, StartError> {
    let value = result?;
    print_line(&if is_json {
        serde_json::to_string_pretty(&value).unwrap_or_default()
    } else {
        clean_text(&render(&value))
    });
    Ok(SUCCESS)
}

pub(super) fn print_usage(query: UsageQuery, data: &Path, is_json: bool) -> Result<u8, StartError> {
    with_settings(async |settings| {
        let result = Box::pin(usage::query_usage(settings, data, query)).await;
        print_result(result, is_json, usage::render_table)
    })
}
