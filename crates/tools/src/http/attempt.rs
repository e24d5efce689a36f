//! One HTTP attempt. It distinguishes requests that were not sent, responses, and lost responses.

use std::error::Error;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::{Context, Poll};
use std::time::Duration;

use axum::http::header;
use bytes::{Bytes, BytesMut};
use http_body::{Body, Frame, SizeHint};
use tokio::time::{Instant, timeout_at};

use crate::http::ToolResponse;
use crate::http::address_rules::AddressNotAllowed;
use crate::http::redactor::replace_truncated_secret;
use crate::http::request::ToolRequest;
use crate::http::stream::{self, ProgressCallback, ReadError};
use crate::http::tool_response::ArrivedBytes;
use turnwheel_json::body_kind::BodyKind;
use turnwheel_json::foreign::{map_strings, read_foreign_json};

/// Bytes of the body of an error response.
const ERROR_BODY_BYTES_MAX: usize = 8 * 1024;
/// Time limit for the body of an error response, whose status is already known.
const ERROR_BODY_TIME_MAX: Duration = Duration::from_secs(2);

/// Outcome of an attempt.
pub(super) enum AttemptOutcome {
    Responded(ToolResponse),
    /// Nothing was sent.
    NotSent(String),
    /// Nothing was sent: no token of the app's identity, for this reason.
    NoToken(String),
    /// Nothing was sent, and no retry helps: the address is not allowed.
    AddressRejected,
    /// The request was sent, or may have been sent, and its response is missing or incomplete.
    ResponseLost {
        cause: String,
        /// The part of the response that has arrived.
        received: Option<ToolResponse>,
    },
}

impl AttemptOutcome {
    /// The response, or the part of it that has arrived.
    pub(super) fn response_mut(&mut self) -> Option<&mut ToolResponse> {
        match self {
            Self::Responded(response) => Some(response),
            Self::ResponseLost { received, .. } => received.as_mut(),
            Self::NotSent(_) | Self::NoToken(_) | Self::AddressRejected => None,
        }
    }
}

/// Why there is no response.
pub(crate) enum SendFailure {
    /// Nothing was sent.
    NotSent(String),
    /// Nothing was sent, and no retry helps: the address is not allowed.
    AddressRejected,
    /// The request was sent, or may have been sent.
    ResponseLost(String),
}

impl From<SendFailure> for AttemptOutcome {
    fn from(failure: SendFailure) -> Self {
        match failure {
            SendFailure::NotSent(cause) => Self::NotSent(cause),
            SendFailure::AddressRejected => Self::AddressRejected,
            SendFailure::ResponseLost(cause) => Self::ResponseLost { cause, received: None },
        }
    }
}

/// Sends the request once, within `time`. The response's body is not read.
pub(crate) async fn send_head(
    client: &reqwest::Client,
    request: ToolRequest,
    time: Duration,
) -> Result<reqwest::Response, SendFailure> {
    let until = Instant::now() + time;
    let is_sent = Arc::new(AtomicBool::new(request.body.is_none()));
    let mut builder = client.request(request.method, request.url).headers(request.headers);
    if let Some(body) = request.body {
        let body = TrackedBody { bytes: Some(body), is_polled: Arc::clone(&is_sent) };
        builder = builder.body(reqwest::Body::wrap(body));
    }
    match timeout_at(until, builder.send()).await {
        Ok(Ok(response)) => Ok(response),
        Ok(Err(error)) => Err(classify_error(&error)),
        Err(_) if is_sent.load(Ordering::SeqCst) => Err(SendFailure::ResponseLost(format!(
            "there was no response within {}",
            format_duration(time)
        ))),
        Err(_) => Err(SendFailure::NotSent(format!(
            "there was no connection within {}",
            format_duration(time)
        ))),
    }
}

