//! Minimum throughput of clients. A body or connection below it is cut, which frees its resources.

use std::error::Error;
use std::io;
use std::pin::Pin;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use bytes::Bytes;
use http_body::{Body, Frame, SizeHint};
use hyper::body::Incoming;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::TcpStream;
use tokio::time::{Instant, Sleep, sleep};

use crate::error_chain::has_cause;
use crate::server::exchange::Exchange;

/// Minimum of `bytes`, or of all remaining bytes, per `within` of waiting time.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MinThroughput {
    pub bytes: usize,
    pub within: Duration,
}

impl MinThroughput {
    /// About 1 KB/s: slower than any real client, fast enough to make slow-client attacks
    /// expensive.
    pub(crate) const DEFAULT: Self = Self { bytes: 32 * 1024, within: Duration::from_secs(30) };
}

/// The client transferred data more slowly than [`MinThroughput`] allows.
#[derive(Debug, thiserror::Error)]
#[error("the client transfers data too slowly")]
pub(super) struct ClientTooSlow;

/// True if a request body failed because its client was below the minimum throughput.
pub fn is_client_too_slow(error: &(dyn Error + 'static)) -> bool {
    has_cause::<ClientTooSlow>(error)
}

/// Waiting time since the last transfer of [`MinThroughput::bytes`].
#[derive(Debug)]
struct StallTimer {
    limit: MinThroughput,
    transferred: usize,
    waited: Duration,
    /// Set while no byte can be transferred.
    stall: Option<(Instant, Pin<Box<Sleep>>)>,
}

impl StallTimer {
    fn new(limit: MinThroughput) -> Self {
        Self { limit, transferred: 0, waited: Duration::ZERO, stall: None }
    }

    fn record_transfer(&mut self, bytes: usize) {
        if let Some((since, _)) = self.stall.take() {
            self.waited += since.elapsed();
        }
        self.transferred = self.transferred.saturating_add(bytes);
        if self.transferred >= self.limit.bytes {
            self.reset();
        }
    }

    /// Starts a new measurement: no transfer is pending.
    fn reset(&mut self) {
        (self.transferred, self.waited, self.stall) = (0, Duration::ZERO, None);
    }

    /// Called when no byte can be transferred. True if the waiting time is used up, or `ends` has
    /// come.
    fn is_expired(&mut self, cx: &mut Context<'_>, ends: Option<Instant>) -> bool {
        let left = self.limit.within.saturating_sub(self.waited);
        let until_end = ends.map(|ends| ends.saturating_duration_since(Instant::now()));
        let left = until_end.map_or(left, |until_end| until_end.min(left));
        let (_, timer) = self.stall.get_or_insert_with(|| (Instant::now(), Box::pin(sleep(left))));
        timer.as_mut().poll(cx).is_ready()
    }
}

/// A request body with a minimum throughput. Time that the handler takes between chunks does not
/// count.
#[derive(Debug)]
pub(super) struct TimedBody {
    inner: Incoming,
    stall_timer: StallTimer,
}

impl TimedBody {
    pub(super) fn new(inner: Incoming, limit: MinThroughput) -> Self {
        Self { inner, stall_timer: StallTimer::new(limit) }
    }
}

impl Body for TimedBody {
    type Data = Bytes;
    type Error = Box<dyn Error + Send + Sync>;

    fn poll_frame(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Self::Error>>> {
        let this = self.get_mut();
        match Pin::new(&mut this.inner).poll_frame(cx) {
            Poll::Ready(frame) => {
                let data = frame.as_ref().and_then(|frame| frame.as_ref().ok()?.data_ref());
                this.stall_timer.record_transfer(data.map_or(0, Bytes::len));
                Poll::Ready(frame.map(|frame| frame.map_err(Into::into)))
            }
            Poll::Pending if this.stall_timer.is_expired(cx, None) => {
                Poll::Ready(Some(Err(Box::new(ClientTooSlow))))
            }
            Poll::Pending => Poll::Pending,
        }
    }

    fn is_end_stream(&self) -> bool {
        self.inner.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.inner.size_hint()
    }
}

/// A connection whose client must read responses at a minimum throughput, and within the bounds of
/// the response. For the bytes that the client sends, the server has other limits.
#[derive(Debug)]
pub(super) struct TimedStream {
    inner: TcpStream,
    stall_timer: StallTimer,
    exchange: Exchange,
}

impl TimedStream {
    pub(super) fn new(inner: TcpStream, limit: MinThroughput, exchange: Exchange) -> Self {
        Self { inner, stall_timer: StallTimer::new(limit), exchange }
    }

    fn check_write(
        &mut self,
        cx: &mut Context<'_>,
        written: Poll<io::Result<usize>>,
    ) -> Poll<io::Result<usize>> {
        match written {
            Poll::Ready(Ok(bytes)) => {
                self.stall_timer.record_transfer(bytes);
                Poll::Ready(Ok(bytes))
            }
            Poll::Ready(Err(error)) => Poll::Ready(Err(error)),
            Poll::Pending if self.stall_timer.is_expired(cx, self.exchange.cut_at()) => {
                // The client gets no more of what the kernel has buffered.
                let _ = self.inner.set_zero_linger();
                Poll::Ready(Err(io::Error::new(io::ErrorKind::TimedOut, ClientTooSlow)))
            }
            Poll::Pending => Poll::Pending,
        }
    }
}

impl AsyncRead for TimedStream {
    fn poll_read(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        Pin::new(&mut self.get_mut().inner).poll_read(cx, buffer)
    }
}

impl AsyncWrite for TimedStream {
    fn poll_write(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        let this = self.get_mut();
        let written = Pin::new(&mut this.inner).poll_write(cx, bytes);
        this.check_write(cx, written)
    }

    fn poll_write_vectored(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        parts: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        let this = self.get_mut();
        let written = Pin::new(&mut this.inner).poll_write_vectored(cx, parts);
        this.check_write(cx, written)
    }

    fn is_write_vectored(&self) -> bool {
        self.inner.is_write_vectored()
    }

    /// The server flushes after it has written everything, so no transfer is pending.
    fn poll_flush(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        let this = self.get_mut();
        ready!(Pin::new(&mut this.inner).poll_flush(cx))?;
        this.stall_timer.reset();
        this.exchange.end_if_sent();
        Poll::Ready(Ok(()))
    }

    fn poll_shutdown(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.get_mut().inner).poll_shutdown(cx)
    }
}
