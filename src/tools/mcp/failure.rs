//! Failures of requests to MCP servers, by what they say about the effect of a call.

use std::error::Error;

use axum::http::StatusCode;
use rmcp::model::ErrorCode;
use rmcp::service::ClientInitializeError;
use rmcp::transport::streamable_http_client::StreamableHttpError;

use crate::tools::mcp::{ErrorData, ServiceError};

/// Why a request has no usable response. Texts hold no secrets.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub(crate) enum RequestFailure {
    #[error("its address is private or local, and the operator has not listed it")]
    AddressRejected,
    #[error("{0}")]
    NoToken(String),
    #[error("{0}")]
    NotSent(String),
    /// The request was sent, or may have been sent.
    #[error("{0}")]
    Lost(String),
    #[error("it responded {status}{text}")]
    Status { status: StatusCode, text: String },
    /// The response arrived and is larger than its bound.
    #[error("its response is larger than {0} MB")]
    TooLarge(usize),
    /// The response arrived and is no message of the protocol.
    #[error("{0}")]
    Unreadable(String),
    /// The server refused the request.
    #[error("it responded with the error {code}: {text}")]
    Refused { code: i32, text: String },
}

impl RequestFailure {
    pub(super) fn slow_handshake() -> Self {
        Self::NotSent("it did not answer the handshake in time".to_owned())
    }

    pub(super) fn from_service(error: ServiceError) -> Self {
        if let ServiceError::McpError(ErrorData { code, message, .. }) = error {
            return Self::Refused { code: code.0, text: message.into_owned() };
        }
        if let ServiceError::TransportSend(error) = error {
            let found = Self::find_in(&*error.error);
            return found.unwrap_or_else(|| Self::Lost("the session failed".to_owned()));
        }
        if matches!(error, ServiceError::UnexpectedResponse) {
            return Self::Unreadable("its response is not one to this request".to_owned());
        }
        Self::Lost("the session ended before the response".to_owned())
    }

    pub(super) fn from_handshake(error: &ClientInitializeError) -> Self {
        let found = if let ClientInitializeError::TransportError { error, .. } = error {
            Self::find_in(&*error.error)
        } else if let ClientInitializeError::JsonRpcError(error) = error {
            Some(Self::Refused { code: error.code.0, text: error.message.to_string() })
        } else {
            None
        };
        match found {
            // No call was sent, whatever the handshake did.
            Some(Self::Lost(reason) | Self::Unreadable(reason)) => Self::NotSent(reason),
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

    /// True if the next request needs another session.
    pub(super) fn ends_session(&self) -> bool {
        match self {
            Self::Lost(_) | Self::NotSent(_) | Self::Status { .. } => true,
            Self::AddressRejected
            | Self::NoToken(_)
            | Self::TooLarge(_)
            | Self::Unreadable(_)
            | Self::Refused { .. } => false,
        }
    }

    /// True if a write may have had its effect.
    pub(super) fn may_have_had_effect(&self) -> bool {
        match self {
            Self::Lost(_) | Self::Unreadable(_) => true,
            // Many servers redirect after they have done the work, and a gateway sends 408 for a
            // server that may still process the request.
            Self::Status { status, .. } => {
                status.is_server_error()
                    || status.is_redirection()
                    || *status == StatusCode::REQUEST_TIMEOUT
            }
            Self::Refused { code, .. } => *code == ErrorCode::INTERNAL_ERROR.0,
            Self::AddressRejected | Self::NoToken(_) | Self::NotSent(_) | Self::TooLarge(_) => {
                false
            }
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
