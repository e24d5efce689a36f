//! Fuzz test of messages of `agent-prompts`, which are untrusted input.

use crate::prompt_queue::{decode_text, log_reason, parse_message};
use turnwheel_test_support::fuzz::{SECRET, check};

fn prompt_message(input: &[u8]) {
    let Ok(text) = std::str::from_utf8(input) else { return };
    let read = decode_text(text).and_then(|json| {
        assert!(json.len() <= text.len());
        parse_message(&json)
    });
    if let Err(error) = read {
        assert!(
            !log_reason(&error).contains(SECRET),
            "the log would contain: {}",
            log_reason(&error)
        );
    }
}

#[test]
fn queue_message_parser_never_logs_secrets() {
    check("prompt_message", prompt_message);
}
