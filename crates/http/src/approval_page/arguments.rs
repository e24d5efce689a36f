//! Pretty-printing of JSON arguments. Every digit stays as the approver must see it.

use turnwheel_json::text::escape_hidden;

/// Returns equal JSON with one member per line. Characters that hide or reorder others are escapes.
pub(super) fn pretty_print(text: &str) -> String {
    let mut pretty = String::with_capacity(text.len() * 2);
    let mut depth = 0_usize;
    let mut in_string = false;
    let mut is_escaped = false;
    for letter in escape_hidden(text).chars() {
        if in_string {
            pretty.push(letter);
            in_string = is_escaped || letter != '"';
            is_escaped = letter == '\\' && !is_escaped;
            continue;
        }
        match letter {
            '"' => {
                in_string = true;
                pretty.push(letter);
            }
            '{' | '[' => {
                depth += 1;
                pretty.push(letter);
                break_line(&mut pretty, depth);
            }
            '}' | ']' => {
                depth = depth.saturating_sub(1);
                break_line(&mut pretty, depth);
                pretty.push(letter);
            }
            ',' => {
                pretty.push(letter);
                break_line(&mut pretty, depth);
            }
            ':' => pretty.push_str(": "),
            letter if letter.is_whitespace() => {}
            letter => pretty.push(letter),
        }
    }
    pretty
}

fn break_line(text: &mut String, depth: usize) {
    text.push('\n');
    text.extend(std::iter::repeat_n("  ", depth.min(32)));
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn characters_that_reorder_text_are_escapes() {
        for (text, pretty) in [
            ("{\"account\":\"\u{202e}987654\"}", "{\n  \"account\": \"\\u202E987654\"\n}"),
            (
                "[\"a\u{200b}\u{7f}\u{2028}\u{e0041}b\"]",
                "[\n  \"a\\u200B\\u007F\\u2028\\uDB40\\uDC41b\"\n]",
            ),
            ("\"\u{5d0} é €\u{1f600}\"", "\"\u{5d0} é €\u{1f600}\""),
            (r#""\u202e\n\\""#, r#""\u202e\n\\""#),
        ] {
            assert_eq!(pretty_print(text), pretty);
            let back: serde_json::Value = serde_json::from_str(pretty).unwrap();
            assert_eq!(back, serde_json::from_str::<serde_json::Value>(text).unwrap());
        }
    }

    #[test]
    fn pretty_print_changes_only_whitespace() {
        let text = r#"{"a,b":[1.50,{"c":"\\\""},[]],"d":"}"}"#;
        let back: serde_json::Value = serde_json::from_str(&pretty_print(text)).unwrap();
        assert_eq!(back, serde_json::from_str::<serde_json::Value>(text).unwrap());
        assert!(pretty_print(text).contains("1.50"));
    }
}
