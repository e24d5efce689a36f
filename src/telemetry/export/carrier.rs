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
const ANSWER_BYTES_MAX: usize = 1024 * 1024;

#[derive(Clone)]
pub(super) struct Carrier {
    inner: Arc<Inner>,
    /// True to send plain HTTP. The Application Insights exporter rewrites every address to
    /// `https`, also that of a collector on this machine.
    is_in_the_clear: bool,
}

struct Inner {
    /// Name of the destination, for log lines.
    receiver: &'static str,
    client: reqwest::Client,
    token: Option<Arc<dyn TokenSource>>,
    runtime: Handle,
    /// True if the last export failed. An outage is logged once.
    is_away: AtomicBool,
}

impl fmt::Debug for Carrier {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Carrier({})", self.inner.receiver)
    }
}

impl Carrier {
    pub(super) fn new(
        receiver: &'static str,
        timeout: Duration,
        token: Option<Arc<dyn TokenSource>>,
    ) -> Result<Self, TelemetryError> {
        let refused = |error: HttpError| TelemetryError::Export(error);
        let client = reqwest::Client::builder()
            .timeout(timeout)
            .redirect(reqwest::redirect::Policy::none())
            .build()
            .map_err(|error| refused(error.into()))?;
        let runtime = Handle::try_current().map_err(|error| refused(error.into()))?;
        let is_away = AtomicBool::new(false);
        let inner = Arc::new(Inner { receiver, client, token, runtime, is_away });
        Ok(Self { inner, is_in_the_clear: false })
    }

    pub(super) fn in_the_clear(self) -> Self {
        Self { is_in_the_clear: true, ..self }
    }
}

#[async_trait]
impl HttpClient for Carrier {
    async fn send_bytes(&self, mut request: Request<Bytes>) -> Result<Response<Bytes>, HttpError> {
        if self.is_in_the_clear {
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
        let sent = self.attempt(request).await;
        let why = match &sent {
            Ok(answer) if answer.status().is_success() => None,
            Ok(answer) => Some(format!("HTTP {}", answer.status().as_u16())),
            Err(error) => Some(error.to_string()),
        };
        let was_away = self.is_away.swap(why.is_some(), Ordering::Relaxed);
        match why {
            Some(why) if !was_away => {
                tracing::warn!(receiver = self.receiver, error = %why, "telemetry export failed; dropping items");
            }
            None if was_away => tracing::info!(receiver = self.receiver, "telemetry export recovered"),
            Some(_) | None => {}
        }
        sent
    }

    async fn attempt(&self, mut request: Request<Bytes>) -> Result<Response<Bytes>, HttpError> {
        if let Some(source) = &self.token {
            let token = source.token().await?;
            let mut value = HeaderValue::try_from(format!("Bearer {}", token.reveal()))?;
            value.set_sensitive(true);
            request.headers_mut().insert(AUTHORIZATION, value);
            *request.uri_mut() = with_identity(request.uri())?;
        }
        // The address may contain a key, so the error text is replaced.
        let away = |error: reqwest::Error| HttpError::from(plain(&error));
        let mut answer = self.client.execute(request.try_into()?).await.map_err(away)?;
        let mut response = Response::builder().status(answer.status());
        for (name, value) in answer.headers() {
            response = response.header(name, value);
        }
        let mut body = Vec::new();
        while let Some(chunk) = answer.chunk().await.map_err(away)? {
            if body.len() + chunk.len() > ANSWER_BYTES_MAX {
                return Err("the response exceeds 1 MiB".into());
            }
            body.extend_from_slice(&chunk);
        }
        Ok(response.body(body.into())?)
    }
}

/// Application Insights accepts tokens only at version 2.1 of the path.
fn with_identity(uri: &Uri) -> Result<Uri, http::uri::InvalidUri> {
    let text = uri.to_string();
    match text.strip_suffix("/v2/track") {
        Some(base) => format!("{base}/v2.1/track").parse(),
        None => text.parse(),
    }
}

fn plain(error: &reqwest::Error) -> &'static str {
    if error.is_timeout() {
        "timed out"
    } else if error.is_connect() {
        "connection failed"
    } else {
        "connection interrupted"
    }
}
