//! Writes of commands, with a certain outcome. After a conflict, a read of the conditions decides.

use std::time::Duration;

use crate::contract::{CommandError, CommandResponse};
use crate::documents;
use crate::head_commit::HeadCommit;
use crate::idempotency::{Idempotency, to_stored_response};
use crate::load::any_head;
use crate::services::Services;
use turnwheel_conversation::entry::string_bytes;
use turnwheel_conversation::head::HEAD_BYTES_MAX;
use turnwheel_conversation::inbox::{InputOutcome, Receipt};
use turnwheel_platform::clock::Timestamp;
use turnwheel_platform::ids::ConversationKey;
use turnwheel_storage::store::conditional::{self, Witness};
use turnwheel_storage::store::{
    ConversationStore, Document, DocumentKind, ETag, Freshness, HEAD_ID, Partition, StoreError,
    Write, inbox_count,
};

const ATTEMPTS_MAX: usize = 4;
const RETRY_DELAY: Duration = Duration::from_millis(100);

#[derive(Debug)]
pub enum BatchOutcome {
    Won(Vec<ETag>),
    /// A condition is not met. An earlier attempt of the same batch may have won with a lost
    /// response: read before you conclude.
    Lost,
}

/// Counts the change of the inbox in the head, if the batch has an inbox document and no head. `due`:
/// when the change wants a worker.
pub fn with_inbox_count(mut writes: Vec<Write>, due: Option<Timestamp>) -> Vec<Write> {
    let has_kind = |kind: DocumentKind| {
        writes.iter().any(|write| match write {
            Write::Create(document) | Write::Replace(document, _) => document.kind == kind,
            Write::Delete(..) | Write::CountInboxChange { .. } => false,
        })
    };
    if has_kind(DocumentKind::Inbox) && !has_kind(DocumentKind::Head) {
        writes.push(Write::CountInboxChange { due, room: None });
    }
    writes
}

/// Writes a batch to a conversation, and repeats it until the outcome is certain. A conflict alone
/// proves nothing: the batch is lost only if a read shows a condition that is not met. Fails if the
/// outcome is still unknown after four attempts.
///
/// # Errors
/// The outcome is unknown after four attempts.
pub async fn write_until_certain(
    services: &Services,
    key: &ConversationKey,
    writes: Vec<Write>,
) -> Result<BatchOutcome, CommandError> {
    write_until_certain_in(services, &Partition::Conversation(key.clone()), writes).await
}

/// Like [`write_until_certain`], for any partition.
///
/// # Errors
/// The outcome is unknown after four attempts.
pub async fn write_until_certain_in(
    services: &Services,
    partition: &Partition,
    writes: Vec<Write>,
) -> Result<BatchOutcome, CommandError> {
    let store = &*services.store;
    let witness = ConditionWitness { store, partition };
    let waits = conditional::back_off(ATTEMPTS_MAX, RETRY_DELAY);
    Ok(conditional::write_until_certain(store, partition, writes, &witness, waits).await?)
}

/// A batch is lost if one of its conditions is not met after a conflict.
struct ConditionWitness<'a> {
    store: &'a dyn ConversationStore,
    partition: &'a Partition,
}

impl Witness for ConditionWitness<'_> {
    type Outcome = BatchOutcome;

    fn won(&self, etags: Vec<ETag>) -> BatchOutcome {
        BatchOutcome::Won(etags)
    }

    async fn find_outcome(
        &self,
        writes: &[Write],
        failure: &StoreError,
    ) -> Result<Option<BatchOutcome>, StoreError> {
        if !matches!(failure, StoreError::Conflict) {
            return Ok(None);
        }
        for write in writes {
            let id = match write {
                Write::Create(document) | Write::Replace(document, _) => document.id.as_str(),
                Write::Delete(id, _) => id,
                Write::CountInboxChange { .. } => HEAD_ID,
            };
            let found = self.store.read(self.partition, id, Freshness::Latest).await?;
            let is_met = match (write, &found) {
                (Write::Create(_), found) => found.is_none(),
                (Write::Replace(_, expected) | Write::Delete(_, expected), Some(found)) => {
                    expected.as_ref().is_none_or(|expected| expected == &found.etag)
                }
                (Write::CountInboxChange { room, .. }, Some(head)) => {
                    inbox_count::accepts_change(&head.document, room.as_ref())
                }
                (Write::Replace(..) | Write::Delete(..) | Write::CountInboxChange { .. }, None) => {
                    false
                }
            };
            if !is_met {
                return Ok(Some(BatchOutcome::Lost));
            }
        }
        Ok(None)
    }
}

/// Commits a head. Returns its ETag; `None`: another writer came first, or this commit won with a
/// lost response.
///
/// # Errors
/// The store is unavailable.
pub async fn write_head(
    services: &Services,
    key: &ConversationKey,
    commit: HeadCommit<'_>,
) -> Result<Option<ETag>, CommandError> {
    match write_until_certain(services, key, commit.into_writes()?).await? {
        BatchOutcome::Won(etags) => Ok(etags.into_iter().next()),
        BatchOutcome::Lost => Ok(None),
    }
}

/// Like [`write_head`], but reads the head after a lost write. `None`: another writer came first.
///
/// # Errors
/// The store is unavailable.
pub async fn write_and_confirm_head(
    services: &Services,
    key: &ConversationKey,
    commit: HeadCommit<'_>,
) -> Result<Option<ETag>, CommandError> {
    let commit_id = commit.commit_id().clone();
    if let Some(etag) = write_head(services, key, commit).await? {
        return Ok(Some(etag));
    }
    let found = any_head(services, key).await?;
    Ok(found.filter(|(head, _)| head.commit_id == commit_id).map(|(_, etag)| etag))
}

/// Receipt of a request that is complete when it is accepted.
pub fn receipt_document(
    idempotency: &Idempotency,
    key: &ConversationKey,
    response: &CommandResponse,
    now: Timestamp,
) -> Document {
    let admission = idempotency.to_record(&to_stored_response(response));
    let input_id = idempotency.input_id(key);
    documents::receipt_document(&Receipt::new(input_id, now, admission, InputOutcome::Applied))
}

/// Bytes that a write adds to its batch, at most.
pub fn write_size(write: &Write) -> usize {
    match write {
        Write::Create(document) | Write::Replace(document, _) => {
            let search_bytes = document.search.as_ref().map_or(0, |search| search.bytes());
            string_bytes(document.body.text()) + search_bytes + 512
        }
        Write::Delete(..) => 128,
        Write::CountInboxChange { .. } => HEAD_BYTES_MAX,
    }
}
