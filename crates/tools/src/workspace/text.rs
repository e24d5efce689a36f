//! Truncation of text for the model to whole lines, by the number of lines or bytes.

/// Lines of one tool result.
pub const LINES_MAX: usize = 2_000;
/// Bytes of one tool result.
pub const TEXT_BYTES_MAX: usize = 50 * 1024;

/// The beginning of a text after truncation.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct TextPrefix<'a> {
    pub text: &'a str,
    /// Number of whole lines in `text`; 0 if its only line is truncated.
    pub lines_count: usize,
    pub lines_total: usize,
    pub is_cut: bool,
    /// True if bytes, not lines, were the limit.
    pub is_byte_limited: bool,
}

/// Returns the lines within both limits. If the first line alone is too long, returns its
/// beginning.
pub(crate) fn text_prefix(text: &str, lines_max: usize, bytes_max: usize) -> TextPrefix<'_> {
    let lines_total = text.split('\n').count();
    if lines_total <= lines_max && text.len() <= bytes_max {
        return TextPrefix {
            text,
            lines_count: lines_total,
            lines_total,
            is_cut: false,
            is_byte_limited: false,
        };
    }
    let mut end = 0;
    let mut lines_count = 0;
    for line in text.split('\n').take(lines_max) {
        let next = end + line.len() + usize::from(lines_count > 0);
        if next > bytes_max {
            break;
        }
        end = next;
        lines_count += 1;
    }
    let by_bytes = lines_count < lines_max;
    if lines_count == 0 {
        end = text.floor_char_boundary(bytes_max);
    }
    TextPrefix {
        text: text.get(..end).unwrap_or_default(),
        lines_count,
        lines_total,
        is_cut: true,
        is_byte_limited: by_bytes,
    }
}

/// Formats a size: `512B`, `1.5KB`, `2.0MB`.
pub fn format_size(bytes_count: u64) -> String {
    let tenths = |unit: u64| {
        let tenths = bytes_count.saturating_mul(10).saturating_add(unit / 2) / unit;
        format!("{}.{}", tenths / 10, tenths % 10)
    };
    match bytes_count {
        0..1024 => format!("{bytes_count}B"),
        1024..1_048_576 => format!("{}KB", tenths(1024)),
        _ => format!("{}MB", tenths(1_048_576)),
    }
}

/// True if the first 8 KB contain a zero byte, so that the bytes are not text.
pub(crate) fn is_binary(bytes: &[u8]) -> bool {
    bytes.iter().take(8 * 1024).any(|byte| *byte == 0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn text_is_truncated_at_a_line() {
        let head = text_prefix("one\ntwo\nthree\nfour", 2, 100);
        assert_eq!((head.text, head.lines_count, head.lines_total), ("one\ntwo", 2, 4));
        assert!(head.is_cut && !head.is_byte_limited);
        let head = text_prefix("one\ntwo\nthree", 100, 8);
        assert_eq!((head.text, head.is_byte_limited), ("one\ntwo", true));
    }

    #[test]
    fn long_line_is_truncated_between_characters() {
        let head = text_prefix("äöü\nx", 10, 3);
        assert_eq!((head.text, head.lines_count), ("ä", 0));
    }

    #[test]
    fn text_within_limits_is_unchanged() {
        for text in ["", "\n", "one\n", "one\ntwo"] {
            assert_eq!(text_prefix(text, 2, 7).text, text);
            assert!(!text_prefix(text, 2, 7).is_cut);
        }
    }

    #[test]
    fn sizes_are_formatted() {
        let sizes = [0, 1023, 1024, 1536, 51_200, 1_048_576, 10_485_760].map(format_size);
        assert_eq!(sizes, ["0B", "1023B", "1.0KB", "1.5KB", "50.0KB", "1.0MB", "10.0MB"]);
    }

    proptest::proptest! {
        #[test]
        fn a_head_is_a_beginning_within_its_bounds(text in "[a-zä\\n]{0,80}", lines in 1_usize..6, bytes in 4_usize..40) {
            let head = text_prefix(&text, lines, bytes);
            proptest::prop_assert!(text.starts_with(head.text));
            proptest::prop_assert!(head.text.len() <= bytes);
            proptest::prop_assert!(head.text.split('\n').count() <= lines);
            proptest::prop_assert_eq!(head.is_cut, head.text.len() < text.len());
        }
    }
}