/// Sends the request once and reads the response, within `time`. `progress` receives the progress
/// reports of a streamed response. A whole JSON document counts as the response although the connection
/// was cut or left open after it.
pub(super) async fn send_once(
    client: &reqwest::Client,
    request: ToolRequest,
    time: Duration,
    progress: ProgressCallback<'_>,
) -> AttemptOutcome {
    let until = Instant::now() + time;
    let response = match send_head(client, request, time).await {
        Ok(response) => response,
        Err(failure) => return failure.into(),
    };
    let status = response.status();
    let headers = response.headers().clone();
    if !status.is_success() {
        let body = read_error_body(response, until, ERROR_BODY_BYTES_MAX).await;
        return AttemptOutcome::Responded(ToolResponse { status, headers, body, is_cut: false });
    }
    let empty =
        ToolResponse { status, headers: headers.clone(), body: Bytes::new(), is_cut: false };
    let arrived = ArrivedBytes::default();
    let chunks = arrived.record(Box::pin(response.bytes_stream()));
    let read = timeout_at(until, stream::read_body(empty, chunks, progress)).await;
    let cause = match read {
        Ok(Ok(tool_response)) => return AttemptOutcome::Responded(tool_response),
        Ok(Err(ReadError::Broken)) => format!("the response ({status}) was cut off"),
        Ok(Err(ReadError::NoResult)) => {
            format!("the response ({status}) ended after its progress, without a result")
        }
        Err(_) => {
            format!("the response ({status}) did not end within {}", format_duration(time))
        }
    };
    let body = arrived.lock().split().freeze();
    let received = ToolResponse { status, headers, body, is_cut: false };
    if stream::is_whole_document(&received) {
        return AttemptOutcome::Responded(received);
    }
    AttemptOutcome::ResponseLost { cause, received: Some(received) }
}

pub(crate) fn format_duration(time: Duration) -> String {
    if time.as_secs() == 0 {
        format!("{} ms", time.as_millis())
    } else {
        format!("{} s", (time.as_millis() + 500) / 1_000)
    }
}

/// Reads the body of an error response. Returns the bytes read so far if it is cut off. JSON and events
/// have up to `response_bytes_max` bytes, and all the time while they arrive: they may be the result of a
/// call.
pub(crate) async fn read_error_body(
    mut response: reqwest::Response,
    until: Instant,
    response_bytes_max: usize,
) -> Bytes {
    let soon = || until.min(Instant::now() + ERROR_BODY_TIME_MAX);
    let (mut bytes_max, mut end) = (ERROR_BODY_BYTES_MAX, soon());
    let mut body = BytesMut::new();
    while body.len() < bytes_max {
        match timeout_at(end, response.chunk()).await {
            Ok(Ok(Some(chunk))) => body.extend_from_slice(&chunk),
            _ => break,
        }
        let kind = BodyKind::of_start(&body);
        let may_be_result = matches!(kind, Some(BodyKind::Json | BodyKind::Stream));
        if may_be_result && response_bytes_max > ERROR_BODY_BYTES_MAX {
            (bytes_max, end) = (response_bytes_max, soon());
        }
    }
    body.truncate(bytes_max);
    body.freeze()
}

/// A sentence about a failed request without its URL. `None`: its address is not allowed.
pub fn describe_error(error: &reqwest::Error) -> Option<String> {
    match classify_error(error) {
        SendFailure::NotSent(reason) | SendFailure::ResponseLost(reason) => Some(reason),
        SendFailure::AddressRejected => None,
    }
}

/// Maps an error to a fixed sentence. The client's own texts contain the URL, and so app settings.
fn classify_error(error: &reqwest::Error) -> SendFailure {
    if find_cause::<AddressNotAllowed>(error).is_some() {
        return SendFailure::AddressRejected;
    }
    if !error.is_connect() {
        let reason = if error.is_builder() {
            return SendFailure::NotSent("the request could not be built".to_owned());
        } else if error.is_timeout() {
            "there was no response in time"
        } else {
            "the connection was cut before a response arrived"
        };
        return SendFailure::ResponseLost(reason.to_owned());
    }
    let kind = find_cause::<std::io::Error>(error).map(std::io::Error::kind);
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
            Some(std::io::ErrorKind::UnexpectedEof) => "TLS failed: the connection was closed",
            _ => "no connection could be made",
        }
    };
    SendFailure::NotSent(reason.to_owned())
}

