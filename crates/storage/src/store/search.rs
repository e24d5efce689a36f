//! Search of the entries of a user: what is stored for it, the query and its result.

use serde::{Deserialize, Serialize};

use turnwheel_platform::clock::Timestamp;
use turnwheel_platform::ids::{ConversationId, ConversationKey, TenantId, UserId};

/// Characters of a text that a search compares.
const SEARCH_CHARS_MAX: usize = 512;
/// Characters of the beginning that a hit shows, and one more, which proves that the text is longer.
const EXCERPT_CHARS_MAX: usize = 101;

/// Parts of an entry that a search compares and shows. It is stored beside the body, because bodies are
/// large and have no index.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct SearchText {
    /// The first 512 characters in lower case.
    pub lower: String,
    /// The first 101 characters.
    pub excerpt: String,
}

impl SearchText {
    /// `None`: the text is blank. Each run of whitespace counts as one space.
    pub fn new(text: &str) -> Option<Self> {
        let text = joined_words(text);
        let first = |count| text.chars().take(count).collect::<String>();
        (!text.is_empty()).then(|| Self {
            lower: first(SEARCH_CHARS_MAX).to_lowercase(),
            excerpt: first(EXCERPT_CHARS_MAX),
        })
    }

    pub fn bytes(&self) -> usize {
        self.lower.len() + self.excerpt.len()
    }
}

fn joined_words(text: &str) -> String {
    // Enough words for every bound: a word has at least one character.
    text.split_whitespace().take(SEARCH_CHARS_MAX).collect::<Vec<_>>().join(" ")
}

/// Searches the entries of a user, except those of one conversation.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct SearchQuery {
    pub tenant: TenantId,
    pub user: UserId,
    pub except: ConversationId,
    /// The text that an entry contains, in lower case.
    pub(super) lower: String,
    /// At least 1.
    pub limit: usize,
}

impl SearchQuery {
    /// Searches for a text without regard to case and to the kind of whitespace.
    pub fn new(conversation: &ConversationKey, text: &str, limit: usize) -> Self {
        Self {
            tenant: conversation.tenant.clone(),
            user: conversation.user.clone(),
            except: conversation.conversation_id.clone(),
            lower: joined_words(text).to_lowercase(),
            limit,
        }
    }
}

/// An entry that a search found.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct SearchHit {
    pub conversation_id: ConversationId,
    pub created_at: Timestamp,
    /// The first 101 characters of the text.
    pub excerpt: String,
}

/// The hits of a search, newest first.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct SearchHits {
    pub hits: Vec<SearchHit>,
    /// False: the search ended at its bound of cost, and older entries were not compared.
    pub is_complete: bool,
}
