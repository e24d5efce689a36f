//! Loading of heads, of entries without gaps, and of queued inbox items.

use std::sync::Arc;

use serde::de::DeserializeOwned;

use crate::contract::CommandError;
use crate::documents;
use crate::services::Services;
use turnwheel_conversation::content::Content;
use turnwheel_conversation::entry::{Entry, Source};
use turnwheel_conversation::finished_prompt::FinishedPrompt;
use turnwheel_conversation::head::Head;
use turnwheel_conversation::inbox::{InboxBody, InboxItem, InputQueue};
use turnwheel_conversation::phase::Phase;
use turnwheel_conversation::step::{CompactInput, NavigateInput};
use turnwheel_platform::ids::{ConversationId, ConversationKey, PromptId, TenantId, UserId};
use turnwheel_storage::store::{
    ConversationStore, DocumentKind, ETag, Freshness, HEAD_ID, HeadQuery, Partition, Selection,
    StoreError, StoredDocument,
};

/// Parses the body of a stored document.
///
/// # Errors
/// The document is invalid.
pub fn parse_body<T: DeserializeOwned>(stored: &StoredDocument) -> Result<T, CommandError> {
    Ok(documents::read(&stored.document)?)
}

/// Reads the head, even of a deleted conversation.
///
/// # Errors
/// The store is unavailable, or the head is invalid.
pub async fn any_head(
    services: &Services,
    key: &ConversationKey,
) -> Result<Option<(Head, ETag)>, CommandError> {
    let partition = Partition::Conversation(key.clone());
    let Some(stored) = services.store.read(&partition, HEAD_ID, Freshness::Latest).await? else {
        return Ok(None);
    };
    match documents::read_head(&stored) {
        Ok(head) => Ok(Some((head, stored.etag))),
        Err(_) if documents::needs_newer_reader(&stored, services.limits.reader_version) => {
            Err(newer_version_error())
        }
        Err(error) => Err(error.into()),
    }
}

/// Error for a conversation that needs a newer version. This version neither changes nor shows it.
pub fn newer_version_error() -> CommandError {
    CommandError::Unavailable {
        what: "The newer version that this conversation needs",
        source: None,
    }
}

/// Reads the head of a conversation that exists for clients.
///
/// # Errors
/// Returns [`CommandError::Unavailable`] if the store does not respond: repeat the request.
pub async fn find_head(
    services: &Services,
    key: &ConversationKey,
) -> Result<Option<(Head, ETag)>, CommandError> {
    Ok(any_head(services, key).await?.filter(|(head, _)| head.phase != Phase::Deleted))
}

/// Like [`find_head`], but fails if there is none.
///
/// # Errors
/// Returns [`CommandError::NotFound`], or `Unavailable` if the store does not respond: repeat the
/// request.
pub async fn head(
    services: &Services,
    key: &ConversationKey,
) -> Result<(Head, ETag), CommandError> {
    find_head(services, key).await?.ok_or(CommandError::NotFound("conversation"))
}

/// Entries with `from <= seq <= to`, ascending and without gaps. Entries that a lagging replica
/// lacks are read again.
///
/// # Errors
/// Returns [`CommandError::Unavailable`] if the store does not respond: repeat the request. Returns
/// [`CommandError::Corrupt`] if an entry is missing for good: an operator must inspect the store.
pub async fn entries(
    services: &Services,
    key: &ConversationKey,
    from: u64,
    to: u64,
) -> Result<Vec<Arc<Entry>>, CommandError> {
    if from > to {
        return Ok(Vec::new());
    }
    let partition = Partition::Conversation(key.clone());
    let expected = usize::try_from(to - from + 1).unwrap_or(usize::MAX);
    for freshness in [Freshness::Any, Freshness::Latest] {
        let found =
            services.store.select(&partition, &Selection::entries(from, to), freshness).await?;
        let entries = documents::read_entries_between(&found, from, to)?;
        if entries.len() == expected {
            return Ok(entries);
        }
    }
    // A deletion may be running; otherwise an operator must inspect the store.
    head(services, key).await?;
    Err(CommandError::Corrupt(StoreError::Corrupt(format!(
        "entries {from} to {to} of {key} have a gap"
    ))))
}

