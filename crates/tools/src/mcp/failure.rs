//! Failures of requests to MCP servers, by what they say about the effect of a call.

use std::error::Error;
use std::fmt;

use axum::http::StatusCode;
use rmcp::model::ErrorCode;
use rmcp::service::ClientInitializeError;
use rmcp::transport::streamable_http_client::StreamableHttpError;

use crate::http::tool_response::RESPONSE_BYTES_MAX;
use crate::mcp::message::{SHOWN_BYTES_MAX, shown};
use crate::mcp::{ErrorData, ServiceError};

/// Known parts of a response without a JSON-RPC response.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct ResponseExcerpt {
    what: String,
    /// The beginning of what arrived. It may hold data of the call, and is never logged.
    shown: String,
}

impl ResponseExcerpt {
    pub(super) fn new(what: &str, received: &str) -> Self {
        Self { what: what.to_owned(), shown: shown(received, SHOWN_BYTES_MAX) }
    }

    pub(super) fn what(&self) -> &str {
        &self.what
    }
}

impl From<&str> for ResponseExcerpt {
    fn from(what: &str) -> Self {
        Self::new(what, "")
    }
}

impl fmt::Display for ResponseExcerpt {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.what)?;
        if self.shown.is_empty() { Ok(()) } else { write!(f, ": {}", self.shown) }
    }
}

/// Why a request has no usable response. Texts hold no secrets.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub(crate) enum McpFailure {
    #[error("its address is private or local, and the operator has not listed it")]
    AddressRejected,
    #[error("{0}")]
    NoToken(String),
    #[error("{0}")]
    NotSent(String),
    /// The request was sent, or may have been sent.
    #[error("{0}")]
    Lost(ResponseExcerpt),
    /// `is_json_rpc`: the text is the error of a response with the id of the request.
    #[error("it responded {status}{text}")]
    Status { status: StatusCode, text: String, is_json_rpc: bool },
    /// The response arrived and is larger than its bound.
    #[error("its response is larger than {0} MB")]
    TooLarge(usize),
    /// The response arrived and has no JSON-RPC response to the request. The text shows its beginning.
    #[error("{0}")]
    Unreadable(ResponseExcerpt),
    /// The server responded with an error. `needs_new_session`: it may not know the session.
    #[error("it responded with the error {code}: {text}")]
    Refused { code: String, text: String, needs_new_session: bool },
}

impl McpFailure {
    pub(super) fn too_large() -> Self {
        Self::TooLarge(RESPONSE_BYTES_MAX / (1024 * 1024))
    }

    pub(super) fn slow_handshake() -> Self {
        Self::NotSent("it did not respond to the handshake in time".to_owned())
    }

    pub(super) fn refused(code: String, text: String) -> Self {
        Self::Refused { code, text, needs_new_session: false }
    }

    pub(super) fn from_service(error: ServiceError) -> Self {
        if let ServiceError::McpError(ErrorData { code, message, .. }) = error {
            return Self::refused(code.0.to_string(), message.into_owned());
        }
        if let ServiceError::TransportSend(error) = error {
            let found = Self::find_in(&*error.error);
            return found.unwrap_or_else(|| Self::Lost("the session failed".into()));
        }
        if matches!(error, ServiceError::UnexpectedResponse) {
            return Self::Unreadable("its response is not one to this request".into());
        }
        Self::Lost("the session ended before the response".into())
    }

    pub(super) fn from_handshake(error: &ClientInitializeError) -> Self {
        let found = if let ClientInitializeError::TransportError { error, .. } = error {
            Self::find_in(&*error.error)
        } else if let ClientInitializeError::JsonRpcError(error) = error {
            Some(Self::refused(error.code.0.to_string(), error.message.to_string()))
        } else {
            None
        };
        match found {
            // No call was sent, whatever the handshake did.
            Some(Self::Lost(reason) | Self::Unreadable(reason)) => {
                Self::NotSent(reason.to_string())
            }
            Some(Self::TooLarge(_)) => Self::NotSent("its handshake is too large".to_owned()),
            Some(failure) => failure,
            None => Self::NotSent("it did not complete the handshake of MCP".to_owned()),
        }
    }

