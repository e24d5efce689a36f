//! Fuzz test of messages of `agent-prompts`, which are untrusted input.

use super::{accepted_json, parse, told};
use crate::fuzz::{SECRET, check};

fn prompt_message(input: &[u8]) {
    let Ok(text) = std::str::from_utf8(input) else { return };
    let read = accepted_json(text).and_then(|json| {
        assert!(json.len() <= text.len());
        parse(&json)
    });
    if let Err(refusal) = read {
        assert!(!told(&refusal).contains(SECRET), "the log would contain: {}", told(&refusal));
    }
}

#[test]
fn a_message() {
    check("prompt_message", prompt_message);
}
