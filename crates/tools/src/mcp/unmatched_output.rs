//! Output of a program that is no message, for the approver of a call without a response.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use crate::http::redactor::Redactor;
use crate::mcp::message::{SHOWN_BYTES_MAX, shown};

/// Bytes that are kept of all lines, and of one.
const KEPT_BYTES_MAX: usize = 16 * 1024;

/// Lines without a message that a program wrote while one call was its only open request. Late logs of an
/// earlier call are among them.
#[derive(Clone, Default)]
pub(super) struct UnmatchedOutput(Arc<Mutex<UnmatchedLines>>);

#[derive(Default)]
struct UnmatchedLines {
    ended: Vec<u8>,
    /// The beginning of the line that has not ended.
    open: Vec<u8>,
}

impl UnmatchedOutput {
    /// Records the line so far that has not ended.
    pub(super) fn set_open_line(&self, line: &[u8]) {
        let mut lines = self.lock();
        if lines.open.len() < KEPT_BYTES_MAX {
            lines.open.clear();
            lines.open.extend_from_slice(beginning(line));
        }
    }

    /// Removes the line of [`Self::set_open_line`], because it has ended.
    pub(super) fn end_line(&self) {
        self.lock().open.clear();
    }

    pub(super) fn add_line(&self, line: &[u8], redactor: &Redactor) {
        let kept = beginning(line);
        let is_cut = kept.len() < line.len();
        let mut lines = self.lock();
        lines.ended.extend_from_slice(kept);
        if is_cut || lines.ended.len() > KEPT_BYTES_MAX {
            // Whole secrets are replaced before lines are dropped: one without its beginning would not
            // be. A secret that has not ended stays, at the end.
            let text = String::from_utf8_lossy(&lines.ended).into_owned();
            let redacted =
                if is_cut { redactor.redact_truncated(&text) } else { redactor.redact(&text) };
            lines.ended = last_lines(&redacted, KEPT_BYTES_MAX / 2).into_bytes();
        }
        if !lines.ended.ends_with(b"\n") {
            lines.ended.push(b'\n');
        }
    }

    /// The last lines of at most [`SHOWN_BYTES_MAX`], and a longer last line as a whole. It has no secrets.
    pub(super) fn redacted(&self, redactor: &Redactor) -> String {
        let bytes = {
            let lines = self.lock();
            [lines.ended.as_slice(), lines.open.as_slice()].concat()
        };
        let text = redactor.redact_truncated(String::from_utf8_lossy(&bytes).trim());
        last_lines(&text, SHOWN_BYTES_MAX)
    }

    fn lock(&self) -> MutexGuard<'_, UnmatchedLines> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

fn beginning(line: &[u8]) -> &[u8] {
    line.get(..KEPT_BYTES_MAX).unwrap_or(line)
}

/// The last lines of at most so many bytes, the first of them perhaps cut, and a longer last line as a whole.
fn last_lines(text: &str, bytes_max: usize) -> String {
    let mut last = text;
    while last.len() > bytes_max
        && let Some((line, behind)) = last.split_once('\n')
    {
        if let Some(room) = bytes_max.checked_sub(behind.len() + "…\n".len()) {
            return format!("{}\n{behind}", shown(line, room));
        }
        last = behind;
    }
    last.to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::http::template::SettingSecret;

    fn redactor(value: &str) -> Redactor {
        let secret = SettingSecret { name: "KEY".to_owned(), value: value.to_owned() };
        Redactor::new([&secret].into_iter())
    }

    fn add(output: &UnmatchedOutput, line: &str) {
        output.add_line(line.as_bytes(), &redactor("s3cret\nvalue"));
    }

    fn redacted(output: &UnmatchedOutput) -> String {
        output.redacted(&redactor("s3cret\nvalue"))
    }

    #[test]
    fn last_lines_are_shown_without_secrets() {
        let output = UnmatchedOutput::default();
        assert_eq!(redacted(&output), "");
        add(&output, "use s3cret\r\n");
        assert_eq!(redacted(&output), "use [KEY]");
        let output = UnmatchedOutput::default();
        for line in ["{\n", "\"key\": \"s3cret\n", "value\",\n", "}\n"] {
            add(&output, line);
        }
        assert_eq!(redacted(&output), "{\n\"key\": \"[KEY]\",\n}");
        for number in 0..5_000 {
            add(&output, &format!("line {number}\n"));
        }
        output.set_open_line("booked 4711 für s3cr".as_bytes());
        let text = redacted(&output);
        assert!(text.ends_with("line 4999\nbooked 4711 für [KEY]"), "{text}");
        assert!(text.contains("\nline 4900\n") && text.len() <= SHOWN_BYTES_MAX, "{text}");
        output.end_line();
        assert!(redacted(&output).ends_with("line 4999"));
    }

    #[test]
    fn long_last_line_is_shown_from_its_beginning() {
        let long = format!("booked 4711 {}", "x".repeat(50_000));
        let (ended, open) = (UnmatchedOutput::default(), UnmatchedOutput::default());
        for output in [&ended, &open] {
            add(output, "log\n");
        }
        add(&ended, &long);
        for length in [100, 20_000, 50_000] {
            open.set_open_line(long.as_bytes().get(..length).unwrap());
        }
        for text in [redacted(&ended), redacted(&open)] {
            assert!(text.starts_with("booked 4711 x") && text.len() <= KEPT_BYTES_MAX);
        }
    }

    #[test]
    fn spoilt_response_is_shown_with_later_lines() {
        for (length, later) in [(1_500, "y".repeat(1_000)), (3_000, "done".to_owned())] {
            let output = UnmatchedOutput::default();
            add(&output, &format!("booked 4711 {}\n", "x".repeat(length)));
            add(&output, &later);
            let text = redacted(&output);
            assert!(text.starts_with("booked 4711 x") && text.ends_with(&format!("x…\n{later}")));
            assert_eq!(text.len(), SHOWN_BYTES_MAX);
        }
        for later in ["", "\n", "done"] {
            let output = UnmatchedOutput::default();
            add(&output, &format!("booked 4711 {}\n", "x".repeat(20_000)));
            add(&output, later);
            let text = redacted(&output);
            assert!(text.starts_with("booked 4711 x") && text.ends_with(later.trim()), "{text}");
        }
    }

    #[test]
    fn secret_of_several_lines_is_redacted_at_the_bound() {
        for length in KEPT_BYTES_MAX - 40..=KEPT_BYTES_MAX {
            let output = UnmatchedOutput::default();
            for line in ["x".repeat(length).as_str(), "s3cret\n", "value\n", "end\n"] {
                add(&output, line);
            }
            let text = redacted(&output);
            assert!(text.ends_with("x…\n[KEY]\nend"), "{length}: {text}");
        }
    }

    #[test]
    fn cut_secret_with_carriage_returns_is_redacted() {
        let (output, redactor) = (UnmatchedOutput::default(), redactor("s3cret\r\nvalue"));
        output.add_line(b"use s3cret\r\n", &redactor);
        output.set_open_line(b"val");
        assert_eq!(output.redacted(&redactor), "use [KEY]");
    }
}