    fn find_in(error: &(dyn Error + Send + Sync + 'static)) -> Option<Self> {
        let error = error.downcast_ref::<StreamableHttpError<Self>>()?;
        if let StreamableHttpError::Client(failure) = error {
            return Some(failure.clone());
        }
        let is_expired = matches!(error, StreamableHttpError::SessionExpired);
        is_expired.then(|| Self::NotSent("its session ended".to_owned()))
    }

    /// Shows the beginning of this text if the response is lost.
    pub(super) fn with_received(mut self, received: &str) -> Self {
        if let Self::Lost(excerpt) = &mut self {
            excerpt.shown = shown(received, SHOWN_BYTES_MAX);
        }
        self
    }

    /// The text for the log, without texts of the server, which may hold data of the call.
    pub(super) fn log_text(&self) -> String {
        match self {
            Self::Status { status, .. } => format!("the server responded {status}"),
            Self::Refused { code, .. } => format!("the server responded error {code}"),
            Self::Lost(seen) | Self::Unreadable(seen) => seen.what().to_owned(),
            Self::AddressRejected | Self::NoToken(_) | Self::NotSent(_) | Self::TooLarge(_) => {
                self.to_string()
            }
        }
    }

    /// True if the next request needs another session.
    pub(super) fn ends_session(&self) -> bool {
        match self {
            Self::Lost(_) | Self::NotSent(_) | Self::Status { .. } => true,
            Self::AddressRejected | Self::NoToken(_) | Self::TooLarge(_) | Self::Unreadable(_) => {
                false
            }
            Self::Refused { needs_new_session, .. } => *needs_new_session,
        }
    }

    /// True if the server has refused the request and may not know its session.
    pub(super) fn needs_new_session(&self) -> bool {
        matches!(self, Self::Refused { needs_new_session: true, .. })
    }

    /// True if a response arrived, whatever it is.
    pub(super) fn is_json_rpc(&self) -> bool {
        match self {
            Self::Refused { .. } | Self::Unreadable(_) | Self::TooLarge(_) => true,
            Self::Status { status, .. } => status.is_client_error(),
            Self::AddressRejected | Self::NoToken(_) | Self::NotSent(_) | Self::Lost(_) => false,
        }
    }

    /// True if a write may have had its effect.
    pub(super) fn may_have_had_effect(&self) -> bool {
        match self {
            Self::Lost(_) | Self::Unreadable(_) => true,
            // Many servers redirect after they have done the work, and a gateway sends 408 for a
            // server that may still process the request.
            Self::Status { status, is_json_rpc, .. } => {
                !is_json_rpc
                    && (status.is_server_error()
                        || status.is_redirection()
                        || *status == StatusCode::REQUEST_TIMEOUT)
            }
            Self::AddressRejected
            | Self::NoToken(_)
            | Self::NotSent(_)
            | Self::TooLarge(_)
            | Self::Refused { .. } => false,
        }
    }

    /// True if the server reported that it failed in the middle of the work.
    pub(super) fn is_internal_error(&self) -> bool {
        match self {
            Self::Refused { code, .. } => *code == ErrorCode::INTERNAL_ERROR.0.to_string(),
            Self::Status { status, is_json_rpc, .. } => *is_json_rpc && status.is_server_error(),
            Self::AddressRejected
            | Self::NoToken(_)
            | Self::NotSent(_)
            | Self::TooLarge(_)
            | Self::Lost(_)
            | Self::Unreadable(_) => false,
        }
    }

    /// True if another attempt of a repeatable call may succeed.
    pub(super) fn is_retryable(&self) -> bool {
        match self {
            Self::NoToken(_) | Self::NotSent(_) | Self::Lost(_) => true,
            Self::Status { status, .. } => {
                status.is_server_error() || *status == StatusCode::TOO_MANY_REQUESTS
            }
            Self::AddressRejected
            | Self::TooLarge(_)
            | Self::Unreadable(_)
            | Self::Refused { .. } => false,
        }
    }
}
