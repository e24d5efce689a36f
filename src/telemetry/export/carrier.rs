//! The HTTP client of every exporter: requests run on the service's runtime, whichever thread asks.

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

/// Bytes of an answer that are read.
const ANSWER_BYTES_MAX: usize = 1024 * 1024;

#[derive(Clone)]
pub(super) struct Carrier {
    inner: Arc<Inner>,
    /// The exporter for Application Insights makes every address an `https` one, also that of a collector on this machine.
    is_in_the_clear: bool,
}

struct Inner {
    /// Who takes what is sent, for the log.
    receiver: &'static str,
    client: reqwest::Client,
    token: Option<Arc<dyn TokenSource>>,
    runtime: Handle,
    /// Whether the last one came back: a receiver that is away is told of once.
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
        // What sending tells of itself is not sent in turn.
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
            Ok(answer) => Some(format!("it answered {}", answer.status().as_u16())),
            Err(error) => Some(error.to_string()),
        };
        let was_away = self.is_away.swap(why.is_some(), Ordering::Relaxed);
        match why {
            Some(why) if !was_away => {
                tracing::warn!(
                    "{} takes no telemetry: {why}; what cannot be sent is dropped",
                    self.receiver
                );
            }
            None if was_away => tracing::info!("{} takes telemetry again", self.receiver),
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
        // The address may hold a key.
        let away = |error: reqwest::Error| HttpError::from(plain(&error));
        let mut answer = self.client.execute(request.try_into()?).await.map_err(away)?;
        let mut response = Response::builder().status(answer.status());
        for (name, value) in answer.headers() {
            response = response.header(name, value);
        }
        let mut body = Vec::new();
        while let Some(chunk) = answer.chunk().await.map_err(away)? {
            if body.len() + chunk.len() > ANSWER_BYTES_MAX {
                return Err("the answer is too long".into());
            }
            body.extend_from_slice(&chunk);
        }
        Ok(response.body(body.into())?)
    }
}

/// Tokens are taken at version 2.1 of the address alone.
fn with_identity(uri: &Uri) -> Result<Uri, http::uri::InvalidUri> {
    let text = uri.to_string();
    match text.strip_suffix("/v2/track") {
        Some(base) => format!("{base}/v2.1/track").parse(),
        None => text.parse(),
    }
}

fn plain(error: &reqwest::Error) -> &'static str {
    if error.is_timeout() {
        "there was no answer in time"
    } else if error.is_connect() {
        "no connection could be made"
    } else {
        "the connection was cut"
    }
}
