//! Search of a user's messages over their conversations.

use serde::{Deserialize, Serialize};

use crate::clock::Timestamp;
use crate::ids::{ConversationId, TenantId, UserId};

/// Selects the newest entries of a user whose search text contains a text.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct SearchQuery {
    pub tenant: TenantId,
    pub user: UserId,
    /// In lower case, as search texts are. No character has a special meaning.
    pub text: String,
    /// The conversation that is not searched.
    pub excluded: ConversationId,
    pub limit: usize,
}

/// An entry that was found.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct SearchHit {
    pub conversation: ConversationId,
    /// Id of the entry's document.
    pub id: String,
    pub at: Timestamp,
    /// The search text.
    pub text: String,
}

/// The result of a search, newest first. Copies of an entry, with equal time and text, are one hit.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct SearchResult {
    pub hits: Vec<SearchHit>,
    /// False if the search stopped at a bound, before the limit and before the oldest entry.
    pub is_complete: bool,
}

/// Collects hits, newest first, up to a limit.
pub(super) struct HitCollector {
    hits: Vec<SearchHit>,
    limit: usize,
}

impl HitCollector {
    pub(super) fn new(limit: usize) -> Self {
        Self { hits: Vec::new(), limit }
    }

    pub(super) fn is_full(&self) -> bool {
        self.hits.len() >= self.limit
    }

    /// True if a copy of the entry is a hit.
    pub(super) fn has_copy(&self, at: Timestamp, text: &str) -> bool {
        self.hits.iter().any(|hit| hit.at == at && hit.text == text)
    }

    pub(super) fn add(&mut self, hit: SearchHit) {
        self.hits.push(hit);
    }

    /// `is_complete`: all entries were searched. A full result is complete, too.
    pub(super) fn into_result(self, is_complete: bool) -> SearchResult {
        SearchResult { is_complete: is_complete || self.is_full(), hits: self.hits }
    }
}
