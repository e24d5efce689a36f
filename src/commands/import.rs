//! Import of a conversation whose messages exceed one batch. Its entries are written under a hidden
//! head. Each batch is fenced by that head, so that two imports of one id never mix.

use std::time::Duration;

use crate::agent::entry::Entry;
use crate::agent::head::Head;
use crate::agent::phase::Phase;
use crate::clock::Timestamp;
use crate::commands::certain_write::{write_and_confirm_head, write_head, write_size};
use crate::commands::contract::CommandError;
use crate::commands::idempotency::Idempotency;
use crate::ids::{ConversationKey, InputId};
use crate::queries::load::any_head;
use crate::services::Services;
use crate::store::{
    BATCH_BYTES_MAX, BATCH_OPERATIONS_MAX, Document, DocumentKind, ETag, Freshness, Partition,
    Selection, Write,
};
use crate::turn::documents;
use crate::turn::head_commit::{HeadCommit, stamp_head};

/// Member of a hidden head with the id of the importing request.
const IMPORTING: &str = "importing";
/// Time without progress after which an import is stalled and can be taken over.
const STALLED_AFTER: Duration = Duration::from_mins(1);
/// Time after which the documents of an abandoned import are purged.
const ABANDONED_AFTER: Duration = Duration::from_hours(1);

/// True if the head belongs to an import that has not ended.
pub(crate) fn is_importing(head: &Head) -> bool {
    head.phase == Phase::Deleted && head.extra.contains_key(IMPORTING)
}

/// Writes the entries and the receipt, and then the visible head.
pub(crate) async fn import_entries(
    services: &Services,
    head: Head,
    entries: &[Entry],
    receipt: Document,
    idempotency: &Idempotency,
) -> Result<(), CommandError> {
    let key = head.key();
    let mut hidden = build_hidden_head(services, &head, idempotency);
    let mut etag = begin_import(services, &key, &mut hidden).await?;
    let mut batch = Vec::new();
    let mut bytes = 0;
    for entry in entries {
        let write = Write::Create(documents::entry_document(entry));
        let size = write_size(&write);
        // Two operations are left for the head and, in the last batch, the receipt. Both are small.
        let is_full =
            batch.len() + 2 >= BATCH_OPERATIONS_MAX || bytes + size + 128 * 1024 > BATCH_BYTES_MAX;
        if is_full && !batch.is_empty() {
            etag =
                write_batch(services, &key, &mut hidden, etag, std::mem::take(&mut batch)).await?;
            bytes = 0;
        }
        bytes += size;
        batch.push(write);
    }
    if bytes + 192 * 1024 > BATCH_BYTES_MAX {
        etag = write_batch(services, &key, &mut hidden, etag, std::mem::take(&mut batch)).await?;
    }
    batch.push(Write::Create(receipt));
    let mut visible = head;
    commit_head(services, &key, &mut visible, etag, batch).await.map(|_| ())
}

fn build_hidden_head(services: &Services, head: &Head, idempotency: &Idempotency) -> Head {
    let now = services.clock.now();
    let mut hidden = head.clone();
    hidden.phase = Phase::Deleted;
    hidden.seq = 0;
    hidden.leaf_id = None;
    hidden.metadata.clear();
    hidden.deleted_at = Some(now);
    hidden.due = Some(now.plus(ABANDONED_AFTER));
    let input_id = idempotency.input_id(&head.key());
    hidden.extra.insert(IMPORTING.to_owned(), input_id.as_str().into());
    hidden
}

/// Checks that the id is free, or used by an import that can be taken over.
pub(crate) async fn check_id_available(
    services: &Services,
    key: &ConversationKey,
    input_id: &InputId,
) -> Result<(), CommandError> {
    let Some((head, _)) = any_head(services, key).await? else { return Ok(()) };
    reject_taken_id(&head, input_id, services.clock.now())
}

fn reject_taken_id(head: &Head, input_id: &InputId, now: Timestamp) -> Result<(), CommandError> {
    let id = &head.conversation_id;
    if is_importing(head) {
        let is_same =
            head.extra.get(IMPORTING).and_then(|id| id.as_str()) == Some(input_id.as_str());
        if is_same || head.updated_at.plus(STALLED_AFTER) <= now {
            return Ok(());
        }
        return Err(CommandError::Conflict {
            detail: format!("conversation `{id}` is being created by another request"),
            retry_after: Some(STALLED_AFTER),
        });
    }
    let detail = if head.phase == Phase::Deleted {
        format!("conversation `{id}` was deleted: its id is free again after 7 days")
    } else {
        format!("conversation `{id}` exists: use another id, or leave it out")
    };
    Err(CommandError::Conflict { detail, retry_after: None })
}

/// Creates the hidden head, or takes over a stalled import and deletes its entries.
async fn begin_import(
    services: &Services,
    key: &ConversationKey,
    hidden: &mut Head,
) -> Result<ETag, CommandError> {
    let input_id = hidden.extra.get(IMPORTING).and_then(|id| id.as_str()).unwrap_or_default();
    let input_id = InputId::new(input_id);
    if let Some(etag) = write_head(services, key, HeadCommit::create(hidden)).await? {
        return Ok(etag);
    }
    let Some((found, etag)) = any_head(services, key).await? else {
        return Err(CommandError::contended());
    };
    if found.commit_id == hidden.commit_id {
        return Ok(etag);
    }
    reject_taken_id(&found, &input_id, services.clock.now())?;
    let mut etag = commit_head(services, key, hidden, etag, Vec::new()).await?;
    let partition = Partition::Conversation(key.clone());
    let selection =
        Selection { limit: BATCH_OPERATIONS_MAX - 2, ..Selection::all(DocumentKind::Entry) };
    loop {
        let remaining = services.store.select(&partition, &selection, Freshness::Latest).await?;
        if remaining.is_empty() {
            return Ok(etag);
        }
        let deletes = remaining
            .into_iter()
            .map(|stored| Write::Delete(stored.document.id, Some(stored.etag)))
            .collect();
        etag = write_batch(services, key, hidden, etag, deletes).await?;
    }
}

/// Writes one more batch of a running import.
async fn write_batch(
    services: &Services,
    key: &ConversationKey,
    hidden: &mut Head,
    etag: ETag,
    writes: Vec<Write>,
) -> Result<ETag, CommandError> {
    services.fail_points.hit("admission.import").await;
    hidden.updated_at = services.clock.now();
    commit_head(services, key, hidden, etag, writes).await
}

/// Replaces the head under a fresh commit id, together with the writes.
async fn commit_head(
    services: &Services,
    key: &ConversationKey,
    head: &mut Head,
    etag: ETag,
    writes: Vec<Write>,
) -> Result<ETag, CommandError> {
    stamp_head(services, head, None);
    let commit = HeadCommit::replace(head, etag).with_writes(writes);
    write_and_confirm_head(services, key, commit).await?.ok_or_else(CommandError::contended)
}
