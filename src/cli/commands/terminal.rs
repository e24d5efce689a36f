//! Commands for a service that runs, here or elsewhere: `chat`, `send`, `approve` and the others of that package.

use crate::cli::commands::{block_on, print_argument_error, print_error};
use crate::cli::session_files::find_dev_address;
use crate::start::start_error::StartError;
use turnwheel_terminal::{TerminalCommand, TerminalError, run_terminal};

pub(super) fn run(command: TerminalCommand) -> Result<u8, StartError> {
    let service = command.service();
    let address = match &service.url {
        Some(url) => url.clone(),
        None => find_dev_address(&service.data)?,
    };
    block_on(async {
        Ok(match run_terminal(command, &address).await {
            Ok(code) => code,
            Err(TerminalError::Arguments(text)) => print_argument_error(&text),
            Err(error) => print_error(&error),
        })
    })
}
