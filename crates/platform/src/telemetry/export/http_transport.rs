//! HTTP transport of all exporters. Requests run on the service's runtime, whichever thread sends
//! them.

use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use async_trait::async_trait;
use bytes::Bytes;
use http::header::AUTHORIZATION;
use http::{HeaderValue, Request, Response, Uri};
use opentelemetry::Context;
use opentelemetry::trace::FutureExt as _;
use opentelemetry_application_insights::HttpClient;
use tokio::runtime::Handle;

use crate::telemetry::{TelemetryError, TokenSource};

type HttpError = Box<dyn std::error::Error + Send + Sync + 'static>;

/// Maximum bytes of a response.
const RESPONSE_BYTES_MAX: usize = 1024 * 1024;

#[derive(Clone)]
pub(super) struct HttpTransport {
    inner: Arc<Inner>,
    /// True to send plain HTTP. The Application Insights exporter rewrites every address to
    /// `https`, also that of a collector on this machine.
    is_plain_http: bool,
}

struct Inner {
    /// Name of the destination, for log lines.
    receiver: &'static str,
    client: reqwest::Client,
    token_source: Option<Arc<dyn TokenSource>>,
    runtime: Handle,
    /// True if the last export failed. An outage is logged once.
    is_failing: AtomicBool,
}

impl fmt::Debug for HttpTransport {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Carrier({})", self.inner.receiver)
    }
}

impl HttpTransport {
    pub(super) fn new(
        receiver: &'static str,
        timeout: Duration,
        token: Option<Arc<dyn TokenSource>>,
    ) -> Result<Self, TelemetryError> {
        let export_error = |error: HttpError| TelemetryError::Export(error);
        let client = reqwest::Client::builder()
            .timeout(timeout)
            .redirect(reqwest::redirect::Policy::none())
            .build()
            .map_err(|error| export_error(error.into()))?;
        let runtime = Handle::try_current().map_err(|error| export_error(error.into()))?;
        let is_away = AtomicBool::new(false);
        let inner =
            Arc::new(Inner { receiver, client, token_source: token, runtime, is_failing: is_away });
        Ok(Self { inner, is_plain_http: false })
    }

    pub(super) fn with_plain_http(self) -> Self {
        Self { is_plain_http: true, ..self }
    }
}

#[async_trait]
impl HttpClient for HttpTransport {
    async fn send_bytes(&self, mut request: Request<Bytes>) -> Result<Response<Bytes>, HttpError> {
        if self.is_plain_http {
            let plain = request.uri().to_string().replacen("https://", "http://", 1);
            *request.uri_mut() = plain.parse()?;
        }
        let inner = Arc::clone(&self.inner);
        // Telemetry of the export itself is not exported.
        let context = Context::current().with_telemetry_suppressed();
        let sending = async move { inner.send(request).await }.with_context(context);
        self.inner.runtime.spawn(sending).await?
    }
}

impl Inner {
    async fn send(&self, request: Request<Bytes>) -> Result<Response<Bytes>, HttpError> {
        let result = self.send_once(request).await;
        let error = match &result {
            Ok(response) if response.status().is_success() => None,
            Ok(response) => Some(format!("HTTP {}", response.status().as_u16())),
            Err(error) => Some(error.to_string()),
        };
        let was_failing = self.is_failing.swap(error.is_some(), Ordering::Relaxed);
        match error {
            Some(error) if !was_failing => {
                tracing::warn!(receiver = self.receiver, error = %error, "telemetry export failed; dropping items");
            }
            None if was_failing => {
                tracing::info!(receiver = self.receiver, "telemetry export recovered");
            }
            Some(_) | None => {}
        }
        result
    }

    async fn send_once(&self, mut request: Request<Bytes>) -> Result<Response<Bytes>, HttpError> {
        if let Some(source) = &self.token_source {
            let token = source.token().await?;
            let mut value = HeaderValue::try_from(format!("Bearer {}", token.reveal()))?;
            value.set_sensitive(true);
            request.headers_mut().insert(AUTHORIZATION, value);
            *request.uri_mut() = entra_uri(request.uri())?;
        }
        // The address may contain a key, so the error text is replaced.
        let to_http_error = |error: reqwest::Error| HttpError::from(error_reason(&error));
        let mut received = self.client.execute(request.try_into()?).await.map_err(to_http_error)?;
        let mut response = Response::builder().status(received.status());
        for (name, value) in received.headers() {
            response = response.header(name, value);
        }
        let mut body = Vec::new();
        while let Some(chunk) = received.chunk().await.map_err(to_http_error)? {
            if body.len() + chunk.len() > RESPONSE_BYTES_MAX {
                return Err("the response exceeds 1 MiB".into());
            }
            body.extend_from_slice(&chunk);
        }
        Ok(response.body(body.into())?)
    }
}

/// Application Insights accepts tokens only at version 2.1 of the path.
fn entra_uri(uri: &Uri) -> Result<Uri, http::uri::InvalidUri> {
    let text = uri.to_string();
    match text.strip_suffix("/v2/track") {
        Some(base) => format!("{base}/v2.1/track").parse(),
        None => text.parse(),
    }
}

fn error_reason(error: &reqwest::Error) -> &'static str {
    if error.is_timeout() {
        "timed out"
    } else if error.is_connect() {
        "connection failed"
    } else {
        "connection interrupted"
    }
}
