//! A page of conversations, newest first.

use crate::conversation::{ConversationView, conversation_list_view};
use turnwheel_record::contract::CommandError;
use turnwheel_record::documents;
use turnwheel_record::services::Services;
use turnwheel_storage::store::HeadQuery;

/// Pages of the store that one filtered page reads. Then it may be short, or empty.
const PAGES_MAX: usize = 10;

/// The conversations of the query, and the continuation of the next page. `has_answer` selects those
/// with a model response, or those without. The filter is not part of the store's query, because
/// stores find heads only by owner and state.
///
/// # Errors
/// Returns [`CommandError::Unavailable`] if the store does not respond: repeat the request.
pub async fn list_conversations(
    services: &Services,
    mut query: HeadQuery,
    has_answer: Option<bool>,
) -> Result<(Vec<ConversationView>, Option<String>), CommandError> {
    let limit = query.limit;
    let mut items = Vec::new();
    for _ in 0..PAGES_MAX {
        // A page never has more than the rest of the limit, so its continuation skips nothing.
        query.limit = limit - items.len();
        let found = services.store.list_heads(&query).await?;
        for stored in &found.items {
            let head = documents::read_head(stored)?;
            if has_answer.is_none_or(|wanted| wanted == head.has_model_response()) {
                items.push(conversation_list_view(services, &head).await?);
            }
        }
        query.continuation = found.continuation;
        if query.continuation.is_none() || has_answer.is_none() || items.len() >= limit {
            break;
        }
    }
    Ok((items, query.continuation))
}
