//! Model calls over the socket of a delivery. If the service has received no request, the caller
//! sends it over HTTP.

use bytes::Bytes;
use http::header::AUTHORIZATION;

use crate::responses::client::{CONNECT_TIMEOUT, ModelApiClient, ResponseCall, client_builder};
use crate::responses::config::NO_URL;
use crate::responses::connection::{ConnectionState, Fallback, SocketOutcome};
use crate::responses::credential::KEY_HEADER;
use crate::responses::event::{ParsedFrame, ProviderEvent};
use crate::responses::http_call::{END_TIMEOUT, bearer_value, read_error};
use crate::responses::provider_error::ProviderError;
use crate::responses::socket::ResponsesSocket;
use crate::responses::stream::StreamError;
use crate::{Listener, ModelRequest};
use turnwheel_conversation::settings::ProtocolMode;
use turnwheel_platform::clock::Clock as _;
use turnwheel_platform::error_chain::error_chain;

/// A call that the socket could not make.
struct SocketFailure {
    reason: Fallback,
    error: String,
}

impl SocketFailure {
    fn new(reason: Fallback, error: impl Into<String>) -> Self {
        Self { reason, error: error.into() }
    }

    fn lost(error: &StreamError) -> Self {
        Self::new(Fallback::ConnectionLost, error_chain(error))
    }
}

impl ModelApiClient {
    pub(super) async fn call_over_socket(
        &self,
        state: &mut ConnectionState,
        call: &mut ResponseCall<'_>,
        body: &Bytes,
        listener: &dyn Listener,
    ) -> SocketOutcome {
        if state.fallback.is_some() {
            return SocketOutcome::NotSent;
        }
        let is_auto = state.mode == ProtocolMode::Auto;
        if is_auto && state.socket.is_none() && self.socket_pause.is_active(self.clock.monotonic())
        {
            state.fall_back(Fallback::ConnectionFailed);
            return SocketOutcome::NotSent;
        }
        match self.try_socket(state, call, body, listener).await {
            Ok(outcome) => outcome,
            Err(SocketFailure { reason, error }) => {
                tracing::warn!(
                    reason = <&str>::from(reason),
                    error,
                    "WebSocket to the model unavailable; the delivery continues over HTTP"
                );
                if is_auto && reason == Fallback::ConnectionFailed {
                    self.socket_pause.start(self.clock.monotonic());
                }
                state.fall_back(reason);
                SocketOutcome::NotSent
            }
        }
    }

    async fn try_socket(
        &self,
        state: &mut ConnectionState,
        call: &mut ResponseCall<'_>,
        body: &Bytes,
        listener: &dyn Listener,
    ) -> Result<SocketOutcome, SocketFailure> {
        let mut socket = match state.socket.take() {
            Some(mut socket) => {
                if !socket.is_usable() {
                    let error = "the service closed the socket between two requests";
                    return Err(SocketFailure::new(Fallback::ConnectionLost, error));
                }
                socket
            }
            None => self
                .open_socket(call.request)
                .await
                .map_err(|error| SocketFailure::new(Fallback::ConnectionFailed, error))?,
        };
        let Some((event, previous)) = state.next_event(body) else {
            // A hook has replaced the list of items.
            state.socket = Some(socket);
            return Ok(SocketOutcome::NotSent);
        };
        socket.send(event).await.map_err(|error| SocketFailure::lost(&error))?;
        receive_response(&mut socket, previous.as_deref(), call, listener).await?;
        state.socket = Some(socket);
        Ok(SocketOutcome::Received)
    }

    async fn open_socket(&self, request: &ModelRequest<'_>) -> Result<ResponsesSocket, String> {
        let endpoint = self.endpoint_of(&request.model.id).ok_or(NO_URL)?;
        let auth = self.auth_header(endpoint).await?;
        let headers = Self::common_headers(request, endpoint, auth.as_ref());
        let mut headers = headers.map_err(|fault| fault.text)?;
        if let Some((KEY_HEADER, key)) = &auth {
            // Azure documents only this form for sockets; gateways read `api-key`.
            headers.insert(AUTHORIZATION, bearer_value(key).map_err(|fault| fault.text)?);
            if endpoint.address.is_azure {
                headers.remove(KEY_HEADER);
            }
        }
        let upgrade = self.upgrade_client()?.get(endpoint.address.responses_url.clone());
        let connecting = ResponsesSocket::connect(upgrade.headers(headers), self.idle_timeout);
        tokio::time::timeout(CONNECT_TIMEOUT, connecting).await.unwrap_or_else(|_| {
            Err(format!("no response to the upgrade within {} s", CONNECT_TIMEOUT.as_secs()))
        })
    }

