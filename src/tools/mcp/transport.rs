//! Transport of the MCP SDK over the guarded HTTP client: only allowed addresses, no redirects, and
//! bounds of size and time. A streamed response is read here to its end, so that a cut one is known.

use std::collections::HashMap;
use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use axum::http::header::{ACCEPT, AUTHORIZATION, CONTENT_TYPE};
use axum::http::{HeaderMap, HeaderName, HeaderValue, Method, StatusCode};
use bytes::{Bytes, BytesMut};
use futures_util::stream::{self, BoxStream, Stream, StreamExt as _, TryStreamExt as _};
use rmcp::model::{
    ClientJsonRpcMessage, ClientResult, ErrorData, GetExtensions as _, JsonRpcMessage,
    ServerJsonRpcMessage, ServerNotification, ServerRequest,
};
use rmcp::transport::streamable_http_client::{
    SseError, StreamableHttpClient, StreamableHttpError, StreamableHttpPostResponse,
};
use sse_stream::SseByteStream;
use tokio::time::{Instant, timeout_at};
use tokio_util::sync::CancellationToken;

use crate::agent::request::Effect;
use crate::ids::EffectId;
use crate::tools::ToolResult;
use crate::tools::http::attempt::{ERROR_BODY_TIME_MAX, SendFailure, read_error_body, send_head};
use crate::tools::http::request::{IDEMPOTENCY_KEY, TRACEPARENT, ToolRequest};
use crate::tools::http::text::byte_prefix;
use crate::tools::http::tool_response::RESPONSE_BYTES_MAX;
use crate::tools::mcp::HttpConnector;
use crate::tools::mcp::authorization::hide_token;
use crate::tools::mcp::conversation_session::SessionSlot;
use crate::tools::mcp::failure::RequestFailure;

#[cfg(test)]
mod fuzz;

const SESSION_ID: HeaderName = HeaderName::from_static("mcp-session-id");
const ERROR_TEXT_BYTES_MAX: usize = 2 * 1024;
/// Time limit of a reply to a request of the server, and of a notification.
const REPLY_TIMEOUT: Duration = Duration::from_secs(5);

type ProgressListener = Arc<dyn Fn(&ToolResult) + Send + Sync>;
type TransportError = StreamableHttpError<RequestFailure>;

/// Bounds and identity of one request. It travels with the request through the SDK.
pub(super) struct Exchange {
    pub(super) effect: Effect,
    pub(super) until: Instant,
    pub(super) effect_id: Option<EffectId>,
    pub(super) traceparent: Option<String>,
    pub(super) on_progress: Option<ProgressListener>,
    /// Cancelled when nobody waits for the response.
    pub(super) cancellation: CancellationToken,
}

impl Exchange {
    pub(super) fn read(until: Instant) -> Self {
        Self {
            effect: Effect::Read,
            until,
            effect_id: None,
            traceparent: None,
            on_progress: None,
            cancellation: CancellationToken::new(),
        }
    }
}

impl fmt::Debug for Exchange {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Exchange").field("effect", &self.effect).finish_non_exhaustive()
    }
}

/// The SDK's HTTP client of one session.
#[derive(Clone)]
pub(super) struct GuardedTransport {
    connector: HttpConnector,
    /// End of the handshake.
    until: Instant,
    session: SessionSlot,
}

impl GuardedTransport {
    pub(super) fn new(connector: HttpConnector, until: Instant, session: SessionSlot) -> Self {
        Self { connector, until, session }
    }

    fn exchange(&self, message: &ClientJsonRpcMessage) -> Arc<Exchange> {
        let found = match message {
            JsonRpcMessage::Request(request) => {
                request.request.extensions().get::<Arc<Exchange>>().cloned()
            }
            JsonRpcMessage::Response(_)
            | JsonRpcMessage::Notification(_)
            | JsonRpcMessage::Error(_) => None,
        };
        let soon = || Instant::now() + REPLY_TIMEOUT;
        found.unwrap_or_else(|| Arc::new(Exchange::read(self.until.max(soon()))))
    }

