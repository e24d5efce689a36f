//! Markdown as rows of a terminal, while it arrives: a row is returned as soon as it is complete, and never changes. Links stay
//! text.

mod inline;
mod table;

use crate::style::{Colour, Style, Weight};
use crate::wrap::{Layout, Wrapper};
use inline::Inline;

/// Rows of a table that are laid out together.
const TABLE_ROWS_MAX: usize = 50;
const RULE_WIDTH: usize = 40;
const HEADING: Style = Style { weight: Weight::Bold, colour: Colour::Cyan, ..Style::PLAIN };

/// The text so far of one message.
#[derive(Debug)]
pub(crate) struct Markdown {
    layout: Layout,
    line: Line,
    /// The run of characters that opened the code block that the text is in.
    fence: Option<String>,
    /// Lines of a table that is not complete.
    table: Vec<String>,
}

/// The line that is being read.
#[derive(Debug)]
enum Line {
    /// Its kind depends on the rest of it.
    Start(String),
    Flow(Inline, Wrapper),
    Code(Wrapper),
}

/// The kind of a line.
#[derive(Debug, PartialEq, Eq)]
enum LineKind {
    Blank,
    Fence,
    Rule,
    Table,
    /// The length of the source that `first` replaces, the beginnings of the rows, and the style.
    Flow {
        skipped: usize,
        first: String,
        next: String,
        style: Style,
    },
}

impl Markdown {
    pub(crate) fn new(layout: Layout) -> Self {
        Self { layout, line: Line::Start(String::new()), fence: None, table: Vec::new() }
    }

    /// Sets the width of the rows to come, those of the current line included.
    pub(crate) fn set_layout(&mut self, layout: Layout) {
        self.layout = layout;
        match &mut self.line {
            Line::Start(_) => {}
            Line::Flow(_, wrapper) | Line::Code(wrapper) => wrapper.set_layout(layout),
        }
    }

    /// Adds text, which must be sanitised. Returns the rows that are complete.
    pub(crate) fn push(&mut self, text: &str) -> Vec<String> {
        let mut rows = Vec::new();
        for c in text.chars() {
            if c == '\n' {
                self.end_line(&mut rows);
            } else {
                self.push_char(c, &mut rows);
            }
        }
        match &mut self.line {
            Line::Start(_) => {}
            Line::Flow(_, wrapper) | Line::Code(wrapper) => rows.extend(wrapper.take_rows()),
        }
        rows
    }

    /// Returns the rest of the rows.
    pub(crate) fn finish(&mut self) -> Vec<String> {
        let mut rows = Vec::new();
        if !matches!(&self.line, Line::Start(start) if start.is_empty()) {
            self.end_line(&mut rows);
        }
        self.flush_table(&mut rows);
        self.fence = None;
        rows
    }

    fn push_char(&mut self, c: char, rows: &mut Vec<String>) {
        match &mut self.line {
            Line::Code(wrapper) => wrapper.push(c, Style::CODE),
            Line::Flow(inline, wrapper) => inline.push(c, wrapper),
            Line::Start(start) => {
                start.push(c);
                let start = start.clone();
                self.begin_line(&start, rows);
            }
        }
    }

    /// Begins the line if its kind is decided.
    fn begin_line(&mut self, start: &str, rows: &mut Vec<String>) {
        if self.fence.is_some() {
            if !start.trim_start().starts_with(['`', '~']) && !start.trim().is_empty() {
                self.line = Line::Code(self.code_row(start));
            }
            return;
        }
        match kind_of(start, false) {
            Some(LineKind::Flow { skipped, first, next, style }) => {
                self.flush_table(rows);
                let mut wrapper = Wrapper::new(self.layout, &first, &next, style);
                let mut inline = Inline::new(style);
                for c in start.chars().skip(skipped) {
                    inline.push(c, &mut wrapper);
                }
                self.line = Line::Flow(inline, wrapper);
            }
            None | Some(LineKind::Blank | LineKind::Fence | LineKind::Rule | LineKind::Table) => {}
        }
    }

    fn code_row(&self, text: &str) -> Wrapper {
        let mut wrapper = Wrapper::verbatim(self.layout);
        wrapper.push_text(text, Style::CODE);
        wrapper
    }