fn find_cause<'e, T: Error + 'static>(error: &'e (dyn Error + 'static)) -> Option<&'e T> {
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

/// A body that records when the connection first polls it. Before that, nothing was sent: HTTP/1.1
/// polls the body before it flushes the head (hyper's `h1::dispatch::poll_write`).
struct TrackedBody {
    bytes: Option<Bytes>,
    is_polled: Arc<AtomicBool>,
}

impl Body for TrackedBody {
    type Data = Bytes;
    type Error = std::convert::Infallible;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        _: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Self::Error>>> {
        self.is_polled.store(true, Ordering::SeqCst);
        Poll::Ready(self.bytes.take().map(|bytes| Ok(Frame::data(bytes))))
    }

    fn is_end_stream(&self) -> bool {
        self.bytes.is_none()
    }

    fn size_hint(&self) -> SizeHint {
        SizeHint::with_exact(self.bytes.as_ref().map_or(0, |bytes| bytes.len() as u64))
    }
}

impl ToolResponse {
    /// Removes a secret from the body, because some servers echo the request.
    pub(super) fn redact(&mut self, secret: &str) {
        self.rewrite_text(&|text| text.contains(secret).then(|| text.replace(secret, "[token]")));
    }

    /// Removes a secret from a body that is only shown, whatever its bytes are, also if it ends within
    /// the secret.
    pub(super) fn redact_shown(&mut self, secret: &str) {
        let replaced =
            replace_truncated_secret(&String::from_utf8_lossy(&self.body), secret, "[token]");
        if let Some(text) = replaced {
            self.body = Bytes::from(text);
        }
    }

    /// Replaces the text of a body by what `change` returns; `None` leaves it unchanged. JSON stays
    /// JSON: its strings and numbers are changed one by one.
    pub(super) fn rewrite_text(&mut self, change: &dyn Fn(&str) -> Option<String>) {
        let changed = match std::str::from_utf8(&self.body) {
            Ok(text) => rewrite(text, change),
            // Text may be cut off within a character.
            Err(error) if error.error_len().is_some() && !self.is_json() => None,
            Err(_) => rewrite(&encoding_rs::UTF_8.decode(&self.body).0, change),
        };
        if let Some(changed) = changed {
            self.body = Bytes::from(changed);
        }
    }

    fn is_json(&self) -> bool {
        let is_json = BodyKind::of_start(&self.body) == Some(BodyKind::Json);
        is_json || self.mime_type().ends_with("json")
    }

    /// Media type in lower case without parameters: `text/html`. Empty if the header is missing.
    pub(super) fn mime_type(&self) -> String {
        let full = self.header(&header::CONTENT_TYPE);
        full.split(';').next().unwrap_or_default().trim().to_ascii_lowercase()
    }

    /// True if the body is compressed in a way that the client does not read.
    pub(super) fn has_unknown_encoding(&self) -> bool {
        let encoding = self.header(&header::CONTENT_ENCODING);
        !encoding.is_empty() && !encoding.eq_ignore_ascii_case("identity")
    }

    pub(super) fn header(&self, name: &header::HeaderName) -> &str {
        self.headers.get(name).and_then(|value| value.to_str().ok()).unwrap_or_default()
    }
}

/// The changed text, also in the strings of JSON, where escapes may hide it. `None`: nothing changes.
fn rewrite(text: &str, change: &dyn Fn(&str) -> Option<String>) -> Option<String> {
    if !text.trim_start_matches(['\u{feff}', ' ', '\n', '\r', '\t']).starts_with(['{', '[', '"']) {
        return change(text);
    }
    if !text.contains('\\') && change(text).is_none() {
        return None;
    }
    let Some(foreign) = read_foreign_json(text) else { return change(text) };
    let changed = map_strings(foreign.json.clone(), change);
    (changed.text() != foreign.json.text()).then(|| changed.text().to_owned())
}
