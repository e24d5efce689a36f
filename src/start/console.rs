//! Output on the terminal.

use std::io::Write as _;

/// Writes a line to standard output. Unlike log lines, it is for the user of the command.
pub(crate) fn print_line(text: &str) {
    let _ = writeln!(std::io::stdout(), "{text}");
}
