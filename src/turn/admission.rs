//! Admission: requests are kept before anybody hears 2xx. Each function is complete in itself; a crash anywhere in it costs
//! the caller a repeat with the same key, never a second effect.

pub mod artifact;
pub mod compact;
pub mod conversation;
pub mod decide;
pub mod delete;
pub mod go_on;
mod held_key;
pub mod idempotency;
pub mod import;
pub mod input;
pub mod message;
pub mod patch;
mod place;
pub mod prompt;
pub mod queued;
pub mod stop;
pub mod waiting;
pub mod write;

use std::time::Duration;

use crate::agent::raw::RawJson;
use crate::artifacts::ArtifactError;
use crate::clock::Timestamp;
use crate::ids::{ConversationKey, EffectId, PromptId, TenantId, UserId};
use crate::queue::{self, QueueError};
use crate::store::StoreError;
use crate::turn::{Nudge, World};

pub(super) const SAYS_NOTHING: &str = "a steer says something: give it an `input`";

/// Whose conversations: the first two parts of every key.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Owner {
    pub tenant: TenantId,
    pub user: UserId,
}

impl Owner {
    pub fn of(key: &ConversationKey) -> Self {
        Self { tenant: key.tenant.clone(), user: key.user.clone() }
    }

    pub fn key(&self, conversation: &str) -> ConversationKey {
        ConversationKey {
            tenant: self.tenant.clone(),
            user: self.user.clone(),
            conversation_id: crate::ids::ConversationId::new(conversation),
        }
    }
}

/// What is told to the client, now and when the same request comes again.
#[derive(Clone, Debug, PartialEq)]
pub struct Answer {
    pub status: u16,
    pub body: Option<RawJson>,
    /// Below the API's root, without a slash in front.
    pub location: Option<String>,
    /// The conversation's, when the answer shows one as it is now.
    pub etag: Option<String>,
    /// Whether an earlier request with the same key was answered with it.
    pub is_replayed: bool,
}

/// One thing that is wrong with a request.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Fault {
    /// JSON pointer into the body; empty: the whole of it.
    pub pointer: String,
    pub detail: String,
}

impl Fault {
    pub fn at(pointer: impl Into<String>, detail: impl Into<String>) -> Self {
        Self { pointer: pointer.into(), detail: detail.into() }
    }
}

/// Why a request was not accepted; nothing of it was kept.
#[derive(Debug, thiserror::Error)]
pub enum Refusal {
    #[error("there is no such {0}")]
    NotFound(&'static str),
    /// Never empty.
    #[error("{}", listed(.0))]
    Invalid(Vec<Fault>),
    #[error("{detail}")]
    Conflict { detail: String, retry_after: Option<Duration> },
    /// In the sources' words: what they say differs with what was asked.
    #[error("{said} Prompt {prompt_id} has not ended.")]
    AlreadyProcessing { prompt_id: PromptId, said: &'static str },
    /// What was to be changed waits no longer: the input as it is now.
    #[error("{detail}: it waits no longer, so it cannot be changed or taken back")]
    Landed { detail: String, input: RawJson },
    /// The settled approval.
    #[error("it was decided otherwise before")]
    AlreadyDecided(RawJson),
    #[error("the approval expired{}", .at.map(|at| format!(" at {at}")).unwrap_or_default())]
    Expired { at: Option<Timestamp> },
    #[error("{0}")]
    Forbidden(String),
    #[error(
        "the idempotency key was used before with another body: use a fresh key for a new request"
    )]
    KeyReused,
    #[error("the write {effect_id} is under way: try again when its outcome is known")]
    EffectInFlight { effect_id: EffectId, retry_after: Duration },
    #[error("the conversation has changed: read it again, its ETag is now {etag}")]
    PreconditionFailed { etag: String },
    #[error("{0}")]
    TooLarge(String),
    #[error("{what} did not answer: try again with the same idempotency key")]
    Unavailable {
        what: &'static str,
        #[source]
        source: Option<Box<dyn std::error::Error + Send + Sync>>,
    },
    /// The agent's file cannot be used.
    #[error("{0}")]
    AgentUnavailable(String),
    #[error("the record of this conversation cannot be read: an operator has to look")]
    Corrupt(#[source] StoreError),
}

fn listed(faults: &[Fault]) -> String {
    let texts: Vec<&str> = faults.iter().map(|fault| fault.detail.as_str()).collect();
    texts.join("; ")
}

impl Refusal {
    pub fn invalid(pointer: impl Into<String>, detail: impl Into<String>) -> Self {
        Self::Invalid(vec![Fault::at(pointer, detail)])
    }

    pub(crate) fn contended() -> Self {
        Self::Conflict {
            detail: "others changed the conversation at the same moment: try again".to_owned(),
            retry_after: Some(Duration::from_secs(1)),
        }
    }
}

impl From<StoreError> for Refusal {
    fn from(error: StoreError) -> Self {
        match error {
            StoreError::Conflict => Self::contended(),
            StoreError::Invalid(what) => Self::invalid("", what),
            StoreError::TooLarge(what) => Self::TooLarge(what),
            StoreError::Unavailable(source) => {
                Self::Unavailable { what: "the store", source: Some(source) }
            }
            corrupt @ StoreError::Corrupt(_) => Self::Corrupt(corrupt),
        }
    }
}

impl From<ArtifactError> for Refusal {
    fn from(error: ArtifactError) -> Self {
        match error {
            ArtifactError::NotFound => Self::NotFound("artifact"),
            ArtifactError::TooLarge(size) => {
                Self::TooLarge(format!("an artifact of {size} bytes is too large"))
            }
            ArtifactError::Unavailable(source) => {
                Self::Unavailable { what: "the artifact store", source: Some(source) }
            }
        }
    }
}

/// Rings the doorbell. A bell that is not heard is only logged: what is owed is in the store, and the sweep finds it.
pub async fn nudge(world: &World, key: &ConversationKey, traceparent: Option<&str>) {
    world.probe.reached("admission.nudge").await;
    let nudge = Nudge::of(key.clone(), traceparent.map(ToOwned::to_owned));
    let text = RawJson::of(&nudge).text().to_owned();
    let sent = world.queue.send(queue::TURNS, text, Duration::ZERO).await;
    if let Some(metrics) = world.telemetry.metrics() {
        metrics.message(queue::TURNS, "send", sent.is_ok());
    }
    if let Err(error) = sent {
        let why: &dyn std::error::Error = match &error {
            QueueError::Unavailable(source) => source.as_ref(),
            QueueError::Gone | QueueError::TooLarge(_) | QueueError::BadCharacter(_) => &error,
        };
        tracing::warn!(conversation.id = %key, error = %why, "nudge was not sent: the sweep will find what is owed");
    }
}
