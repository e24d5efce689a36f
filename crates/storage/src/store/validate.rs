//! Validation of requests that every store rejects, before anything is sent.

use crate::store::{
    BATCH_BYTES_MAX, BATCH_OPERATIONS_MAX, Document, DocumentKind, HEAD_ID, HeadQuery, Partition,
    SearchQuery, StoreError, Write,
};
use turnwheel_conversation::head::HEAD_BYTES_MAX;
use turnwheel_platform::clock::Timestamp;
use turnwheel_platform::ids::{ConversationKey, is_plain_text};

/// Maximum length of a conversation id; the other parts of a key may have 255 characters.
pub const CONVERSATION_ID_MAX: usize = 128;
/// Largest integer that every JSON reader represents exactly.
pub(crate) const TIMESTAMP_MAX: Timestamp = Timestamp((1 << 53) - 1);
/// Cosmos allows a positive 32-bit integer.
const TTL_MAX: u32 = i32::MAX as u32;
/// Lists exclude heads in this state.
pub const DELETED: &str = "deleted";

/// Checks the ids of a partition.
///
/// # Errors
/// An id is invalid.
pub fn partition(partition: &Partition) -> Result<(), StoreError> {
    match partition {
        Partition::Conversation(key) => conversation(key),
        Partition::Scope(tenant) => plain_id("tenant", tenant.as_str()),
        Partition::User { tenant, user } => {
            plain_id("tenant", tenant.as_str())?;
            plain_id("user", user.as_str())
        }
    }
}

/// Checks the ids of a conversation.
///
/// # Errors
/// An id is invalid.
pub fn conversation(key: &ConversationKey) -> Result<(), StoreError> {
    plain_id("tenant", key.tenant.as_str())?;
    plain_id("user", key.user.as_str())?;
    let id = key.conversation_id.as_str();
    plain_id("conversation id", id)?;
    if id.len() > CONVERSATION_ID_MAX {
        return invalid(format!(
            "the conversation id has {} characters; the limit is {CONVERSATION_ID_MAX}",
            id.len()
        ));
    }
    Ok(())
}

/// Checks the key of a list. The state needs no check: queries only compare it.
///
/// # Errors
/// The key is invalid.
pub fn heads(query: &HeadQuery) -> Result<(), StoreError> {
    plain_id("tenant", query.tenant.as_str())?;
    query.user.as_ref().map_or(Ok(()), |user| plain_id("user", user.as_str()))
}

/// Checks the key and the text of a search.
///
/// # Errors
/// The key or the text is invalid.
pub fn search(query: &SearchQuery) -> Result<(), StoreError> {
    plain_id("tenant", query.tenant.as_str())?;
    plain_id("user", query.user.as_str())?;
    if query.lower.is_empty() || query.limit == 0 {
        return invalid("a search needs a text and a limit".to_owned());
    }
    Ok(())
}

/// Checks the id of a document.
///
/// # Errors
/// The id is invalid.
pub fn document_id(id: &str) -> Result<(), StoreError> {
    plain_id("document id", id)
}

/// Checks a batch without reading stored documents.
///
/// # Errors
/// The batch is invalid or too large.
pub fn batch(at: &Partition, writes: &[Write]) -> Result<(), StoreError> {
    partition(at)?;
    if writes.len() > BATCH_OPERATIONS_MAX {
        return Err(StoreError::TooLarge(format!(
            "{} operations; the limit is {BATCH_OPERATIONS_MAX}",
            writes.len()
        )));
    }
    check_inbox_changes(at, writes)?;
    let mut bytes_total = 0_usize;
    for write in writes {
        match write {
            Write::Create(written) | Write::Replace(written, _) => {
                document(at, written)?;
                bytes_total += written.id.len() + written.body.text().len();
                bytes_total += written.search.as_ref().map_or(0, |search| search.bytes());
            }
            Write::Delete(id, _) => {
                document_id(id)?;
                bytes_total += id.len();
            }
            Write::CountInboxChange { due, .. } => validate_time(HEAD_ID, *due)?,
        }
    }
    if bytes_total > BATCH_BYTES_MAX {
        return Err(StoreError::TooLarge(format!(
            "{bytes_total} bytes; the limit is {BATCH_BYTES_MAX}"
        )));
    }
    Ok(())
}

