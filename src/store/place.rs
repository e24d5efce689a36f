//! Partition keys as three strings, and cursors of paged lists.

use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};

use crate::clock::Timestamp;
use crate::ids::{ConversationId, ConversationKey, TenantId, UserId};
use crate::store::{HeadQuery, Partition, StoreError};

/// Maximum number of items of a page, whatever limit is requested.
pub(crate) const PAGE_MAX: usize = 1000;

impl Partition {
    /// Returns tenant, user and conversation. For a scope the last two are empty, which no plain id
    /// is.
    pub(crate) fn parts(&self) -> [&str; 3] {
        match self {
            Self::Conversation(key) => {
                [key.tenant.as_str(), key.user.as_str(), key.conversation_id.as_str()]
            }
            Self::Scope(tenant) => [tenant.as_str(), "", ""],
        }
    }

    pub(crate) fn from_parts(tenant: String, user: String, conversation: String) -> Self {
        let tenant = TenantId::new(tenant);
        if conversation.is_empty() {
            return Self::Scope(tenant);
        }
        Self::Conversation(ConversationKey {
            tenant,
            user: UserId::new(user),
            conversation_id: ConversationId::new(conversation),
        })
    }
}

/// Position after the last item of a page of due items, in their order.
#[derive(Clone, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub(crate) struct DuePlace {
    pub(crate) due: u64,
    pub(crate) tenant: String,
    pub(crate) user: String,
    pub(crate) conversation: String,
    pub(crate) id: String,
}

/// Position after the last head of a page. Lists are in descending order.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub(crate) struct HeadPlace {
    pub(crate) created_at: u64,
    pub(crate) conversation: String,
    pub(crate) user: String,
}

impl HeadPlace {
    /// The position before every head: stores reject times this late.
    pub(crate) fn first() -> Self {
        Self { created_at: 1 << 53, conversation: String::new(), user: String::new() }
    }
}

pub(crate) fn due_continuation(at: Timestamp, place: &DuePlace) -> String {
    encode(&("due", at), place)
}

pub(crate) fn due_place(at: Timestamp, text: Option<&str>) -> Result<DuePlace, StoreError> {
    text.map_or_else(|| Ok(DuePlace::default()), |text| decode(&("due".to_owned(), at), text))
}

pub(crate) fn heads_continuation(query: &HeadQuery, place: &HeadPlace) -> String {
    encode(&(&query.tenant, &query.user, &query.state), place)
}

pub(crate) fn heads_place(query: &HeadQuery) -> Result<HeadPlace, StoreError> {
    let asked = (query.tenant.clone(), query.user.clone(), query.state.clone());
    query
        .continuation
        .as_deref()
        .map_or_else(|| Ok(HeadPlace::first()), |text| decode(&asked, text))
}

/// Returns `base64url([list, cursor])`: opaque to clients. The list detects a continuation that a
/// client sends with another query.
pub(crate) fn encode(list: &impl Serialize, place: &impl Serialize) -> String {
    URL_SAFE_NO_PAD.encode(serde_json::to_vec(&(list, place)).unwrap_or_default())
}

pub(crate) fn decode<Q: DeserializeOwned + PartialEq, P: DeserializeOwned>(
    asked: &Q,
    text: &str,
) -> Result<P, StoreError> {
    URL_SAFE_NO_PAD
        .decode(text)
        .ok()
        .and_then(|json| serde_json::from_slice::<(Q, P)>(&json).ok())
        .and_then(|(list, place)| (list == *asked).then_some(place))
        .ok_or_else(not_of_this_query)
}

pub(crate) fn not_of_this_query() -> StoreError {
    StoreError::Invalid(
        "the continuation does not belong to this query: start again without one".to_owned(),
    )
}