    async fn post(
        &self,
        message: &ClientJsonRpcMessage,
        headers: &HeaderMap,
    ) -> Result<StreamableHttpPostResponse, TransportError> {
        if let Some(response) = self.session.answer(message) {
            return Ok(response);
        }
        let exchange = self.exchange(message);
        let posted = tokio::select! {
            biased;
            () = exchange.cancellation.cancelled() => {
                Err(RequestFailure::Lost("the call was cancelled".to_owned()).into())
            }
            posted = Box::pin(self.post_within(message, headers, &exchange)) => posted,
        };
        posted.map_err(PostFailure::into_transport_error)
    }

    async fn post_within(
        &self,
        message: &ClientJsonRpcMessage,
        headers: &HeaderMap,
        exchange: &Exchange,
    ) -> Result<StreamableHttpPostResponse, PostFailure> {
        let (mut response, mut bearer) = self.send(message, headers, exchange).await?;
        // The server did nothing. An authorization server may have revoked the token.
        if response.status() == StatusCode::UNAUTHORIZED
            && let Some(auth) = &self.connector.auth
            && auth.discard(bearer.as_ref()).await
        {
            (response, bearer) = self.send(message, headers, exchange).await?;
        }
        let status = response.status();
        let session = response.headers().get(SESSION_ID).and_then(|it| it.to_str().ok());
        let session = session.map(str::to_owned);
        if !status.is_success() {
            let until = exchange.until.min(Instant::now() + ERROR_BODY_TIME_MAX);
            let body = read_error_body(response, until).await;
            let body = hide_token(&String::from_utf8_lossy(&body), bearer.as_ref()).into_owned();
            return Err(self.status_failure(status, &body, headers.contains_key(SESSION_ID)));
        }
        let JsonRpcMessage::Request(request) = message else {
            return Ok(StreamableHttpPostResponse::Accepted);
        };
        let mime_type = response.headers().get(CONTENT_TYPE).and_then(|it| it.to_str().ok());
        let is_stream = mime_type.is_some_and(|it| it.starts_with("text/event-stream"));
        let chunks = Box::pin(response.bytes_stream());
        let reading = async {
            if is_stream {
                let bearer = bearer.as_ref();
                let reader = StreamReader { transport: self, headers, exchange, bearer };
                return reader.read(chunks, &request.id.to_string()).await;
            }
            self.parse(&read_all(chunks).await?, bearer.as_ref())
        };
        let message = timeout_at(exchange.until, reading).await.unwrap_or_else(|_| {
            Err(RequestFailure::Lost(format!("the response ({status}) did not end in time")))
        })?;
        self.session.record(&message, session.as_deref());
        Ok(StreamableHttpPostResponse::Json(message, session))
    }

    async fn send(
        &self,
        message: &ClientJsonRpcMessage,
        headers: &HeaderMap,
        exchange: &Exchange,
    ) -> Result<(reqwest::Response, Option<HeaderValue>), RequestFailure> {
        let HttpConnector { url, client, auth, .. } = &self.connector;
        let http =
            client.client_for(url, exchange.effect).map_err(|_| RequestFailure::AddressRejected)?;
        let body = serde_json::to_vec(message)
            .map_err(|_| RequestFailure::NotSent("the request is not JSON".to_owned()))?;
        let mut headers = headers.clone();
        let bearer = match auth {
            Some(auth) => Some(auth.bearer(client, exchange.until).await?),
            None => None,
        };
        headers.extend(bearer.clone().map(|bearer| (AUTHORIZATION, bearer)));
        let texts = [
            (IDEMPOTENCY_KEY, exchange.effect_id.as_ref().map(ToString::to_string)),
            (TRACEPARENT, exchange.traceparent.clone()),
        ];
        for (name, text) in texts {
            let value = text.and_then(|text| HeaderValue::try_from(text).ok());
            headers.extend(value.map(|value| (name, value)));
        }
        let (method, url) = (Method::POST, url.clone());
        let request = ToolRequest { method, url, headers, body: Some(Bytes::from(body)) };
        let time = exchange.until.saturating_duration_since(Instant::now());
        let sent = send_head(http, request, time).await;
        sent.map(|response| (response, bearer)).map_err(|failure| match failure {
            SendFailure::NotSent(reason) => {
                RequestFailure::NotSent(format!("it could not be reached: {reason}"))
            }
            SendFailure::AddressRejected => RequestFailure::AddressRejected,
            SendFailure::ResponseLost(reason) => RequestFailure::Lost(reason),
        })
    }

