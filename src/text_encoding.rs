//! Text from outside: UTF-8, with or without the byte order mark of Windows tools.

const BYTE_ORDER_MARK: char = '\u{feff}';

/// A reason why bytes are not UTF-8 text; completes "the body …".
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub(crate) enum EncodingError {
    #[error("is UTF-16 text, as Windows PowerShell writes it with `>`: save it as UTF-8")]
    Utf16,
    #[error("is not UTF-8 text: save it as UTF-8")]
    NotUtf8,
    #[error("begins with two byte order marks: save it as UTF-8 without one")]
    TwoMarks,
}

/// Returns the text of bytes from outside, without the byte order mark that Windows tools put at
/// the beginning.
pub(crate) fn decode_utf8(bytes: &[u8]) -> Result<&str, EncodingError> {
    // Without a mark, the zero byte of the first ASCII character shows UTF-16.
    if matches!(bytes, [0xff, 0xfe, ..] | [0xfe, 0xff, ..] | [0, 1..=255, ..] | [1..=255, 0, ..]) {
        return Err(EncodingError::Utf16);
    }
    let text = std::str::from_utf8(bytes).map_err(|_| EncodingError::NotUtf8)?;
    let text = skip_byte_order_mark(text);
    if text.starts_with(BYTE_ORDER_MARK) { Err(EncodingError::TwoMarks) } else { Ok(text) }
}

/// Returns the text without one byte order mark at its beginning.
pub(crate) fn skip_byte_order_mark(text: &str) -> &str {
    text.strip_prefix(BYTE_ORDER_MARK).unwrap_or(text)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_byte_order_mark_is_skipped_and_utf16_is_named() {
        assert_eq!(decode_utf8("\u{feff}{}".as_bytes()), Ok("{}"));
        assert_eq!(decode_utf8("\u{feff}\u{feff}{}".as_bytes()), Err(EncodingError::TwoMarks));
        assert_eq!(decode_utf8("é".as_bytes()), Ok("é"));
        assert_eq!(decode_utf8(b""), Ok(""));
        for utf16 in [&b"\xff\xfe{\0}\0"[..], b"\xfe\xff\0{\0}", b"{\0}\0", b"\0{\0}"] {
            assert_eq!(decode_utf8(utf16), Err(EncodingError::Utf16), "{utf16:?}");
        }
        for other in [&b"caf\xe9"[..], b"\x80", b"\xc3"] {
            assert_eq!(decode_utf8(other), Err(EncodingError::NotUtf8), "{other:?}");
        }
    }
}
