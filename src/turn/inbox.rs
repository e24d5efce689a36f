//! What waits in the inbox: looking at it, and handing it to the core, which knows what lands.

use std::sync::Arc;

use crate::agent::draft::Pending;
use crate::agent::inbox::InboxItem;
use crate::agent::step::{Input, is_understood};
use crate::ids::ConversationKey;
use crate::store::{
    BATCH_BYTES_MAX, BATCH_OPERATIONS_MAX, ETag, Freshness, Kind, Partition, Selection, StoreError,
    Stored, Write,
};
use crate::turn::admission::write::bytes_of;
use crate::turn::delivery::TurnError;
use crate::turn::hold::Hold;
use crate::turn::{World, record};

/// Operations that taking in may fill, so that a prepared call still fits.
pub(super) const LANDING_OPERATIONS: usize = BATCH_OPERATIONS_MAX - 20;
/// Bytes of the same: an item is written as entry and as receipt.
pub(super) const LANDING_BYTES: usize = BATCH_BYTES_MAX / 3;

/// Looks of one commit at an inbox that is changed again and again.
const LOOKS_MAX: u32 = 5;

/// An accepted request in the inbox.
#[derive(Clone, Debug)]
pub(super) struct Waiting {
    pub(super) item: Arc<InboxItem>,
    /// The version that was looked at.
    pub(super) etag: ETag,
    /// Whether it still owes a look by itself.
    pub(super) is_due: bool,
    bytes: usize,
}

/// What waits and this version takes in, oldest first.
pub(super) async fn look(world: &World, key: &ConversationKey) -> Result<Vec<Waiting>, StoreError> {
    let partition = Partition::Conversation(key.clone());
    let selection = Selection::all(Kind::Inbox);
    in_order(&world.store.select(&partition, &selection, Freshness::Latest).await?)
}

/// The same of what was read already.
pub(super) fn in_order(stored: &[Stored]) -> Result<Vec<Waiting>, StoreError> {
    let mut items = Vec::with_capacity(stored.len());
    for stored in stored {
        let item: InboxItem = record::read(&stored.document)?;
        if is_understood(&item.body) {
            items.push(Waiting {
                item: Arc::new(item),
                etag: stored.etag.clone(),
                is_due: stored.document.due.is_some(),
                bytes: stored.document.body.text().len(),
            });
        }
    }
    items.sort_by(|a, b| {
        (a.item.accepted_at, &a.item.input_id).cmp(&(b.item.accepted_at, &b.item.input_id))
    });
    Ok(items)
}

/// The same as the core is told of it.
pub(super) fn looked(waiting: &[Waiting]) -> Input {
    let pending = |waits: &Waiting| Pending { item: Arc::clone(&waits.item), bytes: waits.bytes };
    Input::Looked(waiting.iter().map(pending).collect())
}

impl Hold<'_> {
    /// Looks once more, just before a commit is built. `None`: the store did not say. What is known already is committed all
    /// the same, but nothing new may begin, since a stop could be waiting.
    pub(super) async fn look(&self) -> Option<Vec<Waiting>> {
        let looked = match look(self.world, &self.key).await {
            Ok(waiting) => self.with_decisions(waiting).await,
            Err(error) => Err(error),
        };
        match looked {
            Ok(waiting) => Some(waiting),
            Err(error) => {
                tracing::warn!(conversation.id = %self.key.conversation_id, error = %error, "the inbox of {} was not read; what waits there is looked at in the next turn", self.key);
                None
            }
        }
    }

    /// The same inputs on the inbox as it is now, after its senders have changed what they were made on. What was looked at
    /// ahead is left out, and decided again.
    pub(super) async fn look_again(
        &mut self,
        inputs: &[Input],
        looks: u32,
    ) -> Result<(Vec<Input>, Vec<Waiting>), TurnError> {
        let is_decision = |input: &Input| matches!(input, Input::FinishTurn(_));
        let done = |input: &&Input| {
            !matches!(
                input,
                Input::Looked(_) | Input::TakeIn | Input::Prepared { .. } | Input::Braked(_)
            )
        };
        let waiting = if looks < LOOKS_MAX { self.look().await } else { None };
        let Some(waiting) = waiting else {
            // What was done is kept; who waits is looked at in the next turn.
            let done: Vec<Input> = inputs.iter().filter(done).cloned().collect();
            return if done.iter().all(is_decision) {
                Err(self.error("commit", StoreError::Conflict))
            } else {
                Ok((done, Vec::new()))
            };
        };
        let anew = |input: &Input| {
            if matches!(input, Input::Looked(_)) { looked(&waiting) } else { input.clone() }
        };
        let is_decided = |input: &&Input| {
            !matches!(input, Input::Prepared { .. } | Input::Braked(_) | Input::FinishTurn(_))
        };
        let again: Vec<Input> = inputs.iter().filter(is_decided).map(anew).collect();
        if again.iter().any(|input| matches!(input, Input::TakeIn)) {
            let mut tried = self.try_out(again);
            Box::pin(self.prepare(&mut tried)).await?;
            self.finish_turn(&mut tried).await?;
            self.brake_agent(&mut tried);
            return Ok((tried.into_inputs(), waiting));
        }
        Ok((again, waiting))
    }

    /// Commits what was done, with what has come in meanwhile and the intent of what comes next.
    pub(super) async fn commit_done(
        &mut self,
        name: &'static str,
        done: Vec<Input>,
    ) -> Result<(), TurnError> {
        // The books were told before it was done: what it makes owed to them, they do not know.
        let told = self.told.take().map(|told| Input::Paying(Box::new(told)));
        let done = told.into_iter().chain(done);
        let waiting = self.look().await;
        let inputs = match &waiting {
            Some(waiting) => {
                [looked(waiting)].into_iter().chain(done).chain([Input::TakeIn]).collect()
            }
            None => done.collect(),
        };
        let mut tried = self.try_out(inputs);
        if waiting.is_some() {
            Box::pin(self.prepare(&mut tried)).await?;
        }
        self.finish_turn(&mut tried).await?;
        if waiting.is_some() {
            self.measure(&mut tried).await?;
            self.brake_agent(&mut tried);
            self.reserve_next(&mut tried).await?;
        }
        self.commit(name, tried, waiting.as_deref().unwrap_or_default()).await
    }
}

/// Takes the `due` from what was looked at and left waiting: the phase that will take it in owes it. What the batch has no
/// room for stays due, and is looked at again.
pub(super) fn hand_over<'a>(
    writes: &mut Vec<Write>,
    left_waiting: impl Iterator<Item = &'a Waiting>,
) {
    let mut bytes: usize = writes.iter().map(bytes_of).sum();
    for waiting in left_waiting {
        let document = record::inbox_document(&waiting.item, None);
        let write = Write::Replace(document, Some(waiting.etag.clone()));
        bytes += bytes_of(&write);
        if writes.len() >= BATCH_OPERATIONS_MAX || bytes > BATCH_BYTES_MAX {
            return;
        }
        writes.push(write);
    }
}
