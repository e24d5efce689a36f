//! Partition keys as three strings, and cursors of paged lists.

use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};

use crate::store::{HeadQuery, Partition, StoreError};
use turnwheel_platform::clock::Timestamp;
use turnwheel_platform::ids::{ConversationId, ConversationKey, TenantId, UserId};

/// Maximum number of items of a page, whatever limit is requested.
pub(crate) const PAGE_ITEMS_MAX: usize = 1000;

impl Partition {
    /// Returns tenant, user and conversation. For a scope the last two are empty, for a user the
    /// last one. No plain id is empty.
    pub fn parts(&self) -> [&str; 3] {
        match self {
            Self::Conversation(key) => {
                [key.tenant.as_str(), key.user.as_str(), key.conversation_id.as_str()]
            }
            Self::Scope(tenant) => [tenant.as_str(), "", ""],
            Self::User { tenant, user } => [tenant.as_str(), user.as_str(), ""],
        }
    }

    pub fn from_parts(tenant: String, user: String, conversation: String) -> Self {
        let tenant = TenantId::new(tenant);
        if user.is_empty() {
            return Self::Scope(tenant);
        }
        let user = UserId::new(user);
        if conversation.is_empty() {
            return Self::User { tenant, user };
        }
        let conversation_id = ConversationId::new(conversation);
        Self::Conversation(ConversationKey { tenant, user, conversation_id })
    }
}

/// Position after the last item of a page of due items, in their order.
#[derive(Clone, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub(crate) struct DueCursor {
    pub due: u64,
    pub tenant: String,
    pub user: String,
    pub conversation: String,
    pub id: String,
}

/// Position after the last head of a page. Lists are in descending order.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub(crate) struct HeadCursor {
    pub created_at: u64,
    pub conversation: String,
    pub user: String,
}

impl HeadCursor {
    /// The position before every head: stores reject times this late.
    pub(crate) fn start() -> Self {
        Self { created_at: 1 << 53, conversation: String::new(), user: String::new() }
    }
}

pub(crate) fn encode_due_cursor(at: Timestamp, cursor: &DueCursor) -> String {
    encode(&("due", at), cursor)
}

pub(crate) fn parse_due_cursor(at: Timestamp, text: Option<&str>) -> Result<DueCursor, StoreError> {
    text.map_or_else(|| Ok(DueCursor::default()), |text| decode(&("due".to_owned(), at), text))
}

pub(crate) fn encode_head_cursor(query: &HeadQuery, cursor: &HeadCursor) -> String {
    encode(&(&query.tenant, &query.user, &query.state), cursor)
}

pub(crate) fn parse_head_cursor(query: &HeadQuery) -> Result<HeadCursor, StoreError> {
    let list = (query.tenant.clone(), query.user.clone(), query.state.clone());
    query
        .continuation
        .as_deref()
        .map_or_else(|| Ok(HeadCursor::start()), |text| decode(&list, text))
}

/// Returns `base64url([list, cursor])`: opaque to clients. The list detects a continuation that a
/// client sends with another query.
pub fn encode(list: &impl Serialize, cursor: &impl Serialize) -> String {
    URL_SAFE_NO_PAD.encode(serde_json::to_vec(&(list, cursor)).unwrap_or_default())
}

/// Reads the position from the text of a cursor.
///
/// # Errors
/// The text is no cursor of this query.
pub fn decode<Q: DeserializeOwned + PartialEq, P: DeserializeOwned>(
    expected: &Q,
    text: &str,
) -> Result<P, StoreError> {
    URL_SAFE_NO_PAD
        .decode(text)
        .ok()
        .and_then(|json| serde_json::from_slice::<(Q, P)>(&json).ok())
        .and_then(|(list, cursor)| (list == *expected).then_some(cursor))
        .ok_or_else(foreign_continuation)
}

pub(crate) fn foreign_continuation() -> StoreError {
    StoreError::Invalid(
        "the continuation does not belong to this query: start again without one".to_owned(),
    )
}
