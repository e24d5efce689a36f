//! The rules of names and descriptions that all programs with skills share.

use super::NAME_CHARS_MAX;

const DESCRIPTION_CHARS_MAX: usize = 1_024;

/// The rules that a skill of a user breaks. Its name is that of its path.
pub fn find_broken_skill_rules(name: &str, description: &str) -> Vec<String> {
    find_broken_rules(name, description, name)
}

/// The rules that a skill breaks whose path implies the name `expected`.
pub(super) fn find_broken_rules(name: &str, description: &str, expected: &str) -> Vec<String> {
    let mut broken = Vec::new();
    let is_allowed = |byte: u8| matches!(byte, b'a'..=b'z' | b'0'..=b'9' | b'-');
    if name != expected {
        broken.push(format!("the name `{name}` differs from `{expected}` in its path"));
    }
    if name.is_empty() {
        broken.push("the name is empty".to_owned());
    }
    if name.chars().count() > NAME_CHARS_MAX {
        broken.push(format!("the name has more than {NAME_CHARS_MAX} characters"));
    }
    if !name.bytes().all(is_allowed) {
        broken.push(format!("the name `{name}` has other characters than a-z, 0-9 and -"));
    }
    if name.starts_with('-') || name.ends_with('-') || name.contains("--") {
        broken.push(format!("the name `{name}` begins or ends with -, or has two together"));
    }
    if description.chars().count() > DESCRIPTION_CHARS_MAX {
        broken.push(format!("the description has more than {DESCRIPTION_CHARS_MAX} characters"));
    }
    broken
}
