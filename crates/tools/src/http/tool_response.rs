//! The response of a tool's server.

use axum::http::{HeaderMap, StatusCode};
use bytes::Bytes;

/// Bytes of a response body after decompression. More bytes are not read.
pub(crate) const RESPONSE_BYTES_MAX: usize = 5 * 1024 * 1024;

pub(super) struct ToolResponse {
    pub(super) status: StatusCode,
    pub(super) headers: HeaderMap,
    pub(super) body: Bytes,
    /// True if the body has more than [`RESPONSE_BYTES_MAX`] bytes.
    pub(super) is_cut: bool,
}