/// Stored entries with `from <= seq <= to`, ascending, as far as a replica has them.
///
/// # Errors
/// The store is unavailable, or an entry is invalid.
pub async fn stored_entries(
    store: &dyn ConversationStore,
    partition: &Partition,
    from: u64,
    to: u64,
) -> Result<Vec<Arc<Entry>>, StoreError> {
    let found = store.select(partition, &Selection::entries(from, to), Freshness::Any).await?;
    documents::read_entries_between(&found, from, to)
}

/// All entries of a conversation. Entries in the cache of the process are not read again.
///
/// # Errors
/// Returns [`CommandError::Unavailable`] if the store does not respond: repeat the request.
pub async fn all_entries(
    services: &Services,
    head: &Head,
) -> Result<Arc<Vec<Arc<Entry>>>, CommandError> {
    Ok(services.entry_cache.load_entries(&*services.store, head).await?)
}

/// Accepted inbox items that no worker has applied, oldest first.
///
/// # Errors
/// Returns [`CommandError::Unavailable`] if the store does not respond: repeat the request.
pub async fn inbox(
    services: &Services,
    key: &ConversationKey,
) -> Result<Vec<InboxItem>, CommandError> {
    let partition = Partition::Conversation(key.clone());
    let found = services
        .store
        .select(&partition, &Selection::all(DocumentKind::Inbox), Freshness::Latest)
        .await?;
    let mut items: Vec<InboxItem> = found.iter().map(parse_body).collect::<Result<_, _>>()?;
    items.sort_by(|one, other| {
        (one.accepted_at, &one.input_id).cmp(&(other.accepted_at, &other.input_id))
    });
    Ok(items)
}

/// As [`inbox`], for a head that was just read. Makes no request if its inbox is empty.
///
/// # Errors
/// Returns [`CommandError::Unavailable`] if the store does not respond: repeat the request.
pub async fn inbox_of(services: &Services, head: &Head) -> Result<Vec<InboxItem>, CommandError> {
    if head.inbox_count == Some(0) {
        return Ok(Vec::new());
    }
    inbox(services, &head.key()).await
}

/// The inbox, and the head as read after it: a prompt that was accepted before is in exactly one of
/// them. In the other order, a prompt that is applied between the two reads would be in neither.
///
/// # Errors
/// Returns [`CommandError::NotFound`], or `Unavailable` if the store does not respond: repeat the
/// request.
pub async fn inbox_then_head(
    services: &Services,
    key: &ConversationKey,
) -> Result<(Vec<InboxItem>, Head), CommandError> {
    let (before, _) = head(services, key).await?;
    if before.inbox_count == Some(0) {
        return Ok((Vec::new(), before));
    }
    let mut inbox = inbox(services, key).await?;
    let (head, _) = head(services, key).await?;
    inbox.retain(|item| !has_begun(&head, item));
    Ok((inbox, head))
}

/// True if the head has applied the item, which was read before the head.
pub fn has_begun(head: &Head, item: &InboxItem) -> bool {
    queued_prompt(item)
        .is_some_and(|prompt| head.prompts.iter().any(|it| &it.id == prompt.prompt_id))
}

/// Maximum number of heads that a search for a conversation reads.
const HEADS_READ_MAX: usize = 5_000;
const PAGE_SIZE: usize = 100;

