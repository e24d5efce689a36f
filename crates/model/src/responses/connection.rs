//! The connection of one delivery to the model, and the context that the service keeps on it.

use std::borrow::Cow;
use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::sync::{Mutex, PoisonError};

use serde::Deserialize;
use serde_json::json;
use serde_json::value::{RawValue, to_raw_value};

use crate::ModelResponse;
use crate::responses::socket::ResponsesSocket;
use turnwheel_conversation::message::StopReason;
use turnwheel_conversation::settings::ProtocolMode;
use turnwheel_platform::digest::sha256_hex;

/// Member of a response that names how it was requested.
const PROVIDER_STATE: &str = "providerState";
/// Members of a request over HTTP that an event of the socket does not have.
const HTTP_MEMBERS: [&str; 2] = ["stream", "background"];

/// The connection of one delivery to the model. Dropping it breaks the connection.
#[derive(Debug)]
pub struct ModelConnection(Mutex<ConnectionState>);

impl ModelConnection {
    /// A connection that the first call opens. Drop it at the end of the delivery.
    pub fn new(mode: ProtocolMode) -> Self {
        Self(Mutex::new(ConnectionState::new(mode)))
    }

    /// Takes the state for one call. A dropped call breaks its connection.
    pub(super) fn take(&self) -> ConnectionState {
        let mut state = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let empty = ConnectionState::new(state.mode);
        std::mem::replace(&mut *state, empty)
    }

    pub(super) fn restore(&self, state: ConnectionState) {
        *self.0.lock().unwrap_or_else(PoisonError::into_inner) = state;
    }

    /// Sets the text by which later requests repeat the last response. Without it they repeat the
    /// whole input.
    pub(crate) fn confirm_response(&self, text: String) {
        let mut state = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(known) = &mut state.known {
            known.response_text = Some(text);
        }
    }

    /// Calls the model over HTTP for the rest of the delivery, because the call is a retry: a failure
    /// that only sockets have must not use up the attempts.
    pub fn fall_back_for_retry(&self) {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).fall_back(Fallback::Retry);
    }

    /// Closes the connection.
    pub async fn close(&self) {
        if let Some(socket) = self.take().socket {
            socket.close().await;
        }
    }
}

#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) enum SocketOutcome {
    /// The response came over the socket, or failed there.
    Received,
    /// No response can exist: the request may be sent over HTTP.
    NotSent,
}

/// Why a delivery calls the model over HTTP.
#[derive(Clone, Copy, Debug, PartialEq, strum::IntoStaticStr)]
#[strum(serialize_all = "snake_case")]
pub(super) enum Fallback {
    /// No socket could be opened.
    ConnectionFailed,
    /// The socket was closed or broke.
    ConnectionLost,
    /// The service does not know the earlier response.
    PreviousResponseNotFound,
    /// The socket had reached the service's time limit.
    ConnectionLimitReached,
    /// The service rejected the request.
    RequestRejected,
    /// The service failed to respond.
    ResponseFailed,
    /// An earlier attempt of the same call failed.
    Retry,
}

#[derive(Debug)]
pub(super) struct ConnectionState {
    pub(super) mode: ProtocolMode,
    pub(super) socket: Option<ResponsesSocket>,
    /// Set after a failure: the rest of the delivery calls the model over HTTP.
    pub(super) fallback: Option<Fallback>,
    /// The context at the service after the latest response on the socket.
    known: Option<KnownContext>,
    /// The context of the request in progress, without its response.
    sent: Option<KnownContext>,
}

impl ConnectionState {
    const fn new(mode: ProtocolMode) -> Self {
        Self { mode, socket: None, fallback: None, known: None, sent: None }
    }

    /// Drops the socket: the rest of the delivery calls the model over HTTP.
    pub(super) fn fall_back(&mut self, reason: Fallback) {
        *self = Self { fallback: Some(reason), ..Self::new(self.mode) };
    }

    /// The event that requests the response, and the id of the response that it continues. Only new
    /// items follow if the service knows exactly the input before them, and otherwise all. `None`
    /// for a body without a list of items.
    pub(super) fn next_event(&mut self, body: &[u8]) -> Option<(String, Option<String>)> {
        let parts = RequestParts::parse(body)?;
        let known = self.known.take();
        let new_items = known.as_ref().and_then(|known| known.find_new_items(&parts));
        let previous = known.filter(|_| new_items.is_some()).map(|known| known.response_id);
        let items = new_items
            .unwrap_or_else(|| parts.items.iter().map(|item| Cow::Borrowed(*item)).collect());
        self.sent = Some(KnownContext::from_request(&parts));
        let event = parts.to_event(&items, previous.as_deref()).ok()?;
        Some((event, previous))
    }

    /// Records the response in the state, and the mode in the response.
    pub(super) fn record_response(&mut self, outcome: SocketOutcome, response: &mut ModelResponse) {
        let sent = self.sent.take();
        let mut mode = "replay";
        if outcome == SocketOutcome::Received {
            mode = "resume";
            if response.failure.is_some() {
                let is_lost = response.metadata.error.as_deref() == Some("connection");
                self.fall_back(if is_lost {
                    Fallback::ConnectionLost
                } else {
                    Fallback::ResponseFailed
                });
            } else if response.message.stop_reason != StopReason::Length {
                let response_id = response.metadata.id.clone();
                self.known = sent
                    .zip(response_id)
                    .map(|(sent, response_id)| KnownContext { response_id, ..sent });
            }
        }
        let state = match self.fallback.map(<&str>::from) {
            Some(reason) => json!({ "mode": mode, "lastFallback": reason }),
            None => json!({ "mode": mode }),
        };
        response.message.extra.insert(PROVIDER_STATE.to_owned(), state);
    }
}

