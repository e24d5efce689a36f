//! Completes partial JSON: a tool call that the model is still writing, or that was cut.

use std::borrow::Cow;

use serde_json::Value;

use crate::raw::RawJson;
use crate::text::repair_surrogates;

const EMPTY_OBJECT: &str = "{}";

/// The arguments of a stored call as the text of one JSON object, because services refuse a request
/// that repeats others. An object keeps its text, the beginning of one is completed, and anything
/// else becomes `{}`. Text that was no JSON is stored as a JSON string.
pub fn object_text(arguments: &RawJson) -> Cow<'_, str> {
    let text = repair_surrogates(arguments.text());
    match text.trim_start().bytes().next() {
        Some(b'{') => text,
        Some(b'"') => {
            let received: String = serde_json::from_str(&text).unwrap_or_default();
            let object = complete_json(&received);
            let is_object = object.text().trim_start().starts_with('{');
            Cow::Owned(if is_object { object.text() } else { EMPTY_OBJECT }.to_owned())
        }
        _ => Cow::Borrowed(EMPTY_OBJECT),
    }
}

/// Closes the text and completes a partial literal. If that is not valid JSON, cuts the text after
/// the last complete member and closes it; else returns `{}`. The result is never executed.
pub fn complete_json(text: &str) -> RawJson {
    let mut open = OpenScopes::default();
    let mut last_complete = None;
    // Closers since the last complete member, the innermost first. Nothing was opened since, or the
    // opening would be the last.
    let mut closed_since = String::new();
    for (at, character) in text.char_indices() {
        let is_in_string = open.is_in_string;
        closed_since.extend(open.push_char(character));
        let end = match character {
            _ if is_in_string => continue,
            ',' => at,
            '{' | '[' => at + character.len_utf8(),
            _ => continue,
        };
        last_complete = Some(end);
        closed_since.clear();
    }
    let ended = if open.is_in_string { close_string(text, &open) } else { complete_literal(text) };
    close_json(ended, &open.closers)
        .or_else(|| {
            // A partial escape: the string ends before it.
            let cut = text.get(..text.rfind('\\').filter(|_| open.is_in_string)?)?;
            close_json(format!("{cut}\""), &open.closers)
        })
        .or_else(|| {
            open.closers.extend(closed_since.chars().rev());
            close_json(text.get(..last_complete?)?.to_owned(), &open.closers)
        })
        .unwrap_or_else(|| RawJson::from_value(&serde_json::Map::new()))
}

fn close_string(text: &str, open: &OpenScopes) -> String {
    let mut ended = text.to_owned();
    if open.is_after_backslash {
        ended.pop();
    }
    ended.push('"');
    ended
}

/// Completes a literal: `tr` becomes `true`, `1.` and `1e` become 1. Other text stays unchanged.
fn complete_literal(text: &str) -> String {
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
struct OpenScopes {
    /// Closers of the open objects and lists, the outermost first.
    closers: String,
    is_in_string: bool,
    is_after_backslash: bool,
}

impl OpenScopes {
    /// Applies a character. Returns the scope that it closes.
    fn push_char(&mut self, character: char) -> Option<char> {
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

fn close_json(mut text: String, closers: &str) -> Option<RawJson> {
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
    fn partial_json_is_completed() {
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
            assert_eq!(complete_json(text).to_value().to_string(), expected, "{text}");
        }
    }

    #[test]
    fn arguments_are_always_an_object() {
        let cases = [
            (r#"{"a": 1.50}"#, r#"{"a": 1.50}"#),
            (r#""{\"to\":\"Ad""#, r#"{"to":"Ad"}"#),
            (r#""{\"to\":\"Ada\"}""#, r#"{"to":"Ada"}"#),
            (r#""{\"to\":\"Ada\"}{\"to\":\"Bob\"}""#, "{}"),
            (r#""[1,2""#, "{}"),
            (r#""Ada""#, "{}"),
            (r#""""#, "{}"),
            (r#"["Ada"]"#, "{}"),
            ("null", "{}"),
            ("12", "{}"),
            ("true", "{}"),
        ];
        for (stored, sent) in cases {
            assert_eq!(object_text(&RawJson::from_text(stored).unwrap()), sent, "{stored}");
        }
    }

    #[test]
    fn deep_nesting_gives_empty_object_quickly() {
        assert_eq!(complete_json(&"[".repeat(100_000)).text(), "{}");
        assert_eq!(complete_json(&"{\"a\":".repeat(100_000)).text(), "{}");
        // Guards against quadratic time: minutes for a text of this length.
        assert_eq!(complete_json(&"[".repeat(8_000_000)).text(), "{}");
    }

    proptest::proptest! {
        #[test]
        fn every_prefix_of_call_is_readable(
            name in "[a-zü\"\\\\]{0,6}", text in "\\PC{0,20}", numbers in proptest::collection::vec(-9_i32..99, 0..5),
        ) {
            let whole = serde_json::json!({ name.clone(): [text, numbers], "z": {"y": null} });
            let json = whole.to_string();
            let mut beginning = String::new();
            for character in json.chars() {
                proptest::prop_assert!(complete_json(&beginning).to_value().is_object());
                beginning.push(character);
            }
            proptest::prop_assert_eq!(complete_json(&json).to_value(), whole);
        }
    }
}