    /// The client of upgrades. HTTP/2 has none.
    fn upgrade_client(&self) -> Result<&reqwest::Client, String> {
        if let Some(client) = self.upgrade_client.get() {
            return Ok(client);
        }
        let client = client_builder().http1_only().build().map_err(|error| error_chain(&error))?;
        Ok(self.upgrade_client.get_or_init(|| client))
    }
}

/// Reads the response. It begins with the first event that has a response other than `previous`.
async fn receive_response(
    socket: &mut ResponsesSocket,
    previous: Option<&str>,
    call: &mut ResponseCall<'_>,
    listener: &dyn Listener,
) -> Result<(), SocketFailure> {
    let mut has_begun = false;
    while !call.fold.is_finished() {
        let received = if call.fold.is_awaiting_end() {
            match tokio::time::timeout(END_TIMEOUT, socket.receive()).await {
                Err(_) | Ok(Err(_)) => return Ok(()),
                Ok(received) => received,
            }
        } else {
            socket.receive().await
        };
        let text = match received {
            Ok(Some(text)) => text,
            Ok(None) => return Ok(()),
            Err(error) => {
                call.fold.fail(read_error(&error));
                return Ok(());
            }
        };
        if !has_begun {
            match FirstEvent::parse(&text, previous) {
                FirstEvent::Other => continue,
                FirstEvent::Rejection(fault) => return reject(call, *fault),
                FirstEvent::Response => has_begun = true,
            }
        }
        for event in call.fold.push_frame(None, &text) {
            listener.on_event(event);
        }
    }
    Ok(())
}

/// An event before the response has begun.
enum FirstEvent {
    Response,
    Rejection(Box<ProviderError>),
    /// Of an earlier response, or of no response.
    Other,
}

impl FirstEvent {
    fn parse(text: &str, previous: Option<&str>) -> Self {
        let (ParsedFrame::Event(event) | ParsedFrame::Lossy(event)) =
            ProviderEvent::parse(None, text)
        else {
            return Self::Other;
        };
        let fault = match event.kind.as_str() {
            "error" => Some(
                ProviderError::from_error_event(event.body())
                    .unwrap_or_else(|| ProviderError::without_details("error")),
            ),
            kind if kind.starts_with("response.") => None,
            _ => ProviderError::from_other_event(event.body()),
        };
        if let Some(fault) = fault {
            let status = event.member("status").and_then(serde_json::Value::as_u64);
            let status = status.and_then(|status| u16::try_from(status).ok());
            return Self::Rejection(Box::new(ProviderError { status, ..fault }));
        }
        let id = event.member("response").map(|response| response.get("id"));
        match id {
            Some(id) if id.is_none() || id.and_then(serde_json::Value::as_str) != previous => {
                Self::Response
            }
            Some(_) | None => Self::Other,
        }
    }
}

/// A rejected request has no response. Its error may concern only the socket, so HTTP decides,
/// unless the service limits the rate or fails.
fn reject(call: &mut ResponseCall<'_>, fault: ProviderError) -> Result<(), SocketFailure> {
    let reason = match (fault.code.as_deref(), fault.status) {
        (Some("previous_response_not_found"), _) => Fallback::PreviousResponseNotFound,
        (Some("websocket_connection_limit_reached"), _) => Fallback::ConnectionLimitReached,
        (_, Some(status @ 400..500)) if status != 429 => Fallback::RequestRejected,
        _ => {
            call.fold.fail(fault);
            return Ok(());
        }
    };
    Err(SocketFailure::new(reason, fault.code.unwrap_or_default()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn first_event_with_repeated_member_is_read() {
        let error = r#"{"type":"error","error":{"message":"a"},"error":{"message":"b","code":"rate_limit_exceeded"}}"#;
        let FirstEvent::Rejection(fault) = FirstEvent::parse(error, None) else { panic!() };
        assert_eq!(fault.code.as_deref(), Some("rate_limit_exceeded"));
        let end = r#"{"type":"response.completed","response":{"id":"r","output":[{"type":"function_call","name":"a","name":"b"}]}}"#;
        assert!(matches!(FirstEvent::parse(end, Some("q")), FirstEvent::Response));
        assert!(matches!(FirstEvent::parse(end, Some("r")), FirstEvent::Other));
    }
}
