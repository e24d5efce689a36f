//! The conversation store: documents in partitions, written in atomic conditional batches. It is
//! the source of truth.
//!
//! Every implementation passes the same contract tests (`store::contract`).

pub mod conditional;
#[cfg(test)]
pub mod contract;
pub mod cosmos;
pub mod cursor;
pub mod embedded;
mod head_lease;
pub mod inbox_count;
pub mod interceptor;
pub mod memory;
pub mod outage_retry;
mod search;
pub mod validate;

use std::fmt;
use std::ops::Range;
use std::time::Duration;

use async_trait::async_trait;
use serde::{Deserialize, Serialize};

pub(crate) use crate::store::search::SearchHit;
pub use crate::store::search::SearchHits;
pub use crate::store::search::{SearchQuery, SearchText};
use turnwheel_json::raw::RawJson;
use turnwheel_platform::clock::Timestamp;
use turnwheel_platform::ids::{ConversationKey, TenantId, UserId, WorkerId};

/// Operations of one batch (Cosmos: 100).
pub const BATCH_OPERATIONS_MAX: usize = 80;
/// Bytes of one batch (Cosmos: 2 MB).
pub const BATCH_BYTES_MAX: usize = 1_500_000;
/// The entries that one document contains are among this many consecutive ones:
/// [`Document::last_entry`].
pub const DOCUMENT_ENTRIES_MAX: usize = 16;
/// Delay between the end of a lease and its take-over by another worker.
pub const TAKE_OVER_DELAY: Duration = Duration::from_secs(5);

/// The unit of atomic writes.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
pub enum Partition {
    Conversation(ConversationKey),
    /// Accounts, usage, schedules of a tenant.
    Scope(TenantId),
    /// Memory and skills of a user.
    User {
        tenant: TenantId,
        user: UserId,
    },
}

/// The kind of a document; its lower-case name is stored.
#[derive(strum::EnumString, strum::IntoStaticStr)]
#[strum(serialize_all = "lowercase", const_into_str)]
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
pub enum DocumentKind {
    Head,
    Entry,
    Events,
    Inbox,
    Receipt,
    #[serde(rename = "Notice")]
    #[strum(serialize = "notice")]
    Notification,
    /// Deltas of a partial model response, for readers on other instances; has a
    /// [`Document::ttl`].
    Live,
    /// Names the instances that want live deltas; has a [`Document::ttl`].
    Watch,
    /// Any document of a [`Partition::Scope`] or a [`Partition::User`].
    Scope,
}

impl DocumentKind {
    /// Parses the kind of a stored document.
    ///
    /// # Errors
    /// The kind is unknown.
    pub fn from_name(text: &str) -> Result<Self, StoreError> {
        text.parse()
            .map_err(|_| StoreError::Corrupt(format!("a document has the unknown kind `{text}`")))
    }
}

/// Id of a conversation's head.
pub const HEAD_ID: &str = "head";

/// Id of the entry with that `seq`. Ids sort like the numbers.
pub fn entry_id(seq: u64) -> String {
    format!("{seq:012}")
}

/// First part of the id of an events document.
pub(crate) const EVENTS_ID_PREFIX: &str = "ev-";

/// Id of the events document whose first event has that number.
pub fn events_id(first: u64) -> String {
    format!("{EVENTS_ID_PREFIX}{first:012}")
}

/// One JSON document and the fields by which queries find it.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Document {
    /// Unique in its partition; passes [`turnwheel_platform::ids::is_plain_text`].
    pub id: String,
    pub kind: DocumentKind,
    pub body: RawJson,
    /// When pending work is due; absent if there is none.
    pub due: Option<Timestamp>,
    /// Set on heads: lists are newest first.
    pub created_at: Option<Timestamp>,
    /// Set on heads: `idle`, `running`, `waiting_for_approval` or `deleted`.
    pub state: Option<String>,
    /// Time to live in whole seconds since the last write, at least one. The store may delete the
    /// document at any later time, or never: correctness must not depend on it. Only
    /// [`DocumentKind::Live`] and [`DocumentKind::Watch`] documents have one, and they always do.
    pub ttl: Option<u32>,
    /// Set on entries that [`ConversationStore::search`] finds; they have a creation time.
    #[serde(default)]
    pub search: Option<Box<SearchText>>,
    /// Set on heads: inbox documents that the last commit left, and changes of the inbox since, each
    /// counted by [`Write::CountInboxChange`]. Zero: the inbox is empty. Absent: an earlier version
    /// wrote the head, so the inbox must be read.
    #[serde(default)]
    pub inbox_count: Option<u32>,
    /// Set on events documents that also contain entries: the id that the last of them would have as
    /// a document of its own. The others are among the [`DOCUMENT_ENTRIES_MAX`] entries up to it.
    #[serde(default)]
    pub last_entry: Option<String>,
}

