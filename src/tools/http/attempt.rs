//! One attempt: was it sent, was it answered, was the answer lost?

use std::error::Error;
use std::fmt;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::{Context, Poll};
use std::time::Duration;

use axum::http::{HeaderMap, StatusCode, header};
use bytes::{Bytes, BytesMut};
use http_body::{Body, Frame, SizeHint};
use tokio::time::{Instant, timeout_at};

use crate::tools::http::addresses::Refused;
use crate::tools::http::request::Request;
use crate::tools::http::stream::{self, Progress, ReadError};

/// Bytes of an answer, after decompression. More is not read.
pub const ANSWER_BYTES_MAX: usize = 5 * 1024 * 1024;
/// Bytes of an answer that says no.
const REFUSAL_BYTES_MAX: usize = 8 * 1024;
/// How long an answer that says no may take to say why: the status is known already.
const REFUSAL_TIME: Duration = Duration::from_secs(2);

pub(super) struct Answer {
    pub(super) status: StatusCode,
    pub(super) headers: HeaderMap,
    pub(super) body: Bytes,
    /// There was more than [`ANSWER_BYTES_MAX`].
    pub(super) is_cut: bool,
}

/// How an attempt ended.
pub(super) enum Attempt {
    Answered(Answer),
    /// Nothing was sent.
    NeverSent(String),
    /// Nothing was sent: the app's identity gave no token, for this reason.
    NoToken(String),
    /// Nothing was sent, and nothing will be: the address may not be reached.
    Refused,
    /// It was sent, or may have been; the answer did not come whole.
    Lost(String),
}

/// Sends once and reads the response, within `time`; `progress` gets what a streamed one reports before its end.
pub(super) async fn attempt(
    client: &reqwest::Client,
    request: Request,
    time: Duration,
    progress: Progress<'_>,
) -> Attempt {
    let until = Instant::now() + time;
    let sent = Arc::new(AtomicBool::new(request.body.is_none()));
    let mut builder = client.request(request.method, request.url).headers(request.headers);
    if let Some(body) = request.body {
        let body = Watched { bytes: Some(body), was_begun: Arc::clone(&sent) };
        builder = builder.body(reqwest::Body::wrap(body));
    }
    let response = match timeout_at(until, builder.send()).await {
        Ok(Ok(response)) => response,
        Ok(Err(error)) => return failed(&error),
        Err(_) if sent.load(Ordering::SeqCst) => {
            return Attempt::Lost(format!("there was no answer within {}", shown(time)));
        }
        Err(_) => {
            return Attempt::NeverSent(format!("there was no connection within {}", shown(time)));
        }
    };
    let status = response.status();
    let headers = response.headers().clone();
    if !status.is_success() {
        let until = until.min(Instant::now() + REFUSAL_TIME);
        let body = refusal(response, until).await;
        return Attempt::Answered(Answer { status, headers, body, is_cut: false });
    }
    let answer = Answer { status, headers, body: Bytes::new(), is_cut: false };
    match timeout_at(until, stream::read(answer, Box::pin(response.bytes_stream()), progress)).await
    {
        Ok(Ok(answer)) => Attempt::Answered(answer),
        Ok(Err(ReadError::Broken)) => Attempt::Lost(format!("the answer ({status}) broke off")),
        Ok(Err(ReadError::NoResult)) => Attempt::Lost(format!(
            "the answer ({status}) ended after its progress, without a result"
        )),
        Err(_) => {
            Attempt::Lost(format!("the answer ({status}) did not end within {}", shown(time)))
        }
    }
}

fn shown(time: Duration) -> String {
    if time.as_secs() == 0 {
        format!("{} ms", time.as_millis())
    } else {
        format!("{} s", (time.as_millis() + 500) / 1_000)
    }
}

