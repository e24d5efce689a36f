//! Writes with a certain outcome. While the outcome is unknown, the identical batch is sent again;
//! a read then decides.

use std::time::Duration;

use crate::agent::head::Head;
use crate::agent::inbox::{Outcome, Receipt};
use crate::clock::Timestamp;
use crate::ids::ConversationKey;
use crate::store::{Document, ETag, Freshness, Partition, StoreError, Write};
use crate::turn::admission::idempotency::{Idempotency, kept};
use crate::turn::admission::{Answer, Refusal};
use crate::turn::{World, record};

const TRIES_MAX: u32 = 4;
const PAUSE: Duration = Duration::from_millis(100);

#[derive(Debug)]
pub(crate) enum Written {
    Won(Vec<ETag>),
    /// A condition is not met. An earlier attempt of the same batch may have won with a lost
    /// response: read before you conclude.
    Lost,
}

/// Writes a batch to a conversation, and repeats it until the outcome is certain. A conflict alone
/// proves nothing: the batch is lost only if a read shows a condition that is not met. Fails if the
/// outcome is still unknown after four attempts.
pub(crate) async fn write_surely(
    world: &World,
    key: &ConversationKey,
    writes: Vec<Write>,
) -> Result<Written, Refusal> {
    write_surely_in(world, &Partition::Conversation(key.clone()), writes).await
}

/// Like [`write_until_certain`], for any partition.
pub(crate) async fn write_surely_in(
    world: &World,
    partition: &Partition,
    writes: Vec<Write>,
) -> Result<Written, Refusal> {
    let mut pause = PAUSE;
    let mut tries = 1;
    loop {
        let doubt = match world.store.write(partition, writes.clone()).await {
            Ok(etags) => return Ok(Written::Won(etags)),
            Err(StoreError::Conflict) => {
                if is_in_the_way(world, partition, &writes).await? {
                    return Ok(Written::Lost);
                }
                StoreError::Conflict
            }
            Err(unavailable @ StoreError::Unavailable(_)) => unavailable,
            Err(error) => return Err(error.into()),
        };
        if tries >= TRIES_MAX {
            return Err(doubt.into());
        }
        tracing::debug!(partition = %partition.parts().join("/"), tries, "batch resent");
        tokio::time::sleep(pause).await;
        pause *= 2;
        tries += 1;
    }
}

/// True if a condition of the batch is not met now.
async fn is_in_the_way(
    world: &World,
    partition: &Partition,
    writes: &[Write],
) -> Result<bool, Refusal> {
    for write in writes {
        let id = match write {
            Write::Create(document) | Write::Replace(document, _) => &document.id,
            Write::Delete(id, _) => id,
        };
        let found = world.store.read(partition, id, Freshness::Latest).await?;
        let holds = match (write, &found) {
            (Write::Create(_), found) => found.is_none(),
            (Write::Replace(_, expected) | Write::Delete(_, expected), Some(found)) => {
                expected.as_ref().is_none_or(|expected| expected == &found.etag)
            }
            (Write::Replace(..) | Write::Delete(..), None) => false,
        };
        if !holds {
            return Ok(true);
        }
    }
    Ok(false)
}

/// Document of a head to be written.
pub(crate) fn head_document(head: &Head) -> Result<Document, Refusal> {
    Ok(record::head_document(head)?)
}

/// Receipt of a request that is complete when it is accepted.
pub(crate) fn receipt_document(
    idempotency: &Idempotency,
    key: &ConversationKey,
    answer: &Answer,
    now: Timestamp,
) -> Document {
    let admission = idempotency.admission(&kept(answer));
    let input_id = idempotency.input_id(key);
    record::receipt_document(&Receipt::new(input_id, now, admission, Outcome::Landed))
}

/// Bytes that a write adds to its batch.
pub(crate) fn bytes_of(write: &Write) -> usize {
    match write {
        Write::Create(document) | Write::Replace(document, _) => document.body.text().len() + 512,
        Write::Delete(..) => 128,
    }
}
