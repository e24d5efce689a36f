//! The standard output: its width and colours, and lines for it.

use std::io::{IsTerminal as _, Write as _};

use terminal_size::{Width, terminal_size_of};
use turnwheel_json::exact::ExactJson;
use turnwheel_platform::settings::environment;

use crate::members::json_line;
use crate::transcript::{Printed, TranscriptOptions};
use crate::wrap::Layout;

/// Columns without a terminal, or with one that does not report its size.
const WIDTH_DEFAULT: usize = 80;
/// A terminal with fewer columns gets rows of the default width. It wraps them, and joins them when it is widened.
const WIDTH_MIN: usize = 20;

/// True if input and output are a terminal.
pub(crate) fn is_interactive() -> bool {
    std::io::stdin().is_terminal() && std::io::stdout().is_terminal()
}

/// The layout of the standard output now.
pub(crate) fn read_layout() -> Layout {
    let is_terminal = std::io::stdout().is_terminal();
    // https://no-color.org: any value but an empty one.
    let is_refused = environment("NO_COLOR").is_some_and(|value| !value.is_empty())
        || environment("TERM").is_some_and(|value| value == "dumb");
    let columns = terminal_size_of(std::io::stdout()).map(|(Width(width), _)| usize::from(width));
    Layout { width: row_width(columns), is_coloured: is_terminal && !is_refused }
}

/// Returns the width of rows for a terminal with this many columns.
fn row_width(columns: Option<usize>) -> usize {
    columns.filter(|columns| *columns >= WIDTH_MIN).unwrap_or(WIDTH_DEFAULT)
}

/// Options of a transcript on the standard output. Programs get the text of the model as it is.
pub(crate) fn transcript_options() -> TranscriptOptions {
    TranscriptOptions { layout: read_layout(), is_markdown: std::io::stdout().is_terminal() }
}

/// Writes the text of the model to the standard output, and all else to the standard error. With both on one terminal
/// the order stays. Returns false if the reader of the output has gone.
pub(crate) fn print_rows(rows: &[Printed]) -> bool {
    rows.iter().all(|row| match row {
        Printed::Text(row) => print_line(row),
        Printed::Notice(row) => {
            print_notice(row);
            true
        }
    })
}

/// Writes a line to the standard output. Returns false if its reader has gone.
pub(crate) fn print_line(line: &str) -> bool {
    let mut out = std::io::stdout().lock();
    writeln!(out, "{line}").and_then(|()| out.flush()).is_ok()
}

pub(crate) fn print_notice(line: &str) {
    let _ = writeln!(std::io::stderr(), "{line}");
}

/// Writes a value as one line of JSON. Returns false if the reader has gone.
pub(crate) fn print_json(value: &ExactJson) -> bool {
    print_line(&json_line(value))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn narrow_terminal_wraps_rows_itself() {
        assert_eq!(row_width(Some(120)), 120);
        assert_eq!(row_width(Some(WIDTH_MIN)), WIDTH_MIN);
        assert_eq!(row_width(Some(10)), WIDTH_DEFAULT);
        assert_eq!(row_width(Some(0)), WIDTH_DEFAULT, "a size that is not known");
        assert_eq!(row_width(None), WIDTH_DEFAULT);
    }
}