impl Document {
    /// A document that queries find by kind and `due` only.
    pub fn new(
        id: impl Into<String>,
        kind: DocumentKind,
        body: &impl Serialize,
        due: Option<Timestamp>,
    ) -> Self {
        let body = RawJson::from_value(body);
        Self {
            id: id.into(),
            kind,
            body,
            due,
            created_at: None,
            state: None,
            ttl: None,
            search: None,
            inbox_count: None,
            last_entry: None,
        }
    }

    /// The id of the last entry that this document is or contains. Selections of entries compare it.
    pub fn entry_key(&self) -> Option<&str> {
        match self.kind {
            DocumentKind::Entry => Some(&self.id),
            DocumentKind::Events => self.last_entry.as_deref(),
            DocumentKind::Head
            | DocumentKind::Inbox
            | DocumentKind::Receipt
            | DocumentKind::Notification
            | DocumentKind::Live
            | DocumentKind::Watch
            | DocumentKind::Scope => None,
        }
    }

    /// Makes an entry searchable by a text of that time. A time that no store accepts leaves the
    /// entry as it is.
    #[must_use]
    pub fn with_search(self, text: &str, at: Timestamp) -> Self {
        let search = SearchText::new(text).filter(|_| at <= validate::TIMESTAMP_MAX).map(Box::new);
        Self { created_at: search.as_ref().map(|_| at), search, ..self }
    }
}

/// Opaque identifier of one version of one document.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ETag(pub String);

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct StoredDocument {
    pub document: Document,
    pub etag: ETag,
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub enum Write {
    /// Fails with a conflict if the id exists.
    Create(Document),
    /// Fails with a conflict if the id does not exist, or has another ETag than the given one.
    Replace(Document, Option<ETag>),
    /// Fails with a conflict if the id does not exist, or has another ETag than the given one.
    Delete(String, Option<ETag>),
    /// Counts a change of the inbox in the head, whose ETag changes: a commit that has not seen the
    /// change loses. `due`: when the change wants a worker; while a lease in the head covers it, the
    /// head's own `due` stays. Fails with a conflict if the conversation has no head, is deleted, or
    /// has a known count outside of `room`, if there is one.
    CountInboxChange { due: Option<Timestamp>, room: Option<Range<u32>> },
}

/// The staleness that a read allows.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Freshness {
    /// Returns everything committed before the read began. For reads that decide something.
    Latest,
    /// May return an older version. For documents that never change, and for polls.
    Any,
}

/// Selects the documents of one kind in an inclusive range of ids, in ascending order of id. With
/// [`DocumentKind::Entry`] selects all documents that are or contain entries, in the range and order
/// of their [`Document::entry_key`].
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Selection {
    pub kind: DocumentKind,
    pub from_id: Option<String>,
    pub to_id: Option<String>,
    /// With [`DocumentKind::Entry`]: takes the place of `to_id` for documents that contain entries.
    #[serde(default)]
    pub to_last_entry: Option<String>,
    pub limit: usize,
}

impl Selection {
    pub fn all(kind: DocumentKind) -> Self {
        Self { kind, from_id: None, to_id: None, to_last_entry: None, limit: usize::MAX }
    }

    /// Documents with the entries `from <= seq <= to`. Those of commits also contain others.
    pub fn entries(from: u64, to: u64) -> Self {
        Self {
            from_id: Some(entry_id(from)),
            to_id: Some(entry_id(to)),
            to_last_entry: Some(entry_id(to.saturating_add(DOCUMENT_ENTRIES_MAX as u64 - 1))),
            ..Self::all(DocumentKind::Entry)
        }
    }
}

/// Selects the heads of a tenant, or of one of its users, newest first. Excludes purged and
/// deleted conversations.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct HeadQuery {
    pub tenant: TenantId,
    pub user: Option<UserId>,
    pub state: Option<String>,
    pub limit: usize,
    /// Continuation of an earlier page of the same query.
    pub continuation: Option<String>,
}

/// One page of results. A page may be short or empty before the end; the last page has no
/// continuation.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct ResultPage<T> {
    pub items: Vec<T>,
    pub continuation: Option<String>,
}

/// A document whose pending work is due.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct DueItem {
    pub partition: Partition,
    pub id: String,
    pub kind: DocumentKind,
    pub due: Timestamp,
    /// True for a head with a lease: a worker renews it, or has died. Also true for a head whose
    /// body the store does not read.
    #[serde(default)]
    pub is_leased: bool,
}

#[derive(Debug)]
pub struct LeaseRequest<'a> {
    pub key: &'a ConversationKey,
    pub worker: &'a WorkerId,
    pub now: Timestamp,
    pub until: Timestamp,
    /// End of a lease that is over although it lies ahead: a clock that was ahead has set it. Only
    /// stores with leases in heads use it.
    pub expired: Option<Timestamp>,
}

