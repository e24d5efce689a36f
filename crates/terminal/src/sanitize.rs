//! Removal of control characters and escape sequences from untrusted text. Newline and tab stay; marks that change the
//! direction of text, and invisible characters, become visible.

use std::fmt::Write as _;

/// The escape sequence that the text is in. It may continue in the next piece.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum Sequence {
    #[default]
    None,
    /// After ESC.
    Escape,
    /// After CSI: parameters until a final byte.
    Control,
    /// After OSC and its like: text until BEL or ST.
    Text,
}

/// Cleans the text of one source piece by piece. A newline ends each sequence, so that no text of a later line is lost.
#[derive(Debug, Default)]
pub(crate) struct Sanitizer {
    sequence: Sequence,
}

impl Sanitizer {
    pub(crate) fn push(&mut self, text: &str) -> String {
        let mut clean = String::with_capacity(text.len());
        for c in text.chars() {
            self.push_char(c, &mut clean);
        }
        clean
    }

    fn push_char(&mut self, c: char, clean: &mut String) {
        if c == '\n' {
            self.sequence = Sequence::None;
            clean.push(c);
            return;
        }
        self.sequence = match self.sequence {
            Sequence::None => push_visible(c, clean),
            Sequence::Escape => after_escape(c, clean),
            Sequence::Control => in_control(c, clean),
            Sequence::Text => in_text(c),
        };
    }
}

/// The sequence after ESC and this character.
fn after_escape(c: char, clean: &mut String) -> Sequence {
    match c {
        '[' => Sequence::Control,
        ']' | 'P' | 'X' | '^' | '_' => Sequence::Text,
        '\u{1b}' | ' '..='/' => Sequence::Escape,
        '0'..='~' => Sequence::None,
        _ => push_visible(c, clean),
    }
}

fn in_control(c: char, clean: &mut String) -> Sequence {
    match c {
        ' '..='?' => Sequence::Control,
        '@'..='~' => Sequence::None,
        _ => push_visible(c, clean),
    }
}

/// ESC ends the text: with the next character it is ST, or another sequence.
fn in_text(c: char) -> Sequence {
    match c {
        '\u{7}' | '\u{9c}' => Sequence::None,
        '\u{1b}' => Sequence::Escape,
        _ => Sequence::Text,
    }
}

/// Adds a character outside of sequences. Returns the sequence that it starts.
fn push_visible(c: char, clean: &mut String) -> Sequence {
    match c {
        '\t' => clean.push(c),
        '\u{1b}' => return Sequence::Escape,
        '\u{9b}' => return Sequence::Control,
        '\u{90}' | '\u{98}' | '\u{9d}' | '\u{9e}' | '\u{9f}' => return Sequence::Text,
        _ if c.is_control() => {}
        _ if is_deceptive(c) => {
            let _ = write!(clean, "⟦U+{:04X}⟧", u32::from(c));
        }
        _ => clean.push(c),
    }
    Sequence::None
}

/// True for marks of direction, which could show an argument in another order than the tool receives it, and for
/// invisible characters. Those that join emoji and letters are none of them.
fn is_deceptive(c: char) -> bool {
    matches!(
        c,
        '\u{61c}'
            | '\u{200b}'
            | '\u{200e}'
            | '\u{200f}'
            | '\u{2028}'..='\u{202e}'
            | '\u{2060}'..='\u{206f}'
            | '\u{feff}'
            | '\u{e0000}'..='\u{e007f}'
    )
}

/// Cleans a whole text.
pub fn clean_text(text: &str) -> String {
    Sanitizer::default().push(text)
}

/// Cleans a text for one line: each run of white space is one blank.
pub(crate) fn clean_line(text: &str) -> String {
    clean_text(text).split_whitespace().collect::<Vec<_>>().join(" ")
}

/// Cleans a text for one line of at most `chars_max` characters.
pub(crate) fn shorten(text: &str, chars_max: usize) -> String {
    let line = clean_line(text);
    if line.chars().count() <= chars_max {
        return line;
    }
    let mut short: String = line.chars().take(chars_max.saturating_sub(1)).collect();
    short.push('…');
    short
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Escape sequences that change a terminal, each with the text that remains.
    const CORPUS: &[(&str, &str)] = &[
        ("\u{1b}[31mred\u{1b}[0m", "red"),
        ("\u{1b}[2J\u{1b}[Hgone", "gone"),
        ("\u{1b}]0;title\u{7}after", "after"),
        ("\u{1b}]8;;https://evil.example\u{1b}\\link\u{1b}]8;;\u{1b}\\", "link"),
        ("\u{1b}]52;c;ZXZpbA==\u{7}clipboard", "clipboard"),
        ("\u{1b}P$q\"p\u{1b}\\reply", "reply"),
        ("\u{1b}_application\u{1b}\\x", "x"),
        ("\u{1b}c reset", " reset"),
        ("\u{1b}(0line", "line"),
        ("\u{9b}31mC1", "C1"),
        ("\u{9d}0;title\u{9c}C1", "C1"),
        ("a\rb\u{8}c\u{7}\u{0}", "abc"),
        ("one\u{1b}]0;never ends\ntwo", "one\ntwo"),
        ("one\u{1b}[12\ntwo", "one\ntwo"),
        ("\u{1b}\u{1b}[1mx", "x"),
        ("\u{1b}]0;t\u{1b}[31mx", "x"),
        ("tab\tstays\r\n", "tab\tstays\n"),
        ("pay \u{202e}001\u{202c} now", "pay ⟦U+202E⟧001⟦U+202C⟧ now"),
        ("a\u{200b}b\u{feff}", "a⟦U+200B⟧b⟦U+FEFF⟧"),
        ("👩\u{200d}💻 é", "👩\u{200d}💻 é"),
    ];

    #[test]
    fn escape_sequences_are_removed() {
        for (text, clean) in CORPUS {
            assert_eq!(clean_text(text), *clean, "{text:?}");
        }
    }

    #[test]
    fn sequences_are_removed_across_pieces() {
        for (text, clean) in CORPUS {
            for (at, _) in text.char_indices() {
                let (first, second) = text.split_at(at);
                let mut sanitizer = Sanitizer::default();
                let pieces = sanitizer.push(first) + &sanitizer.push(second);
                assert_eq!(pieces, *clean, "{text:?} at {at}");
            }
        }
    }

    #[test]
    fn cleaned_text_has_no_control_character() {
        let all: String = (0..=0x2100).filter_map(char::from_u32).collect();
        let clean = clean_text(&all);
        assert!(!clean.chars().any(|c| c.is_control() && c != '\n' && c != '\t'), "{clean:?}");
        assert_eq!(shorten("a \n b\u{1b}[1m  cdef", 6), "a b c…");
    }
}
