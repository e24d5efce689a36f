//! Types that commands and queries share: owners, responses and errors.

use std::time::Duration;

use serde::Serialize;

use crate::session_file::FileError;
use turnwheel_conversation::inbox::NEXT_TURN_MESSAGES_MAX;
use turnwheel_conversation::request::Request;
use turnwheel_json::raw::RawJson;
use turnwheel_platform::clock::Timestamp;
use turnwheel_platform::ids::{ConversationKey, EffectId, PromptId, TenantId, UserId};
use turnwheel_storage::artifacts::ArtifactError;
use turnwheel_storage::store::StoreError;
use turnwheel_storage::store::outage_retry::DeliveryError;

pub const STEER_WITHOUT_INPUT: &str = "a steer needs an `input`";

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
            conversation_id: turnwheel_platform::ids::ConversationId::new(conversation),
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

/// Inputs that may wait in a conversation, beside messages for the next turn. A commit is lost to each
/// item that is accepted meanwhile, so the two bounds together limit how often a worker repeats one.
pub const INBOX_ITEMS_MAX: u32 = 64;

/// Reason why a request was not accepted. After `Unavailable` the outcome is unknown; otherwise
/// nothing was stored.
#[derive(Debug, thiserror::Error)]
pub enum CommandError {
    #[error("The {0} does not exist, or belongs to another user.")]
    NotFound(&'static str),
    /// The id as sent.
    #[error("Entry {} not found", shorten_id(.0))]
    EntryNotFound(String),
    #[error("No extension has this command. `GET /api/commands` lists the commands.")]
    UnknownCommand,
    /// Never empty.
    #[error("{}", join_details(.0))]
    Invalid(Vec<FieldError>),
    #[error("{detail}")]
    Conflict { detail: String, retry_after: Option<Duration> },
    #[error("{} {}", busy_text(.prompt_id, *.awaits_decision), .intent.remedy())]
    AlreadyProcessing {
        prompt_id: PromptId,
        intent: RequestIntent,
        /// True if the prompt waits for the decision of an approver.
        awaits_decision: bool,
    },
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
    #[error("{}", full_inbox_text(*.is_next_turn))]
    InboxFull {
        /// True if messages for the next turn have reached their bound.
        is_next_turn: bool,
        retry_after: Duration,
    },
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
    /// The agent file cannot be used, or the agent has no model.
    #[error("{0}")]
    AgentUnavailable(String),
    /// The hook of an extension failed that the request needs. The text has extension, event and
    /// reason.
    #[error("The {0}. Nothing was stored. Repeat the request.")]
    ExtensionFailed(String),
    #[error("The record of this conversation is damaged. An operator must inspect it.")]
    Corrupt(#[source] StoreError),
}

/// The part that did not respond, if it is the conversation store.
pub(crate) const STORE: &str = "The store";

impl DeliveryError for CommandError {
    fn is_store_away(&self) -> bool {
        matches!(self, Self::Unavailable { what: STORE, .. })
    }
}

fn busy_text(prompt: &PromptId, awaits_decision: bool) -> String {
    if awaits_decision {
        format!(
            "The prompt {prompt} of this conversation waits for an approval: decide its request, which GET /api/approvals lists."
        )
    } else {
        format!("A prompt is already running in this conversation ({prompt}).")
    }
}

fn full_inbox_text(is_next_turn: bool) -> String {
    if is_next_turn {
        format!(
            "{NEXT_TURN_MESSAGES_MAX} messages wait for the next prompt of a user, which is the limit. Send a prompt, or delete one of them."
        )
    } else {
        format!(
            "{INBOX_ITEMS_MAX} inputs wait in this conversation, as many as it may have. Repeat the request when one of them has been applied."
        )
    }
}

impl CommandError {
    pub fn invalid(pointer: impl Into<String>, detail: impl Into<String>) -> Self {
        Self::Invalid(vec![FieldError::new(pointer, detail)])
    }

    pub fn contended() -> Self {
        Self::Conflict {
            detail: "Other requests changed the conversation at the same time. Repeat the request."
                .to_owned(),
            retry_after: Some(Duration::from_secs(1)),
        }
    }
}

/// Kind of request that was sent while a prompt was running.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RequestIntent {
    Prompt,
    Continue,
    /// A move of the leaf.
    Move,
}

/// Caller that sends a decision.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Decider {
    User {
        tenant: TenantId,
        user: UserId,
        roles: Vec<String>,
    },
    /// Any caller with a signed link.
    Link,
}

impl Decider {
    pub fn name(&self) -> &str {
        match self {
            Self::User { user, .. } => user.as_str(),
            Self::Link => "link",
        }
    }

    /// True if the caller may learn that the conversation exists.
    pub fn is_owner(&self, key: &ConversationKey) -> bool {
        match self {
            Self::User { tenant, user, .. } => tenant == &key.tenant && user == &key.user,
            Self::Link => true,
        }
    }

    /// True if the request names the caller and does not exclude it.
    pub fn can_decide(&self, key: &ConversationKey, request: &Request) -> bool {
        self.is_approver(key, request) && !self.is_excluded(request)
    }

    pub fn is_approver(&self, key: &ConversationKey, request: &Request) -> bool {
        request.approvers.iter().any(|approver| match self {
            Self::Link => approver == "link",
            Self::User { tenant, roles, .. } => {
                let by_role = approver.strip_prefix("role:").is_some_and(|role| {
                    tenant == &key.tenant && roles.iter().any(|own_role| own_role == role)
                });
                by_role || (approver == "owner" && self.is_owner(key))
            }
        })
    }

    pub fn is_excluded(&self, request: &Request) -> bool {
        match self {
            Self::User { user, .. } => {
                request.is_requester_excluded && user == &request.requested_by
            }
            Self::Link => false,
        }
    }
}

/// An unknown id has any length.
fn shorten_id(id: &str) -> String {
    id.chars().take(64).collect()
}

fn join_details(errors: &[FieldError]) -> String {
    let details: Vec<&str> = errors.iter().map(|fault| fault.detail.as_str()).collect();
    details.join("; ")
}

impl CommandResponse {
    pub fn new(status: u16, body: &impl Serialize) -> Self {
        let body = Some(RawJson::from_value(body));
        Self { status, body, location: None, etag: None, is_replayed: false }
    }

    #[must_use]
    pub fn with_location(self, location: String) -> Self {
        Self { location: Some(location), ..self }
    }

    #[must_use]
    pub fn with_etag(self, etag: String) -> Self {
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
                Self::Unavailable { what: STORE, source: Some(source) }
            }
            corrupt @ StoreError::Corrupt(_) => Self::Corrupt(corrupt),
        }
    }
}

impl From<FileError> for CommandError {
    fn from(error: FileError) -> Self {
        Self::invalid("", error.to_string())
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
