//! Commands for a service that runs, here or elsewhere: `chat`, `send`, `approve` and the others of that package.

use std::path::PathBuf;
use std::time::Duration;

use serde::Serialize;
use serde::de::DeserializeOwned;

use crate::app::App;
use crate::cli::commands::operator::{self, print_result};
use crate::cli::commands::{SUCCESS, block_on, print_argument_error, print_error};
use crate::cli::pending_work::{ConversationSelector, render_backlog, render_why};
use crate::cli::session_files::find_dev_address;
use crate::start::start_error::StartError;
use turnwheel_platform::ids::TenantId;
use turnwheel_queries::backlog::{BacklogQuery, BacklogReport};
use turnwheel_queries::why::WhyView;
use turnwheel_terminal::{
    ServiceArguments, ServiceRead, TerminalCommand, TerminalError, read_service, run_terminal,
};

/// Prints why a conversation waits. Without the address of a service its store is read.
pub(super) fn print_why(
    id: &str,
    service: &ServiceArguments,
    is_json: bool,
) -> Result<u8, StartError> {
    let Some(url) = &service.url else {
        let selector = ConversationSelector::new(id, service);
        return operator::print_why(&selector, &service.data, is_json);
    };
    let render = |view: &WhyView| render_why(view, Some(&service.to_options()));
    print_read(ServiceRead::Why { id }, url, service, is_json, render)
}

/// Prints the conversations with pending work. Without the address of a service its store is read.
pub(super) fn print_backlog(
    stuck: Option<Duration>,
    is_waiting_for_approver: bool,
    service: &ServiceArguments,
    is_json: bool,
) -> Result<u8, StartError> {
    let Some(url) = &service.url else {
        if service.user.is_some() {
            return Err(StartError::Arguments("`--user` needs `--url`".to_owned()));
        }
        let tenant = service.tenant.as_ref().map(TenantId::new);
        let query = BacklogQuery { tenant, stuck, is_waiting_for_approver };
        return operator::print_backlog(query, &service.data, is_json);
    };
    let stuck = stuck.map(|span| span.as_secs());
    let read = ServiceRead::Work { stuck, is_waiting_for_approver };
    let render = |report: &BacklogReport| render_backlog(report, stuck.is_some());
    print_read(read, url, service, is_json, render)
}

/// Prints the agents, or one of them: those of the files, or with an address those of a service.
pub(super) fn print_agents(
    app: &App,
    name: Option<&str>,
    folder: Option<PathBuf>,
    service: &ServiceArguments,
    is_json: bool,
) -> Result<u8, StartError> {
    let Some(url) = &service.url else {
        let options = service.to_options();
        if options.is_empty() {
            return operator::print_agents(app, name, folder, is_json);
        }
        let text = format!("`{}` needs `--url`", options.trim_start());
        return Err(StartError::Arguments(text));
    };
    block_on(async {
        Ok(match turnwheel_terminal::print_agents(name, url, service, is_json).await {
            Ok(()) => SUCCESS,
            Err(error) => print_terminal_error(&error),
        })
    })
}

fn print_read<T: Serialize + DeserializeOwned>(
    read: ServiceRead<'_>,
    url: &str,
    service: &ServiceArguments,
    is_json: bool,
    render: impl FnOnce(&T) -> String,
) -> Result<u8, StartError> {
    block_on(async {
        let view = read_service(read, url, service).await.and_then(|view| {
            serde_json::from_value(view)
                .map_err(|_| TerminalError::Foreign { address: url.to_owned() })
        });
        match view {
            Ok(view) => print_result(Ok(view), is_json, render),
            Err(error) => Ok(print_terminal_error(&error)),
        }
    })
}

fn print_terminal_error(error: &TerminalError) -> u8 {
    match error {
        TerminalError::Arguments(text) => print_argument_error(text),
        TerminalError::Problem { .. }
        | TerminalError::Unreachable { .. }
        | TerminalError::Foreign { .. }
        | TerminalError::Failed(_)
        | TerminalError::Io { .. } => print_error(error),
    }
}

pub(super) fn run(command: TerminalCommand) -> Result<u8, StartError> {
    let service = command.service();
    let address = match &service.url {
        Some(url) => url.clone(),
        None => find_dev_address(&service.data)?,
    };
    block_on(async {
        Ok(match run_terminal(command, &address).await {
            Ok(code) => code,
            Err(error) => print_terminal_error(&error),
        })
    })
}
