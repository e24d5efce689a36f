//! Captures of the Functions host: one case per line.

use serde_json::Value;

use crate::support::shared_data::find_shared_data;

/// Reads a capture; empty if the shared data is missing.
pub(crate) fn read_cases(file: &str) -> Vec<Value> {
    let Some(path) = find_shared_data(&format!("recordings/functions-host/{file}")) else {
        return Vec::new();
    };
    let text = std::fs::read_to_string(path).unwrap();
    text.lines().map(|line| serde_json::from_str(line).unwrap()).collect()
}

/// The text of a case's member, which is written out or built: `{"before", "repeat", "times",
/// "after"}`.
pub(crate) fn built_text(value: &Value) -> Option<String> {
    if let Some(text) = value.as_str() {
        return Some(text.to_owned());
    }
    let part = |name: &str| value[name].as_str().unwrap_or_default();
    let times = usize::try_from(value["times"].as_u64()?).unwrap();
    Some(format!("{}{}{}", part("before"), part("repeat").repeat(times), part("after")))
}

/// The bytes of a text in which each character is one byte.
pub(crate) fn latin1_bytes(text: &str) -> Vec<u8> {
    text.chars().map(|letter| u8::try_from(u32::from(letter)).unwrap()).collect()
}

/// The text in which each byte is one character.
pub(crate) fn latin1_text(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| char::from(*byte)).collect()
}

pub(crate) fn name(case: &Value) -> &str {
    case["case"].as_str().unwrap()
}

/// Panics with the differences of all cases at once.
pub(crate) fn assert_no_differences(differences: &[String], cases: usize) {
    assert!(
        differences.is_empty(),
        "{} of {cases} cases differ:\n{}",
        differences.len(),
        differences.join("\n")
    );
}
