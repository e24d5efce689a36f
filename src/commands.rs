//! Commands: the write side of the API. A 2xx response follows the commit of the request. After a
//! crash in a command, the caller repeats it with the same key; no effect happens twice.

pub(crate) mod abort;
mod admission;
pub(crate) mod append_entries;
pub(crate) mod artifact;
pub(crate) mod bash;
pub(crate) mod certain_write;
mod command_run;
pub(crate) mod compact;
pub(crate) mod continue_prompt;
pub(crate) mod contract;
pub(crate) mod conversation;
pub(crate) mod decide;
pub(crate) mod delete;
pub(crate) mod delete_user;
pub(crate) mod extension_command;
pub(crate) mod fork;
mod head_change;
pub(crate) mod idempotency;
pub(crate) mod import;
pub(crate) mod inbox_clear;
pub(crate) mod inbox_edit;
pub(crate) mod input;
mod input_events;
pub(crate) mod insert;
mod key_reservation;
pub(crate) mod label;
pub(crate) mod leaf;
pub(crate) mod memory;
pub(crate) mod message;
pub(crate) mod patch;
mod pipeline;
pub(crate) mod profile;
pub(crate) mod prompt;
pub(crate) mod prompt_queue;
mod prompt_request;
pub(crate) mod request_hooks;
pub(crate) mod request_locks;
pub(crate) mod routing;
pub(crate) mod session_import;
pub(crate) mod title;
pub(crate) mod unleased_change;
pub(crate) mod user_skills;
pub(crate) mod waiting_command;

use std::time::Duration;

use serde::Serialize;

use crate::agent::raw::RawJson;
use crate::artifacts::ArtifactError;
use crate::commands::contract::{CommandError, CommandResponse, RequestIntent};
use crate::ids::ConversationKey;
use crate::queue::{self, QueueError};
use crate::services::Services;
use crate::store::StoreError;
use crate::turn::nudge::Nudge;

impl CommandResponse {
    pub(crate) fn new(status: u16, body: &impl Serialize) -> Self {
        let body = Some(RawJson::from_value(body));
        Self { status, body, location: None, etag: None, is_replayed: false }
    }

    pub(crate) fn with_location(self, location: String) -> Self {
        Self { location: Some(location), ..self }
    }

    pub(crate) fn with_etag(self, etag: String) -> Self {
        Self { etag: Some(etag), ..self }
    }
}

impl RequestIntent {
    fn remedy(self) -> &'static str {
        match self {
            Self::Prompt => {
                "Send `mode: steer` to join it, `mode: followUp` to queue the input, or wait."
            }
            Self::Continue | Self::Move => "Wait until it ends, or abort it.",
        }
    }
}

impl From<StoreError> for CommandError {
    fn from(error: StoreError) -> Self {
        match error {
            StoreError::Conflict => Self::contended(),
            StoreError::Invalid(what) => Self::invalid("", what),
            StoreError::TooLarge(what) => Self::TooLarge(what),
            StoreError::Unavailable(source) => {
                Self::Unavailable { what: contract::STORE, source: Some(source) }
            }
            corrupt @ StoreError::Corrupt(_) => Self::Corrupt(corrupt),
        }
    }
}

impl From<ArtifactError> for CommandError {
    fn from(error: ArtifactError) -> Self {
        match error {
            ArtifactError::NotFound => Self::NotFound("artifact"),
            ArtifactError::TooLarge(size) => {
                Self::TooLarge(format!("an artifact of {size} bytes is too large"))
            }
            ArtifactError::Unavailable(source) => {
                Self::Unavailable { what: "The artifact store", source: Some(source) }
            }
        }
    }
}

/// Sends a nudge for the conversation. A failure is only logged: the work is stored, and the
/// recovery sweep finds it.
pub(crate) async fn wake_worker(
    services: &Services,
    key: &ConversationKey,
    traceparent: Option<&str>,
) {
    services.fail_points.hit("admission.nudge").await;
    let nudge = Nudge::for_conversation(key.clone(), traceparent.map(ToOwned::to_owned));
    let text = RawJson::from_value(&nudge).text().to_owned();
    let sent = services.queue.send(queue::TURNS, text, Duration::ZERO).await;
    if let Some(metrics) = services.telemetry.metrics() {
        metrics.record_queue_message(queue::TURNS, "send", sent.is_ok());
    }
    if let Err(error) = sent {
        let cause: &dyn std::error::Error = match &error {
            QueueError::Unavailable(source) => source.as_ref(),
            QueueError::Gone | QueueError::TooLarge(_) | QueueError::BadCharacter(_) => &error,
        };
        tracing::warn!(conversation.id = %key, error = %cause, "nudge send failed: the recovery sweep will enqueue the conversation");
    }
}
