//! The conversation store: documents in partitions, written in atomic conditional batches. The truth.
//!
//! One contract test (`store::contract`) holds every implementation to what is written here.

pub(crate) mod check;
#[cfg(test)]
pub(crate) mod contract;
pub mod cosmos;
pub mod embedded;
mod held;
pub mod memory;
pub(crate) mod place;
#[cfg(test)]
pub(crate) mod watched;

use std::fmt;
use std::time::Duration;

use async_trait::async_trait;
use serde::{Deserialize, Serialize};

use crate::agent::raw::RawJson;
use crate::clock::Timestamp;
use crate::ids::{ConversationKey, TenantId, UserId, WorkerId};

/// Operations of one batch (Cosmos: 100).
pub const BATCH_OPERATIONS_MAX: usize = 80;
/// Bytes of one batch (Cosmos: 2 MB).
pub const BATCH_BYTES_MAX: usize = 1_500_000;
/// A claim that ended may be taken over only this much later.
pub const TAKE_OVER_AFTER: Duration = Duration::from_secs(5);

/// What is atomic together.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
pub enum Partition {
    Conversation(ConversationKey),
    /// Accounts, usage, schedules, memory of a tenant.
    Scope(TenantId),
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
pub enum Kind {
    Head,
    Entry,
    Events,
    Inbox,
    Receipt,
    Notice,
    /// What readers on other instances are told of an answer under way; it has a [`Document::ttl`].
    Live,
    /// Which instances want to be told; it has a [`Document::ttl`].
    Watch,
    /// Any document of a [`Partition::Scope`].
    Scope,
}

impl Kind {
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Head => "head",
            Self::Entry => "entry",
            Self::Events => "events",
            Self::Inbox => "inbox",
            Self::Receipt => "receipt",
            Self::Notice => "notice",
            Self::Live => "live",
            Self::Watch => "watch",
            Self::Scope => "scope",
        }
    }

    /// The kind of a stored document.
    pub(crate) fn named(text: &str) -> Result<Self, StoreError> {
        let kinds = [
            Self::Head,
            Self::Entry,
            Self::Events,
            Self::Inbox,
            Self::Receipt,
            Self::Notice,
            Self::Live,
            Self::Watch,
            Self::Scope,
        ];
        let found = kinds.into_iter().find(|kind| kind.as_str() == text);
        found.ok_or_else(|| {
            StoreError::Corrupt(format!("a document is of the unknown kind `{text}`"))
        })
    }
}

/// Id of a conversation's head.
pub const HEAD_ID: &str = "head";

/// Id of the entry with that `seq`: sorts as the number does.
pub fn entry_id(seq: u64) -> String {
    format!("{seq:012}")
}

/// Id of the events document whose first event has that number.
pub fn events_id(first: u64) -> String {
    format!("ev-{first:012}")
}

/// One JSON document and the few facts by which it is found.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Document {
    /// Unique in its partition; passes [`crate::ids::is_plain`].
    pub id: String,
    pub kind: Kind,
    pub body: RawJson,
    /// When something is owed; absent: nothing is.
    pub due: Option<Timestamp>,
    /// On heads: lists are newest first.
    pub created_at: Option<Timestamp>,
    /// On heads: `idle`, `running`, `waiting_for_approval` or `deleted`.
    pub state: Option<String>,
    /// Whole seconds, at least one, from its last write: the store may forget the document any time later, or never, so
    /// that nobody may rely on it. Just what is [`Kind::Live`] or [`Kind::Watch`] has one.
    pub ttl: Option<u32>,
}

/// Names one version of one document. Opaque.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ETag(pub String);

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Stored {
    pub document: Document,
    pub etag: ETag,
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub enum Write {
    /// Refused when the id exists.
    Create(Document),
    /// Refused when the id does not exist, or exists with another ETag than the one given.
    Replace(Document, Option<ETag>),
    /// Refused when the id does not exist, or exists with another ETag than the one given.
    Delete(String, Option<ETag>),
}

/// Whether a read may be answered from an older version.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Freshness {
    /// Everything committed before the read began: for what decides.
    Latest,
    /// May lag: for what never changes.
    Any,
}

/// Documents of one kind whose id lies between two ids, both included; ascending.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Selection {
    pub kind: Kind,
    pub from_id: Option<String>,
    pub to_id: Option<String>,
    pub limit: usize,
}

impl Selection {
    pub fn all(kind: Kind) -> Self {
        Self { kind, from_id: None, to_id: None, limit: usize::MAX }
    }

    /// Entries with `from <= seq <= to`.
    pub fn entries(from: u64, to: u64) -> Self {
        Self { from_id: Some(entry_id(from)), to_id: Some(entry_id(to)), ..Self::all(Kind::Entry) }
    }
}

