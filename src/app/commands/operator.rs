//! Commands for operators: inspect stored conversations and usage, and re-enqueue work.

use std::path::Path;

use crate::app::arguments::{MaintenanceArguments, RedriveQueue};
use crate::app::commands::{SUCCESS, block_on, print_argument_error, print_error, read_settings};
use crate::app::console::print_line;
use crate::app::maintenance;
use crate::app::pending_work::{self, ConversationSelector};
use crate::app::start_error::StartError;
use crate::app::usage::{self, UsageQuery};
use crate::queries::backlog::BacklogQuery;
use crate::settings::Settings;

/// Runs `work` with the settings of this machine. Prints the mistakes instead if they are invalid.
fn with_settings(work: impl AsyncFnOnce(&Settings) -> u8) -> u8 {
    match read_settings() {
        Ok(settings) => block_on(async { work(&settings).await }),
        Err(mistakes) => print_error(&StartError::from(mistakes)),
    }
}

pub(super) fn run_maintenance(
    arguments: &MaintenanceArguments,
    redrive_queue: Option<RedriveQueue>,
) -> u8 {
    with_settings(async |settings| {
        let storage = match arguments.storage.maintenance_storage(settings) {
            Ok(storage) => storage,
            Err(text) => return print_argument_error(text),
        };
        let done = match redrive_queue {
            None => Box::pin(maintenance::rebuild_queue(settings, &storage, &arguments.data)).await,
            Some(queue) => {
                Box::pin(maintenance::redrive(settings, (&storage, &arguments.data), queue.name()))
                    .await
            }
        };
        match done {
            Ok(sentence) => {
                print_line(&sentence);
                SUCCESS
            }
            Err(error) => print_error(&error),
        }
    })
}

pub(super) fn print_why(selector: &ConversationSelector, data: &Path, is_json: bool) -> u8 {
    with_settings(async |settings| {
        let result = Box::pin(pending_work::query_why(settings, data, selector)).await;
        print_result(result, is_json, pending_work::render_why)
    })
}

pub(super) fn print_backlog(query: BacklogQuery, data: &Path, is_json: bool) -> u8 {
    let is_stuck = query.stuck.is_some();
    with_settings(async |settings| {
        let result = Box::pin(pending_work::query_backlog(settings, data, query)).await;
        print_result(result, is_json, |report| pending_work::render_backlog(report, is_stuck))
    })
}

/// Prints a result as JSON or as rendered text, or prints its error. Returns the exit code.
fn print_result<T: serde::Serialize>(
    result: Result<T, StartError>,
    is_json: bool,
    render: impl FnOnce(&T) -> String,
) -> u8 {
    match result {
        Ok(value) if is_json => {
            print_line(&serde_json::to_string_pretty(&value).unwrap_or_default());
        }
        Ok(value) => print_line(&render(&value)),
        Err(StartError::Arguments(text)) => return print_argument_error(&text),
        Err(error) => return print_error(&error),
    }
    SUCCESS
}

pub(super) fn print_usage(query: UsageQuery, data: &Path, is_json: bool) -> u8 {
    with_settings(async |settings| {
        let result = Box::pin(usage::query_usage(settings, data, query)).await;
        print_result(result, is_json, usage::render_table)
    })
}
