//! How fast bytes have to move while somebody waits for them: what does not move is cut, and what it held is free.

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

/// So many bytes, or all that is left, within that time of waiting.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Pace {
    pub bytes: usize,
    pub within: Duration,
}

impl Pace {
    /// About a kilobyte a second: less than any network that people use, more than who wants to hold something pays for.
    pub const USUAL: Self = Self { bytes: 32 * 1024, within: Duration::from_secs(30) };
}

/// The client kept us waiting for longer than [`Pace`] allows.
#[derive(Debug, thiserror::Error)]
#[error("the client is too slow")]
pub(super) struct TooSlow;

/// Whether a request's body broke off because its sender is too slow.
pub fn is_too_slow(error: &(dyn Error + 'static)) -> bool {
    let mut cause = Some(error);
    while let Some(error) = cause {
        if error.is::<TooSlow>() {
            return true;
        }
        cause = error.source();
    }
    false
}

/// The time that went by waiting, since as many bytes as [`Pace`] asks for have moved.
#[derive(Debug)]
struct Patience {
    pace: Pace,
    moved: usize,
    waited: Duration,
    /// While it waits.
    waiting: Option<(Instant, Pin<Box<Sleep>>)>,
}

impl Patience {
    fn new(pace: Pace) -> Self {
        Self { pace, moved: 0, waited: Duration::ZERO, waiting: None }
    }

    fn moved(&mut self, bytes: usize) {
        if let Some((since, _)) = self.waiting.take() {
            self.waited += since.elapsed();
        }
        self.moved = self.moved.saturating_add(bytes);
        if self.moved >= self.pace.bytes {
            self.rest();
        }
    }

    /// Nothing is left to be waited for.
    fn rest(&mut self) {
        (self.moved, self.waited, self.waiting) = (0, Duration::ZERO, None);
    }

    /// Nothing moves now; whether that has lasted too long.
    fn is_over(&mut self, cx: &mut Context<'_>) -> bool {
        let left = self.pace.within.saturating_sub(self.waited);
        let (_, timer) =
            self.waiting.get_or_insert_with(|| (Instant::now(), Box::pin(sleep(left))));
        timer.as_mut().poll(cx).is_ready()
    }
}

/// A request's body that has to come at a pace. Time that we take between its parts does not count.
#[derive(Debug)]
pub(super) struct PacedBody {
    inner: Incoming,
    patience: Patience,
}

impl PacedBody {
    pub(super) fn new(inner: Incoming, pace: Pace) -> Self {
        Self { inner, patience: Patience::new(pace) }
    }
}

impl Body for PacedBody {
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
                this.patience.moved(data.map_or(0, Bytes::len));
                Poll::Ready(frame.map(|frame| frame.map_err(Into::into)))
            }
            Poll::Pending if this.patience.is_over(cx) => Poll::Ready(Some(Err(Box::new(TooSlow)))),
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

/// A connection whose client has to take what it is sent at a pace. What it sends itself, the server bounds.
#[derive(Debug)]
pub(super) struct PacedStream {
    inner: TcpStream,
    patience: Patience,
}

impl PacedStream {
    pub(super) fn new(inner: TcpStream, pace: Pace) -> Self {
        Self { inner, patience: Patience::new(pace) }
    }

    fn written(
        &mut self,
        cx: &mut Context<'_>,
        written: Poll<io::Result<usize>>,
    ) -> Poll<io::Result<usize>> {
        match written {
            Poll::Ready(Ok(bytes)) => {
                self.patience.moved(bytes);
                Poll::Ready(Ok(bytes))
            }
            Poll::Ready(Err(error)) => Poll::Ready(Err(error)),
            Poll::Pending if self.patience.is_over(cx) => {
                Poll::Ready(Err(io::Error::new(io::ErrorKind::TimedOut, TooSlow)))
            }
            Poll::Pending => Poll::Pending,
        }
    }
}

impl AsyncRead for PacedStream {
    fn poll_read(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        Pin::new(&mut self.get_mut().inner).poll_read(cx, buffer)
    }
}

impl AsyncWrite for PacedStream {
    fn poll_write(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        let this = self.get_mut();
        let written = Pin::new(&mut this.inner).poll_write(cx, bytes);
        this.written(cx, written)
    }

    fn poll_write_vectored(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        parts: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        let this = self.get_mut();
        let written = Pin::new(&mut this.inner).poll_write_vectored(cx, parts);
        this.written(cx, written)
    }

    fn is_write_vectored(&self) -> bool {
        self.inner.is_write_vectored()
    }

    /// Asked for when everything has been written.
    fn poll_flush(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        let this = self.get_mut();
        ready!(Pin::new(&mut this.inner).poll_flush(cx))?;
        this.patience.rest();
        Poll::Ready(Ok(()))
    }

    fn poll_shutdown(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.get_mut().inner).poll_shutdown(cx)
    }
}
