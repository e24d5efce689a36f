//! Lines of a file that arrives in parts.

/// Maximum bytes of a line.
pub(crate) const LINE_BYTES_MAX: usize = 1_400_000;

/// One line, without its end.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Line {
    Bytes(Vec<u8>),
    /// A line with this number of bytes, which is more than [`LINE_BYTES_MAX`].
    TooLong(u64),
}

/// Splits parts of a file into lines. It holds at most one line.
#[derive(Debug, Default)]
pub(crate) struct LineSplitter {
    current: Vec<u8>,
    /// Bytes of the current line that are not kept, because it is too long.
    dropped: u64,
}

impl LineSplitter {
    /// Takes the bytes up to and including the next end of a line, which end that line. `None`: all
    /// bytes are taken, and the line goes on.
    pub(crate) fn next_line(&mut self, part: &mut &[u8]) -> Option<Line> {
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
    pub(crate) fn finish(mut self) -> Option<Line> {
        (!self.current.is_empty() || self.dropped > 0).then(|| self.take())
    }

    fn push(&mut self, bytes: &[u8]) {
        if self.dropped > 0 || self.current.len() + bytes.len() > LINE_BYTES_MAX {
            self.dropped += (self.current.len() + bytes.len()) as u64;
            self.current.clear();
        } else {
            self.current.extend_from_slice(bytes);
        }
    }

    fn take(&mut self) -> Line {
        let bytes = std::mem::take(&mut self.current);
        match std::mem::take(&mut self.dropped) {
            0 => Line::Bytes(bytes),
            dropped => Line::TooLong(dropped),
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
    fn long_line_is_counted_and_not_held() {
        let long = vec![b'x'; LINE_BYTES_MAX / 2 + 1];
        let lines = split(&[b"a\n", &long, &long, &long, b"\nb"]);
        let length = 3 * long.len() as u64;
        assert_eq!(lines[1], Line::TooLong(length));
        assert_eq!(lines[2], Line::Bytes(b"b".to_vec()));
        let fitting = vec![b'x'; LINE_BYTES_MAX];
        assert_eq!(split(&[&fitting]), [Line::Bytes(fitting.clone())]);
    }
}