/// Keys of all conversations with that id in a tenant, whichever user owns them.
///
/// # Errors
/// Returns an error if the store does not respond: repeat the request.
pub async fn find_conversations_by_id(
    store: &dyn ConversationStore,
    tenant: &TenantId,
    id: &ConversationId,
) -> Result<Vec<ConversationKey>, StoreError> {
    let mut query = HeadQuery {
        tenant: tenant.clone(),
        user: None,
        state: None,
        limit: PAGE_SIZE,
        continuation: None,
    };
    let mut found = Vec::new();
    let mut heads_read = 0;
    loop {
        let page = store.list_heads(&query).await?;
        heads_read += page.items.len();
        for stored in &page.items {
            let head = documents::read_head(stored)?;
            if head.conversation_id == *id {
                found.push(head.key());
            }
        }
        query.continuation = page.continuation;
        if query.continuation.is_none() || heads_read >= HEADS_READ_MAX {
            return Ok(found);
        }
    }
}

/// A prompt that an inbox item may start.
#[derive(Clone, Copy, Debug)]
pub struct QueuedPrompt<'a> {
    pub prompt_id: &'a PromptId,
    pub user: &'a UserId,
    pub source: Source,
    pub input: Option<&'a Content>,
    /// The input as sent, if an extension changed it.
    pub original: Option<&'a Content>,
    pub visible: bool,
    pub model: Option<&'a str>,
}

/// The prompt that an inbox item starts if no prompt precedes it. A steer joins a running prompt,
/// and a held input waits for one.
pub fn queued_prompt(item: &InboxItem) -> Option<QueuedPrompt<'_>> {
    if let Some(prompt) = item.prompt() {
        return Some(QueuedPrompt {
            prompt_id: &prompt.prompt_id,
            user: &prompt.user,
            source: prompt.source,
            input: prompt.input.as_ref(),
            original: prompt.original.as_ref(),
            visible: prompt.visible,
            model: prompt.model.as_deref(),
        });
    }
    if let Some(prompt) = FinishedPrompt::from_item(item) {
        return Some(QueuedPrompt {
            prompt_id: &prompt.prompt_id,
            user: &prompt.user,
            source: prompt.source,
            input: prompt.input.as_ref(),
            original: None,
            visible: true,
            model: None,
        });
    }
    match &item.body {
        InboxBody::Continue(input) => Some(QueuedPrompt {
            prompt_id: &input.prompt_id,
            user: &input.user,
            source: Source::User,
            input: None,
            original: None,
            visible: true,
            model: None,
        }),
        InboxBody::Custom(custom) if custom.trigger_turn => Some(QueuedPrompt {
            prompt_id: &custom.prompt_id,
            user: &custom.user,
            source: Source::User,
            input: None,
            original: None,
            visible: custom.message.display,
            model: None,
        }),
        InboxBody::Prompt(_)
        | InboxBody::Steer(_)
        | InboxBody::FollowUp(_)
        | InboxBody::Custom(_)
        | InboxBody::Decision(_)
        | InboxBody::Abort(_)
        | InboxBody::LateResult(_)
        | InboxBody::Command(_) => None,
    }
}

/// True if queued items will start a prompt or a requested summary.
pub fn has_pending_work(head: &Head, inbox: &[InboxItem]) -> bool {
    let is_summary_request = |item: &InboxItem| {
        CompactInput::from_item(item).is_some() || NavigateInput::from_item(item).is_some()
    };
    inbox.iter().any(is_summary_request) || queued_prompts(head, inbox).next().is_some()
}

/// Prompts that the queued items will start, an estimate until a worker has read them: each prompt
/// and follow-up that is not held. A steer counts only if there is no prompt to join.
pub fn queued_prompts<'a>(
    head: &Head,
    inbox: &'a [InboxItem],
) -> impl Iterator<Item = QueuedPrompt<'a>> {
    let mut is_busy = head.prompt.is_some();
    inbox.iter().filter(|item| item.can_start_prompt()).filter_map(move |item| {
        let is_joining = is_busy && item.queue() == Some(InputQueue::Steering);
        let prompt = queued_prompt(item).filter(|_| !is_joining)?;
        is_busy = true;
        Some(prompt)
    })
}
