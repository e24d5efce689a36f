//! Fuzz test of connection strings: errors never quote the secret.

use super::StorageAccess;
use super::connection_string::parse;
use turnwheel_test_support::fuzz::{SECRET, check};

fn check_connection_string(input: &[u8]) {
    let Ok(text) = std::str::from_utf8(input) else { return };
    match parse(text) {
        // An account's name is not a secret; the key and the signature are.
        Ok(account) => match &account.access {
            StorageAccess::SharedKey { account: _, key } => {
                assert_eq!(format!("{key:?}"), "[secret]");
            }
            StorageAccess::Sas(signature) => assert_eq!(format!("{signature:?}"), "[secret]"),
            StorageAccess::Identity(_) => panic!("no text asks for an identity"),
        },
        Err(wrong) => {
            assert!(
                !wrong.is_empty() && wrong.iter().all(|why| !why.contains(SECRET)),
                "{wrong:?}"
            );
        }
    }
}

#[test]
fn fuzz_connection_string() {
    check("connection_string", check_connection_string);
}
