//! Clean-up of text from and for models: code fences, invisible characters and unpaired surrogates.

use std::borrow::Cow;
use std::fmt::Write as _;

/// Removes one code fence around the whole text, because models often wrap their JSON in one.
pub fn strip_code_fence(text: &str) -> &str {
    let text = text.trim();
    let inside = text.strip_prefix("```").and_then(|rest| rest.strip_suffix("```"));
    let body = inside.and_then(|inside| inside.split_once('\n')).map(|(_language, body)| body);
    body.map_or(text, str::trim)
}

/// The text as a sentence that others can follow.
pub fn with_full_stop(text: &str) -> String {
    if text.ends_with(['.', '!', '?']) { text.to_owned() } else { format!("{text}.") }
}

/// The visible text as one line without marks of headings and lists at its beginning.
pub fn one_line(text: &str) -> String {
    let lines = text.split(is_line_break).map(|line| {
        let visible: String = line.chars().filter(|c| !is_invisible(*c)).collect();
        let line = visible.trim_start_matches(|c: char| c.is_whitespace() || "#>-*".contains(c));
        line.split_whitespace().collect::<Vec<_>>().join(" ")
    });
    lines.filter(|line| !line.is_empty()).collect::<Vec<_>>().join(" ")
}

/// Characters of a line that a person reads, unless it has another bound.
pub const LINE_CHARS_MAX: usize = 16 * 1024;

/// Text for a person who decides by it: one line without characters that hide or reorder others, of at
/// most so many characters.
pub fn sanitize_line(text: &str, chars_max: usize) -> String {
    let shown = text.chars().filter(|c| c.is_control() || !is_invisible(*c));
    let spaced: String = shown.map(|c| if c.is_control() { ' ' } else { c }).collect();
    let mut line = spaced.split_whitespace().collect::<Vec<_>>().join(" ");
    if let Some((end, _)) = line.char_indices().nth(chars_max) {
        line.truncate(end);
        line.push('…');
    }
    line
}

/// As [`sanitize_line`], with the line breaks of the text.
pub fn sanitize_lines(text: &str, chars_max: usize) -> String {
    let lines: Vec<String> = text.lines().map(|line| sanitize_line(line, chars_max)).collect();
    let mut text = lines.join("\n");
    if let Some((end, _)) = text.char_indices().nth(chars_max) {
        text.truncate(end);
        text.push('…');
    }
    text
}

/// Escapes a text for the content of HTML elements and for quoted attributes.
pub fn escape_html(text: &str) -> String {
    text.chars().fold(String::with_capacity(text.len()), |mut safe, letter| {
        match letter {
            '&' => safe.push_str("&amp;"),
            '<' => safe.push_str("&lt;"),
            '>' => safe.push_str("&gt;"),
            '"' => safe.push_str("&quot;"),
            '\'' => safe.push_str("&#39;"),
            letter => safe.push(letter),
        }
        safe
    })
}

/// True for one line without characters that hide or reorder others.
pub fn is_visible_line(text: &str) -> bool {
    !text.chars().any(is_hidden)
}

fn is_hidden(c: char) -> bool {
    c.is_control() || is_invisible(c) || is_line_break(c)
}

/// Equal JSON, by which a person decides. Characters that hide or reorder others are escapes such as
/// `\u202E`.
pub fn escape_hidden(json: &str) -> Cow<'_, str> {
    // JSON has these only between its tokens.
    let is_shown = |c: char| matches!(c, '\t' | '\n' | '\r') || !is_hidden(c);
    if json.chars().all(is_shown) {
        return Cow::Borrowed(json);
    }
    let mut escaped = String::with_capacity(json.len());
    for c in json.chars() {
        if is_shown(c) {
            escaped.push(c);
            continue;
        }
        for unit in c.encode_utf16(&mut [0; 2]) {
            let _infallible = write!(escaped, "\\u{unit:04X}");
        }
    }
    Cow::Owned(escaped)
}

fn is_line_break(c: char) -> bool {
    matches!(c, '\n' | '\r' | '\u{b}' | '\u{c}' | '\u{85}' | '\u{2028}' | '\u{2029}')
}

/// Control characters, and format characters that hide or reorder text. Variation selectors are
/// none: emoji have them.
pub fn is_invisible(c: char) -> bool {
    (c.is_control() && c != '\t')
        || matches!(c, '\u{ad}' | '\u{34f}' | '\u{61c}' | '\u{115f}' | '\u{1160}' | '\u{17b4}' | '\u{17b5}'
            | '\u{180e}' | '\u{200b}'..='\u{200f}' | '\u{202a}'..='\u{202e}' | '\u{2060}'..='\u{206f}'
            | '\u{2800}' | '\u{3164}'
            | '\u{feff}' | '\u{ffa0}' | '\u{fff9}'..='\u{fffb}' | '\u{e0000}'..='\u{e0fff}')
}

/// An escape of a surrogate half without its partner (`\ud83d`) in JSON text.
#[derive(Debug)]
pub struct UnpairedHalf {
    /// Byte at which the escape begins.
    pub at: usize,
    pub unit: u16,
    /// True if the escape is the first character of its string.
    pub begins_text: bool,
    /// True if the escape is the last character of its string.
    pub ends_text: bool,
}

/// Bytes of an escape.
const ESCAPE_BYTES: usize = 6;

