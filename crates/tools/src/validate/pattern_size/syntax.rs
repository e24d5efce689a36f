//! Regular expressions of JSON Schemas, in the syntax of the parser that measures them.

use std::str::Chars;

/// True if the expression may need an engine that goes back in its text.
pub(super) fn is_backtracking(pattern: &str) -> bool {
    const SIGNS: [&str; 11] =
        ["(?=", "(?!", "(?<=", "(?<!", "(?>", "(?(", "\\k", "++", "*+", "?+", "}+"];
    let plain = without_classes(pattern);
    let has_back_reference =
        || plain.split('\\').skip(1).any(|after| after.starts_with(|c: char| c.is_ascii_digit()));
    SIGNS.iter().any(|sign| plain.contains(sign)) || has_back_reference()
}

/// The expression with `[]` in place of each class: `*+` in a class is two characters.
fn without_classes(pattern: &str) -> String {
    let mut plain = String::with_capacity(pattern.len());
    let mut chars = pattern.chars();
    let mut is_in_class = false;
    while let Some(letter) = chars.next() {
        let escaped = if letter == '\\' { chars.next() } else { None };
        match letter {
            '[' => is_in_class = true,
            ']' => is_in_class = false,
            _ if is_in_class => continue,
            _ => {}
        }
        plain.push(letter);
        plain.extend(escaped);
    }
    plain
}

/// True if the expression may have flags, as `(?i)`.
pub(super) fn has_flags(pattern: &str) -> bool {
    let is_flag = |letter: char| letter.is_ascii_alphabetic() || letter == '-';
    pattern.split("(?").skip(1).any(|after| after.starts_with(is_flag) && !after.starts_with("P<"))
}

/// The expression as the parser reads it: groups of lookaround are repeated zero times, references
/// to groups are empty, and brackets in classes are escaped.
pub(super) fn plain_syntax(pattern: &str) -> String {
    const LOOKS: [&str; 4] = ["?<=", "?<!", "?=", "?!"];
    let mut plain = String::with_capacity(pattern.len());
    let mut chars = pattern.chars();
    let mut is_in_class = false;
    // The open groups; true: it looks around.
    let mut groups: Vec<bool> = Vec::new();
    while let Some(letter) = chars.next() {
        match letter {
            '\\' => push_escape(&mut chars, is_in_class, &mut plain),
            '[' if is_in_class => plain.push_str("\\["),
            '[' => {
                is_in_class = true;
                plain.push(letter);
                // A bracket that closes nothing belongs to the class.
                for first in ['^', ']'] {
                    if let Some(rest) = chars.as_str().strip_prefix(first) {
                        plain.push(first);
                        chars = rest.chars();
                    }
                }
            }
            ']' => {
                is_in_class = false;
                plain.push(letter);
            }
            '(' if !is_in_class => {
                plain.push(letter);
                let after = LOOKS.iter().find_map(|sign| chars.as_str().strip_prefix(*sign));
                groups.push(after.is_some());
                if let Some(rest) = after.or_else(|| chars.as_str().strip_prefix("?>")) {
                    plain.push_str("?:");
                    chars = rest.chars();
                }
            }
            ')' if !is_in_class => {
                plain.push(letter);
                if groups.pop() == Some(true) {
                    plain.push_str("{0}");
                }
            }
            _ => plain.push(letter),
        }
    }
    plain
}

/// Adds the escape whose backslash was read.
fn push_escape(chars: &mut Chars<'_>, is_in_class: bool, plain: &mut String) {
    let Some(letter) = chars.next() else {
        plain.push('\\');
        return;
    };
    let rest = chars.as_str();
    match letter {
        '0'..='9' if is_in_class => plain.push_str("\\x00"),
        '0'..='9' => plain.push_str("(?:)"),
        'k' if !is_in_class && rest.starts_with('<') => {
            if let Some((_, rest)) = rest.split_once('>') {
                *chars = rest.chars();
            }
            plain.push_str("(?:)");
        }
        'c' if rest.starts_with(|next: char| next.is_ascii_alphabetic()) => {
            chars.next();
            plain.push_str("\\x01");
        }
        _ => {
            plain.push('\\');
            plain.push(letter);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn expressions_of_schemas_become_readable() {
        for (pattern, expected) in [
            (r"^(?!a(b))(?<=b)(?<n>c)\k<n>\1$", r"^(?:a(b)){0}(?:b){0}(?<n>c)(?:)(?:)$"),
            (r"[^]([(?=)]\[(?=x)", r"[^](\[(?=)]\[(?:x){0}"),
            (r"(?>a)", r"(?:a)"),
            (r"[a[b]\cA\", r"[a\[b]\x01\"),
            (r"[\0-\x1f]\\(?=a)", r"[\x00-\x1f]\\(?:a){0}"),
        ] {
            assert_eq!(plain_syntax(pattern), expected, "{pattern}");
        }
    }

    #[test]
    fn flags_are_found() {
        for (pattern, expected) in [
            ("(?i)a", true),
            ("(?-u:a)", true),
            ("(?:a)", false),
            ("(?<name>a)", false),
            ("(?P<name>a)", false),
            ("(?=i)", false),
        ] {
            assert_eq!(has_flags(pattern), expected, "{pattern}");
        }
    }
}
