//! Azure credentials and clients, built from settings here and nowhere else.

pub mod cosmos;
pub mod credential;
pub mod storage;
pub mod vault;

use std::error::Error;

use turnwheel_platform::error_chain::error_chain;

/// The error of a name that no host has, in the words of glibc, musl, macOS and Windows. A name
/// server that does not respond causes another error.
const UNKNOWN_HOST: [&str; 4] = [
    "Name or service not known",
    "Name does not resolve",
    "nodename nor servname provided",
    "No such host is known",
];

/// True if no host has the name in the address.
fn is_unknown_host(error: &dyn Error) -> bool {
    let text = error_chain(error);
    UNKNOWN_HOST.iter().any(|words| text.contains(words))
}