impl UnpairedHalf {
    /// True for the second half of a pair.
    pub fn is_second(&self) -> bool {
        is_second_half(self.unit)
    }
}

fn is_second_half(unit: u16) -> bool {
    (0xdc00..0xe000).contains(&unit)
}

/// The unpaired surrogate halves of JSON text, in order. A Rust string cannot hold one, so escapes
/// are the only source.
pub fn unpaired_halves(json: &str) -> Vec<UnpairedHalf> {
    let mut halves = Vec::new();
    if !json.contains("\\ud") && !json.contains("\\uD") {
        return halves;
    }
    let bytes = json.as_bytes();
    let mut at = 0;
    let mut begins_text = false;
    while let Some(byte) = bytes.get(at) {
        if *byte != b'\\' {
            begins_text = *byte == b'"';
            at += 1;
            continue;
        }
        let next = at + ESCAPE_BYTES;
        at = match unit_at(json, at) {
            Some(unit) if (0xd800..0xdc00).contains(&unit) || is_second_half(unit) => {
                if !is_second_half(unit) && unit_at(json, next).is_some_and(is_second_half) {
                    next + ESCAPE_BYTES
                } else {
                    let ends_text = bytes.get(next) == Some(&b'"');
                    halves.push(UnpairedHalf { at, unit, begins_text, ends_text });
                    next
                }
            }
            Some(_) => next,
            None => at + 2,
        };
        begins_text = false;
    }
    halves
}

/// Removes escapes of unpaired surrogate halves from JSON text. Text without any is borrowed.
pub fn repair_surrogates(json: &str) -> Cow<'_, str> {
    let halves = unpaired_halves(json);
    if halves.is_empty() {
        return Cow::Borrowed(json);
    }
    let mut kept = String::with_capacity(json.len());
    let mut from = 0;
    for half in halves {
        kept.push_str(json.get(from..half.at).unwrap_or_default());
        from = half.at + ESCAPE_BYTES;
    }
    kept.push_str(json.get(from..).unwrap_or_default());
    Cow::Owned(kept)
}

/// The UTF-16 unit of the escape `\uXXXX` that begins at `at`.
fn unit_at(json: &str, at: usize) -> Option<u16> {
    let digits = json.get(at..at + ESCAPE_BYTES)?.strip_prefix("\\u")?;
    u16::from_str_radix(digits, 16).ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sanitized_line_has_no_hidden_characters() {
        assert_eq!(sanitize_line("Ada\u{202e}evil\n\tx", 50), "Adaevil x");
        assert_eq!(sanitize_line("aaaa", 2), "aa…");
        assert_eq!(sanitize_line("aa", 2), "aa");
        let hidden =
            "\u{34f}\u{17b4}\u{2800}\u{61c}\u{200b}\u{2066}\u{3164}\u{fff9}\u{e0041}\u{e0100}";
        assert_eq!(
            sanitize_line(&format!("rm\u{0}\u{1b}[31m{hidden} x\u{2028}y"), 50),
            "rm [31m x y"
        );
        assert_eq!(sanitize_line("Ada \u{2764}\u{fe0f}", 50), "Ada \u{2764}\u{fe0f}", "an emoji");
    }

    #[test]
    fn hidden_characters_of_json_become_escapes() {
        let text = "{\n\t\"to\": \"Ada\u{202e}\u{200b}\u{e0041}\u{7f}\u{2028}\"\r\n}";
        let escaped = escape_hidden(text);
        assert_eq!(escaped, "{\n\t\"to\": \"Ada\\u202E\\u200B\\uDB40\\uDC41\\u007F\\u2028\"\r\n}");
        let value = |json: &str| serde_json::from_str::<serde_json::Value>(json).unwrap();
        assert_eq!(value(&escaped), value(text));
        assert!(matches!(escape_hidden("\"é \u{1f600}\""), Cow::Borrowed(_)));
    }

    #[test]
    fn sanitized_lines_keep_their_breaks() {
        assert_eq!(sanitize_lines("Pay?\n\n\u{202e}rm\u{0}\tx\r\nyes", 50), "Pay?\n\nrm x\nyes");
        assert_eq!(sanitize_lines("aa\nbb", 3), "aa\n…");
    }

    #[test]
    fn repair_surrogates_removes_only_unpaired_halves() {
        let cases = [
            (r#""a😀b""#, r#""a😀b""#),
            (r#""a\ud83db""#, r#""ab""#),
            (r#""a\ude00b""#, r#""ab""#),
            (r#""\ud83d\ud83d\ude00""#, r#""\ud83d\ude00""#),
            (r#""\\ud83d""#, r#""\\ud83d""#),
            (r#""\u0041\n""#, r#""\u0041\n""#),
            (r#""\ud83d"#, r#"""#),
        ];
        for (given, expected) in cases {
            assert_eq!(repair_surrogates(given), expected, "{given}");
        }
    }

    proptest::proptest! {
        #[test]
        fn repair_surrogates_is_idempotent(text in "(\\\\u[d][89abcdef][0-9a-f]{2}|\\\\\\\\|[a-z\\\\u]){0,12}") {
            let repaired = repair_surrogates(&text).into_owned();
            proptest::prop_assert_eq!(repair_surrogates(&repaired).into_owned(), repaired);
        }
    }
}
