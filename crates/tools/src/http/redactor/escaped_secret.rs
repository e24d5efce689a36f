//! Values of app settings in text with JSON inside, such as `JSON.stringify(process.env)`.

/// Backslashes before one character: those of a few levels of JSON inside JSON.
const BACKSLASHES_MAX: usize = 16;
/// Bytes of a value without its backslashes. A shorter one would match by accident.
const BYTES_MIN: usize = 4;

/// A value that JSON can write in other ways. It also matches if each of its lines is indented.
#[derive(Clone)]
pub(super) struct EscapedSecret {
    /// The value without backslashes. White space with a line break is one line break.
    characters: Vec<char>,
    /// Of a value with several lines, without backslashes.
    first_line: Option<String>,
}

impl EscapedSecret {
    /// Returns `None` for values that all programs write in one way.
    pub(super) fn new(value: &str) -> Option<Self> {
        let is_plain = |letter: char| letter.is_ascii_alphanumeric() || "-._~".contains(letter);
        if value.chars().all(is_plain) {
            return None;
        }
        let lines: Vec<&str> = value.lines().map(str::trim).filter(|it| !it.is_empty()).collect();
        let joined = lines.join("\n");
        let characters: Vec<char> = joined.chars().filter(|letter| *letter != '\\').collect();
        let bytes: usize = characters.iter().map(|letter| letter.len_utf8()).sum();
        let first_line = lines.first().filter(|_| lines.len() > 1);
        let first_line = first_line.map(|line| line.replace('\\', ""));
        (bytes >= BYTES_MIN).then_some(Self { characters, first_line })
    }

    /// Replaces the value. Returns `None` if the text does not have it.
    pub(super) fn replace(&self, text: &str, replacement: &str) -> Option<String> {
        // Without a backslash only the white space between lines can be another.
        let has_first_line = || self.first_line.as_ref().is_some_and(|line| text.contains(line));
        if !text.contains('\\') && !has_first_line() {
            return None;
        }
        let (mut replaced, mut is_found) = (String::new(), false);
        let mut rest = text;
        while let Some(letter) = rest.chars().next() {
            if let Some(after) = self.strip_from(rest) {
                replaced.push_str(replacement);
                (rest, is_found) = (after, true);
            } else {
                replaced.push(letter);
                rest = rest.strip_prefix(letter).unwrap_or_default();
            }
        }
        is_found.then_some(replaced)
    }

    /// Returns the text after the value.
    fn strip_from<'t>(&self, text: &'t str) -> Option<&'t str> {
        self.characters.iter().try_fold(text, |rest, letter| match *letter {
            '\n' => strip_white_space(rest),
            letter => strip_letter(rest, letter),
        })
    }
}

/// Strips one or more white space characters.
fn strip_white_space(text: &str) -> Option<&str> {
    let mut rest = text.trim_start();
    while let Some(after) = ['\n', '\r', '\t'].iter().find_map(|space| strip_letter(rest, *space)) {
        rest = after.trim_start();
    }
    (rest.len() < text.len()).then_some(rest)
}

/// Strips a character, as it is or in any form of JSON: `\n`, `\/`, `\u00fc`, `\\u00FC`.
fn strip_letter(text: &str, letter: char) -> Option<&str> {
    let rest = strip_backslashes(text);
    if let Some(after) = rest.strip_prefix(letter) {
        return Some(after);
    }
    if rest.len() == text.len() {
        return None;
    }
    let short = match letter {
        '\n' => Some('n'),
        '\r' => Some('r'),
        '\t' => Some('t'),
        '\u{8}' => Some('b'),
        '\u{c}' => Some('f'),
        _ => None,
    };
    short.and_then(|short| rest.strip_prefix(short)).or_else(|| strip_units(text, letter))
}

/// Strips a character whose UTF-16 units are written as `\uXXXX`.
fn strip_units(text: &str, letter: char) -> Option<&str> {
    letter.encode_utf16(&mut [0; 2]).iter().try_fold(text, |rest, unit| {
        let (digits, after) = strip_backslashes(rest).strip_prefix('u')?.split_at_checked(4)?;
        (u16::from_str_radix(digits, 16) == Ok(*unit)).then_some(after)
    })
}

