//! The command line: arguments, the commands and their output.

pub(crate) mod arguments;
pub(crate) mod banner;
pub(crate) mod bench;
pub(crate) mod certify;
pub(crate) mod commands;
pub(crate) mod doctor_checks;
pub(crate) mod help;
pub(crate) mod maintenance;
pub(crate) mod new_project;
pub(crate) mod open_approvals;
pub(crate) mod pending_work;
pub(crate) mod session_files;
pub(crate) mod show_agents;
pub(crate) mod system_report;
pub(crate) mod usage;

use std::process::ExitCode;

use clap::FromArgMatches as _;

use crate::app::App;

impl App {
    /// Parses the command line and runs the command. Exit codes: 0 success, 1 failure, 2 invalid
    /// arguments, 3 a prompt waits for an approver.
    pub fn main(self) -> ExitCode {
        let parsed = help::grouped_command()
            .try_get_matches()
            .and_then(|matches| arguments::CliArguments::from_arg_matches(&matches));
        let arguments = match parsed {
            Ok(arguments) => arguments,
            Err(error) => {
                // clap also returns the output of `--help` and `--version` as an error.
                let _ = error.print();
                return if error.use_stderr() { ExitCode::from(2) } else { ExitCode::SUCCESS };
            }
        };
        commands::run(self, arguments)
    }
}
