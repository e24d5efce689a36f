//! JSON in the spelling of Python's `json` module, in which the source of the protocol writes it:
//! `dumps`, `repr` and the texts of syntax errors.

use std::fmt::Write as _;

use turnwheel_json::exact::ExactJson;

/// Spells JSON text as `json.dumps` does: `", "` and `": "` between values, ASCII only. Numbers stay
/// as written.
pub(crate) fn push_json(out: &mut String, json: &str) {
    let mut rest = json;
    while let Some(first) = rest.bytes().next() {
        let length = match first {
            b'"' => {
                let length = string_length(rest);
                let literal = rest.get(..length).unwrap_or(rest);
                match serde_json::from_str::<String>(literal) {
                    Ok(text) => push_string(out, &text),
                    // An unpaired surrogate, which is ASCII already.
                    Err(_) => out.push_str(literal),
                }
                length
            }
            b' ' | b'\t' | b'\n' | b'\r' => 1,
            b',' => {
                out.push_str(", ");
                1
            }
            b':' => {
                out.push_str(": ");
                1
            }
            _ => {
                let length = rest.find(['"', ' ', '\t', '\n', '\r', ',', ':']);
                let length = length.unwrap_or(rest.len());
                out.push_str(rest.get(..length).unwrap_or_default());
                length
            }
        };
        rest = rest.get(length..).unwrap_or_default();
    }
}

/// Bytes of the string literal at the start of valid JSON.
fn string_length(json: &str) -> usize {
    let mut is_escaped = false;
    for (at, byte) in json.bytes().enumerate().skip(1) {
        match byte {
            _ if is_escaped => is_escaped = false,
            b'\\' => is_escaped = true,
            b'"' => return at + 1,
            _ => {}
        }
    }
    json.len()
}

/// Writes a string literal as `json.dumps` does.
pub(crate) fn push_string(out: &mut String, text: &str) {
    out.push('"');
    for letter in text.chars() {
        match letter {
            '"' => out.push_str("\\\""),
            '\\' => out.push_str("\\\\"),
            '\n' => out.push_str("\\n"),
            '\r' => out.push_str("\\r"),
            '\t' => out.push_str("\\t"),
            '\u{8}' => out.push_str("\\b"),
            '\u{c}' => out.push_str("\\f"),
            ' '..='~' => out.push(letter),
            _ => {
                for unit in letter.encode_utf16(&mut [0; 2]) {
                    let _infallible = write!(out, "\\u{unit:04x}");
                }
            }
        }
    }
    out.push('"');
}

/// The text of `str(value)`. Numbers stay as written.
pub(super) fn display(value: &ExactJson) -> String {
    if let ExactJson::Text(text) = value { text.clone() } else { repr(value) }
}

/// The text of `repr(value)`. Numbers stay as written.
pub(super) fn repr(value: &ExactJson) -> String {
    match value {
        ExactJson::Null => "None".to_owned(),
        ExactJson::Bool(true) => "True".to_owned(),
        ExactJson::Bool(false) => "False".to_owned(),
        ExactJson::Number(number) => number.to_string(),
        ExactJson::Text(text) => repr_string(text),
        ExactJson::List(items) => {
            let items: Vec<String> = items.iter().map(repr).collect();
            format!("[{}]", items.join(", "))
        }
        ExactJson::Object(members) => {
            let members = members.iter();
            let members: Vec<String> = members
                .map(|(name, value)| format!("{}: {}", repr_string(name), repr(value)))
                .collect();
            format!("{{{}}}", members.join(", "))
        }
    }
}

fn repr_string(text: &str) -> String {
    let quote = if text.contains('\'') && !text.contains('"') { '"' } else { '\'' };
    let mut out = String::from(quote);
    for letter in text.chars() {
        match letter {
            '\\' => out.push_str("\\\\"),
            '\n' => out.push_str("\\n"),
            '\r' => out.push_str("\\r"),
            '\t' => out.push_str("\\t"),
            _ if letter == quote => {
                out.push('\\');
                out.push(letter);
            }
            _ if letter.is_ascii_control() => {
                let _infallible = write!(out, "\\x{:02x}", u32::from(letter));
            }
            _ => out.push(letter),
        }
    }
    out.push(quote);
    out
}

/// The name of the value's type.
pub(super) fn type_name(value: &ExactJson) -> &'static str {
    match value {
        ExactJson::Null => "NoneType",
        ExactJson::Bool(_) => "bool",
        ExactJson::Number(number) if number.contains(['.', 'e', 'E']) => "float",
        ExactJson::Number(_) => "int",
        ExactJson::Text(_) => "str",
        ExactJson::List(_) => "list",
        ExactJson::Object(_) => "dict",
    }
}

