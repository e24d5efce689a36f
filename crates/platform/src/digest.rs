//! Hashes of bytes as text.

use std::fmt::Write as _;

use sha2::Digest as _;

/// SHA-256 of bytes that arrive in parts.
#[derive(Debug, Default)]
pub struct IncrementalSha256(sha2::Sha256);

impl IncrementalSha256 {
    pub fn update(&mut self, part: &[u8]) {
        self.0.update(part);
    }

    /// 64 lower-case hex digits.
    pub fn finish(self) -> String {
        to_hex(&self.0.finalize())
    }
}

/// SHA-256 as 64 lower-case hex digits.
pub fn sha256_hex(bytes: &[u8]) -> String {
    to_hex(&sha2::Sha256::digest(bytes))
}

fn to_hex(bytes: &[u8]) -> String {
    bytes.iter().fold(String::with_capacity(64), |mut hex, byte| {
        let _ = write!(hex, "{byte:02x}");
        hex
    })
}