    fn end_line(&mut self, rows: &mut Vec<String>) {
        match std::mem::replace(&mut self.line, Line::Start(String::new())) {
            Line::Code(wrapper) => rows.extend(wrapper.finish()),
            Line::Flow(mut inline, mut wrapper) => {
                inline.finish(&mut wrapper);
                rows.extend(wrapper.finish());
            }
            Line::Start(start) => self.end_undecided(&start, rows),
        }
    }

    fn end_undecided(&mut self, start: &str, rows: &mut Vec<String>) {
        let trimmed = start.trim();
        if let Some(fence) = &self.fence {
            let is_end =
                trimmed.starts_with(fence.as_str()) && trimmed.trim_matches(['`', '~']).is_empty();
            if is_end {
                self.fence = None;
                rows.extend(self.dim_row(trimmed));
            } else {
                rows.extend(self.code_row(start).finish());
            }
            return;
        }
        let kind = kind_of(start, true);
        if kind != Some(LineKind::Table) {
            self.flush_table(rows);
        }
        match kind {
            Some(LineKind::Table) => {
                self.table.push(start.to_owned());
                if self.table.len() >= TABLE_ROWS_MAX {
                    self.flush_table(rows);
                }
            }
            Some(LineKind::Fence) => {
                let run: String = trimmed.chars().take_while(|c| matches!(c, '`' | '~')).collect();
                self.fence = Some(run);
                rows.extend(self.dim_row(trimmed));
            }
            Some(LineKind::Rule) => {
                rows.extend(self.dim_row(&"─".repeat(RULE_WIDTH.min(self.layout.width))));
            }
            None | Some(LineKind::Blank | LineKind::Flow { .. }) => {
                let mut wrapper = Wrapper::new(self.layout, "", "", Style::PLAIN);
                let mut inline = Inline::new(Style::PLAIN);
                trimmed.chars().for_each(|c| inline.push(c, &mut wrapper));
                inline.finish(&mut wrapper);
                rows.extend(wrapper.finish());
            }
        }
    }

    fn dim_row(&self, text: &str) -> Vec<String> {
        let mut wrapper = Wrapper::verbatim(self.layout);
        wrapper.push_text(text, Style::DIM);
        wrapper.finish()
    }

    fn flush_table(&mut self, rows: &mut Vec<String>) {
        let lines = std::mem::take(&mut self.table);
        if !lines.is_empty() {
            rows.extend(table::render(&lines, self.layout));
        }
    }
}

/// The kind of a line with this beginning. `None`: it depends on the rest.
fn kind_of(start: &str, is_complete: bool) -> Option<LineKind> {
    let body = start.trim_start_matches(' ');
    let indent = start.len() - body.len();
    let Some(first) = body.chars().next() else { return is_complete.then_some(LineKind::Blank) };
    let run = body.chars().take_while(|c| *c == first).count();
    let after = body.chars().nth(run);
    let is_marker_complete = after.is_some() || is_complete;
    match first {
        '`' | '~' if run >= 3 => return is_complete.then_some(LineKind::Fence),
        '|' => return is_complete.then_some(LineKind::Table),
        '-' | '*' | '_' if run >= 3 && body.trim_end().chars().all(|c| c == first) => {
            return is_complete.then_some(LineKind::Rule);
        }
        '`' | '~' | '-' | '*' | '_' | '#' | '+' if !is_marker_complete => return None,
        '#' if run <= 6 && after == Some(' ') => {
            return Some(flow(indent + run + 1, "", HEADING));
        }
        '-' | '*' | '+' if run == 1 && after == Some(' ') => {
            let marker = format!("{}• ", " ".repeat(indent));
            return Some(flow(indent + 2, &marker, Style::PLAIN));
        }
        '>' => {
            let second = body.chars().nth(1);
            if second.is_none() && !is_complete {
                return None;
            }
            let skipped = if second == Some(' ') { 2 } else { 1 };
            let kind = LineKind::Flow {
                skipped: indent + skipped,
                first: "│ ".to_owned(),
                next: "│ ".to_owned(),
                style: Style::DIM,
            };
            return Some(kind);
        }
        _ if first.is_ascii_digit() => return numbered(body, indent, is_complete),
        _ => {}
    }
    Some(flow(0, "", Style::PLAIN))
}

/// A line whose other rows are indented as its first one.
fn flow(skipped: usize, first: &str, style: Style) -> LineKind {
    let next = " ".repeat(first.chars().count());
    LineKind::Flow { skipped, first: first.to_owned(), next, style }
}