/// What came of the body of an answer that says no; that it breaks off changes nothing.
async fn refusal(mut response: reqwest::Response, until: Instant) -> Bytes {
    let mut body = BytesMut::new();
    while body.len() < REFUSAL_BYTES_MAX {
        match timeout_at(until, response.chunk()).await {
            Ok(Ok(Some(chunk))) => body.extend_from_slice(&chunk),
            _ => break,
        }
    }
    body.truncate(REFUSAL_BYTES_MAX);
    body.freeze()
}

/// Fixed sentences: the client's own would name the URL, and with it app settings.
fn failed(error: &reqwest::Error) -> Attempt {
    if found::<Refused>(error).is_some() {
        return Attempt::Refused;
    }
    if !error.is_connect() {
        let reason = if error.is_builder() {
            return Attempt::NeverSent("the request could not be built".to_owned());
        } else if error.is_timeout() {
            "there was no answer in time"
        } else {
            "the connection was cut before an answer came"
        };
        return Attempt::Lost(reason.to_owned());
    }
    let kind = found::<std::io::Error>(error).map(std::io::Error::kind);
    let reason = if error.is_timeout() {
        "there was no connection in time"
    } else if error.is_dns() {
        "its name could not be resolved"
    } else {
        match kind {
            Some(std::io::ErrorKind::ConnectionRefused) => "the connection was refused",
            Some(std::io::ErrorKind::InvalidData) => {
                "TLS failed: the certificate is not trusted, or not valid for this name"
            }
            Some(std::io::ErrorKind::UnexpectedEof) => "TLS failed: the server hung up",
            _ => "no connection could be made",
        }
    };
    Attempt::NeverSent(reason.to_owned())
}

fn found<'e, T: Error + 'static>(error: &'e (dyn Error + 'static)) -> Option<&'e T> {
    let mut next = Some(error);
    while let Some(error) = next {
        if let Some(this) = error.downcast_ref::<T>() {
            return Some(this);
        }
        // An `io::Error` hides its own cause from `source`.
        let inner = error.downcast_ref::<std::io::Error>().and_then(std::io::Error::get_ref);
        if let Some(this) = inner.and_then(|inner| inner.downcast_ref::<T>()) {
            return Some(this);
        }
        next = error.source();
    }
    None
}

/// A body that tells when the connection takes it: until then nothing was sent (HTTP/1.1 takes the body before it
/// flushes the head; hyper's `h1::dispatch::poll_write`).
struct Watched {
    bytes: Option<Bytes>,
    was_begun: Arc<AtomicBool>,
}

impl Body for Watched {
    type Data = Bytes;
    type Error = std::convert::Infallible;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        _: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Self::Error>>> {
        self.was_begun.store(true, Ordering::SeqCst);
        Poll::Ready(self.bytes.take().map(|bytes| Ok(Frame::data(bytes))))
    }

    fn is_end_stream(&self) -> bool {
        self.bytes.is_none()
    }

    fn size_hint(&self) -> SizeHint {
        SizeHint::with_exact(self.bytes.as_ref().map_or(0, |bytes| bytes.len() as u64))
    }
}

impl fmt::Debug for Answer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Answer({}, {} bytes)", self.status, self.body.len())
    }
}

impl Answer {
    /// Takes a secret out of the body: some servers send back what they were sent.
    pub(super) fn hide(&mut self, secret: &str) {
        self.rewrite(|text| text.contains(secret).then(|| text.replace(secret, "[token]")));
    }

    /// A body that is text may be another; `None` leaves it.
    pub(super) fn rewrite(&mut self, change: impl FnOnce(&str) -> Option<String>) {
        if let Some(changed) = std::str::from_utf8(&self.body).ok().and_then(change) {
            self.body = Bytes::from(changed);
        }
    }

    /// `text/html` of `Text/HTML; charset=utf-8`; empty when the server does not say.
    pub(super) fn mime_type(&self) -> String {
        let full = self.header(&header::CONTENT_TYPE);
        full.split(';').next().unwrap_or_default().trim().to_ascii_lowercase()
    }

    pub(super) fn header(&self, name: &header::HeaderName) -> &str {
        self.headers.get(name).and_then(|value| value.to_str().ok()).unwrap_or_default()
    }
}