/// The text of the `JSONDecodeError` of a text that is not JSON.
pub(super) fn syntax_error(text: &str) -> String {
    match (Scanner { bytes: text.as_bytes(), at: 0 }).find_error() {
        Some((message, at)) => {
            let before = text.get(..at).unwrap_or(text);
            let line = before.matches('\n').count() + 1;
            let of_line = before.rsplit('\n').next().unwrap_or(before);
            let (column, position) = (of_line.chars().count() + 1, before.chars().count());
            format!("{message}: line {line} column {column} (char {position})")
        }
        // Python reads NaN and Infinity.
        None => "A number is not finite".to_owned(),
    }
}

/// The next part that a scanner expects.
#[derive(Clone, Copy, PartialEq)]
enum Expected {
    Value,
    ValueOrEnd,
    Name,
    NameOrEnd,
    Colon,
    CommaOrEnd,
}

type SyntaxError = (&'static str, usize);

struct Scanner<'t> {
    bytes: &'t [u8],
    at: usize,
}

impl Scanner<'_> {
    fn peek(&self) -> Option<u8> {
        self.bytes.get(self.at).copied()
    }

    /// The first error with its byte position.
    fn find_error(mut self) -> Option<SyntaxError> {
        // The open containers, by their closing brackets.
        let mut open: Vec<u8> = Vec::new();
        let mut expected = Expected::Value;
        loop {
            while matches!(self.peek(), Some(b' ' | b'\t' | b'\n' | b'\r')) {
                self.at += 1;
            }
            if expected == Expected::CommaOrEnd && open.is_empty() {
                return self.peek().map(|_| ("Extra data", self.at));
            }
            let byte = self.peek();
            let is_end = byte.is_some() && byte == open.last().copied();
            expected = match expected {
                Expected::ValueOrEnd | Expected::NameOrEnd | Expected::CommaOrEnd if is_end => {
                    open.pop();
                    self.at += 1;
                    Expected::CommaOrEnd
                }
                Expected::Value | Expected::ValueOrEnd => match self.skip_value(&mut open) {
                    Ok(next) => next,
                    Err(error) => return Some(error),
                },
                Expected::Name | Expected::NameOrEnd => {
                    if byte != Some(b'"') {
                        let message = "Expecting property name enclosed in double quotes";
                        return Some((message, self.at));
                    }
                    if let Err(error) = self.skip_string() {
                        return Some(error);
                    }
                    Expected::Colon
                }
                Expected::Colon if byte == Some(b':') => {
                    self.at += 1;
                    Expected::Value
                }
                Expected::Colon => return Some(("Expecting ':' delimiter", self.at)),
                Expected::CommaOrEnd if byte == Some(b',') => {
                    self.at += 1;
                    if open.last() == Some(&b'}') { Expected::Name } else { Expected::Value }
                }
                Expected::CommaOrEnd => return Some(("Expecting ',' delimiter", self.at)),
            };
        }
    }

    /// Skips a scalar, or the opening bracket of a container.
    fn skip_value(&mut self, open: &mut Vec<u8>) -> Result<Expected, SyntaxError> {
        let rest = self.bytes.get(self.at..).unwrap_or_default();
        match rest.first() {
            Some(b'"') => self.skip_string()?,
            Some(b'[') => {
                open.push(b']');
                self.at += 1;
                return Ok(Expected::ValueOrEnd);
            }
            Some(b'{') => {
                open.push(b'}');
                self.at += 1;
                return Ok(Expected::NameOrEnd);
            }
            _ => {
                let words: [&[u8]; 6] =
                    [b"true", b"false", b"null", b"NaN", b"Infinity", b"-Infinity"];
                let word = words.into_iter().find(|word| rest.starts_with(word));
                match word.map_or_else(|| number_length(rest), <[u8]>::len) {
                    0 => return Err(("Expecting value", self.at)),
                    length => self.at += length,
                }
            }
        }
        Ok(Expected::CommaOrEnd)
    }

    fn skip_string(&mut self) -> Result<(), SyntaxError> {
        let start = self.at;
        let unterminated = ("Unterminated string starting at", start);
        self.at += 1;
        loop {
            match self.peek().ok_or(unterminated)? {
                b'"' => {
                    self.at += 1;
                    return Ok(());
                }
                b'\\' => match self.bytes.get(self.at + 1).ok_or(unterminated)? {
                    b'u' => {
                        let digits = self.bytes.get(self.at + 2..self.at + 6).unwrap_or_default();
                        if digits.len() < 4 || !digits.iter().all(u8::is_ascii_hexdigit) {
                            return Err(("Invalid \\uXXXX escape", self.at + 1));
                        }
                        self.at += 6;
                    }
                    b'"' | b'\\' | b'/' | b'b' | b'f' | b'n' | b'r' | b't' => self.at += 2,
                    _ => return Err(("Invalid \\escape", self.at)),
                },
                0..b' ' => return Err(("Invalid control character at", self.at)),
                _ => self.at += 1,
            }
        }
    }
}

