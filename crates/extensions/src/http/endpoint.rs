//! The requests of HTTP extensions and plugins: signed in both directions, bounded in size and time.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use axum::http::header::RETRY_AFTER;
use axum::http::{HeaderMap, StatusCode};
use bytes::{Bytes, BytesMut};
use tokio::time::{Instant, timeout_at};
use url::Url;

use super::BODY_BYTES_MAX;
use turnwheel_conversation::request::Effect;
use turnwheel_platform::clock::Clock;
use turnwheel_platform::settings::secret::Secret;
use turnwheel_platform::telemetry::trace;
use turnwheel_platform::text_encoding::decode_utf8;
use turnwheel_platform::webhook_signature::{self, SignedHeaders};
use turnwheel_tools::http::attempt::describe_error;
use turnwheel_tools::http::client::HttpClient;
use turnwheel_tools::http::retry_after;

/// Wait before the second attempt after a failed connection.
const RETRY_DELAY: Duration = Duration::from_millis(200);

const ADDRESS_NOT_ALLOWED: &str =
    "its address is private or local and not listed in TURNWHEEL_HTTP_TOOLS_ALLOW";

/// The server of an HTTP extension or plugin.
pub struct HttpEndpoint {
    pub url: Url,
    /// Each signs requests, and a response may be signed with any of them; never empty.
    pub secrets: Vec<Secret<Vec<u8>>>,
    /// Time of all attempts of one request.
    pub timeout: Duration,
    pub client: HttpClient,
    pub clock: Arc<dyn Clock>,
}

impl fmt::Debug for HttpEndpoint {
    /// Omits the address, which may contain app settings.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "HttpEndpoint({:?})", self.timeout)
    }
}

/// Reason why a request has no usable response. It holds no part of a body, no address and no
/// secret.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct RequestFailure {
    pub text: String,
    /// True if a later request may succeed.
    pub(super) is_transient: bool,
    /// Wait before the second attempt; `None`: there is none.
    retry_in: Option<Duration>,
}

impl RequestFailure {
    pub(crate) fn permanent(text: impl Into<String>) -> Self {
        Self { text: text.into(), is_transient: false, retry_in: None }
    }

    fn transient(text: impl Into<String>, retry_in: Option<Duration>) -> Self {
        Self { text: text.into(), is_transient: true, retry_in }
    }
}

impl HttpEndpoint {
    /// Sends the body and returns the verified body of the response. Both attempts have the same id.
    pub(super) async fn post(&self, hook_id: &str, body: String) -> Result<String, RequestFailure> {
        if body.len() > BODY_BYTES_MAX {
            let bytes = body.len();
            return Err(RequestFailure::permanent(format!(
                "its request would have {bytes} bytes; the maximum is {BODY_BYTES_MAX}"
            )));
        }
        let body = Bytes::from(body);
        // Shortly before the runner's own limit, whose error could not name the reason.
        let time = self.timeout.saturating_sub((self.timeout / 20).min(Duration::from_millis(100)));
        let deadline = Instant::now() + time;
        let failure = match self.attempt(hook_id, &body, deadline).await {
            Ok(response) => return Ok(response),
            Err(failure) => failure,
        };
        let Some(wait) = failure.retry_in else { return Err(failure) };
        if Instant::now() + wait >= deadline {
            let (text, limit) = (failure.text, self.timeout);
            let wait =
                format!("another attempt after {wait:?} is beyond its time-out of {limit:?}");
            return Err(RequestFailure { text: format!("{text}; {wait}"), ..failure });
        }
        tokio::time::sleep(wait).await;
        self.attempt(hook_id, &body, deadline).await
    }

    async fn attempt(
        &self,
        hook_id: &str,
        body: &Bytes,
        deadline: Instant,
    ) -> Result<String, RequestFailure> {
        let exchange = self.exchange(hook_id, body.clone());
        timeout_at(deadline, exchange).await.unwrap_or_else(|_elapsed| {
            let limit = self.timeout;
            Err(RequestFailure::transient(
                format!("its server did not respond within {limit:?}"),
                None,
            ))
        })
    }

