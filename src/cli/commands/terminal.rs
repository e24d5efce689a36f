//! Commands for a service that runs, here or elsewhere: `chat`, `send`, `approve` and the others of that package.

use crate::cli::commands::operator::{self, print_result};
use crate::cli::commands::{block_on, print_argument_error, print_error};
use crate::cli::pending_work::{ConversationSelector, render_why};
use crate::cli::session_files::find_dev_address;
use crate::start::start_error::StartError;
use turnwheel_queries::why::WhyView;
use turnwheel_terminal::{
    ServiceArguments, TerminalCommand, TerminalError, read_why, run_terminal,
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
    block_on(async {
        let view = read_why(id, url, service).await.and_then(|view| {
            serde_json::from_value::<WhyView>(view)
                .map_err(|_| TerminalError::Foreign { address: url.to_owned() })
        });
        match view {
            Ok(view) => print_result(Ok(view), is_json, |view| {
                render_why(view, Some(&service.to_options()))
            }),
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
