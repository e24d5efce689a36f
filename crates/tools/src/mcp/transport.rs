//! Transport of the MCP SDK over the guarded HTTP client: only allowed addresses, no redirects, and
//! bounds of size and time. A streamed response is read here, so that a cut one is known.

use std::collections::HashMap;
use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use axum::http::header::{ACCEPT, AUTHORIZATION, CONTENT_TYPE};
use axum::http::{HeaderMap, HeaderName, HeaderValue, Method, StatusCode};
use bytes::{Bytes, BytesMut};
use futures_util::stream::{BoxStream, Stream, StreamExt as _};
use rmcp::model::{
    ClientJsonRpcMessage, ClientRequest, ClientResult, ErrorData, GetExtensions as _,
    JsonRpcMessage, RequestId,
};
use rmcp::transport::streamable_http_client::{
    SseError, StreamableHttpClient, StreamableHttpError, StreamableHttpPostResponse,
};
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use crate::http::attempt::{SendFailure, read_error_body, send_head};
use crate::http::request::{IDEMPOTENCY_KEY, TRACEPARENT, ToolRequest};
use crate::http::tool_response::RESPONSE_BYTES_MAX;
use crate::mcp::HttpConnector;
use crate::mcp::authorization::{hide_token, hide_truncated_token};
use crate::mcp::conversation_session::SessionSlot;
use crate::mcp::failure::{McpFailure, ResponseExcerpt};
use crate::mcp::message::{self, ServerMessage, ServerResponse};
use crate::mcp::progress::ProgressListener;
use crate::mcp::transport::lost_session::SessionUse;
use crate::mcp::transport::refusal::{FailedPost, is_ignored_refusal};
use crate::mcp::transport::response_reader::ResponseReader;
use crate::mcp::unmatched_output::UnmatchedOutput;
use turnwheel_conversation::request::Effect;
use turnwheel_json::raw::RawJson;
use turnwheel_platform::ids::EffectId;
use turnwheel_platform::text_encoding::decode_response;

mod event_reader;
#[cfg(test)]
mod fuzz;
mod lost_session;
mod refusal;
mod response_reader;
#[cfg(test)]
mod tests;

const SESSION_ID: HeaderName = HeaderName::from_static("mcp-session-id");
/// Time limit of a reply to a request of the server, and of a notification.
const REPLY_TIMEOUT: Duration = Duration::from_secs(5);

type TransportError = StreamableHttpError<McpFailure>;

/// Bounds and identity of one request. It travels with the request through the SDK.
pub(super) struct McpExchange {
    pub(super) effect: Effect,
    /// Of a tool call.
    pub(super) arguments: Option<RawJson>,
    pub(super) until: Instant,
    pub(super) effect_id: Option<EffectId>,
    pub(super) traceparent: Option<String>,
    pub(super) on_progress: Option<ProgressListener>,
    /// Of a program, if an approver may read it.
    pub(super) output: Option<UnmatchedOutput>,
    /// Cancelled when nobody waits for the response.
    pub(super) cancellation: CancellationToken,
}

impl McpExchange {
    pub(super) fn read(until: Instant) -> Self {
        Self {
            effect: Effect::Read,
            arguments: None,
            until,
            effect_id: None,
            traceparent: None,
            on_progress: None,
            output: None,
            cancellation: CancellationToken::new(),
        }
    }
}

/// The exchange of a request of the app.
pub(super) fn exchange_of(message: &ClientJsonRpcMessage) -> Option<&Arc<McpExchange>> {
    match message {
        JsonRpcMessage::Request(request) => request.request.extensions().get(),
        JsonRpcMessage::Response(_)
        | JsonRpcMessage::Notification(_)
        | JsonRpcMessage::Error(_) => None,
    }
}

