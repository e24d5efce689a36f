//! A problem in a file that the host reads.

use std::fmt;

/// Displayed as `functions/turn/function.json: …`; the message says what to write instead.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct HostProblem {
    /// Relative to the folder that was read.
    pub file: String,
    pub message: String,
}

impl HostProblem {
    pub fn new(file: impl Into<String>, message: impl Into<String>) -> Self {
        Self { file: file.into(), message: message.into() }
    }
}

impl fmt::Display for HostProblem {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}", self.file, self.message)
    }
}

/// Formats one problem per line.
pub(crate) fn lines(problems: &[HostProblem]) -> String {
    let mut text = String::new();
    for problem in problems {
        text.push_str("\n  ");
        text.push_str(&problem.to_string());
    }
    text
}
