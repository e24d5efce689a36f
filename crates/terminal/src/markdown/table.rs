//! Tables of Markdown: columns as wide as their widest cell.

use unicode_width::UnicodeWidthStr as _;

use crate::style::Style;
use crate::wrap::{Layout, wrap_text};

const GAP: &str = "  ";

/// Renders the lines of a table, each of which begins with `|`. Lines that are too long for columns wrap.
pub(super) fn render(lines: &[String], layout: Layout) -> Vec<String> {
    let rows: Vec<Vec<String>> = lines.iter().map(|line| split_cells(line)).collect();
    let columns = rows.iter().map(Vec::len).max().unwrap_or_default();
    let is_separator = |row: &[String]| row.iter().all(|cell| is_rule(cell));
    let width_of = |column: usize| {
        let cells = rows.iter().filter(|row| !is_separator(row)).filter_map(|row| row.get(column));
        cells.map(|cell| cell.width()).max().unwrap_or_default()
    };
    let widths: Vec<usize> = (0..columns).map(width_of).collect();
    let total = widths.iter().sum::<usize>() + GAP.len() * columns.saturating_sub(1);
    if total > layout.width {
        return lines.iter().flat_map(|line| wrap_text(layout, "", line, Style::PLAIN)).collect();
    }
    let render_row = |row: &Vec<String>| {
        let cells: Vec<String> = widths
            .iter()
            .enumerate()
            .map(|(column, width)| {
                if is_separator(row) {
                    return "─".repeat(*width);
                }
                let cell = row.get(column).map(String::as_str).unwrap_or_default();
                format!("{cell}{}", " ".repeat(width.saturating_sub(cell.width())))
            })
            .collect();
        cells.join(GAP).trim_end().to_owned()
    };
    rows.iter().map(render_row).collect()
}

fn is_rule(cell: &str) -> bool {
    !cell.is_empty() && cell.chars().all(|c| matches!(c, '-' | ':'))
}

/// The cells of a line, without marks of emphasis. A `\|` is no border.
fn split_cells(line: &str) -> Vec<String> {
    let line = line.trim();
    let line = line.strip_prefix('|').unwrap_or(line);
    let line = line.strip_suffix('|').unwrap_or(line).replace("\\|", "\u{0}");
    line.split('|')
        .map(|cell| cell.replace('\u{0}', "|").replace("**", "").trim().to_owned())
        .collect()
}
