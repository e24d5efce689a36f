//! Completes partial JSON, so that clients can show a tool call while the model writes it.

use serde_json::Value;

use crate::agent::raw::RawJson;

/// Closes the text and completes a partial literal. If that is not valid JSON, cuts the text after
/// the last complete member and closes it; else returns `{}`. The result is for display only.
pub(super) fn complete(text: &str) -> RawJson {
    let mut open = Open::default();
    let mut last_whole = None;
    // Closers since the last complete member, the innermost first. Nothing was opened since, or the
    // opening would be the last.
    let mut closed_since = String::new();
    for (at, character) in text.char_indices() {
        let is_in_string = open.is_in_string;
        closed_since.extend(open.take(character));
        let end = match character {
            _ if is_in_string => continue,
            ',' => at,
            '{' | '[' => at + character.len_utf8(),
            _ => continue,
        };
        last_whole = Some(end);
        closed_since.clear();
    }
    let ended = if open.is_in_string { ended_string(text, &open) } else { ended_literal(text) };
    close(ended, &open.closers)
        .or_else(|| {
            // A partial escape: the string ends before it.
            let cut = text.get(..text.rfind('\\').filter(|_| open.is_in_string)?)?;
            close(format!("{cut}\""), &open.closers)
        })
        .or_else(|| {
            open.closers.extend(closed_since.chars().rev());
            close(text.get(..last_whole?)?.to_owned(), &open.closers)
        })
        .unwrap_or_else(|| RawJson::of(&serde_json::Map::new()))
}

fn ended_string(text: &str, open: &Open) -> String {
    let mut ended = text.to_owned();
    if open.is_after_backslash {
        ended.pop();
    }
    ended.push('"');
    ended
}

/// Completes a literal: `tr` becomes `true`, `1.` and `1e` become 1. Other text stays unchanged.
fn ended_literal(text: &str) -> String {
    let start = text
        .rfind(|letter: char| {
            matches!(letter, '{' | '}' | '[' | ']' | ',' | ':' | '"') || letter.is_whitespace()
        })
        .map_or(0, |at| at + 1);
    let (before, literal) = text.split_at_checked(start).unwrap_or((text, ""));
    let word = ["true", "false", "null"].into_iter().find(|word| word.starts_with(literal));
    let whole = match word {
        Some(word) if !literal.is_empty() => word,
        // Trailing characters of an incomplete number.
        _ => literal.trim_end_matches(['.', 'e', 'E', '+', '-']),
    };
    format!("{before}{whole}")
}

/// Open scopes after the characters so far.
#[derive(Default)]
struct Open {
    /// Closers of the open objects and lists, the outermost first.
    closers: String,
    is_in_string: bool,
    is_after_backslash: bool,
}

impl Open {
    /// Applies a character. Returns the scope that it closes.
    fn take(&mut self, character: char) -> Option<char> {
        if self.is_in_string {
            let is_escaped = std::mem::take(&mut self.is_after_backslash);
            match character {
                '\\' if !is_escaped => self.is_after_backslash = true,
                '"' if !is_escaped => self.is_in_string = false,
                _ => {}
            }
            return None;
        }
        match character {
            '"' => self.is_in_string = true,
            '{' => self.closers.push('}'),
            '[' => self.closers.push(']'),
            '}' | ']' => return self.closers.pop(),
            _ => {}
        }
        None
    }
}

fn close(mut text: String, closers: &str) -> Option<RawJson> {
    text.extend(closers.chars().rev());
    // Parsed, not only validated: an unpaired surrogate escape is valid raw JSON and cannot be
    // parsed.
    serde_json::from_str::<Value>(&text).ok()?;
    RawJson::from_text(text).ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_has_arrived_is_shown() {
        let cases = [
            ("", "{}"),
            ("{", "{}"),
            (r#"{"pa"#, "{}"),
            (r#"{"path""#, "{}"),
            (r#"{"path":"#, "{}"),
            (r#"{"path":"/a"#, r#"{"path":"/a"}"#),
            (r#"{"path":"/a\"#, r#"{"path":"/a"}"#),
            (r#"{"path":"/a\""#, r#"{"path":"/a\""}"#),
            (r#"{"path":"/a\u00"#, r#"{"path":"/a"}"#),
            (r#"{"path":"a\ud83d"#, r#"{"path":"a"}"#),
            (r#"{"path":"/a","#, r#"{"path":"/a"}"#),
            (r#"{"path":"/a","li"#, r#"{"path":"/a"}"#),
            (r#"{"path":"/a","lines":[1,2"#, r#"{"path":"/a","lines":[1,2]}"#),
            (r#"{"path":"/a","lines":[1,{"x":tr"#, r#"{"path":"/a","lines":[1,{"x":true}]}"#),
            (r#"{"a":t"#, r#"{"a":true}"#),
            (r#"{"a": fals"#, r#"{"a":false}"#),
            (r#"{"a":[null,nul"#, r#"{"a":[null,null]}"#),
            (r#"{"a":-"#, "{}"),
            (r#"{"a":-1"#, r#"{"a":-1}"#),
            (r#"{"a":12."#, r#"{"a":12}"#),
            (r#"{"a":1.5e"#, r#"{"a":1.5}"#),
            (r#"{"a":1e-"#, r#"{"a":1}"#),
            (r#"{"a":tx"#, "{}"),
            (r#"{"a":"}],{"#, r#"{"a":"}],{"}"#),
            (r#"{"a":1}"#, r#"{"a":1}"#),
            (r#"{"a":1}}"#, "{}"),
            ("no json", "{}"),
        ];
        for (text, expected) in cases {
            assert_eq!(complete(text).value().to_string(), expected, "{text}");
        }
    }

    #[test]
    fn deep_nesting_is_hopeless_and_nothing_worse() {
        assert_eq!(complete(&"[".repeat(100_000)).text(), "{}");
        assert_eq!(complete(&"{\"a\":".repeat(100_000)).text(), "{}");
        // Guards against quadratic time: minutes for a text of this length.
        assert_eq!(complete(&"[".repeat(8_000_000)).text(), "{}");
    }

    proptest::proptest! {
        #[test]
        fn every_beginning_of_a_call_is_readable_and_the_end_is_exact(
            name in "[a-zü\"\\\\]{0,6}", text in "\\PC{0,20}", numbers in proptest::collection::vec(-9_i32..99, 0..5),
        ) {
            let whole = serde_json::json!({ name.clone(): [text, numbers], "z": {"y": null} });
            let json = whole.to_string();
            let mut beginning = String::new();
            for character in json.chars() {
                proptest::prop_assert!(complete(&beginning).value().is_object());
                beginning.push(character);
            }
            proptest::prop_assert_eq!(complete(&json).value(), whole);
        }
    }
}
