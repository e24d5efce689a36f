//! Pretty-printing of JSON arguments. Every digit stays as the approver must see it.

/// Returns the JSON text with one member per line. Only whitespace changes.
pub(super) fn spread(text: &str) -> String {
    let mut spread = String::with_capacity(text.len() * 2);
    let mut depth = 0_usize;
    let mut in_string = false;
    let mut is_escaped = false;
    for letter in text.chars() {
        if in_string {
            spread.push(letter);
            in_string = is_escaped || letter != '"';
            is_escaped = letter == '\\' && !is_escaped;
            continue;
        }
        match letter {
            '"' => {
                in_string = true;
                spread.push(letter);
            }
            '{' | '[' => {
                depth += 1;
                spread.push(letter);
                line(&mut spread, depth);
            }
            '}' | ']' => {
                depth = depth.saturating_sub(1);
                line(&mut spread, depth);
                spread.push(letter);
            }
            ',' => {
                spread.push(letter);
                line(&mut spread, depth);
            }
            ':' => spread.push_str(": "),
            letter if letter.is_whitespace() => {}
            letter => spread.push(letter),
        }
    }
    spread
}

fn line(text: &mut String, depth: usize) {
    text.push('\n');
    text.extend(std::iter::repeat_n("  ", depth.min(32)));
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn spreading_json_changes_nothing_but_blanks() {
        let text = r#"{"a,b":[1.50,{"c":"\\\""},[]],"d":"}"}"#;
        let back: serde_json::Value = serde_json::from_str(&spread(text)).unwrap();
        assert_eq!(back, serde_json::from_str::<serde_json::Value>(text).unwrap());
        assert!(spread(text).contains("1.50"));
    }
}