    fn status_failure(&self, status: StatusCode, text: &str, has_session: bool) -> PostFailure {
        // Servers disagree about the status of an unknown session.
        let names_session = || text.to_ascii_lowercase().contains("session");
        let is_expired = status == StatusCode::NOT_FOUND
            || (status == StatusCode::BAD_REQUEST && names_session());
        if has_session && is_expired {
            return PostFailure::SessionExpired;
        }
        let text = self.connector.redactor.redact(text.trim());
        let text = match byte_prefix(&text, ERROR_TEXT_BYTES_MAX) {
            "" => String::new(),
            shown => format!(": {shown}"),
        };
        RequestFailure::Status { status, text }.into()
    }

    fn parse(
        &self,
        body: &[u8],
        bearer: Option<&HeaderValue>,
    ) -> Result<ServerJsonRpcMessage, RequestFailure> {
        let unreadable =
            || RequestFailure::Unreadable("its response is no message of MCP".to_owned());
        let text = std::str::from_utf8(body).map_err(|_| unreadable())?;
        let text = hide_token(text, bearer);
        let redacted = self.connector.redactor.redact_non_urls(&text);
        serde_json::from_str(redacted.as_deref().unwrap_or(&text)).map_err(|_| unreadable())
    }

    /// Answers a request of the server: a ping, or a capability that is declined.
    async fn reply(&self, request: JsonRpcMessage<ServerRequest>, headers: &HeaderMap) {
        let JsonRpcMessage::Request(request) = request else { return };
        let reply: ClientJsonRpcMessage =
            if matches!(request.request, ServerRequest::PingRequest(_)) {
                JsonRpcMessage::response(ClientResult::empty(()), request.id)
            } else {
                let declined =
                    ErrorData::invalid_request("this client has no such capability", None);
                JsonRpcMessage::error(declined, Some(request.id))
            };
        let exchange = Exchange::read(Instant::now() + REPLY_TIMEOUT);
        if let Err(failure) = self.send(&reply, headers, &exchange).await {
            tracing::debug!(cause = %failure, "reply to an MCP server not sent");
        }
    }

    fn headers(
        &self,
        session_id: Option<&str>,
        protocol: HashMap<HeaderName, HeaderValue>,
    ) -> HeaderMap {
        let mut headers: HeaderMap = self.connector.headers.iter().cloned().collect();
        headers.extend(protocol);
        headers.insert(CONTENT_TYPE, HeaderValue::from_static("application/json"));
        headers.insert(ACCEPT, HeaderValue::from_static("application/json, text/event-stream"));
        let session = session_id.and_then(|id| HeaderValue::try_from(id).ok());
        headers.extend(session.map(|value| (SESSION_ID, value)));
        headers
    }
}

enum PostFailure {
    Request(RequestFailure),
    SessionExpired,
}

impl From<RequestFailure> for PostFailure {
    fn from(failure: RequestFailure) -> Self {
        Self::Request(failure)
    }
}

impl PostFailure {
    fn into_transport_error(self) -> TransportError {
        match self {
            Self::Request(failure) => TransportError::Client(failure),
            Self::SessionExpired => TransportError::SessionExpired,
        }
    }
}

/// Reads a body of at most [`RESPONSE_BYTES_MAX`].
pub(super) async fn read_all<E>(
    mut chunks: impl Stream<Item = Result<Bytes, E>> + Unpin,
) -> Result<BytesMut, RequestFailure> {
    let mut body = BytesMut::new();
    while let Some(chunk) = chunks.next().await {
        let chunk = chunk.map_err(|_| RequestFailure::Lost(CUT_OFF.to_owned()))?;
        if chunk.len() > RESPONSE_BYTES_MAX.saturating_sub(body.len()) {
            return Err(too_large());
        }
        body.extend_from_slice(&chunk);
    }
    Ok(body)
}

const CUT_OFF: &str = "the response was cut off";

fn too_large() -> RequestFailure {
    RequestFailure::TooLarge(RESPONSE_BYTES_MAX / (1024 * 1024))
}

/// Reader of a streamed response.
struct StreamReader<'t> {
    transport: &'t GuardedTransport,
    headers: &'t HeaderMap,
    exchange: &'t Exchange,
    /// The access token of the request.
    bearer: Option<&'t HeaderValue>,
}

