//! Text from outside: UTF-8, with or without the byte order mark of Windows tools.

use std::borrow::Cow;

const BYTE_ORDER_MARK: char = '\u{feff}';

/// A reason why bytes are not UTF-8 text; completes "the body …".
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum EncodingError {
    #[error("is UTF-16 text, as Windows PowerShell writes it with `>`: save it as UTF-8")]
    Utf16,
    #[error("is UTF-32 text: save it as UTF-8")]
    Utf32,
    #[error("is not UTF-8 text: save it as UTF-8")]
    NotUtf8,
    #[error("begins with two byte order marks: save it as UTF-8 without one")]
    TwoMarks,
}

/// Returns the text of bytes from outside, without the byte order mark that Windows tools put at
/// the beginning.
///
/// # Errors
/// The bytes are not UTF-8; the error names UTF-16.
pub fn decode_utf8(bytes: &[u8]) -> Result<&str, EncodingError> {
    if matches!(
        bytes,
        [0xff, 0xfe, 0, 0, ..]
            | [0, 0, 0xfe, 0xff, ..]
            | [0, 0, 0, 1..=255, ..]
            | [1..=255, 0, 0, 0, ..]
    ) {
        return Err(EncodingError::Utf32);
    }
    // Without a mark, the zero byte of the first ASCII character shows UTF-16.
    if matches!(bytes, [0xff, 0xfe, ..] | [0xfe, 0xff, ..] | [0, 1..=255, ..] | [1..=255, 0, ..]) {
        return Err(EncodingError::Utf16);
    }
    let text = std::str::from_utf8(bytes).map_err(|_| EncodingError::NotUtf8)?;
    let text = skip_byte_order_mark(text);
    if text.starts_with(BYTE_ORDER_MARK) { Err(EncodingError::TwoMarks) } else { Ok(text) }
}

/// Returns the text without one byte order mark at its beginning.
pub fn skip_byte_order_mark(text: &str) -> &str {
    text.strip_prefix(BYTE_ORDER_MARK).unwrap_or(text)
}

/// Returns the text without the white space around it, and without one byte order mark before it.
pub fn trim_text(text: &str) -> &str {
    skip_byte_order_mark(text.trim()).trim()
}

/// Returns the text of a response: UTF-8, or UTF-16 with a mark or an ASCII character at its
/// beginning. Other bytes are replaced.
pub fn decode_response(bytes: &[u8]) -> Cow<'_, str> {
    let encoding = match bytes {
        [1..=127, 0, ..] => encoding_rs::UTF_16LE,
        [0, 1..=127, ..] => encoding_rs::UTF_16BE,
        _ => encoding_rs::UTF_8,
    };
    encoding.decode(bytes).0
}

/// Returns the text of bytes that are not UTF-8 and look like Windows-1252, the encoding of older
/// Windows tools, which has the letters of Latin-1. `None`: they may be damaged, or of another encoding.
pub fn decode_windows_1252(bytes: &[u8]) -> Option<String> {
    // Letters, and the usual punctuation.
    let is_expected = |byte: &u8| {
        matches!(byte, b'\t' | b'\r' | b' '..=b'~' | 0x80 | 0x84 | 0x85 | 0x91..=0x97 | 0xa0 | 0xa7
            | 0xab | 0xb0 | 0xbb | 0xc0..=0xd6 | 0xd8..=0xf6 | 0xf8..=0xfd)
    };
    let is_utf8 = |part: std::str::Utf8Chunk<'_>| !part.valid().is_ascii();
    let is_windows_1252 = bytes.iter().all(is_expected) && !bytes.utf8_chunks().any(is_utf8);
    let decode = || encoding_rs::WINDOWS_1252.decode_without_bom_handling(bytes).0.into_owned();
    is_windows_1252.then(decode)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_byte_order_mark_is_skipped_and_encodings_are_named() {
        assert_eq!(decode_utf8("\u{feff}{}".as_bytes()), Ok("{}"));
        assert_eq!(decode_utf8("\u{feff}\u{feff}{}".as_bytes()), Err(EncodingError::TwoMarks));
        assert_eq!(decode_utf8("é".as_bytes()), Ok("é"));
        assert_eq!(decode_utf8(b""), Ok(""));
        for utf16 in [&b"\xff\xfe{\0}\0"[..], b"\xfe\xff\0{\0}", b"{\0}\0", b"\0{\0}"] {
            assert_eq!(decode_utf8(utf16), Err(EncodingError::Utf16), "{utf16:?}");
        }
        for utf32 in [
            &b"\xff\xfe\0\0{\0\0\0"[..],
            b"\0\0\xfe\xff\0\0\0{",
            b"{\0\0\0}\0\0\0",
            b"\0\0\0{\0\0\0}",
        ] {
            assert_eq!(decode_utf8(utf32), Err(EncodingError::Utf32), "{utf32:?}");
        }
        for other in [&b"caf\xe9"[..], b"\x80", b"\xc3"] {
            assert_eq!(decode_utf8(other), Err(EncodingError::NotUtf8), "{other:?}");
        }
    }

    #[test]
    fn values_are_trimmed_of_one_byte_order_mark() {
        for (text, expected) in [
            ("key", "key"),
            ("\u{feff}key\r\n", "key"),
            (" \n\u{feff} key", "key"),
            ("\u{feff}", ""),
            ("\u{feff}\u{feff}key", "\u{feff}key"),
            ("key\u{feff}", "key\u{feff}"),
        ] {
            assert_eq!(trim_text(text), expected, "{text:?}");
        }
    }

    #[test]
    fn windows_1252_is_distinguished_from_damaged_text() {
        let text = "Grüße, „schön“ – 5 €\t\r";
        let (bytes, _, has_unknown) = encoding_rs::WINDOWS_1252.encode(text);
        assert!(!has_unknown);
        assert_eq!(decode_windows_1252(&bytes).as_deref(), Some(text));
        for other in [&b"\xc3\xa7 caf\xe9"[..], b"\xff\xfe", b"a\0\xe9", b"\x82\xa0\x82"] {
            assert_eq!(decode_windows_1252(other), None, "{other:?}");
        }
    }
}