/// A message as JSON. The SDK would round the numbers in the arguments of a tool call, so they are
/// added here.
pub(super) fn written_message(message: &ClientJsonRpcMessage) -> serde_json::Result<RawJson> {
    let written = RawJson::from_text(serde_json::to_string(message)?)?;
    let arguments = exchange_of(message).and_then(|exchange| exchange.arguments.as_ref());
    let (Some(arguments), Some(mut members)) = (arguments, written.members()) else {
        return Ok(written);
    };
    for (_, params) in members.iter_mut().filter(|(name, _)| name == "params") {
        let added = vec![("arguments".to_owned(), arguments.clone())];
        *params = params.clone().with_members(added);
    }
    Ok(RawJson::from_members(members))
}

impl fmt::Debug for McpExchange {
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

    fn exchange(&self, message: &ClientJsonRpcMessage) -> Arc<McpExchange> {
        let found = exchange_of(message).cloned();
        let soon = || Instant::now() + REPLY_TIMEOUT;
        found.unwrap_or_else(|| Arc::new(McpExchange::read(self.until.max(soon()))))
    }

    async fn post(
        &self,
        message: &ClientJsonRpcMessage,
        headers: &HeaderMap,
    ) -> Result<StreamableHttpPostResponse, TransportError> {
        if let Some(response) = self.session.respond(message) {
            return Ok(response);
        }
        let exchange = self.exchange(message);
        let posted = tokio::select! {
            biased;
            () = exchange.cancellation.cancelled() => {
                Err(McpFailure::Lost("the call was cancelled".into()).into())
            }
            posted = Box::pin(self.post_within(message, headers, &exchange)) => posted,
        };
        posted.map_err(PostFailure::into_transport_error)
    }

