//! Writes with a certain outcome. While the outcome is unknown, the identical batch is sent again;
//! a read then decides.

use std::time::Duration;

use crate::agent::head::Head;
use crate::agent::inbox::{InputOutcome, Receipt};
use crate::clock::Timestamp;
use crate::commands::idempotency::{Idempotency, to_stored_response};
use crate::commands::{CommandError, CommandResponse};
use crate::ids::ConversationKey;
use crate::services::Services;
use crate::store::{Document, ETag, Freshness, Partition, StoreError, Write};
use crate::turn::documents;

const ATTEMPTS_MAX: u32 = 4;
const RETRY_DELAY: Duration = Duration::from_millis(100);

#[derive(Debug)]
pub(crate) enum BatchOutcome {
    Won(Vec<ETag>),
    /// A condition is not met. An earlier attempt of the same batch may have won with a lost
    /// response: read before you conclude.
    Lost,
}

/// Writes a batch to a conversation, and repeats it until the outcome is certain. A conflict alone
/// proves nothing: the batch is lost only if a read shows a condition that is not met. Fails if the
/// outcome is still unknown after four attempts.
pub(crate) async fn write_until_certain(
    services: &Services,
    key: &ConversationKey,
    writes: Vec<Write>,
) -> Result<BatchOutcome, CommandError> {
    write_until_certain_in(services, &Partition::Conversation(key.clone()), writes).await
}

/// Like [`write_until_certain`], for any partition.
pub(crate) async fn write_until_certain_in(
    services: &Services,
    partition: &Partition,
    writes: Vec<Write>,
) -> Result<BatchOutcome, CommandError> {
    let mut delay = RETRY_DELAY;
    let mut tries = 1;
    loop {
        let last_error = match services.store.write(partition, writes.clone()).await {
            Ok(etags) => return Ok(BatchOutcome::Won(etags)),
            Err(StoreError::Conflict) => {
                if has_failed_condition(services, partition, &writes).await? {
                    return Ok(BatchOutcome::Lost);
                }
                StoreError::Conflict
            }
            Err(unavailable @ StoreError::Unavailable(_)) => unavailable,
            Err(error) => return Err(error.into()),
        };
        if tries >= ATTEMPTS_MAX {
            return Err(last_error.into());
        }
        tracing::debug!(partition = %partition.parts().join("/"), tries, "batch resent");
        tokio::time::sleep(delay).await;
        delay *= 2;
        tries += 1;
    }
}

/// True if a condition of the batch is not met now.
async fn has_failed_condition(
    services: &Services,
    partition: &Partition,
    writes: &[Write],
) -> Result<bool, CommandError> {
    for write in writes {
        let id = match write {
            Write::Create(document) | Write::Replace(document, _) => &document.id,
            Write::Delete(id, _) => id,
        };
        let found = services.store.read(partition, id, Freshness::Latest).await?;
        let is_met = match (write, &found) {
            (Write::Create(_), found) => found.is_none(),
            (Write::Replace(_, expected) | Write::Delete(_, expected), Some(found)) => {
                expected.as_ref().is_none_or(|expected| expected == &found.etag)
            }
            (Write::Replace(..) | Write::Delete(..), None) => false,
        };
        if !is_met {
            return Ok(true);
        }
    }
    Ok(false)
}

/// Document of a head to be written.
pub(crate) fn head_document(head: &Head) -> Result<Document, CommandError> {
    Ok(documents::head_document(head)?)
}

/// Receipt of a request that is complete when it is accepted.
pub(crate) fn receipt_document(
    idempotency: &Idempotency,
    key: &ConversationKey,
    response: &CommandResponse,
    now: Timestamp,
) -> Document {
    let admission = idempotency.to_record(&to_stored_response(response));
    let input_id = idempotency.input_id(key);
    documents::receipt_document(&Receipt::new(input_id, now, admission, InputOutcome::Applied))
}

/// Bytes that a write adds to its batch.
pub(crate) fn write_size(write: &Write) -> usize {
    match write {
        Write::Create(document) | Write::Replace(document, _) => document.body.text().len() + 512,
        Write::Delete(..) => 128,
    }
}
