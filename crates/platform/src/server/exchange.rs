//! The exchange under way on a connection: the time at which its response is cut, and its slot among
//! the requests of clients.

use std::pin::Pin;
use std::sync::{Arc, Mutex, PoisonError};
use std::task::{Context, Poll};

use axum::body::Body;
use bytes::Bytes;
use http_body::{Body as HttpBody, Frame, SizeHint};
use tokio::sync::OwnedSemaphorePermit;
use tokio::time::Instant;

/// Bounds of a response: an extension of it that the server enforces.
#[derive(Clone, Debug)]
pub struct ResponseBounds {
    /// A client that has not read the response by then is disconnected.
    cut_at: Instant,
    /// Kept until the connection has sent the whole response.
    _slot: Option<Arc<OwnedSemaphorePermit>>,
}

impl ResponseBounds {
    pub fn new(cut_at: Instant, slot: Option<Arc<OwnedSemaphorePermit>>) -> Self {
        Self { cut_at, _slot: slot }
    }
}

/// State that the service and the stream of one connection share.
#[derive(Clone, Debug, Default)]
pub(super) struct Exchange(Arc<Mutex<State>>);

#[derive(Debug, Default)]
struct State {
    bounds: Option<ResponseBounds>,
    /// The whole response is in the buffer of the connection.
    is_buffered: bool,
}

impl Exchange {
    fn with<T>(&self, change: impl FnOnce(&mut State) -> T) -> T {
        change(&mut self.0.lock().unwrap_or_else(PoisonError::into_inner))
    }

    /// Begins to send a response.
    pub(super) fn start_response(&self, bounds: ResponseBounds, body: Body) -> Body {
        self.with(|state| *state = State { bounds: Some(bounds), is_buffered: false });
        Body::new(WatchedBody { body, exchange: self.clone() })
    }

    pub(super) fn cut_at(&self) -> Option<Instant> {
        self.with(|state| state.bounds.as_ref().map(|bounds| bounds.cut_at))
    }

    /// Called when the buffer of the connection is empty.
    pub(super) fn end_if_sent(&self) {
        self.with(|state| {
            if state.is_buffered {
                *state = State::default();
            }
        });
    }
}

/// A response body that records its end.
struct WatchedBody {
    body: Body,
    exchange: Exchange,
}

impl HttpBody for WatchedBody {
    type Data = Bytes;
    type Error = axum::Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, axum::Error>>> {
        Pin::new(&mut self.body).poll_frame(cx)
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.body.size_hint()
    }
}

impl Drop for WatchedBody {
    fn drop(&mut self) {
        self.exchange.with(|state| state.is_buffered = true);
    }
}
