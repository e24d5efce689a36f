//! Inbox of a leased conversation: reads it, converts it into inputs, and commits with it.

use std::sync::Arc;

use crate::agent::inbox::InboxItem;
use crate::agent::step::{Input, is_supported};
use crate::agent::transition::PendingItem;
use crate::commands::certain_write::write_size;
use crate::ids::ConversationKey;
use crate::services::Services;
use crate::store::{
    BATCH_BYTES_MAX, BATCH_OPERATIONS_MAX, DocumentKind, ETag, Freshness, Partition, Selection,
    StoreError, StoredDocument, Write,
};
use crate::turn::documents;
use crate::turn::error::TurnError;
use crate::turn::leased_conversation::LeasedConversation;

/// Times that one commit reads an inbox that keeps changing.
const REREADS_MAX: u32 = 5;

/// An accepted request in the inbox.
#[derive(Clone, Debug)]
pub(crate) struct WaitingItem {
    pub(crate) item: Arc<InboxItem>,
    /// The version that was read.
    pub(crate) etag: ETag,
    /// True if the item has a `due` of its own.
    pub(crate) is_due: bool,
    bytes: usize,
}

/// The items that this version supports, oldest first.
pub(crate) async fn read_inbox(
    services: &Services,
    key: &ConversationKey,
) -> Result<Vec<WaitingItem>, StoreError> {
    let partition = Partition::Conversation(key.clone());
    let selection = Selection::all(DocumentKind::Inbox);
    parse_inbox(&services.store.select(&partition, &selection, Freshness::Latest).await?)
}

/// As [`read_inbox`], from items that were already read.
pub(crate) fn parse_inbox(stored: &[StoredDocument]) -> Result<Vec<WaitingItem>, StoreError> {
    let mut items = Vec::with_capacity(stored.len());
    for stored in stored {
        let item: InboxItem = documents::read(&stored.document)?;
        if is_supported(&item.body) {
            items.push(WaitingItem {
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
pub(crate) fn inbox_input(waiting: &[WaitingItem]) -> Input {
    let pending =
        |waits: &WaitingItem| PendingItem { item: Arc::clone(&waits.item), bytes: waits.bytes };
    Input::InboxRead(waiting.iter().map(pending).collect())
}

impl LeasedConversation<'_> {
    /// Reads the inbox again just before a commit. Returns `None` if the store is unavailable:
    /// known results are still committed, but nothing new may start, because an abort could be
    /// waiting.
    pub(crate) async fn reread_inbox(&self) -> Option<Vec<WaitingItem>> {
        let read = match read_inbox(self.services, &self.key).await {
            Ok(waiting) => self.with_abort_decisions(waiting).await,
            Err(error) => Err(error),
        };
        match read {
            Ok(waiting) => Some(waiting),
            Err(error) => {
                tracing::warn!(conversation.id = %self.key.conversation_id, error = %error, "inbox read failed; the next turn reads it");
                None
            }
        }
    }

    /// Rebuilds the inputs on the current inbox, after senders changed items. Speculative inputs
    /// are dropped and computed again.
    pub(crate) async fn rebase_inputs(
        &mut self,
        inputs: &[Input],
        rereads: u32,
    ) -> Result<(Vec<Input>, Vec<WaitingItem>), TurnError> {
        let is_of_extension =
            |input: &Input| matches!(input, Input::FinishTurn(_) | Input::HookActions(_));
        let is_done = |input: &Input| {
            !matches!(
                input,
                Input::InboxRead(_)
                    | Input::DrainInbox
                    | Input::ToolCallChecked { .. }
                    | Input::Paused(_)
                    | Input::StartChanges(_)
            )
        };
        let waiting = if rereads < REREADS_MAX { self.reread_inbox().await } else { None };
        let Some(waiting) = waiting else {
            // Keep the results; the next turn reads the inbox.
            let done = Input::retain(inputs, is_done);
            return if done.iter().all(is_of_extension) {
                Err(self.error("commit", StoreError::Conflict))
            } else {
                Ok((done, Vec::new()))
            };
        };
        let rebased = |input: Input| {
            if matches!(input, Input::InboxRead(_)) { inbox_input(&waiting) } else { input }
        };
        let is_decided = |input: &Input| {
            !matches!(
                input,
                Input::ToolCallChecked { .. }
                    | Input::Paused(_)
                    | Input::FinishTurn(_)
                    | Input::StartChanges(_)
            )
        };
        let remaining: Vec<Input> =
            Input::retain(inputs, is_decided).into_iter().map(rebased).collect();
        if remaining.iter().any(|input| matches!(input, Input::DrainInbox)) {
            let mut plan = self.plan(remaining);
            Box::pin(self.check_ready_calls(&mut plan)).await?;
            self.run_finish_turn(&mut plan).await?;
            self.pause_model_call(&mut plan);
            return Ok((plan.into_inputs(), waiting));
        }
        Ok((remaining, waiting))
    }

    /// Commits results together with new inbox items and the intents of the next effects.
    pub(crate) async fn commit_with_inbox(
        &mut self,
        name: &'static str,
        done: Vec<Input>,
    ) -> Result<(), TurnError> {
        // The ledger was updated before this result: it does not include the result's cost.
        let done = self.costs.take_ledger_input().into_iter().chain(done);
        let waiting = self.reread_inbox().await;
        let inputs = match &waiting {
            Some(waiting) => {
                [inbox_input(waiting)].into_iter().chain(done).chain([Input::DrainInbox]).collect()
            }
            None => done.collect(),
        };
        let mut plan = self.plan(inputs);
        if waiting.is_some() {
            Box::pin(self.check_ready_calls(&mut plan)).await?;
        }
        self.run_finish_turn(&mut plan).await?;
        if waiting.is_some() {
            self.check_context_window(&mut plan).await?;
            self.pause_model_call(&mut plan);
            self.reserve_next(&mut plan).await?;
        }
        Box::pin(self.commit(name, plan, waiting.as_deref().unwrap_or_default())).await
    }
}

/// Clears the `due` of items that were read and stay in the inbox, because the `due` of the head's
/// phase covers them. Items beyond the batch's limits stay due and are read again.
pub(crate) fn clear_due<'a>(
    writes: &mut Vec<Write>,
    left_waiting: impl Iterator<Item = &'a WaitingItem>,
) {
    let mut bytes: usize = writes.iter().map(write_size).sum();
    for waiting in left_waiting {
        let document = documents::inbox_document(&waiting.item, None);
        let write = Write::Replace(document, Some(waiting.etag.clone()));
        bytes += write_size(&write);
        if writes.len() >= BATCH_OPERATIONS_MAX || bytes > BATCH_BYTES_MAX {
            return;
        }
        writes.push(write);
    }
}
