//! Emphasis and code in a line of Markdown. A mark that opens takes effect at once: rows that are printed never change.

use crate::style::{Colour, Style, Weight};
use crate::wrap::Wrapper;

/// State within one line.
#[derive(Debug)]
pub(super) struct Inline {
    /// Style of the line.
    base: Style,
    is_bold: bool,
    is_italic: bool,
    /// Length of the run of backticks that opened code; 0: no code.
    code: usize,
    /// A run of equal marks whose effect depends on the next character.
    mark: char,
    marks: usize,
    is_escaped: bool,
    previous: char,
}

impl Inline {
    pub(super) fn new(base: Style) -> Self {
        Self {
            base,
            is_bold: false,
            is_italic: false,
            code: 0,
            mark: ' ',
            marks: 0,
            is_escaped: false,
            previous: ' ',
        }
    }

    fn style(&self) -> Style {
        if self.code > 0 {
            return Style { colour: Colour::Cyan, ..self.base };
        }
        let weight = if self.is_bold { Weight::Bold } else { self.base.weight };
        Style { weight, is_italic: self.is_italic || self.base.is_italic, ..self.base }
    }

    fn emit(&mut self, c: char, wrapper: &mut Wrapper) {
        wrapper.push(c, self.style());
        self.previous = c;
    }

    pub(super) fn push(&mut self, c: char, wrapper: &mut Wrapper) {
        if self.marks > 0 && c != self.mark {
            self.resolve(c, wrapper);
        }
        if std::mem::take(&mut self.is_escaped) {
            if !c.is_ascii_punctuation() {
                self.emit('\\', wrapper);
            }
            self.emit(c, wrapper);
            return;
        }
        let is_mark = if self.code > 0 { c == '`' } else { matches!(c, '`' | '*' | '_') };
        if is_mark {
            self.mark = c;
            self.marks += 1;
        } else if c == '\\' && self.code == 0 {
            self.is_escaped = true;
        } else {
            self.emit(c, wrapper);
        }
    }

    /// Ends the line.
    pub(super) fn finish(&mut self, wrapper: &mut Wrapper) {
        if self.marks > 0 {
            self.resolve(' ', wrapper);
        }
        if std::mem::take(&mut self.is_escaped) {
            self.emit('\\', wrapper);
        }
    }

    /// Gives the run of marks before `next` its effect.
    fn resolve(&mut self, next: char, wrapper: &mut Wrapper) {
        let (mark, count) = (self.mark, std::mem::take(&mut self.marks));
        if mark == '`' {
            if self.code == 0 {
                self.code = count;
            } else if self.code == count {
                self.code = 0;
            } else {
                (0..count).for_each(|_| self.emit('`', wrapper));
            }
            return;
        }
        let is_word = |c: char| c.is_alphanumeric();
        let can_open = !(next.is_whitespace() || mark == '_' && is_word(self.previous));
        let can_close = !(self.previous.is_whitespace() || mark == '_' && is_word(next));
        let (is_strong, is_emphasis) = (count >= 2, count % 2 == 1);
        let closes = can_close && (!is_strong || self.is_bold) && (!is_emphasis || self.is_italic);
        let opens = can_open && (!is_strong || !self.is_bold) && (!is_emphasis || !self.is_italic);
        if count > 3 || !(closes || opens) {
            (0..count).for_each(|_| self.emit(mark, wrapper));
            return;
        }
        if is_strong {
            self.is_bold = !closes;
        }
        if is_emphasis {
            self.is_italic = !closes;
        }
        // A mark has no width, and counts as punctuation for the next one.
        self.previous = '*';
    }
}
