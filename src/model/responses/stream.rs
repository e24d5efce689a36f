//! Server-sent events of a response, each as soon as it is complete. Idle time and size are
//! bounded.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use bytes::Bytes;
use futures_util::stream::{BoxStream, Stream, StreamExt, unfold};
use sse_stream::{Sse, SseByteStream};

/// Bytes of one event; an image is a single event.
const EVENT_BYTES_MAX: usize = 8 * 1024 * 1024;
const ANSWER_BYTES_MAX: usize = 64 * 1024 * 1024;

/// Error that ends the reading of a stream.
#[derive(Debug, thiserror::Error)]
pub enum ReadError {
    #[error("no data received from the model for {} seconds", .0.as_secs())]
    Silent(Duration),
    #[error("the model response or one of its events exceeds {0} bytes")]
    TooLarge(usize),
    #[error("the connection to the model failed")]
    Broken(#[source] Box<dyn std::error::Error + Send + Sync>),
}

/// Reader of the events of a byte stream.
pub struct Events {
    frames: SseByteStream<BoxStream<'static, Result<Bytes, ReadError>>>,
    /// Bytes since the last complete event.
    since_event: Arc<AtomicUsize>,
}

impl std::fmt::Debug for Events {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("SseReader(…)")
    }
}

impl Events {
    pub fn new<E>(
        bytes: impl Stream<Item = Result<Bytes, E>> + Send + 'static,
        idle: Duration,
    ) -> Self
    where
        E: std::error::Error + Send + Sync + 'static,
    {
        let since_event = Arc::new(AtomicUsize::new(0));
        let bounded = bounded(bytes.boxed(), idle, Arc::clone(&since_event)).boxed();
        Self { frames: SseByteStream::new(bounded), since_event }
    }

    /// Returns the next event: its `event:` line and its data; `None` at the end.
    ///
    /// # Errors
    /// The response is lost. Do not call it again.
    pub async fn next(&mut self) -> Result<Option<(Option<String>, String)>, ReadError> {
        loop {
            match self.frames.next().await {
                None => return Ok(None),
                Some(Ok(Sse { event, data: Some(data), .. })) => {
                    self.since_event.store(0, Ordering::Relaxed);
                    return Ok(Some((event, data)));
                }
                Some(Ok(_)) => {}
                Some(Err(sse_stream::Error::Body(source))) => {
                    return Err(match source.downcast::<ReadError>() {
                        Ok(known) => *known,
                        Err(source) => ReadError::Broken(source),
                    });
                }
                Some(Err(error)) => return Err(ReadError::Broken(Box::new(error))),
            }
        }
    }
}

struct Reading<E> {
    /// `None` after the end.
    bytes: Option<BoxStream<'static, Result<Bytes, E>>>,
    total: usize,
}

/// Bounds a byte stream and appends an empty line. Gateways omit that line, and the last event
/// would be lost.
fn bounded<E>(
    bytes: BoxStream<'static, Result<Bytes, E>>,
    idle: Duration,
    since_event: Arc<AtomicUsize>,
) -> impl Stream<Item = Result<Bytes, ReadError>> + Send
where
    E: std::error::Error + Send + Sync + 'static,
{
    unfold(Reading { bytes: Some(bytes), total: 0 }, move |mut reading| {
        let since_event = Arc::clone(&since_event);
        async move {
            let bytes = reading.bytes.as_mut()?;
            let next = match tokio::time::timeout(idle, bytes.next()).await {
                Err(_) => Err(ReadError::Silent(idle)),
                Ok(Some(Err(error))) => Err(ReadError::Broken(Box::new(error))),
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
                        Err(ReadError::TooLarge(EVENT_BYTES_MAX))
                    } else if reading.total > ANSWER_BYTES_MAX {
                        Err(ReadError::TooLarge(ANSWER_BYTES_MAX))
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

    async fn all(mut events: Events) -> Result<Vec<(Option<String>, String)>, ReadError> {
        let mut read = Vec::new();
        while let Some(event) = events.next().await? {
            read.push(event);
        }
        Ok(read)
    }

    fn of(text: &str, size: usize) -> Events {
        let chunks: Vec<Result<Bytes, Infallible>> =
            text.as_bytes().chunks(size).map(|chunk| Ok(Bytes::copy_from_slice(chunk))).collect();
        Events::new(iter(chunks), Duration::from_secs(5))
    }

    #[tokio::test]
    async fn events_are_the_same_however_the_bytes_are_cut() {
        let text = "\u{feff}: hello\r\n\r\nevent: a\ndata: {\"é\":\ndata: 1}\n\ndata: last";
        let expected =
            vec![(Some("a".to_owned()), "{\"é\":\n1}".to_owned()), (None, "last".to_owned())];
        for size in [1, 2, 7, 1000] {
            assert_eq!(all(of(text, size)).await.unwrap(), expected, "{size}");
        }
    }

    #[tokio::test]
    async fn silence_ends_the_reading() {
        let events = Events::new(pending::<Result<Bytes, Infallible>>(), Duration::from_millis(5));
        let error = all(events).await.unwrap_err();
        assert!(matches!(error, ReadError::Silent(_)), "{error}");
    }

    #[tokio::test]
    async fn an_event_without_end_is_given_up() {
        let endless = futures_util::stream::repeat_with(|| {
            Ok::<_, Infallible>(Bytes::from(vec![b'x'; 1 << 20]))
        });
        let error = all(Events::new(endless, Duration::from_secs(5))).await.unwrap_err();
        assert!(matches!(error, ReadError::TooLarge(EVENT_BYTES_MAX)), "{error}");
    }

    #[tokio::test]
    async fn bytes_that_are_no_text_break_the_answer() {
        let chunks = vec![Ok::<_, Infallible>(Bytes::from_static(b"data: \xff\xfe\n\n"))];
        let error = all(Events::new(iter(chunks), Duration::from_secs(5))).await.unwrap_err();
        assert!(matches!(error, ReadError::Broken(_)), "{error}");
    }
}
