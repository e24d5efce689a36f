//! Commands: the write side of the API. A 2xx response follows the commit of the request. After a
//! crash in a command, the caller repeats it with the same key; no effect happens twice.

pub mod abort;
pub mod artifact;
pub mod certain_write;
pub mod compact;
pub mod continue_prompt;
pub mod conversation;
pub mod decide;
pub mod delete;
pub mod idempotency;
pub mod import;
pub mod inbox_edit;
pub mod input;
mod key_reservation;
pub mod message;
pub mod patch;
mod pipeline;
pub mod prompt;
pub mod prompt_queue;
mod routing;

use std::time::Duration;

use serde::Serialize;

use crate::agent::raw::RawJson;
use crate::artifacts::ArtifactError;
use crate::clock::Timestamp;
use crate::ids::{ConversationKey, EffectId, PromptId, TenantId, UserId};
use crate::queue::{self, QueueError};
use crate::services::Services;
use crate::store::StoreError;
use crate::turn::nudge::Nudge;

pub(crate) const STEER_WITHOUT_INPUT: &str = "a steer needs an `input`";

/// Owner of conversations: the first two parts of every conversation key.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Owner {
    pub tenant: TenantId,
    pub user: UserId,
}

impl Owner {
    pub fn from_key(key: &ConversationKey) -> Self {
        Self { tenant: key.tenant.clone(), user: key.user.clone() }
    }

    pub fn conversation_key(&self, conversation: &str) -> ConversationKey {
        ConversationKey {
            tenant: self.tenant.clone(),
            user: self.user.clone(),
            conversation_id: crate::ids::ConversationId::new(conversation),
        }
    }
}

/// Response of a command. It is stored, and returned again when the same request is repeated.
#[derive(Clone, Debug, PartialEq)]
pub struct CommandResponse {
    pub status: u16,
    pub body: Option<RawJson>,
    /// Path below the API's root, without a leading slash.
    pub location: Option<String>,
    /// `ETag` of the conversation, if the body shows its current state.
    pub etag: Option<String>,
    /// True if an earlier request with the same key received this response.
    pub is_replayed: bool,
}

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

/// One error in a request.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FieldError {
    /// JSON pointer into the body, or `?name` for a query parameter; empty for the whole body.
    pub pointer: String,
    pub detail: String,
}

impl FieldError {
    pub fn new(pointer: impl Into<String>, detail: impl Into<String>) -> Self {
        Self { pointer: pointer.into(), detail: detail.into() }
    }
}

/// Reason why a request was not accepted. After `Unavailable` the outcome is unknown; otherwise
/// nothing was stored.
#[derive(Debug, thiserror::Error)]
pub enum CommandError {
    #[error("The {0} does not exist, or belongs to another user.")]
    NotFound(&'static str),
    /// Never empty.
    #[error("{}", join_details(.0))]
    Invalid(Vec<FieldError>),
    #[error("{detail}")]
    Conflict { detail: String, retry_after: Option<Duration> },
    #[error("A prompt is already running in this conversation ({prompt_id}). {}", .intent.remedy())]
    AlreadyProcessing { prompt_id: PromptId, intent: RequestIntent },
    /// The input is no longer queued: `input` is its current view.
    #[error("{detail}, so it can no longer be changed or removed.")]
    AlreadyApplied { detail: String, input: RawJson },
    /// View of the approval with its first decision.
    #[error(
        "This approval was already decided otherwise. `decision`, `decidedBy` and `decidedAt` show how."
    )]
    AlreadyDecided(RawJson),
    #[error("The approval expired{}, so it can no longer be decided.", .at.map(|at| format!(" at {at}")).unwrap_or_default())]
    Expired { at: Option<Timestamp> },
    #[error("{0}")]
    Forbidden(String),
    #[error(
        "The Idempotency-Key was already used with another body. Send a new key with a new request."
    )]
    KeyReused,
    #[error("The write {effect_id} is running. Repeat the request when its outcome is known.")]
    EffectInFlight { effect_id: EffectId, retry_after: Duration },
    #[error(
        "The resource changed since it was read. Read it again, and repeat the change with its current ETag {etag}."
    )]
    PreconditionFailed { etag: String },
    #[error("{0}")]
    TooLarge(String),
    #[error("{what} did not respond. Repeat the request with the same Idempotency-Key.")]
    Unavailable {
        what: &'static str,
        #[source]
        source: Option<Box<dyn std::error::Error + Send + Sync>>,
    },
    /// The agent file cannot be used.
    #[error("{0}")]
    AgentUnavailable(String),
    #[error("The record of this conversation is damaged. An operator must inspect it.")]
    Corrupt(#[source] StoreError),
}

/// Kind of request that was sent while a prompt was running.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RequestIntent {
    Prompt,
    Continue,
}

impl RequestIntent {
    fn remedy(self) -> &'static str {
        match self {
            Self::Prompt => {
                "Send `mode: steer` to join it, `mode: followUp` to queue the input, or wait."
            }
            Self::Continue => "Wait until it ends, or abort it.",
        }
    }
}

fn join_details(errors: &[FieldError]) -> String {
    let details: Vec<&str> = errors.iter().map(|fault| fault.detail.as_str()).collect();
    details.join("; ")
}

impl CommandError {
    pub fn invalid(pointer: impl Into<String>, detail: impl Into<String>) -> Self {
        Self::Invalid(vec![FieldError::new(pointer, detail)])
    }

    pub(crate) fn contended() -> Self {
        Self::Conflict {
            detail: "Other requests changed the conversation at the same time. Repeat the request."
                .to_owned(),
            retry_after: Some(Duration::from_secs(1)),
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
                Self::Unavailable { what: "The store", source: Some(source) }
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
pub async fn wake_worker(services: &Services, key: &ConversationKey, traceparent: Option<&str>) {
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