/// Heads of a tenant, or of one of its users, newest first; purged and deleted ones are not among them.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct HeadQuery {
    pub tenant: TenantId,
    pub user: Option<UserId>,
    pub state: Option<String>,
    pub limit: usize,
    /// From an earlier page of the same query.
    pub continuation: Option<String>,
}

/// A page may be short or empty before the end; the end is the absence of a continuation.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Page<T> {
    pub items: Vec<T>,
    pub continuation: Option<String>,
}

/// Something that is due.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Owed {
    pub partition: Partition,
    pub id: String,
    pub kind: Kind,
    pub due: Timestamp,
}

#[derive(Debug)]
pub struct ClaimRequest<'a> {
    pub key: &'a ConversationKey,
    pub worker: &'a WorkerId,
    pub now: Timestamp,
    pub until: Timestamp,
}

/// The answer to [`ConversationStore::claim`].
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub enum Claimed {
    /// There is no such conversation.
    Missing,
    /// Another worker's claim is live, or ended less than [`TAKE_OVER_AFTER`] ago.
    Held { until: Timestamp },
    /// Nobody else's is. `is_settled`: the right is already the caller's; otherwise it is once a commit that carries it
    /// has won, and no effect may begin before. `inbox`: everything of [`Kind::Inbox`], by id. It is never older than the
    /// head: what the head has taken in is not in it, or it would be taken in twice.
    Free { head: Stored, inbox: Vec<Stored>, is_settled: bool },
}

#[derive(Debug, thiserror::Error)]
pub enum StoreError {
    /// A condition of the batch did not hold, or the id existed: nothing was written by it. Conclude nothing from it
    /// alone: a batch that the driver itself resent may have won the first time.
    #[error("the batch lost against another")]
    Conflict,
    /// Larger than a batch or document may be: the same batch will never be taken.
    #[error("the batch is too large: {0}")]
    TooLarge(String),
    /// Nothing was sent: an id is not plain, a head lacks what lists need, or a continuation is not of this query. The
    /// text says which; the same call will never be taken.
    #[error("the store does not take this: {0}")]
    Invalid(String),
    /// Whether it was written is not known. Send the identical batch again, or read.
    #[error("the store did not answer")]
    Unavailable(#[source] Box<dyn std::error::Error + Send + Sync>),
    /// What is stored cannot be read: a person has to look.
    #[error("the store holds what cannot be read: {0}")]
    Corrupt(String),
}

#[async_trait]
pub trait ConversationStore: Send + Sync + fmt::Debug {
    /// All writes or none, in one partition; answers with the ETag of each written document in order (a deleted one has
    /// an empty ETag).
    async fn write(
        &self,
        partition: &Partition,
        writes: Vec<Write>,
    ) -> Result<Vec<ETag>, StoreError>;

    async fn read(
        &self,
        partition: &Partition,
        id: &str,
        freshness: Freshness,
    ) -> Result<Option<Stored>, StoreError>;

    async fn select(
        &self,
        partition: &Partition,
        selection: &Selection,
        freshness: Freshness,
    ) -> Result<Vec<Stored>, StoreError>;

    /// Whether the caller may act on the conversation, with its head and what waits for it, read [`Freshness::Latest`]:
    /// one request where requests are paid for.
    async fn claim(&self, request: ClaimRequest<'_>) -> Result<Claimed, StoreError>;

    /// Extends a settled claim without a commit, where the store keeps claims apart from heads; `false`: this store does
    /// not, extend it by a commit; [`StoreError::Conflict`]: it is no longer the caller's.
    async fn renew(&self, request: ClaimRequest<'_>) -> Result<bool, StoreError>;

    /// Who has the claim, and until when, where the store keeps claims apart from heads; `None`: nobody has, or it stands in
    /// the head. For people: nothing is decided by it.
    fn holder(&self, _key: &ConversationKey) -> Option<(WorkerId, Timestamp)> {
        None
    }

    /// Whether the process before this one died while a worker had the lease on the conversation, where leases end with their
    /// process; elsewhere the lease that is left in the head says so.
    fn has_died_with(&self, _key: &ConversationKey) -> bool {
        false
    }

    /// Gives the claim back where the store keeps it apart; otherwise the last commit has done it. Never fails: an
    /// unreleased claim ends by itself.
    async fn release(&self, key: &ConversationKey, worker: &WorkerId);

    /// Documents with `due <= at`, by pages, each once per sweep; `continuation` is bound to `at`.
    async fn due(
        &self,
        at: Timestamp,
        limit: usize,
        continuation: Option<&str>,
    ) -> Result<Page<Owed>, StoreError>;

    async fn heads(&self, query: &HeadQuery) -> Result<Page<Stored>, StoreError>;
}
