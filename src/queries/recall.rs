//! Search of a user's messages for the tool `recall`.

use async_trait::async_trait;

use crate::agent::entry::Entry;
use crate::agent::message::Message;
use crate::agent::search_text::{lower_case, search_text_of};
use crate::error_chain::error_chain;
use crate::ids::ConversationKey;
use crate::services::Services;
use crate::store::{Freshness, Partition, SearchHit, SearchQuery};
use crate::tools::recall::{MATCHES_MAX, MessageSearch, PastMessage, Recollection};
use crate::turn::documents;

#[async_trait]
impl MessageSearch for Services {
    async fn recall(
        &self,
        conversation: &ConversationKey,
        query: &str,
    ) -> Result<Recollection, String> {
        let ConversationKey { tenant, user, conversation_id } = conversation.clone();
        let text = lower_case(query).collect();
        let excluded = conversation_id;
        let query = SearchQuery { tenant, user, text, excluded, limit: MATCHES_MAX };
        let found = self.store.search(&query).await.map_err(|error| {
            tracing::warn!(error = %error_chain(&error), "recall failed");
            "The earlier conversations cannot be searched now. Try again later.".to_owned()
        })?;
        let now = self.clock.now();
        let mut messages = Vec::new();
        for hit in found.hits {
            let text = read_text(self, &query, &hit).await.unwrap_or(hit.text);
            let (at, age) = (hit.at, hit.at.until(now));
            messages.push(PastMessage { conversation: hit.conversation, at, age, text });
        }
        Ok(Recollection { messages, is_complete: found.is_complete })
    }
}

/// The text of the message as it was written. `None` if it cannot be read, or if the person wrote
/// another text, which a skill, a template or an extension replaced.
async fn read_text(services: &Services, query: &SearchQuery, hit: &SearchHit) -> Option<String> {
    let partition = Partition::Conversation(ConversationKey {
        tenant: query.tenant.clone(),
        user: query.user.clone(),
        conversation_id: hit.conversation.clone(),
    });
    let stored = services.store.read(&partition, &hit.id, Freshness::Any).await.ok()??;
    let entry: Entry = documents::read(&stored.document).ok()?;
    let Some(Message::User(message)) = entry.body.message() else { return None };
    let is_same = search_text_of(&message.content).as_ref() == Some(&hit.text);
    is_same.then(|| message.content.joined_text())
}
