//! A WebSocket of the Responses API: each text frame is one event. Idle time and size are bounded as
//! for server-sent events.

use std::fmt;
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use futures_util::{FutureExt as _, SinkExt as _, StreamExt as _};
use http::StatusCode;
use http::header::{
    CONNECTION, SEC_WEBSOCKET_ACCEPT, SEC_WEBSOCKET_KEY, SEC_WEBSOCKET_VERSION, UPGRADE,
};
use tokio_tungstenite::WebSocketStream;
use tokio_tungstenite::tungstenite::handshake::client::generate_key;
use tokio_tungstenite::tungstenite::handshake::derive_accept_key;
use tokio_tungstenite::tungstenite::protocol::{Role, WebSocketConfig};
use tokio_tungstenite::tungstenite::{Error, Message};

use crate::responses::event::{ParsedFrame, ProviderEvent};
use crate::responses::stream::{EVENT_BYTES_MAX, RESPONSE_BYTES_MAX, StreamError};
use turnwheel_platform::error_chain::error_chain;

/// Frames between two requests that are read before the socket counts as unusable.
const FRAMES_BETWEEN_MAX: usize = 64;
/// Time without further attempts after a failed connection, in the mode `auto`.
const PAUSE_AFTER_FAILURE: Duration = Duration::from_mins(10);
/// Time for the close frame.
const CLOSE_TIMEOUT: Duration = Duration::from_secs(1);

/// An open socket. Dropping it breaks the connection.
pub(super) struct ResponsesSocket {
    frames: WebSocketStream<reqwest::Upgraded>,
    /// Time without an event after which a response counts as lost.
    idle: Duration,
    /// Bytes of the response that is being received.
    received: usize,
}

impl fmt::Debug for ResponsesSocket {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("ResponsesSocket(…)")
    }
}

impl ResponsesSocket {
    /// Sends the upgrade request. Its client must use HTTP/1.1.
    ///
    /// # Errors
    /// The text names the cause, without the address and the headers.
    pub(super) async fn connect(
        request: reqwest::RequestBuilder,
        idle: Duration,
    ) -> Result<Self, String> {
        let transport_error = |error: reqwest::Error| {
            format!("connection error: {}", error_chain(&error.without_url()))
        };
        let key = generate_key();
        let response = request
            .header(CONNECTION, "Upgrade")
            .header(UPGRADE, "websocket")
            .header(SEC_WEBSOCKET_VERSION, "13")
            .header(SEC_WEBSOCKET_KEY, &key)
            .send()
            .await
            .map_err(transport_error)?;
        if response.status() != StatusCode::SWITCHING_PROTOCOLS {
            let status = response.status().as_u16();
            return Err(format!("the upgrade to a WebSocket got HTTP {status}"));
        }
        let accepted = response.headers().get(SEC_WEBSOCKET_ACCEPT);
        if accepted
            .is_none_or(|value| value.as_bytes() != derive_accept_key(key.as_bytes()).as_bytes())
        {
            return Err("the upgrade to a WebSocket got a response for another key".to_owned());
        }
        let upgraded = response.upgrade().await.map_err(transport_error)?;
        let config = WebSocketConfig::default()
            .max_message_size(Some(EVENT_BYTES_MAX))
            .max_frame_size(Some(EVENT_BYTES_MAX));
        let frames = WebSocketStream::from_raw_socket(upgraded, Role::Client, Some(config)).await;
        Ok(Self { frames, idle, received: 0 })
    }

    /// True if the service has neither closed the socket nor sent an event of a response since the
    /// last one ended.
    pub(super) fn is_usable(&mut self) -> bool {
        for _ in 0..FRAMES_BETWEEN_MAX {
            match self.frames.next().now_or_never() {
                None => return true,
                Some(Some(Ok(Message::Text(text)))) if is_about_response(&text) => return false,
                Some(Some(Ok(Message::Close(_)) | Err(_)) | None) => return false,
                Some(Some(Ok(_))) => {}
            }
        }
        false
    }

    /// Sends the event that requests a response.
    ///
    /// # Errors
    /// The service has not received the whole event, so it does not respond.
    pub(super) async fn send(&mut self, event: String) -> Result<(), StreamError> {
        self.received = 0;
        match tokio::time::timeout(self.idle, self.frames.send(Message::text(event))).await {
            Ok(sent) => sent.map_err(|error| StreamError::ConnectionFailed(Box::new(error))),
            Err(_) => Err(StreamError::IdleTimeout(self.idle)),
        }
    }

    /// Returns the next event; `None` if the service has closed the socket.
    ///
    /// # Errors
    /// The response is lost. Drop the socket.
    pub(super) async fn receive(&mut self) -> Result<Option<String>, StreamError> {
        // Pings are no data: a service that only sends them does not respond.
        tokio::time::timeout(self.idle, self.next_text())
            .await
            .unwrap_or(Err(StreamError::IdleTimeout(self.idle)))
    }

    async fn next_text(&mut self) -> Result<Option<String>, StreamError> {
        loop {
            let frame = match self.frames.next().await {
                None | Some(Ok(Message::Close(_))) => return Ok(None),
                Some(Err(Error::Capacity(_))) => {
                    return Err(StreamError::TooLarge(EVENT_BYTES_MAX));
                }
                Some(Err(error)) => return Err(StreamError::ConnectionFailed(Box::new(error))),
                Some(Ok(frame)) => frame,
            };
            self.received = self.received.saturating_add(frame.len());
            if self.received > RESPONSE_BYTES_MAX {
                return Err(StreamError::TooLarge(RESPONSE_BYTES_MAX));
            }
            if let Message::Text(text) = frame {
                return Ok(Some(text.as_str().to_owned()));
            }
        }
    }

    /// Sends the close frame: no request follows.
    pub(super) async fn close(mut self) {
        let _ = tokio::time::timeout(CLOSE_TIMEOUT, self.frames.close(None)).await;
    }
}

/// True for an event that could change a response, and for one that cannot be parsed.
fn is_about_response(text: &str) -> bool {
    match ProviderEvent::parse(None, text) {
        ParsedFrame::Event(event) => {
            let kind = event.kind.as_str();
            matches!(kind, "" | "error") || kind.starts_with("response.")
        }
        ParsedFrame::Delta(_)
        | ParsedFrame::Ignored
        | ParsedFrame::Lossy(_)
        | ParsedFrame::MalformedEnd { .. } => true,
    }
}

/// Remembers a failed connection, so that an endpoint without sockets costs one attempt and not
/// one per delivery.
#[derive(Debug, Default)]
pub(super) struct SocketPause {
    /// End of the pause, on the monotonic clock.
    until: Mutex<Option<Duration>>,
}

impl SocketPause {
    pub(super) fn start(&self, now: Duration) {
        let mut until = self.until.lock().unwrap_or_else(PoisonError::into_inner);
        *until = Some(now + PAUSE_AFTER_FAILURE);
    }

    pub(super) fn is_active(&self, now: Duration) -> bool {
        self.until.lock().unwrap_or_else(PoisonError::into_inner).is_some_and(|until| now < until)
    }
}
