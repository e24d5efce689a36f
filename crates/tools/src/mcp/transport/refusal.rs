//! Responses with another status than 2xx.

use std::borrow::Cow;

use axum::http::{HeaderMap, HeaderValue, StatusCode};
use rmcp::model::{ClientJsonRpcMessage, ClientRequest, JsonRpcMessage};
use rmcp::transport::streamable_http_client::StreamableHttpPostResponse;

use crate::mcp::failure::McpFailure;
use crate::mcp::message::{
    self, ResponseError, SHOWN_BYTES_MAX, ServerMessage, ServerResponse, shown,
};
use crate::mcp::transport::lost_session::SessionUse;
use crate::mcp::transport::{GuardedTransport, PostFailure};
use turnwheel_platform::text_encoding::decode_response;

/// A message whose response has another status than 2xx.
#[derive(Clone, Copy)]
pub(super) struct FailedPost<'a> {
    pub(super) status: StatusCode,
    pub(super) body: &'a [u8],
    pub(super) message: &'a ClientJsonRpcMessage,
    pub(super) headers: &'a HeaderMap,
}

/// True if the refusal of a notification has no consequence. A server that has lost the session refuses
/// the next request, too.
pub(super) fn is_ignored_refusal(message: &ClientJsonRpcMessage, status: StatusCode) -> bool {
    let is_for_now = matches!(
        status,
        StatusCode::UNAUTHORIZED
            | StatusCode::FORBIDDEN
            | StatusCode::REQUEST_TIMEOUT
            | StatusCode::TOO_MANY_REQUESTS
            | StatusCode::SERVICE_UNAVAILABLE
            | StatusCode::GATEWAY_TIMEOUT
    );
    !is_for_now && matches!(message, JsonRpcMessage::Notification(_))
}

impl GuardedTransport {
    /// Reads a response with another status than 2xx. A result with the id of the request counts.
    pub(super) fn read_failure(
        &self,
        post: FailedPost<'_>,
        bearer: Option<&HeaderValue>,
    ) -> Result<StreamableHttpPostResponse, PostFailure> {
        let FailedPost { status, body, message, headers } = post;
        let text = encoding_rs::UTF_8.decode(body).0;
        let request =
            if let JsonRpcMessage::Request(request) = message { Some(request) } else { None };
        let mut outcomes = self.read_outcomes(body, bearer);
        let found = request.and_then(|request| {
            let index = outcomes.iter().position(|it| it.has_id(&request.id))?;
            Some((request, outcomes.swap_remove(index)))
        });
        let refused = SessionUse::new(status, headers, message).and_then(|session| match &found {
            // Any other error with the id of the request may follow work that the server has done.
            Some((_, found)) => session.failure_of(found, true),
            None => session
                .failure_of_body(&text)
                .or_else(|| outcomes.iter().find_map(|other| session.failure_of(other, false))),
        });
        if let Some(failure) = refused {
            return Err(failure);
        }
        let mut is_json_rpc = false;
        let mut text = shown(&self.hide_truncated_secrets(&text, bearer), SHOWN_BYTES_MAX);
        if let Some((request, found)) = found {
            let Some(ResponseError { code, text: reason }) = found.error() else {
                let is_handshake = matches!(request.request, ClientRequest::InitializeRequest(_));
                let message = found.into_message(request.id.clone(), is_handshake)?;
                return Ok(StreamableHttpPostResponse::Json(message, None));
            };
            is_json_rpc = true;
            text = format!("error {code}: {reason}");
        }
        let text = if text.is_empty() { text } else { format!(": {text}") };
        Err(McpFailure::Status { status, text, is_json_rpc }.into())
    }

    /// The results and errors in a body. A message with neither is no outcome: the status decides.
    fn read_outcomes(&self, body: &[u8], bearer: Option<&HeaderValue>) -> Vec<ServerResponse> {
        let texts = message::message_texts(decode_response(body));
        let read = |text: &Cow<'_, str>| self.read_messages(text, bearer);
        let messages = texts.iter().filter_map(read).flatten();
        let outcomes = messages.filter_map(|message| match message {
            ServerMessage::Response(received) => received.has_outcome().then_some(received),
            ServerMessage::Request { .. }
            | ServerMessage::Notification { .. }
            | ServerMessage::Unknown => None,
        });
        outcomes.collect()
    }
}
