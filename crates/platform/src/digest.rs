//! Hashes of bytes as text.

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

/// Each turn has about twenty hashes: formatting the digits one by one took 8 % of its instructions.
fn to_hex(bytes: &[u8]) -> String {
    let digits = bytes.iter().flat_map(|byte| [byte >> 4, byte & 0xf]);
    let mut hex = String::with_capacity(2 * bytes.len());
    hex.extend(digits.filter_map(|digit| char::from_digit(u32::from(digit), 16)));
    hex
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn hash_of_the_standard_is_written_in_lower_case_hex() {
        let expected = "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad";
        assert_eq!(sha256_hex(b"abc"), expected);
        let mut parts = IncrementalSha256::default();
        parts.update(b"a");
        parts.update(b"bc");
        assert_eq!(parts.finish(), expected);
    }
}