/// Bytes of the number at the start; 0 without one.
fn number_length(bytes: &[u8]) -> usize {
    let digits = |from: usize| {
        bytes
            .get(from..)
            .unwrap_or_default()
            .iter()
            .take_while(|byte| byte.is_ascii_digit())
            .count()
    };
    let at = |index: usize| bytes.get(index).copied();
    let sign = usize::from(at(0) == Some(b'-'));
    let mut length = match at(sign) {
        Some(b'0') => sign + 1,
        Some(b'1'..=b'9') => sign + digits(sign),
        _ => return 0,
    };
    if at(length) == Some(b'.') && digits(length + 1) > 0 {
        length += 1 + digits(length + 1);
    }
    if matches!(at(length), Some(b'e' | b'E')) {
        let sign = usize::from(matches!(at(length + 1), Some(b'+' | b'-')));
        let exponent = digits(length + 1 + sign);
        length += if exponent == 0 { 0 } else { 1 + sign + exponent };
    }
    length
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn json_is_spelled_as_python_spells_it() {
        let cases = [
            (r#"{"a":1.50,"b":[ true,null ]}"#, r#"{"a": 1.50, "b": [true, null]}"#),
            (r#"{"text":"a,b: \"c\" \/ \u0041"}"#, r#"{"text": "a,b: \"c\" / A"}"#),
            ("\"\u{fc}\u{1f600}\"", "\"\\u00fc\\ud83d\\ude00\""),
            (r#"["\ud800"]"#, r#"["\ud800"]"#),
            (" {} ", "{}"),
        ];
        for (json, expected) in cases {
            let mut out = String::new();
            push_json(&mut out, json);
            assert_eq!(out, expected, "{json}");
        }
        let mut out = String::new();
        push_string(&mut out, "a\"\\\n\t\u{1}\u{7f}");
        assert_eq!(out, r#""a\"\\\n\t\u0001\u007f""#);
    }

    #[test]
    fn values_are_displayed_as_python_displays_them() {
        let value = r#"{"a": [1, 1.50, null, true, 25122920421210000012345], "it's": "say \"x\"", "q": "it's", "n": "\n"}"#;
        let value = ExactJson::parse(value).unwrap();
        assert_eq!(
            repr(&value),
            r#"{'a': [1, 1.50, None, True, 25122920421210000012345], "it's": 'say "x"', 'q': "it's", 'n': '\n'}"#
        );
        assert_eq!(display(&ExactJson::Text("plain".to_owned())), "plain");
    }

    /// Computed with Python 3.11.
    #[test]
    fn syntax_errors_have_the_texts_of_python() {
        let cases = [
            (
                r#"[{"name":"echo","args":{}}"#,
                "Expecting ',' delimiter: line 1 column 27 (char 26)",
            ),
            ("", "Expecting value: line 1 column 1 (char 0)"),
            ("[1,]", "Expecting value: line 1 column 4 (char 3)"),
            ("{\"a\"\n 1}", "Expecting ':' delimiter: line 2 column 2 (char 6)"),
            (
                "{a: 1}",
                "Expecting property name enclosed in double quotes: line 1 column 2 (char 1)",
            ),
            (
                "{\"a\": 1,}",
                "Expecting property name enclosed in double quotes: line 1 column 9 (char 8)",
            ),
            ("[] x", "Extra data: line 1 column 4 (char 3)"),
            ("[\"\u{fc}", "Unterminated string starting at: line 1 column 2 (char 1)"),
            ("[\"\u{fc}\n\"]", "Invalid control character at: line 1 column 4 (char 3)"),
            (r#"["\x"]"#, "Invalid \\escape: line 1 column 3 (char 2)"),
            (r#"["\u12"]"#, "Invalid \\uXXXX escape: line 1 column 4 (char 3)"),
            ("[01]", "Expecting ',' delimiter: line 1 column 3 (char 2)"),
            ("[-]", "Expecting value: line 1 column 2 (char 1)"),
            ("[NaN, -Infinity]", "A number is not finite"),
        ];
        for (text, expected) in cases {
            assert!(serde_json::from_str::<serde_json::Value>(text).is_err(), "{text}");
            assert_eq!(syntax_error(text), expected, "{text}");
        }
    }
}
