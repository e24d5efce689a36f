//! Errors of the terminal commands.

use std::io;

/// Each text names the remedy.
#[derive(Debug, thiserror::Error)]
pub enum TerminalError {
    /// The arguments are invalid: exit code 2.
    #[error("{0}")]
    Arguments(String),
    /// The service refused the request.
    #[error("{status} {title}: {detail}")]
    Problem { status: u16, title: String, detail: String },
    #[error(
        "no response from {address}: start `turnwheel dev`, or set the address of the service with `--url`"
    )]
    Unreachable { address: String, source: reqwest::Error },
    #[error("the response of {address} is not one of Turnwheel: check `--url`")]
    Foreign { address: String },
    /// The request is valid, and cannot be fulfilled.
    #[error("{0}")]
    Failed(String),
    #[error("could not {doing}")]
    Io { doing: &'static str, source: io::Error },
}

impl TerminalError {
    /// True if the same request may succeed later.
    pub(crate) fn is_temporary(&self) -> bool {
        match self {
            Self::Unreachable { .. } => true,
            Self::Problem { status, .. } => is_temporary_status(*status),
            Self::Arguments(_) | Self::Foreign { .. } | Self::Failed(_) | Self::Io { .. } => false,
        }
    }
}

/// Statuses after which a client repeats the request.
pub(crate) fn is_temporary_status(status: u16) -> bool {
    matches!(status, 408 | 429 | 500 | 502 | 503 | 504)
}
