//! Connection strings: whoever copies one badly is told so, without it.

use super::connection_string::parse;
use crate::fuzz::{SECRET, check};

fn connection_string(input: &[u8]) {
    let Ok(text) = std::str::from_utf8(input) else { return };
    match parse(text) {
        Ok(account) => assert!(!format!("{:?}", account.access).contains(SECRET)),
        Err(wrong) => {
            assert!(
                !wrong.is_empty() && wrong.iter().all(|why| !why.contains(SECRET)),
                "{wrong:?}"
            );
        }
    }
}

#[test]
fn an_account() {
    check("connection_string", connection_string);
}
