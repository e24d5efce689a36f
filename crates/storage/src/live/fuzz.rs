//! Fuzz target for partial tool call arguments: any text.

use serde_json::Value;

use turnwheel_json::partial::complete_json;
use turnwheel_test_support::fuzz::check;

fn fuzz_partial_json(input: &[u8]) {
    let Ok(text) = std::str::from_utf8(input) else { return };
    let shown = complete_json(text);
    assert!(shown.read::<Value>().is_ok(), "clients can parse it");
    assert!(shown.text().len() <= 2 * text.len() + 2);
    if serde_json::from_str::<Value>(text).is_ok() {
        assert_eq!(shown.to_value(), serde_json::from_str::<Value>(text).unwrap());
    }
}

#[test]
fn fuzzed_partial_json_is_completed() {
    check("partial_json", fuzz_partial_json);
}
