//! Messages of a user in other conversations, for the tool `recall`.

use turnwheel_platform::ids::{ConversationId, ConversationKey};
use turnwheel_record::services::Services;
use turnwheel_storage::store::validate::DELETED;
use turnwheel_storage::store::{Freshness, HEAD_ID, Partition, SearchQuery, StoreError};
use turnwheel_tools::recall::{FoundMessages, PastMessage};

/// Hits of the store for one message of the result. Forks and imports copy messages.
const HITS_PER_MESSAGE: usize = 4;

/// Messages of the user with these words, the best first.
///
/// # Errors
/// The store is away.
pub async fn find_messages(
    services: &Services,
    conversation: &ConversationKey,
    text: &str,
    limit: usize,
) -> Result<FoundMessages, StoreError> {
    let query = SearchQuery::new(conversation, text, limit * HITS_PER_MESSAGE);
    let found = services.store.search(&query).await?;
    let mut messages: Vec<PastMessage> = Vec::new();
    // The conversation of the last hit, and whether it is listed: neighbours share the read.
    let mut last: Option<(ConversationId, bool)> = None;
    for hit in found.hits {
        let message = PastMessage { at: hit.created_at, text: hit.excerpt };
        if messages.len() == limit || messages.contains(&message) {
            continue;
        }
        let is_listed = match last.take() {
            Some((id, is_listed)) if id == hit.conversation_id => is_listed,
            Some(_) | None => is_listed(services, conversation, &hit.conversation_id).await?,
        };
        last = Some((hit.conversation_id, is_listed));
        if is_listed {
            messages.push(message);
        }
    }
    Ok(FoundMessages { messages, is_complete: found.is_complete })
}

/// False if the other conversation of the same user is deleted, or its import has not ended. Its
/// entries are removed later.
async fn is_listed(
    services: &Services,
    conversation: &ConversationKey,
    other: &ConversationId,
) -> Result<bool, StoreError> {
    let key = ConversationKey { conversation_id: other.clone(), ..conversation.clone() };
    let partition = Partition::Conversation(key);
    let head = services.store.read(&partition, HEAD_ID, Freshness::Latest).await?;
    Ok(head.is_some_and(|head| head.document.state.as_deref() != Some(DELETED)))
}