    async fn exchange(&self, hook_id: &str, body: Bytes) -> Result<String, RequestFailure> {
        // Repetitions have the same id, so a connection of the pool may be stale.
        let client = self
            .client
            .client_for(&self.url, Effect::Idempotent)
            .map_err(|_refused| RequestFailure::permanent(ADDRESS_NOT_ALLOWED))?;
        let now = self.clock.now().0 / 1_000;
        let secrets = self.secrets.iter().map(Secret::reveal);
        let mut request = client
            .post(self.url.clone())
            .header("content-type", "application/json")
            .header("webhook-id", hook_id)
            .header("webhook-timestamp", now)
            .header("webhook-signature", webhook_signature::sign(secrets, hook_id, now, &body));
        if let Some(traceparent) = trace::current_traceparent() {
            request = request.header("traceparent", traceparent);
        }
        let response = request.body(body).send().await.map_err(|error| transport(&error))?;
        if !response.status().is_success() {
            return Err(self.status_failure(response.status(), response.headers()));
        }
        let headers = response.headers().clone();
        let body = read_body(response).await?;
        self.verify(hook_id, &headers, &body)?;
        let text = decode_utf8(&body).map(str::to_owned);
        text.map_err(|error| RequestFailure::permanent(format!("its response {error}")))
    }

    fn verify(&self, id: &str, headers: &HeaderMap, body: &[u8]) -> Result<(), RequestFailure> {
        let get =
            |name| headers.get(name).and_then(|value| value.to_str().ok()).unwrap_or_default();
        let signed = SignedHeaders {
            id: get("webhook-id"),
            timestamp: get("webhook-timestamp"),
            signatures: get("webhook-signature"),
        };
        let now = self.clock.now().0 / 1_000;
        let secrets = self.secrets.iter().map(Secret::reveal);
        webhook_signature::verify(secrets, signed, id, now, body).map_err(|reason| {
            RequestFailure::permanent(format!("its response is not signed correctly: {reason}"))
        })
    }

    fn status_failure(&self, status: StatusCode, headers: &HeaderMap) -> RequestFailure {
        let text = format!("its server responded {status}");
        if status.is_redirection() {
            let text = format!("{text}, a redirect, which is not followed");
            return RequestFailure::permanent(text);
        }
        let is_busy =
            matches!(status, StatusCode::TOO_MANY_REQUESTS | StatusCode::SERVICE_UNAVAILABLE);
        let wait = headers.get(RETRY_AFTER).and_then(|value| value.to_str().ok());
        let wait = wait.filter(|_| is_busy).and_then(|wait| retry_after(wait, self.clock.now()));
        if is_busy || status.is_server_error() || status == StatusCode::REQUEST_TIMEOUT {
            RequestFailure::transient(text, wait)
        } else {
            RequestFailure::permanent(text)
        }
    }
}

/// The whole body of a response, if it is not too large.
pub(crate) async fn read_body(mut response: reqwest::Response) -> Result<Bytes, RequestFailure> {
    let mut body = BytesMut::new();
    while let Some(chunk) = response.chunk().await.map_err(|error| transport(&error))? {
        if body.len() + chunk.len() > BODY_BYTES_MAX {
            return Err(RequestFailure::permanent(format!(
                "its response has more than {BODY_BYTES_MAX} bytes"
            )));
        }
        body.extend_from_slice(&chunk);
    }
    Ok(body.freeze())
}

pub(crate) fn transport(error: &reqwest::Error) -> RequestFailure {
    match describe_error(error) {
        Some(reason) => {
            let text = format!("its server could not be reached: {reason}");
            RequestFailure::transient(text, Some(RETRY_DELAY))
        }
        None => RequestFailure::permanent(ADDRESS_NOT_ALLOWED),
    }
}