fn numbered(body: &str, indent: usize, is_complete: bool) -> Option<LineKind> {
    let digits = body.chars().take_while(char::is_ascii_digit).count();
    let mut rest = body.chars().skip(digits);
    match (rest.next(), rest.next()) {
        (None, _) | (Some('.' | ')'), None) if !is_complete && digits <= 9 => None,
        (Some(end @ ('.' | ')')), Some(' ')) if digits <= 9 => {
            let number: String = body.chars().take(digits).collect();
            let marker = format!("{}{number}{end} ", " ".repeat(indent));
            Some(flow(indent + digits + 2, &marker, Style::PLAIN))
        }
        _ => Some(flow(0, "", Style::PLAIN)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const PLAIN: Layout = Layout { width: 30, is_coloured: false };

    fn render(text: &str) -> Vec<String> {
        let mut markdown = Markdown::new(PLAIN);
        let mut rows = markdown.push(text);
        rows.extend(markdown.finish());
        rows
    }

    const SAMPLE: &str = "# A *title*\n\nSome **bold** and `code_with_underscores`, 2 * 3 * 4, snake_case_name.\n- one item that is longer than a row of text\n  1. nested\n> quoted\n```rust\nlet a = \"**not bold**\";\n\n```\n---\n| a | b |\n|---|---:|\n| long cell | 1 |\n\n\\*stars\\* [link](https://e.example)\n**unclosed";

    #[test]
    fn blocks_become_rows() {
        assert_eq!(
            render(SAMPLE),
            [
                "A title",
                "",
                "Some bold and",
                "code_with_underscores, 2 * 3 *",
                "4, snake_case_name.",
                "• one item that is longer than",
                "  a row of text",
                "  1. nested",
                "│ quoted",
                "```rust",
                "let a = \"**not bold**\";",
                "",
                "```",
                "──────────────────────────────",
                "a          b",
                "─────────  ─",
                "long cell  1",
                "",
                "*stars*",
                "[link](https://e.example)",
                "unclosed",
            ]
        );
    }

    #[test]
    fn rows_are_the_same_for_any_pieces() {
        let whole = render(SAMPLE);
        for size in 1..40 {
            let mut markdown = Markdown::new(PLAIN);
            let mut rows = Vec::new();
            let chars: Vec<char> = SAMPLE.chars().collect();
            for piece in chars.chunks(size) {
                rows.extend(markdown.push(&piece.iter().collect::<String>()));
            }
            rows.extend(markdown.finish());
            assert_eq!(rows, whole, "pieces of {size}");
        }
    }

    #[test]
    fn long_line_returns_rows_before_its_end() {
        let mut markdown = Markdown::new(PLAIN);
        assert_eq!(markdown.push("one two three four five six se"), [""; 0]);
        assert_eq!(markdown.push("ven eight"), ["one two three four five six"]);
        assert_eq!(markdown.finish(), ["seven eight"]);
    }

    #[test]
    fn rest_of_a_line_has_the_new_width() {
        let mut markdown = Markdown::new(PLAIN);
        let mut rows = markdown.push("one two three four five six seven ");
        markdown.set_layout(Layout { width: 20, ..PLAIN });
        rows.extend(markdown.push("eight nine ten eleven "));
        markdown.set_layout(Layout { width: 60, ..PLAIN });
        rows.extend(markdown.push("twelve thirteen fourteen fifteen sixteen"));
        rows.extend(markdown.finish());
        assert_eq!(
            rows,
            [
                "one two three four five six",
                "seven eight nine ten",
                "eleven twelve thirteen fourteen fifteen sixteen",
            ]
        );
    }

    #[test]
    fn tables_are_cut_after_their_bound() {
        let text = "| a |\n".repeat(TABLE_ROWS_MAX + 1);
        let mut markdown = Markdown::new(PLAIN);
        assert_eq!(markdown.push(&text).len(), TABLE_ROWS_MAX);
        assert_eq!(markdown.finish().len(), 1);
    }

    #[test]
    fn emphasis_is_a_style_with_colours() {
        let mut markdown = Markdown::new(Layout { is_coloured: true, ..PLAIN });
        let mut rows = markdown.push("a **b** *c* `d` ***e***");
        rows.extend(markdown.finish());
        let row =
            "a \u{1b}[1mb\u{1b}[0m \u{1b}[3mc\u{1b}[0m \u{1b}[36md\u{1b}[0m \u{1b}[1;3me\u{1b}[0m";
        assert_eq!(rows, [row]);
    }
}