fn strip_backslashes(text: &str) -> &str {
    let count = text.bytes().take(BACKSLASHES_MAX).take_while(|byte| *byte == b'\\').count();
    text.split_at_checked(count).map_or(text, |(_, rest)| rest)
}

#[cfg(test)]
mod tests {
    use super::*;

    const KEY: &str = "-----BEGIN KEY-----\nMIIEvQ+/az\\09\nq\"üß😀\tz\n-----END KEY-----\n";

    fn replace(value: &str, text: &str) -> Option<String> {
        EscapedSecret::new(value)?.replace(text, "[KEY]")
    }

    /// The text of a string in JSON, with all characters beyond ASCII as `json.dumps` writes them.
    fn dump(value: &str, is_upper: bool) -> String {
        let json = serde_json::to_string(value).unwrap();
        let mut dumped = String::new();
        for letter in json.trim_matches('"').chars() {
            if letter.is_ascii() {
                dumped.push(letter);
                continue;
            }
            for unit in letter.encode_utf16(&mut [0; 2]) {
                let digits = format!("{unit:04x}");
                dumped.push_str("\\u");
                dumped.push_str(&if is_upper { digits.to_uppercase() } else { digits });
            }
        }
        dumped
    }

    #[test]
    fn value_is_replaced_in_every_form_of_json() {
        let json = serde_json::to_string(KEY).unwrap().trim_matches('"').to_owned();
        let nested = serde_json::to_string(&format!("{{\"k\":\"{json}\"}}")).unwrap();
        let forms = [
            ("JSON.stringify", json.clone()),
            ("json_encode", dump(KEY, false).replace('/', "\\/")),
            ("json.dumps", dump(KEY, false)),
            ("upper case", dump(KEY, true)),
            ("quotation mark", json.replace("\\\"", "\\u0022").replace('+', "\\u002B")),
            ("line breaks", json.replace("\\n", "\\r\\n")),
            ("nested", nested),
            ("text", KEY.to_owned()),
            ("indented", KEY.replace('\n', "\r\n    ")),
        ];
        for (name, text) in forms {
            let replaced = replace(KEY, &format!("env: {text} end")).expect(name);
            assert!(replaced.starts_with("env: ") && replaced.ends_with(" end"), "{replaced}");
            assert_eq!(replaced.matches("[KEY]").count(), 1, "{name}: {replaced}");
            assert!(!replaced.contains("BEGIN") && !replaced.contains("END"), "{name}: {replaced}");
        }
    }

    #[test]
    fn lines_are_replaced_in_text_without_backslashes() {
        let value = "  BEGIN\n\none\\two ü\nEND\n";
        assert_eq!(replace(value, "a BEGIN\n\t onetwo ü\r\nEND z").unwrap(), "a [KEY] z");
        for other in ["BEGIN", "BEGINonetwo ü\nEND", "onetwo ü\nEND", ""] {
            assert_eq!(replace(value, other), None, "{other}");
        }
    }

    #[test]
    fn other_text_stays() {
        let value = "pa\"ss\\word";
        assert_eq!(replace(value, r#"{"p":"pa\"ss\\word"}"#).unwrap(), r#"{"p":"[KEY]"}"#);
        for other in [r"pa\nss\\word", "passwd", r"\\\\\\", r"pa\u00", r"pa\", "", "ü\\ü"] {
            assert_eq!(replace(value, other), None, "{other}");
        }
        for plain in ["s3cret-value", "\\\\\\\\\\\\\\\\", "\n\n\n\n\n\n\n\n"] {
            assert!(EscapedSecret::new(plain).is_none(), "{plain:?}");
        }
    }

    #[test]
    fn long_runs_of_one_character_stay() {
        let run = |letter: &str| letter.repeat(1 << 17);
        assert_eq!(replace(KEY, &[run("\\"), run(" "), run("-")].concat()), None);
    }
}
