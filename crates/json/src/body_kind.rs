//! Kind of the body of a response, by its content: labels are often wrong.

/// Fields of server-sent events. The name of a comment is empty.
const FIELDS: [&[u8]; 5] = [b"", b"data", b"event", b"id", b"retry"];
/// Bytes of the longest field.
const FIELD_BYTES_MAX: usize = 5;
/// White space after which a body counts as a stream.
const BLANK_BYTES_MAX: usize = 64 * 1024;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum BodyKind {
    /// Server-sent events.
    Stream,
    /// One JSON text, or one in each line.
    Json,
    /// HTML or XML.
    Page,
    Text,
}

impl BodyKind {
    /// The kind of a body that begins with these bytes. `None`: they do not show it.
    pub fn of_start(start: &[u8]) -> Option<Self> {
        let text = start.strip_prefix(b"\xef\xbb\xbf").unwrap_or(start).trim_ascii_start();
        match text.first() {
            None | Some(0xef) if text.len() < 3 => {
                return (start.len() > BLANK_BYTES_MAX).then_some(Self::Stream);
            }
            Some(b'{' | b'[') => return Some(Self::Json),
            Some(b'<') => return Some(Self::Page),
            Some(_) | None => {}
        }
        let line = text.split(|byte| matches!(byte, b'\n' | b'\r')).next()?;
        let name = line.split(|byte| *byte == b':').next()?;
        let is_ended = name.len() < text.len();
        if is_ended || name.len() > FIELD_BYTES_MAX {
            let is_field = is_ended && FIELDS.contains(&name);
            return Some(if is_field { Self::Stream } else { Self::Text });
        }
        None
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn body_kind_is_that_of_the_content() {
        let cases: [(&[u8], Option<BodyKind>); 18] = [
            (b"", None),
            (b" \r\n", None),
            (b"\xef\xbb\xbf", None),
            (b"\xef\xbb", None),
            (b"{", Some(BodyKind::Json)),
            (b"\xef\xbb\xbf \n[{", Some(BodyKind::Json)),
            (b"\n<!doctype html>", Some(BodyKind::Page)),
            (b"da", None),
            (b"event", None),
            (b"data:", Some(BodyKind::Stream)),
            (b"data\n", Some(BodyKind::Stream)),
            (b"\n\nevent: x\n", Some(BodyKind::Stream)),
            (b": ping\n", Some(BodyKind::Stream)),
            (b"id: 7\r", Some(BodyKind::Stream)),
            (b"retry: 10\n", Some(BodyKind::Stream)),
            (b"Please sign in", Some(BodyKind::Text)),
            (b"error: busy\n", Some(BodyKind::Text)),
            (b"\xff\xfe\n", Some(BodyKind::Text)),
        ];
        for (start, expected) in cases {
            assert_eq!(BodyKind::of_start(start), expected, "{start:?}");
        }
        assert_eq!(BodyKind::of_start(&b" ".repeat(BLANK_BYTES_MAX + 1)), Some(BodyKind::Stream));
    }
}