/// The result of [`ConversationStore::acquire_lease`].
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub enum LeaseOutcome {
    /// The conversation does not exist.
    Missing,
    /// Another worker's lease is live, or ended less than [`TAKE_OVER_DELAY`] ago.
    #[serde(rename = "Held")]
    Leased { until: Timestamp },
    /// No other worker has the lease.
    ///
    /// If `is_acquired`, the caller has the lease. Otherwise the caller gets it by a commit that
    /// stores it, and must start no effect before that commit has won.
    #[serde(rename = "Free")]
    Available {
        head: StoredDocument,
        #[serde(rename = "is_settled")]
        is_acquired: bool,
    },
}

#[derive(Debug, thiserror::Error)]
pub enum StoreError {
    /// A condition of the batch failed, or an id existed. This attempt wrote nothing. Conclude
    /// nothing from it alone: if the SDK sent the batch twice, the first attempt may have won.
    #[error("the batch conflicts with a concurrent write")]
    Conflict,
    /// The batch or a document exceeds a size limit. Do not send the same batch again.
    #[error("the batch is too large: {0}")]
    TooLarge(String),
    /// Nothing was sent. An id is not plain, a head lacks a field that lists need, or a
    /// continuation belongs to another query; the text says which. Do not repeat the same call.
    #[error("invalid store request: {0}")]
    Invalid(String),
    /// The outcome is unknown: the batch may have been written. Send the identical batch again, or
    /// read.
    #[error("the store is unavailable")]
    Unavailable(#[source] Box<dyn std::error::Error + Send + Sync>),
    /// A stored document cannot be read. An operator must inspect it.
    #[error("a stored document is corrupt: {0}")]
    Corrupt(String),
}

impl StoreError {
    /// True if the same request fails again, until an operator or a newer version repairs the store.
    pub fn is_permanent(&self) -> bool {
        match self {
            Self::TooLarge(_) | Self::Invalid(_) | Self::Corrupt(_) => true,
            Self::Conflict | Self::Unavailable(_) => false,
        }
    }
}

#[async_trait]
pub trait ConversationStore: Send + Sync + fmt::Debug {
    /// Applies all writes or none, in one partition. Returns the ETag of each written document, in
    /// order; a deleted document has an empty ETag. A batch that creates or replaces an inbox
    /// document also writes the head, or counts the change in it.
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
    ) -> Result<Option<StoredDocument>, StoreError>;

    async fn select(
        &self,
        partition: &Partition,
        selection: &Selection,
        freshness: Freshness,
    ) -> Result<Vec<StoredDocument>, StoreError>;

    /// Acquires the lease on a conversation if no other worker has it, and returns the head, read
    /// with [`Freshness::Latest`]. Costs one request on stores that bill requests.
    async fn acquire_lease(&self, request: LeaseRequest<'_>) -> Result<LeaseOutcome, StoreError>;

    /// Extends an acquired lease without a commit, on stores that keep leases outside the head.
    /// Returns `false` on other stores: extend the lease by a commit.
    ///
    /// # Errors
    /// [`StoreError::Conflict`] if the caller no longer has the lease: stop its work.
    async fn renew_lease(&self, request: LeaseRequest<'_>) -> Result<bool, StoreError>;

    /// Returns the worker that has the lease and the end of the lease, on stores that keep leases
    /// outside the head. `None` if no worker has it, or if the head stores it. For display only:
    /// decide nothing by it.
    fn lease_holder(&self, _key: &ConversationKey) -> Option<(WorkerId, Timestamp)> {
        None
    }

    /// True if the previous process died while one of its workers had the lease on the
    /// conversation. For stores whose leases end with the process; on others the head still stores
    /// the lease.
    fn has_lease_from_crash(&self, _key: &ConversationKey) -> bool {
        false
    }

    /// True if no other process can use the store at the same time.
    fn is_of_one_process(&self) -> bool {
        false
    }

    /// True if leases are stored in heads, so that a commit against a head takes the lease.
    fn has_leases_in_heads(&self) -> bool {
        false
    }

    /// Releases the lease on stores that keep leases outside the head; on others the last commit
    /// has released it. Never fails: a lease that is not released expires.
    async fn release_lease(&self, key: &ConversationKey, worker: &WorkerId);

    /// Lists documents with `due <= at`, in pages, each once per sweep. `continuation` is bound to
    /// `at`.
    async fn list_due(
        &self,
        at: Timestamp,
        limit: usize,
        continuation: Option<&str>,
    ) -> Result<ResultPage<DueItem>, StoreError>;

    async fn list_heads(&self, query: &HeadQuery)
    -> Result<ResultPage<StoredDocument>, StoreError>;

    /// Finds the newest entries of a user whose [`SearchText`] contains a text. Entries of deleted
    /// conversations are found until they are removed: read the head.
    async fn search(&self, query: &SearchQuery) -> Result<SearchHits, StoreError>;
}
