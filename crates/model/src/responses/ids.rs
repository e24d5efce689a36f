//! Wire ids: at most 64 plain characters. A tool call's stored id joins its two wire ids.

use std::borrow::Cow;

use sha2::{Digest as _, Sha256};

/// The provider's limit on `call_id`, item ids, tool names and the cache key.
pub(crate) const WIRE_ID_MAX: usize = 64;

/// Returns `call_id|item_id`, or the bare `call_id` without an item id.
pub(crate) fn join_call_id(call_id: &str, item_id: &str) -> String {
    if item_id.is_empty() { call_id.to_owned() } else { format!("{call_id}|{item_id}") }
}

/// Splits an id of [`join_call_id`]. The second part is empty for another id.
pub(crate) fn split_call_id(id: &str) -> (&str, &str) {
    id.split_once('|').unwrap_or((id, ""))
}

/// Replaces characters outside `[A-Za-z0-9_-]` by `_` and removes trailing `_`. A text over the
/// limit keeps its beginning and gets a hash, so that long texts stay distinct.
pub fn plain_id(text: &str) -> Cow<'_, str> {
    let is_plain = |letter: char| letter.is_ascii_alphanumeric() || letter == '_' || letter == '-';
    if text.len() <= WIRE_ID_MAX && text.chars().all(is_plain) {
        return Cow::Borrowed(text.trim_end_matches('_'));
    }
    let replaced: String =
        text.chars().map(|letter| if is_plain(letter) { letter } else { '_' }).collect();
    let trimmed = replaced.trim_end_matches('_');
    Cow::Owned(if trimmed.len() <= WIRE_ID_MAX {
        trimmed.to_owned()
    } else {
        shorten(trimmed, text)
    })
}

/// Returns 16 hex digits of the text's SHA-256.
pub(crate) fn short_hash(text: &str) -> String {
    use std::fmt::Write as _;
    Sha256::digest(text.as_bytes()).iter().take(8).fold(
        String::with_capacity(16),
        |mut hex, byte| {
            let _ = write!(hex, "{byte:02x}");
            hex
        },
    )
}

/// Returns 64 characters: the beginning of an ASCII text and the hash of the whole text.
fn shorten(ascii: &str, whole: &str) -> String {
    let head = ascii.get(..WIRE_ID_MAX - 17).unwrap_or_default();
    format!("{head}-{}", short_hash(whole))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn wire_ids_are_plain_short_and_distinct() {
        assert_eq!(plain_id("call_1"), "call_1");
        assert_eq!(plain_id("a.b c__"), "a_b_c");
        let (long, other) = ("x".repeat(70), format!("{}y", "x".repeat(69)));
        assert_eq!(plain_id(&long).len(), 64);
        assert_ne!(plain_id(&long), plain_id(&other));
        assert_eq!(plain_id("ü"), "");
    }

    #[test]
    fn joined_call_id_splits_into_both_ids() {
        assert_eq!(split_call_id(&join_call_id("call_1", "fc_1")), ("call_1", "fc_1"));
        assert_eq!(split_call_id(&join_call_id("call_1", "")), ("call_1", ""));
    }
}
