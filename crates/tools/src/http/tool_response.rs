//! The response of a tool's server.

use std::sync::{Mutex, MutexGuard, PoisonError};

use axum::http::{HeaderMap, StatusCode};
use bytes::{Bytes, BytesMut};
use futures_util::stream::{Stream, TryStreamExt as _};

/// Bytes of a response body after decompression. More bytes are not read.
pub(crate) const RESPONSE_BYTES_MAX: usize = 5 * 1024 * 1024;

pub(super) struct ToolResponse {
    pub(super) status: StatusCode,
    pub(super) headers: HeaderMap,
    pub(super) body: Bytes,
    /// True if the body has more than [`RESPONSE_BYTES_MAX`] bytes.
    pub(super) is_cut: bool,
}

/// The bytes of a body that have arrived. They stay when its reader fails or is dropped.
#[derive(Default)]
pub(crate) struct ArrivedBytes(Mutex<BytesMut>);

impl ArrivedBytes {
    /// The same chunks. Each is recorded when it arrives.
    pub(crate) fn record<E>(
        &self,
        chunks: impl Stream<Item = Result<Bytes, E>> + Send + Unpin,
    ) -> impl Stream<Item = Result<Bytes, E>> + Send + Unpin {
        chunks.inspect_ok(|chunk| self.lock().extend_from_slice(chunk))
    }

    pub(crate) fn lock(&self) -> MutexGuard<'_, BytesMut> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