/// A worker reads the inbox only if the head has changed since.
fn check_inbox_changes(at: &Partition, writes: &[Write]) -> Result<(), StoreError> {
    let (mut is_inbox_changed, mut heads, mut counts) = (false, 0_u32, 0_u32);
    for write in writes {
        match write {
            Write::Create(document) | Write::Replace(document, _) => match document.kind {
                DocumentKind::Inbox => is_inbox_changed = true,
                DocumentKind::Head => heads += 1,
                DocumentKind::Entry
                | DocumentKind::Events
                | DocumentKind::Receipt
                | DocumentKind::Notification
                | DocumentKind::Live
                | DocumentKind::Watch
                | DocumentKind::Scope => {}
            },
            Write::Delete(id, _) => heads += u32::from(id == HEAD_ID),
            Write::CountInboxChange { .. } => counts += 1,
        }
    }
    if counts > 0 && !matches!(at, Partition::Conversation(_)) {
        return invalid("only a conversation has an inbox".to_owned());
    }
    if is_inbox_changed && heads + counts == 0 {
        return invalid("a batch with an inbox document writes or counts in the head".to_owned());
    }
    if counts > 0 && heads + counts > 1 {
        return invalid("a batch writes the head or counts in it, once".to_owned());
    }
    Ok(())
}

fn validate_time(id: &str, time: Option<Timestamp>) -> Result<(), StoreError> {
    if time.is_some_and(|time| time > TIMESTAMP_MAX) {
        return invalid(format!("a timestamp of `{id}` exceeds the largest safe JSON number"));
    }
    Ok(())
}

fn document(at: &Partition, document: &Document) -> Result<(), StoreError> {
    let Document { id, kind, body, due, created_at, state, ttl, search, inbox_count, last_entry } =
        document;
    document_id(id)?;
    let is_scope = matches!(at, Partition::Scope(_) | Partition::User { .. });
    if is_scope != (*kind == DocumentKind::Scope) {
        return invalid(format!(
            "the kind `{}` does not belong in this partition",
            kind.into_str()
        ));
    }
    if (*kind == DocumentKind::Head) != (id == HEAD_ID && !is_scope) {
        return invalid(format!("only the head of a conversation can have the id `{HEAD_ID}`"));
    }
    validate_time(id, *due.max(created_at))?;
    if inbox_count.is_some() && *kind != DocumentKind::Head {
        return invalid(format!("only a head counts inbox documents, not `{id}`"));
    }
    if let Some(last) = last_entry {
        document_id(last)?;
        if *kind != DocumentKind::Events {
            return invalid(format!("only an events document contains entries, not `{id}`"));
        }
    }
    if matches!(kind, DocumentKind::Live | DocumentKind::Watch) != ttl.is_some() {
        return invalid(format!(
            "live and watch documents need a time to live, others cannot have one: `{id}` is of kind {}",
            kind.into_str()
        ));
    }
    if ttl.is_some_and(|seconds| !(1..=TTL_MAX).contains(&seconds)) {
        return invalid(format!("the time to live of `{id}` must be 1 to {TTL_MAX} s"));
    }
    if search.is_some() && (*kind != DocumentKind::Entry || created_at.is_none()) {
        return invalid(format!(
            "only an entry with a creation time can be searched: `{id}` is of kind {}",
            kind.into_str()
        ));
    }
    if *kind == DocumentKind::Head {
        if created_at.is_none() || state.is_none() {
            return invalid(
                "a head needs a creation time and a state: lists depend on them".to_owned(),
            );
        }
        if body.text().len() > HEAD_BYTES_MAX {
            return Err(StoreError::TooLarge(format!(
                "the head has {} bytes; the limit is {HEAD_BYTES_MAX}",
                body.text().len()
            )));
        }
    }
    Ok(())
}

fn plain_id(what: &str, text: &str) -> Result<(), StoreError> {
    if is_plain_text(text) {
        return Ok(());
    }
    let shown: String = text.chars().take(40).collect();
    invalid(format!("{what} {shown:?} is not 1 to 255 of A-Z a-z 0-9 _ . -"))
}

fn invalid<T>(text: String) -> Result<T, StoreError> {
    Err(StoreError::Invalid(text))
}