/// The input that the service has, as hashes.
#[derive(Debug)]
struct KnownContext {
    response_id: String,
    /// Hash of all members except the input.
    parameters: String,
    /// The instructions, if the first item has them.
    system: Option<String>,
    /// Hash of each item of the request.
    items: Vec<String>,
    /// The response as later requests repeat it. `None`: nothing may continue it.
    response_text: Option<String>,
}

impl KnownContext {
    fn from_request(parts: &RequestParts<'_>) -> Self {
        Self {
            response_id: String::new(),
            parameters: parts.parameters_hash(),
            system: parts
                .items
                .first()
                .and_then(|item| SystemItem::parse(item))
                .map(|it| it.content),
            items: parts.items.iter().map(|item| hash(item)).collect(),
            response_text: None,
        }
    }

    /// Returns the items of a request after those that the service has. `None` on any difference
    /// before them: a compaction, a moved leaf, a history window or another setting.
    fn find_new_items<'b>(&self, parts: &RequestParts<'b>) -> Option<Vec<Cow<'b, RawValue>>> {
        let response_text = self.response_text.as_deref()?;
        if parts.parameters_hash() != self.parameters {
            return None;
        }
        let (known, later) = parts.items.split_at_checked(self.items.len())?;
        let (response, later) = later.split_first()?;
        if later.is_empty() || ResponseItem::parse(response)?.text() != response_text {
            return None;
        }
        let (first, others) = known.split_first()?;
        let (first_hash, other_hashes) = self.items.split_first()?;
        if !others.iter().map(|item| hash(item)).eq(other_hashes.iter().cloned()) {
            return None;
        }
        let mut new_items = Vec::with_capacity(later.len() + 1);
        if hash(first) != *first_hash {
            let added = self.added_instructions(first)?;
            new_items.push(Cow::Owned(added));
        }
        new_items.extend(later.iter().map(|item| Cow::Borrowed(*item)));
        Some(new_items)
    }

    /// Returns instructions that follow those that the service has, as an item.
    fn added_instructions(&self, item: &RawValue) -> Option<Box<RawValue>> {
        let SystemItem { role, content } = SystemItem::parse(item)?;
        let added = content.strip_prefix(self.system.as_deref()?)?.trim();
        to_raw_value(&json!({ "role": role, "content": added })).ok().filter(|_| !added.is_empty())
    }
}

/// A request body, divided. The texts are as they would be sent.
struct RequestParts<'b> {
    parameters: BTreeMap<String, &'b RawValue>,
    items: Vec<&'b RawValue>,
}

impl<'b> RequestParts<'b> {
    fn parse(body: &'b [u8]) -> Option<Self> {
        let mut parameters: BTreeMap<String, &'b RawValue> = serde_json::from_slice(body).ok()?;
        parameters.retain(|name, _| !HTTP_MEMBERS.contains(&name.as_str()));
        let items = serde_json::from_str(parameters.remove("input")?.get()).ok()?;
        // A hook that continues another response has its own reasons.
        (!parameters.contains_key("previous_response_id")).then_some(Self { parameters, items })
    }

    fn parameters_hash(&self) -> String {
        let mut text = String::new();
        for (name, value) in &self.parameters {
            let _ = write!(text, "{name:?}:{},", value.get());
        }
        sha256_hex(text.as_bytes())
    }

    fn to_event(
        &self,
        items: &[Cow<'_, RawValue>],
        previous: Option<&str>,
    ) -> serde_json::Result<String> {
        let mut members: BTreeMap<&str, Cow<'_, RawValue>> = self
            .parameters
            .iter()
            .map(|(name, value)| (name.as_str(), Cow::Borrowed(*value)))
            .collect();
        members.insert("type", Cow::Owned(to_raw_value("response.create")?));
        members.insert("input", Cow::Owned(to_raw_value(items)?));
        if let Some(id) = previous {
            members.insert("previous_response_id", Cow::Owned(to_raw_value(id)?));
        }
        serde_json::to_string(&members)
    }
}

/// Instructions as an item of the input.
#[derive(Deserialize)]
struct SystemItem {
    role: String,
    content: String,
}

impl SystemItem {
    fn parse(item: &RawValue) -> Option<Self> {
        let parsed: Self = serde_json::from_str(item.get()).ok()?;
        matches!(parsed.role.as_str(), "system" | "developer").then_some(parsed)
    }
}

/// A response as an item of the input.
#[derive(Deserialize)]
struct ResponseItem {
    role: String,
    content: Vec<ResponseText>,
}

#[derive(Deserialize)]
struct ResponseText {
    text: String,
}

impl ResponseItem {
    fn parse(item: &RawValue) -> Option<Self> {
        let parsed: Self = serde_json::from_str(item.get()).ok()?;
        (parsed.role == "assistant").then_some(parsed)
    }

    fn text(&self) -> String {
        self.content.iter().map(|part| part.text.as_str()).collect()
    }
}

fn hash(item: &RawValue) -> String {
    sha256_hex(item.get().as_bytes())
}

#[cfg(test)]
mod tests;