impl StreamReader<'_> {
    /// Reads events up to the response with this id.
    async fn read<E: Send>(
        &self,
        chunks: impl Stream<Item = Result<Bytes, E>> + Send + Unpin,
        id: &str,
    ) -> Result<ServerJsonRpcMessage, RequestFailure> {
        let mut left = RESPONSE_BYTES_MAX;
        let bounded = chunks.map(|chunk| {
            let chunk = chunk.map_err(|_| std::io::Error::other(CUT_OFF))?;
            left = left.checked_sub(chunk.len()).ok_or(std::io::ErrorKind::FileTooLarge)?;
            Ok::<_, std::io::Error>(chunk)
        });
        let is_too_large = Arc::new(std::sync::atomic::AtomicBool::new(false));
        let seen = Arc::clone(&is_too_large);
        let bounded = bounded
            .inspect_err(move |error| {
                let large = error.kind() == std::io::ErrorKind::FileTooLarge;
                seen.fetch_or(large, std::sync::atomic::Ordering::SeqCst);
            })
            // The last event counts even without the empty line after it.
            .chain(stream::once(std::future::ready(Ok(Bytes::from_static(b"\n\n")))));
        let mut events = std::pin::pin!(SseByteStream::new(bounded));
        while let Some(event) = events.next().await {
            let Ok(event) = event else {
                let large = is_too_large.load(std::sync::atomic::Ordering::SeqCst);
                let cut = || RequestFailure::Lost(CUT_OFF.to_owned());
                return Err(if large { too_large() } else { cut() });
            };
            let data = event.data.unwrap_or_default();
            if data.trim().is_empty() {
                continue;
            }
            let message = self.transport.parse(data.as_bytes(), self.bearer)?;
            if let Some(response) = self.take(message, id).await {
                return Ok(response);
            }
        }
        Err(RequestFailure::Lost("the response ended without a result".to_owned()))
    }

    /// Returns the response. Handles other messages.
    async fn take(&self, message: ServerJsonRpcMessage, id: &str) -> Option<ServerJsonRpcMessage> {
        match message {
            JsonRpcMessage::Response(response) if response.id.to_string() == id => {
                Some(JsonRpcMessage::Response(response))
            }
            JsonRpcMessage::Error(error) => Some(JsonRpcMessage::Error(error)),
            JsonRpcMessage::Request(request) => {
                self.transport.reply(JsonRpcMessage::Request(request), self.headers).await;
                None
            }
            JsonRpcMessage::Notification(notification) => {
                if let ServerNotification::ProgressNotification(update) = notification.notification
                {
                    self.report(update.params.progress, update.params.total, update.params.message);
                }
                None
            }
            JsonRpcMessage::Response(_) => None,
        }
    }

    fn report(&self, progress: f64, total: Option<f64>, message: Option<String>) {
        let Some(listener) = &self.exchange.on_progress else { return };
        let of = total.map(|total| format!("/{total}")).unwrap_or_default();
        let text = message.unwrap_or_else(|| format!("{progress}{of}"));
        listener(&ToolResult::text(text));
    }
}

impl StreamableHttpClient for GuardedTransport {
    type Error = RequestFailure;

    async fn post_message(
        &self,
        _uri: Arc<str>,
        message: ClientJsonRpcMessage,
        session_id: Option<Arc<str>>,
        _auth_header: Option<String>,
        custom_headers: HashMap<HeaderName, HeaderValue>,
    ) -> Result<StreamableHttpPostResponse, TransportError> {
        let headers = self.headers(session_id.as_deref(), custom_headers);
        Box::pin(self.post(&message, &headers)).await
    }

    /// A pooled session ends with the process, and that of a conversation may be continued: the
    /// server ends both.
    async fn delete_session(
        &self,
        _uri: Arc<str>,
        _session_id: Arc<str>,
        _auth_header: Option<String>,
        _custom_headers: HashMap<HeaderName, HeaderValue>,
    ) -> Result<(), TransportError> {
        Err(TransportError::ServerDoesNotSupportDeleteSession)
    }

    /// No stream outlives a request: a worker may stop at any moment.
    async fn get_stream(
        &self,
        _uri: Arc<str>,
        _session_id: Option<Arc<str>>,
        _last_event_id: Option<String>,
        _auth_header: Option<String>,
        _custom_headers: HashMap<HeaderName, HeaderValue>,
    ) -> Result<BoxStream<'static, Result<rmcp_sse_stream::Sse, SseError>>, TransportError> {
        Err(TransportError::ServerDoesNotSupportSse)
    }
}
