//! Server-sent events of a response, each as soon as it is complete. Idle time and size are
//! bounded.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use bytes::Bytes;
use futures_util::stream::{BoxStream, Stream, StreamExt, unfold};
use sse_stream::{Sse, SseByteStream};

/// Bytes of one event; an image is a single event.
pub(super) const EVENT_BYTES_MAX: usize = 8 * 1024 * 1024;
pub(super) const RESPONSE_BYTES_MAX: usize = 64 * 1024 * 1024;

/// Error that ends the reading of a stream.
#[derive(Debug, thiserror::Error)]
pub enum StreamError {
    #[error("no data received from the model for {} seconds", .0.as_secs())]
    IdleTimeout(Duration),
    #[error("the model response or one of its events exceeds {0} bytes")]
    TooLarge(usize),
    #[error("the connection to the model failed")]
    ConnectionFailed(#[source] Box<dyn std::error::Error + Send + Sync>),
}

/// Reader of the events of a byte stream.
pub struct SseReader {
    frames: SseByteStream<BoxStream<'static, Result<Bytes, StreamError>>>,
    /// Bytes since the last complete event.
    since_event: Arc<AtomicUsize>,
}

impl std::fmt::Debug for SseReader {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("SseReader(…)")
    }
}

impl SseReader {
    pub fn new<E>(
        bytes: impl Stream<Item = Result<Bytes, E>> + Send + 'static,
        idle: Duration,
    ) -> Self
    where
        E: std::error::Error + Send + Sync + 'static,
    {
        let since_event = Arc::new(AtomicUsize::new(0));
        let bounded = bound_bytes(bytes.boxed(), idle, Arc::clone(&since_event)).boxed();
        Self { frames: SseByteStream::new(bounded), since_event }
    }

    /// Returns the next event: its `event:` line and its data; `None` at the end.
    ///
    /// # Errors
    /// The response is lost. Do not call it again.
    pub async fn next_event(&mut self) -> Result<Option<(Option<String>, String)>, StreamError> {
        loop {
            match self.frames.next().await {
                None => return Ok(None),
                Some(Ok(Sse { event, data: Some(data), .. })) => {
                    self.since_event.store(0, Ordering::Relaxed);
                    return Ok(Some((event, data)));
                }
                Some(Ok(_)) => {}
                Some(Err(sse_stream::Error::Body(source))) => {
                    return Err(match source.downcast::<StreamError>() {
                        Ok(known) => *known,
                        Err(source) => StreamError::ConnectionFailed(source),
                    });
                }
                Some(Err(error)) => return Err(StreamError::ConnectionFailed(Box::new(error))),
            }
        }
    }
}

struct BoundedSource<E> {
    /// `None` after the end.
    bytes: Option<BoxStream<'static, Result<Bytes, E>>>,
    total: usize,
}

/// Bounds a byte stream and appends an empty line. Gateways omit that line, and the last event
/// would be lost.
fn bound_bytes<E>(
    bytes: BoxStream<'static, Result<Bytes, E>>,
    idle: Duration,
    since_event: Arc<AtomicUsize>,
) -> impl Stream<Item = Result<Bytes, StreamError>> + Send
where
    E: std::error::Error + Send + Sync + 'static,
{
    unfold(BoundedSource { bytes: Some(bytes), total: 0 }, move |mut reading| {
        let since_event = Arc::clone(&since_event);
        async move {
            let bytes = reading.bytes.as_mut()?;
            let next = match tokio::time::timeout(idle, bytes.next()).await {
                Err(_) => Err(StreamError::IdleTimeout(idle)),
                Ok(Some(Err(error))) => Err(StreamError::ConnectionFailed(Box::new(error))),
                Ok(None) => {
                    reading.bytes = None;
                    Ok(Bytes::from_static(b"\n\n"))
                }
                Ok(Some(Ok(chunk))) => {
                    reading.total = reading.total.saturating_add(chunk.len());
                    let waiting = since_event
                        .fetch_add(chunk.len(), Ordering::Relaxed)
                        .saturating_add(chunk.len());
                    if waiting > EVENT_BYTES_MAX {
                        Err(StreamError::TooLarge(EVENT_BYTES_MAX))
                    } else if reading.total > RESPONSE_BYTES_MAX {
                        Err(StreamError::TooLarge(RESPONSE_BYTES_MAX))
                    } else {
                        Ok(chunk)
                    }
                }
            };
            if next.is_err() {
                reading.bytes = None;
            }
            Some((next, reading))
        }
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use futures_util::stream::{iter, pending};
    use std::convert::Infallible;

    async fn read_all(mut events: SseReader) -> Result<Vec<(Option<String>, String)>, StreamError> {
        let mut read = Vec::new();
        while let Some(event) = events.next_event().await? {
            read.push(event);
        }
        Ok(read)
    }

    fn reader_of(text: &str, size: usize) -> SseReader {
        let chunks: Vec<Result<Bytes, Infallible>> =
            text.as_bytes().chunks(size).map(|chunk| Ok(Bytes::copy_from_slice(chunk))).collect();
        SseReader::new(iter(chunks), Duration::from_secs(5))
    }

    #[tokio::test]
    async fn events_do_not_depend_on_chunk_sizes() {
        let text = "\u{feff}: hello\r\n\r\nevent: a\ndata: {\"é\":\ndata: 1}\n\ndata: last";
        let expected =
            vec![(Some("a".to_owned()), "{\"é\":\n1}".to_owned()), (None, "last".to_owned())];
        for size in [1, 2, 7, 1000] {
            assert_eq!(read_all(reader_of(text, size)).await.unwrap(), expected, "{size}");
        }
    }

    #[tokio::test]
    async fn idle_timeout_ends_reading() {
        let events =
            SseReader::new(pending::<Result<Bytes, Infallible>>(), Duration::from_millis(5));
        let error = read_all(events).await.unwrap_err();
        assert!(matches!(error, StreamError::IdleTimeout(_)), "{error}");
    }

    #[tokio::test]
    async fn event_above_size_limit_fails() {
        let endless = futures_util::stream::repeat_with(|| {
            Ok::<_, Infallible>(Bytes::from(vec![b'x'; 1 << 20]))
        });
        let error = read_all(SseReader::new(endless, Duration::from_secs(5))).await.unwrap_err();
        assert!(matches!(error, StreamError::TooLarge(EVENT_BYTES_MAX)), "{error}");
    }

    #[tokio::test]
    async fn invalid_utf8_fails_response() {
        let chunks = vec![Ok::<_, Infallible>(Bytes::from_static(b"data: \xff\xfe\n\n"))];
        let error =
            read_all(SseReader::new(iter(chunks), Duration::from_secs(5))).await.unwrap_err();
        assert!(matches!(error, StreamError::ConnectionFailed(_)), "{error}");
    }
}
