//! Lines of a file that arrives in parts.

use turnwheel_conversation::entry::ENTRY_BYTES_MAX;

/// Maximum bytes of a line: the largest entry with the members that an export adds.
pub(crate) const LINE_BYTES_MAX: usize = ENTRY_BYTES_MAX + 5_000;
/// Bytes that are kept of a longer line.
const START_BYTES: usize = 16 * 1024;

/// One line, without its end.
#[derive(Debug, PartialEq, Eq)]
pub enum Line {
    Bytes(Vec<u8>),
    /// The first bytes of a line with more than [`LINE_BYTES_MAX`].
    TooLong(Vec<u8>),
}

/// Splits parts of a file into lines. It holds at most one line.
#[derive(Debug, Default)]
pub struct LineSplitter {
    current: Vec<u8>,
    /// True if only the first bytes of the current line are kept.
    is_too_long: bool,
}

impl LineSplitter {
    /// Takes the bytes up to and including the next end of a line, which end that line. `None`: all
    /// bytes are taken, and the line goes on.
    pub fn next_line(&mut self, part: &mut &[u8]) -> Option<Line> {
        let Some(end) = part.iter().position(|byte| *byte == b'\n') else {
            self.push(part);
            *part = &[];
            return None;
        };
        let (line, rest) = part.split_at(end);
        self.push(line);
        *part = rest.get(1..).unwrap_or_default();
        Some(self.take())
    }

    /// The last line, if the file does not end with the end of a line.
    pub fn finish(mut self) -> Option<Line> {
        (!self.current.is_empty() || self.is_too_long).then(|| self.take())
    }

    fn push(&mut self, bytes: &[u8]) {
        if self.is_too_long {
            return;
        }
        if self.current.len() + bytes.len() <= LINE_BYTES_MAX {
            self.current.extend_from_slice(bytes);
            return;
        }
        self.is_too_long = true;
        self.current.extend(bytes.iter().take(START_BYTES));
        self.current.truncate(START_BYTES);
    }

    fn take(&mut self) -> Line {
        let bytes = std::mem::take(&mut self.current);
        if std::mem::take(&mut self.is_too_long) {
            Line::TooLong(bytes)
        } else {
            Line::Bytes(bytes)
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn split(parts: &[&[u8]]) -> Vec<Line> {
        let mut splitter = LineSplitter::default();
        let mut lines = Vec::new();
        for part in parts {
            let mut rest = *part;
            while let Some(line) = splitter.next_line(&mut rest) {
                lines.push(line);
            }
        }
        lines.extend(splitter.finish());
        lines
    }

    #[test]
    fn lines_do_not_depend_on_parts() {
        let text = b"one\n\ntwo\nlast";
        let whole = split(&[text]);
        let expected = ["one", "", "two", "last"].map(|line| Line::Bytes(line.into()));
        assert_eq!(whole, expected);
        for size in 1..5 {
            assert_eq!(split(&text.chunks(size).collect::<Vec<_>>()), whole);
        }
        assert_eq!(split(&[b"one\n"]).len(), 1);
    }

    #[test]
    fn only_start_of_long_line_is_held() {
        let long = vec![b'x'; LINE_BYTES_MAX / 2 + 1];
        let lines = split(&[b"a\n", &long, &long, &long, b"\nb"]);
        assert_eq!(lines[1], Line::TooLong(long[..START_BYTES].to_vec()));
        assert_eq!(lines[2], Line::Bytes(b"b".to_vec()));
        let fitting = vec![b'x'; LINE_BYTES_MAX];
        assert_eq!(split(&[&fitting]), [Line::Bytes(fitting.clone())]);
    }
}
