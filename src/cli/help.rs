//! Help with the commands in groups, completions, and manual pages.

use std::fmt::Write as _;
use std::path::Path;

use clap::CommandFactory as _;

use crate::cli::arguments::CliArguments;
use crate::start::console::print_line;
use crate::start::start_error::{StartError, io_error};

const PROGRAM: &str = "turnwheel";
const SUCCESS: u8 = 0;

/// Every visible command, in the order of the help.
const GROUPS: &[(&str, &[&str])] = &[
    ("Start", &["new", "dev", "agents", "schema", "doctor"]),
    ("Converse", &["chat", "send", "tail", "show", "ls", "why", "export", "import"]),
    ("Decide", &["approve", "reject", "decide", "abort", "continue"]),
    ("Test", &["certify", "bench"]),
    ("Deploy and operate", &["package", "usage", "rebuild-queue", "redrive"]),
    ("Shell", &["completions", "man", "help"]),
];

const EXAMPLES: &str = "Examples:
  turnwheel dev                                      run the service on this machine
  turnwheel chat payments-clerk                      chat with an agent of the example
  turnwheel send --agent payments-clerk \"Pay 40 to Ada\"
  turnwheel why ID                                   explain why a conversation waits

Exit codes: 0 done, 1 failed, 2 invalid arguments, 3 a prompt waits for an approver. The pages are in docs/cli.md.";

/// The commands, with a help that has them in groups.
pub(crate) fn grouped_command() -> clap::Command {
    let command = CliArguments::command();
    let mut text = "{about-with-newline}\n{usage-heading} {usage}\n".to_owned();
    for (title, names) in GROUPS {
        let _ = write!(text, "\n{title}:\n");
        for name in *names {
            let _ = writeln!(text, "  {name:<15}{}", describe(&command, name));
        }
    }
    text.push_str("\nOptions:\n{options}{after-help}");
    command.help_template(text).after_help(EXAMPLES)
}

/// Characters about a command in the list.
const ABOUT_MAX: usize = 65;

/// The first clause about a command, on one line.
fn describe(command: &clap::Command, name: &str) -> String {
    if name == "help" {
        return "Print the help of a command".to_owned();
    }
    let about = command.find_subcommand(name).and_then(clap::Command::get_about);
    let about = about.map(ToString::to_string).unwrap_or_default();
    let clause = about.split([':', '.']).next().unwrap_or_default();
    let is_long = clause.chars().count() > ABOUT_MAX;
    let part = clause.split(',').next().filter(|_| is_long);
    part.unwrap_or(clause).to_owned()
}

pub(crate) fn print_completions(shell: clap_complete::Shell) -> u8 {
    clap_complete::generate(shell, &mut CliArguments::command(), PROGRAM, &mut std::io::stdout());
    SUCCESS
}

/// Prints the manual page of the program, or writes those of all commands to the folder.
///
/// # Errors
/// Print the error and exit.
pub(crate) fn write_pages(out: Option<&Path>) -> Result<u8, StartError> {
    const ACTION: &str = "write the manual pages";
    let Some(folder) = out else {
        let page = clap_mangen::Man::new(CliArguments::command());
        page.render(&mut std::io::stdout()).map_err(io_error(ACTION))?;
        return Ok(SUCCESS);
    };
    std::fs::create_dir_all(folder).map_err(io_error(ACTION))?;
    clap_mangen::generate_to(CliArguments::command(), folder).map_err(io_error(ACTION))?;
    print_line(&format!(
        "Wrote the pages to {}: `man -l {}/turnwheel.1`",
        folder.display(),
        folder.display()
    ));
    Ok(SUCCESS)
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    #[test]
    fn each_visible_command_is_in_one_group() {
        let command = CliArguments::command();
        let visible = command.get_subcommands().filter(|it| !it.is_hide_set());
        let visible: BTreeSet<&str> =
            visible.map(clap::Command::get_name).chain(["help"]).collect();
        let listed: Vec<&str> =
            GROUPS.iter().flat_map(|(_, names)| names.iter().copied()).collect();
        assert_eq!(listed.iter().copied().collect::<BTreeSet<_>>(), visible);
        assert_eq!(listed.len(), visible.len(), "no command is twice");
        let help = grouped_command().render_help().to_string();
        assert!(help.contains("\nConverse:\n  chat           Chat with an agent\n"), "{help}");
        let widest = help.lines().map(|line| line.chars().count()).max();
        assert!(widest <= Some(100), "{help}");
    }

    #[test]
    fn arguments_are_consistent() {
        CliArguments::command().debug_assert();
    }
}
