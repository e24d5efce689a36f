//! Rows of a terminal: wraps styled text by its display width, and returns only complete rows.

use std::fmt::Write as _;

use unicode_width::UnicodeWidthChar as _;

use crate::style::{RESET, Style};

const TAB: usize = 4;

/// Size and colours of the output.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Layout {
    /// Columns.
    pub(crate) width: usize,
    pub(crate) is_coloured: bool,
}

#[derive(Clone, Copy, Debug)]
struct Cell {
    c: char,
    style: Style,
}

/// Wraps one line. Words stay whole if they fit into a row.
#[derive(Debug)]
pub(crate) struct Wrapper {
    layout: Layout,
    /// Beginning of each row but the first.
    indent: Vec<Cell>,
    row: Vec<Cell>,
    /// True if the row has more than its indent.
    has_content: bool,
    /// Blanks before the word.
    gap: Vec<Cell>,
    word: Vec<Cell>,
    /// True: blanks are parts of words, so that rows break at the width only.
    is_verbatim: bool,
    rows: Vec<String>,
}

fn width_of(cells: &[Cell]) -> usize {
    cells.iter().map(|cell| cell.c.width().unwrap_or(0)).sum()
}

fn cells(text: &str, style: Style) -> Vec<Cell> {
    text.chars().map(|c| Cell { c, style }).collect()
}

impl Wrapper {
    /// `first` and `next`: the beginnings of the first row and of each other one.
    pub(crate) fn new(layout: Layout, first: &str, next: &str, style: Style) -> Self {
        Self {
            layout,
            indent: cells(next, style),
            row: cells(first, style),
            has_content: false,
            gap: Vec::new(),
            word: Vec::new(),
            is_verbatim: false,
            rows: Vec::new(),
        }
    }

    pub(crate) fn verbatim(layout: Layout) -> Self {
        Self { is_verbatim: true, ..Self::new(layout, "", "", Style::PLAIN) }
    }

    /// Sets the width of the rows that are not complete.
    pub(crate) fn set_layout(&mut self, layout: Layout) {
        self.layout = layout;
    }

    pub(crate) fn push_text(&mut self, text: &str, style: Style) {
        for c in text.chars() {
            self.push(c, style);
        }
    }

    pub(crate) fn push(&mut self, c: char, style: Style) {
        if c == '\t' {
            for _ in 0..TAB {
                self.push(' ', style);
            }
            return;
        }
        let cell = Cell { c, style };
        if c == ' ' && !self.is_verbatim {
            self.flush_word();
            self.gap.push(cell);
            return;
        }
        let width = c.width().unwrap_or(0);
        let is_too_long = width_of(&self.indent) + width_of(&self.word) + width > self.layout.width;
        if is_too_long && !self.word.is_empty() {
            self.flush_word();
            self.end_row();
        }
        self.word.push(cell);
    }

    /// Moves the word into the row, or into the next one.
    fn flush_word(&mut self) {
        if self.word.is_empty() {
            return;
        }
        let width = width_of(&self.row) + width_of(&self.gap) + width_of(&self.word);
        if width > self.layout.width && self.has_content {
            self.end_row();
        }
        if self.has_content || self.row.is_empty() {
            self.row.append(&mut self.gap);
        }
        self.gap.clear();
        self.row.append(&mut self.word);
        self.has_content = true;
    }

    fn end_row(&mut self) {
        let next = self.indent.clone();
        let row = std::mem::replace(&mut self.row, next);
        self.rows.push(self.render(&row));
        self.gap.clear();
        self.has_content = false;
    }

    /// The complete rows so far.
    pub(crate) fn take_rows(&mut self) -> Vec<String> {
        std::mem::take(&mut self.rows)
    }

    /// The rest of the rows; at least one in all.
    pub(crate) fn finish(mut self) -> Vec<String> {
        self.flush_word();
        if self.has_content || self.rows.is_empty() {
            self.end_row();
        }
        self.rows
    }

    fn render(&self, row: &[Cell]) -> String {
        let (mut text, mut style) = (String::new(), Style::PLAIN);
        for cell in row {
            if self.layout.is_coloured && cell.style != style {
                if style != Style::PLAIN {
                    text.push_str(RESET);
                }
                let _ = write!(text, "{}", cell.style.start());
                style = cell.style;
            }
            text.push(cell.c);
        }
        if style != Style::PLAIN {
            text.push_str(RESET);
        }
        text.trim_end_matches(' ').to_owned()
    }
}

/// Wraps a text of several lines in one style. `indent`: the beginning of each row.
pub(crate) fn wrap_text(layout: Layout, indent: &str, text: &str, style: Style) -> Vec<String> {
    let rows = text.split('\n').flat_map(|line| {
        let mut wrapper = Wrapper::new(layout, indent, indent, Style::PLAIN);
        wrapper.push_text(line, style);
        wrapper.finish()
    });
    rows.collect()
}

/// Wraps a text without breaking between words: for JSON and code.
pub(crate) fn wrap_verbatim(layout: Layout, indent: &str, text: &str, style: Style) -> Vec<String> {
    let rows = text.split('\n').flat_map(|line| {
        let mut wrapper = Wrapper::new(layout, indent, indent, Style::PLAIN);
        wrapper.is_verbatim = true;
        wrapper.push_text(line, style);
        wrapper.finish()
    });
    rows.collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    const PLAIN: Layout = Layout { width: 20, is_coloured: false };

    fn wrap(text: &str) -> Vec<String> {
        wrap_text(PLAIN, "", text, Style::PLAIN)
    }

    #[test]
    fn words_stay_whole_if_they_fit() {
        assert_eq!(wrap("one two three four five six"), ["one two three four", "five six"]);
        assert_eq!(wrap(""), [""]);
        assert_eq!(wrap("a\n\nb"), ["a", "", "b"]);
        assert_eq!(wrap("exactly twenty chars and"), ["exactly twenty chars", "and"]);
    }

    #[test]
    fn long_words_break_at_the_width() {
        let rows = wrap("see https://example.com/a/very/long/path end");
        assert_eq!(rows, ["see", "https://example.com/", "a/very/long/path end"]);
        assert_eq!(wrap_verbatim(PLAIN, "  ", "{\"a\": \"b c d e f g h\"}", Style::PLAIN).len(), 2);
    }

    #[test]
    fn width_counts_columns() {
        assert_eq!(wrap("日本語日本語日本語日本語"), ["日本語日本語日本語日", "本語"]);
        let combined = "e\u{301}".repeat(20);
        assert_eq!(wrap(&combined), [combined]);
    }

    #[test]
    fn styles_end_with_their_row() {
        let layout = Layout { is_coloured: true, ..PLAIN };
        let rows = wrap_text(layout, "", "twenty bold columns, then more", Style::BOLD);
        assert_eq!(rows, ["\u{1b}[1mtwenty bold columns,\u{1b}[0m", "\u{1b}[1mthen more\u{1b}[0m"]);
    }

    #[test]
    fn only_complete_rows_are_returned() {
        let mut wrapper = Wrapper::new(PLAIN, "• ", "  ", Style::PLAIN);
        wrapper.push_text("one two three four", Style::PLAIN);
        assert!(wrapper.take_rows().is_empty(), "the word may still grow");
        wrapper.push_text("teen five", Style::PLAIN);
        assert_eq!(wrapper.take_rows(), ["• one two three"]);
        assert_eq!(wrapper.finish(), ["  fourteen five"]);
    }
}
