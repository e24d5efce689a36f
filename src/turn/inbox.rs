//! Inbox of a leased conversation: reads it, converts it into inputs, and commits with it.

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

/// Operations that draining the inbox may use, so that a checked call still fits.
pub(super) const LANDING_OPERATIONS: usize = BATCH_OPERATIONS_MAX - 20;
/// Bytes that draining may use: an item is written as entry and as receipt.
pub(super) const LANDING_BYTES: usize = BATCH_BYTES_MAX / 3;

/// Times that one commit reads an inbox that keeps changing.
const LOOKS_MAX: u32 = 5;

/// An accepted request in the inbox.
#[derive(Clone, Debug)]
pub(super) struct Waiting {
    pub(super) item: Arc<InboxItem>,
    /// The version that was read.
    pub(super) etag: ETag,
    /// True if the item has a `due` of its own.
    pub(super) is_due: bool,
    bytes: usize,
}

/// The items that this version supports, oldest first.
pub(super) async fn look(world: &World, key: &ConversationKey) -> Result<Vec<Waiting>, StoreError> {
    let partition = Partition::Conversation(key.clone());
    let selection = Selection::all(Kind::Inbox);
    in_order(&world.store.select(&partition, &selection, Freshness::Latest).await?)
}

/// As [`read_inbox`], from items that were already read.
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

/// The input that reports these items to the state machine.
pub(super) fn looked(waiting: &[Waiting]) -> Input {
    let pending = |waits: &Waiting| Pending { item: Arc::clone(&waits.item), bytes: waits.bytes };
    Input::Looked(waiting.iter().map(pending).collect())
}

impl Hold<'_> {
    /// Reads the inbox again just before a commit. Returns `None` if the store is unavailable:
    /// known results are still committed, but nothing new may start, because an abort could be
    /// waiting.
    pub(super) async fn look(&self) -> Option<Vec<Waiting>> {
        let looked = match look(self.world, &self.key).await {
            Ok(waiting) => self.with_decisions(waiting).await,
            Err(error) => Err(error),
        };
        match looked {
            Ok(waiting) => Some(waiting),
            Err(error) => {
                tracing::warn!(conversation.id = %self.key.conversation_id, error = %error, "inbox read failed; the next turn reads it");
                None
            }
        }
    }

    /// Rebuilds the inputs on the current inbox, after senders changed items. Speculative inputs
    /// are dropped and computed again.
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
            // Keep the results; the next turn reads the inbox.
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

    /// Commits results together with new inbox items and the intents of the next effects.
    pub(super) async fn commit_done(
        &mut self,
        name: &'static str,
        done: Vec<Input>,
    ) -> Result<(), TurnError> {
        // The ledger was updated before this result: it does not include the result's cost.
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

/// Clears the `due` of items that were read and stay in the inbox, because the `due` of the head's
/// phase covers them. Items beyond the batch's limits stay due and are read again.
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
