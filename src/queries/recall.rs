//! Messages of a user in other conversations, for the tool `recall`.

use async_trait::async_trait;

use crate::commands::contract::CommandError;
use crate::ids::ConversationKey;
use crate::services::Services;
use crate::store::{SearchHit, SearchQuery};
use crate::tools::recall::{FoundMessages, PastMessage, PastMessages};

/// Hits of the store for one message of the result. Forks and imports copy messages.
const HITS_PER_MESSAGE: usize = 4;

#[async_trait]
impl PastMessages for Services {
    async fn find(
        &self,
        conversation: &ConversationKey,
        text: &str,
        limit: usize,
    ) -> Result<FoundMessages, String> {
        let query = SearchQuery::new(conversation, text, limit * HITS_PER_MESSAGE);
        let found = self.store.search(&query).await;
        let found = found.map_err(|error| CommandError::from(error).to_string())?;
        let mut messages: Vec<PastMessage> = Vec::new();
        for SearchHit { created_at: at, excerpt: text, .. } in found.hits {
            let message = PastMessage { at, text };
            if messages.len() < limit && !messages.contains(&message) {
                messages.push(message);
            }
        }
        Ok(FoundMessages { messages, is_complete: found.is_complete })
    }
}