    async fn post_within(
        &self,
        message: &ClientJsonRpcMessage,
        headers: &HeaderMap,
        exchange: &McpExchange,
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
            if is_ignored_refusal(message, status) {
                tracing::debug!(%status, "notification refused by an MCP server");
                return Ok(StreamableHttpPostResponse::Accepted);
            }
            let body = read_error_body(response, exchange.until, RESPONSE_BYTES_MAX).await;
            return self.read_failure(
                FailedPost { status, body: &body, message, headers },
                bearer.as_ref(),
            );
        }
        let JsonRpcMessage::Request(request) = message else {
            return Ok(StreamableHttpPostResponse::Accepted);
        };
        let mime_type = response.headers().get(CONTENT_TYPE).and_then(|it| it.to_str().ok());
        let is_stream = mime_type.is_some_and(|it| {
            it.trim_start().to_ascii_lowercase().starts_with("text/event-stream")
        });
        let chunks = Box::pin(response.bytes_stream());
        let is_handshake = matches!(request.request, ClientRequest::InitializeRequest(_));
        let bearer = bearer.as_ref();
        let reader =
            ResponseReader { transport: self, headers, exchange, bearer, status, is_stream };
        let rpc_response = reader.read(chunks, &request.id).await?;
        let use_of_session = SessionUse::new(status, headers, message);
        let names_request = rpc_response.has_id(&request.id);
        if let Some(failure) =
            use_of_session.and_then(|it| it.failure_of(&rpc_response, names_request))
        {
            return Err(failure);
        }
        let message = rpc_response.into_message(request.id.clone(), is_handshake)?;
        self.session.record(&message, session.as_deref());
        Ok(StreamableHttpPostResponse::Json(message, session))
    }

    async fn send(
        &self,
        message: &ClientJsonRpcMessage,
        headers: &HeaderMap,
        exchange: &McpExchange,
    ) -> Result<(reqwest::Response, Option<HeaderValue>), McpFailure> {
        let HttpConnector { url, client, auth, .. } = &self.connector;
        let http =
            client.client_for(url, exchange.effect).map_err(|_| McpFailure::AddressRejected)?;
        let body = written_message(message)
            .map_err(|_| McpFailure::NotSent("the request is not JSON".to_owned()))?;
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
        let request =
            ToolRequest { method, url, headers, body: Some(Bytes::from(body.text().to_owned())) };
        let time = || exchange.until.saturating_duration_since(Instant::now());
        let mut sent = send_head(http, request.clone(), time()).await;
        // A server may close a kept connection at the moment of the next request (Node does after
        // 5 s). The handshake and lists change nothing; the turn repeats calls.
        let is_call = exchange.arguments.is_some();
        if !is_call && matches!(sent, Err(SendFailure::ResponseLost(_))) && !time().is_zero() {
            sent = send_head(http, request, time()).await;
        }
        sent.map(|response| (response, bearer)).map_err(|failure| match failure {
            SendFailure::NotSent(reason) => {
                McpFailure::NotSent(format!("it could not be reached: {reason}"))
            }
            SendFailure::AddressRejected => McpFailure::AddressRejected,
            SendFailure::ResponseLost(reason) => McpFailure::Lost(reason.as_str().into()),
        })
    }

    /// The text of a response that is shown as it is.
    fn hide_secrets(&self, text: &str, bearer: Option<&HeaderValue>) -> String {
        self.connector.redactor.redact(&hide_token(text, bearer))
    }

    /// As [`Self::hide_secrets`], for a text that may end within a secret.
    fn hide_truncated_secrets(&self, text: &str, bearer: Option<&HeaderValue>) -> String {
        self.connector.redactor.redact_truncated(&hide_truncated_token(text, bearer))
    }

    fn read_messages(
        &self,
        text: &str,
        bearer: Option<&HeaderValue>,
    ) -> Option<Vec<ServerMessage>> {
        message::read_messages(text, &|string| {
            let hidden = hide_token(string, bearer);
            let redacted = self.connector.redactor.redact_non_urls(&hidden);
            redacted.or_else(|| (*hidden != *string).then(|| hidden.into_owned()))
        })
    }

    /// Reads the body of a response: one message, or several. Without an id a JSON-RPC response is one to the
    /// only request that the body responds to.
    fn read_response(
        &self,
        body: &[u8],
        id: &RequestId,
        bearer: Option<&HeaderValue>,
    ) -> Result<ServerResponse, McpFailure> {
        let text = decode_response(body);
        let messages = self.read_messages(&text, bearer);
        let is_json = messages.is_some();
        let (mut without_id, mut has_work_begun) = (None, false);
        for message in messages.unwrap_or_default() {
            has_work_begun |= message.is_server_initiated();
            if let ServerMessage::Response(mut rpc_response) = message {
                rpc_response.has_work_begun = has_work_begun;
                if rpc_response.has_id(id) {
                    return Ok(rpc_response);
                }
                without_id =
                    without_id.or_else(|| rpc_response.has_no_id().then_some(rpc_response));
            }
        }
        without_id.ok_or_else(|| {
            let what = if is_json {
                "its response has no JSON-RPC response to this request"
            } else {
                "its response is no message of MCP"
            };
            let received = self.hide_secrets(&text, bearer);
            McpFailure::Unreadable(ResponseExcerpt::new(what, &received))
        })
    }

    /// Responds to a request of the server: a ping, or a capability that is declined.
    async fn reply(&self, id: RequestId, method: &str, headers: &HeaderMap) {
        let reply: ClientJsonRpcMessage = if method == "ping" {
            JsonRpcMessage::response(ClientResult::empty(()), id)
        } else {
            let declined = ErrorData::invalid_request("this client has no such capability", None);
            JsonRpcMessage::error(declined, Some(id))
        };
        let exchange = McpExchange::read(Instant::now() + REPLY_TIMEOUT);
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
    Request(McpFailure),
    SessionExpired,
}

impl From<McpFailure> for PostFailure {
    fn from(failure: McpFailure) -> Self {
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
) -> Result<BytesMut, McpFailure> {
    let mut body = BytesMut::new();
    while let Some(chunk) = chunks.next().await {
        let chunk = chunk.map_err(|_| McpFailure::Lost(CUT_OFF.into()))?;
        if chunk.len() > RESPONSE_BYTES_MAX.saturating_sub(body.len()) {
            return Err(McpFailure::too_large());
        }
        body.extend_from_slice(&chunk);
    }
    Ok(body)
}

const CUT_OFF: &str = "the response was cut off";

impl StreamableHttpClient for GuardedTransport {
    type Error = McpFailure;

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
