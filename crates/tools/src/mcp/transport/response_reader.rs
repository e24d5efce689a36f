//! Reader of the response to a request. A JSON-RPC response that has arrived counts also if its HTTP response is cut off
//! or left open.

use std::time::Duration;

use axum::http::{HeaderMap, HeaderValue, StatusCode};
use bytes::Bytes;
use futures_util::stream::Stream;
use rmcp::model::RequestId;
use serde::de::IgnoredAny;
use tokio::time::{Instant, timeout_at};

use crate::http::stream::peek_kind;
use crate::http::tool_response::ArrivedBytes;
use crate::mcp::failure::{McpFailure, ResponseExcerpt};
use crate::mcp::message::{ServerMessage, ServerResponse, message_texts};
use crate::mcp::transport::{GuardedTransport, McpExchange, read_all};
use turnwheel_json::body_kind::BodyKind;
use turnwheel_platform::text_encoding::decode_response;

/// Time after which a response without an end is first checked for a JSON-RPC response. Each later check waits
/// twice as long, so that a large response is read only a few times.
const FIRST_CHECK_AFTER: Duration = Duration::from_secs(2);
/// Time before the end of an exchange, when the caller drops this future: only here is it known what has
/// arrived.
const END_MARGIN_MAX: Duration = Duration::from_millis(100);

/// Reader of a response with the status 2xx.
pub(super) struct ResponseReader<'t> {
    pub(super) transport: &'t GuardedTransport,
    pub(super) headers: &'t HeaderMap,
    pub(super) exchange: &'t McpExchange,
    /// The access token of the request.
    pub(super) bearer: Option<&'t HeaderValue>,
    pub(super) status: StatusCode,
    /// True if its label is that of server-sent events.
    pub(super) is_stream: bool,
}

impl ResponseReader<'_> {
    /// Reads the JSON-RPC response within the time of the exchange.
    pub(super) async fn read<E: Send>(
        &self,
        chunks: impl Stream<Item = Result<Bytes, E>> + Send + Unpin,
        id: &RequestId,
    ) -> Result<ServerResponse, McpFailure> {
        let arrived = ArrivedBytes::default();
        let mut reading = std::pin::pin!(self.read_to_end(arrived.record(chunks), id));
        let time = self.exchange.until.saturating_duration_since(Instant::now());
        let end = Instant::now() + time.saturating_sub((time / 20).min(END_MARGIN_MAX));
        let (mut wait, mut checked) = (FIRST_CHECK_AFTER, 0);
        loop {
            let check_at = end.min(Instant::now() + wait);
            wait *= 2;
            let failure = match timeout_at(check_at, reading.as_mut()).await {
                Ok(Err(McpFailure::Lost(seen))) => Some(seen.what().to_owned()),
                Ok(read) => return read,
                Err(_) => (check_at == end)
                    .then(|| format!("the response ({}) did not end in time", self.status)),
            };
            let length = arrived.lock().len();
            if failure.is_none() && length == checked {
                continue;
            }
            checked = length;
            let found = self.read_arrived(&arrived.lock(), id);
            match (found, failure) {
                (Ok(rpc_response), _) => return Ok(rpc_response),
                (Err(received), Some(failure)) => {
                    return Err(McpFailure::Lost(ResponseExcerpt::new(&failure, &received)));
                }
                (Err(_), None) => {}
            }
        }
    }

    async fn read_to_end<E: Send>(
        &self,
        chunks: impl Stream<Item = Result<Bytes, E>> + Send + Unpin,
        id: &RequestId,
    ) -> Result<ServerResponse, McpFailure> {
        let (kind, chunks) = peek_kind(chunks).await;
        // Labels are often wrong.
        let is_stream = match kind {
            Some(BodyKind::Stream) => true,
            Some(BodyKind::Json | BodyKind::Page) => false,
            Some(BodyKind::Text) | None => self.is_stream,
        };
        if is_stream {
            return self.read_events(chunks, id).await;
        }
        let body = read_all(chunks).await?;
        self.transport.read_response(&body, id, self.bearer)
    }

    /// Finds the JSON-RPC response with the id of the request in a body without its end. Only whole JSON values count.
    ///
    /// # Errors
    /// The body, except notifications and requests of the server, without secrets.
    fn read_arrived(&self, body: &[u8], id: &RequestId) -> Result<ServerResponse, String> {
        let mut others = Vec::new();
        for text in message_texts(decode_response(body)) {
            let (values, rest) = split_whole_values(&text);
            let mut shown = rest;
            for message in self.transport.read_messages(values, self.bearer).unwrap_or_default() {
                if !message.is_server_initiated() {
                    shown = &text;
                }
                if let ServerMessage::Response(mut rpc_response) = message
                    && rpc_response.has_id(id)
                {
                    // Other messages of the response may be missing, or not strict JSON.
                    rpc_response.has_work_begun = true;
                    return Ok(rpc_response);
                }
            }
            others.push(shown.to_owned());
        }
        Err(self.transport.hide_truncated_secrets(&others.join(" "), self.bearer))
    }
}

/// The strict JSON values that begin a text, and the rest.
fn split_whole_values(text: &str) -> (&str, &str) {
    let mut values = serde_json::Deserializer::from_str(text).into_iter::<IgnoredAny>();
    while let Some(Ok(IgnoredAny)) = values.next() {}
    text.split_at_checked(values.byte_offset()).unwrap_or((text, ""))
}
