//! Output on the terminal.

use std::io::{IsTerminal as _, Write as _};

/// Columns of the line with the progress.
const PROGRESS_WIDTH: usize = 60;

/// Writes a line to standard output. Unlike log lines, it is for the user of the command.
pub(crate) fn print_line(text: &str) {
    let _ = writeln!(std::io::stdout(), "{text}");
}

/// Shows the progress of a command on one line of a terminal, without colours. An empty text removes the line.
pub(crate) fn show_progress(text: &str) {
    let mut errors = std::io::stderr().lock();
    if !errors.is_terminal() {
        return;
    }
    let line: String = text.chars().take(PROGRESS_WIDTH).collect();
    let end = if text.is_empty() { "\r" } else { "" };
    let _ = write!(errors, "\r{line:<PROGRESS_WIDTH$}{end}").and_then(|()| errors.flush());
}
