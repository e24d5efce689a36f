//! Pages of conversations: newest first, or in the order of their last change.

use std::cmp::Reverse;

use futures_util::{StreamExt as _, TryStreamExt as _, stream};

use crate::conversation::{ConversationView, conversation_list_view};
use turnwheel_conversation::entry::PromptState;
use turnwheel_conversation::head::Head;
use turnwheel_platform::clock::Timestamp;
use turnwheel_record::contract::CommandError;
use turnwheel_record::documents;
use turnwheel_record::services::Services;
use turnwheel_storage::store::HeadQuery;

/// Pages of the store that one filtered page reads. Then it may be short, or empty.
const PAGES_MAX: usize = 10;
/// Heads of a page of the store, for lists in the order of the last change.
const PAGE_SIZE: usize = 100;
/// Views that are built at a time. Only those of active conversations need requests.
const VIEWS_AT_ONCE: usize = 8;

/// Selects conversations. It is not part of the store's query, because stores find heads only by
/// owner and state. Absent members select all.
#[derive(Clone, Debug, Default)]
pub struct ConversationFilter {
    /// True: with a model response; false: without.
    pub has_answer: Option<bool>,
    /// The last prompt failed.
    pub is_failed: bool,
    pub agent: Option<String>,
    /// A part of the id, the name or the preview, whatever its case.
    pub text: Option<String>,
    pub updated_after: Option<Timestamp>,
}

impl ConversationFilter {
    fn is_empty(&self) -> bool {
        let Self { has_answer, is_failed, agent, text, updated_after } = self;
        has_answer.is_none()
            && !is_failed
            && agent.is_none()
            && text.is_none()
            && updated_after.is_none()
    }

    fn selects(&self, head: &Head) -> bool {
        let has_failed = || head.prompts.last().is_some_and(|it| it.state == PromptState::Failed);
        let has_text = |part: &String| {
            let part = part.to_lowercase();
            let texts = [Some(head.conversation_id.as_str()), head.name.as_deref(), head.preview()];
            texts.into_iter().flatten().any(|text| text.to_lowercase().contains(&part))
        };
        self.has_answer.is_none_or(|wanted| wanted == head.has_model_response())
            && (!self.is_failed || has_failed())
            && self.agent.as_ref().is_none_or(|agent| *agent == head.agent)
            && self.text.as_ref().is_none_or(has_text)
            && self.updated_after.is_none_or(|at| head.updated_at > at)
    }
}

/// The conversations of the query, newest first, and the continuation of the next page.
///
/// # Errors
/// Returns [`CommandError::Unavailable`] if the store does not respond: repeat the request.
pub async fn list_conversations(
    services: &Services,
    mut query: HeadQuery,
    filter: &ConversationFilter,
) -> Result<(Vec<ConversationView>, Option<String>), CommandError> {
    let limit = query.limit;
    let mut heads = Vec::new();
    for _ in 0..PAGES_MAX {
        // A page never has more than the rest of the limit, so its continuation skips nothing.
        query.limit = limit - heads.len();
        let found = services.store.list_heads(&query).await?;
        for stored in &found.items {
            let head = documents::read_head(stored)?;
            if filter.selects(&head) {
                heads.push(head);
            }
        }
        query.continuation = found.continuation;
        if query.continuation.is_none() || filter.is_empty() || heads.len() >= limit {
            break;
        }
    }
    Ok((build_views(services, &heads).await?, query.continuation))
}

/// The conversations of the query, the last changed first, and the continuation of the next page. Only the newest 1,000 of
/// the query are considered.
///
/// # Errors
/// Returns [`CommandError::Unavailable`] if the store does not respond: repeat the request.
pub async fn list_by_last_change(
    services: &Services,
    mut query: HeadQuery,
    filter: &ConversationFilter,
) -> Result<(Vec<ConversationView>, Option<String>), CommandError> {
    let (limit, after) = (query.limit, query.continuation.take());
    query.limit = PAGE_SIZE;
    let mut heads = Vec::new();
    for _ in 0..PAGES_MAX {
        let found = services.store.list_heads(&query).await?;
        for stored in &found.items {
            heads.push(documents::read_head(stored)?);
        }
        query.continuation = found.continuation;
        if query.continuation.is_none() {
            break;
        }
    }
    heads.retain(|head| filter.selects(head));
    heads.sort_by_cached_key(|head| Reverse(position(head)));
    let start = after.map_or(0, |after| heads.partition_point(|head| position(head) >= after));
    let page: Vec<Head> = heads.drain(start..).collect();
    let (page, rest) = page.split_at(limit.min(page.len()));
    let next = page.last().filter(|_| !rest.is_empty()).map(position);
    Ok((build_views(services, page).await?, next))
}

/// Position in the order of the last change, which sorts as text.
fn position(head: &Head) -> String {
    format!("{:020}|{}|{}", head.updated_at.0, head.user, head.conversation_id)
}

async fn build_views(
    services: &Services,
    heads: &[Head],
) -> Result<Vec<ConversationView>, CommandError> {
    // Made first: a stream that makes them has a lifetime that routers do not accept.
    let mut views = Vec::with_capacity(heads.len());
    for head in heads {
        views.push(conversation_list_view(services, head));
    }
    stream::iter(views).buffered(VIEWS_AT_ONCE).try_collect().await
}
