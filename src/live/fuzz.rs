//! Fuzz target for partial tool call arguments: any text.

use serde_json::Value;

use super::partial_json::complete;
use crate::fuzz::check;

fn partial_json(input: &[u8]) {
    let Ok(text) = std::str::from_utf8(input) else { return };
    let shown = complete(text);
    assert!(shown.read::<Value>().is_ok(), "clients can parse it");
    assert!(shown.text().len() <= 2 * text.len() + 2);
    if serde_json::from_str::<Value>(text).is_ok() {
        assert_eq!(shown.value(), serde_json::from_str::<Value>(text).unwrap());
    }
}

#[test]
fn half_a_call() {
    check("partial_json", partial_json);
}
