//! The hook `finish_turn`. It runs on the transition that closes a turn, and its decision becomes
//! an input of the same commit.

use std::sync::Arc;

use crate::agent::entry::Entry;
use crate::agent::event::EventBody;
use crate::agent::message::{Message, ToolResultMessage};
use crate::agent::step::{FinishTurn, Input};
use crate::extensions::{ClosingTurn, Hook};
use crate::turn::delivery::TurnError;
use crate::turn::hold::Hold;
use crate::turn::tried::Tried;

/// The entries of a turn that closes.
struct TurnEntries {
    response: Arc<Entry>,
    results: Vec<Arc<Entry>>,
    rounds: u32,
}

impl Hold<'_> {
    /// Runs the hook if the inputs close a turn, and puts its decision before them.
    ///
    /// # Errors
    /// The lease was lost, or an earlier result could not be read: stop the delivery.
    pub(super) async fn finish_turn(&mut self, tried: &mut Tried) -> Result<(), TurnError> {
        if self.world.extensions.is_empty() || tried.draft().closed_turn.is_none() {
            return Ok(());
        }
        // Boxed only here: without extensions nothing is allocated.
        Box::pin(self.decide_turn(tried)).await
    }

    async fn decide_turn(&mut self, tried: &mut Tried) -> Result<(), TurnError> {
        let Some(turn) = self.turn_entries(tried).await? else { return Ok(()) };
        if let Some(decision) = self.decision_on(&turn).await? {
            let decision = [Input::FinishTurn(decision)].into_iter();
            *tried = self.try_out(decision.chain(tried.take_inputs()).collect());
        }
        Ok(())
    }

    /// Removes lost writes whose results would close the turn. No hook runs here, so the next
    /// delivery closes it.
    pub(super) fn leave_turn_open(&self, tried: &mut Tried) {
        if self.world.extensions.is_empty() || tried.draft().closed_turn.is_none() {
            return;
        }
        let mut inputs = tried.take_inputs();
        inputs.retain(|input| !matches!(input, Input::OutcomeUnknown { .. }));
        *tried = self.try_out(inputs);
    }

    /// The first decision that an extension returns.
    async fn decision_on(&mut self, turn: &TurnEntries) -> Result<Option<FinishTurn>, TurnError> {
        let (world, conversation) = (self.world, self.key.clone());
        let response = turn.response.body.message().and_then(Message::as_assistant);
        let Some(response) = response else { return Ok(None) };
        let tool_results: Vec<&ToolResultMessage> =
            turn.results.iter().filter_map(|entry| entry.body.result()).collect();
        let closing = ClosingTurn {
            conversation: &conversation,
            response,
            tool_results: &tool_results,
            rounds: turn.rounds,
        };
        for extension in &world.extensions {
            let work = async { extension.finish_turn(&closing).await };
            if let Ok(Some(decision)) = self.run_hook(&**extension, Hook::FinishTurn, work).await? {
                return Ok(Some(decision));
            }
        }
        Ok(None)
    }

    /// Earlier results are read from the store. A response without calls is in the transition
    /// itself, so no read delays the commit of a paid response.
    async fn turn_entries(&self, tried: &Tried) -> Result<Option<TurnEntries>, TurnError> {
        let draft = tried.draft();
        let Some(closed) = draft.closed_turn else { return Ok(None) };
        let Some(EventBody::TurnEnd(end)) = draft.events.get(closed.event).map(|it| &it.body)
        else {
            return Ok(None);
        };
        let fresh = |seq: u64| draft.entries.iter().find(|it| it.base.seq == seq).cloned();
        let open = || self.answer.clone().filter(|answer| answer.base.seq == end.message);
        let Some(response) = fresh(end.message).or_else(open) else { return Ok(None) };
        let mut results = Vec::with_capacity(end.tool_results.len());
        for seq in &end.tool_results {
            if let Some(result) = fresh(*seq) {
                results.push(result);
            } else {
                let entries = self.entries().await?;
                let place = usize::try_from(seq.saturating_sub(1)).unwrap_or(usize::MAX);
                results.extend(entries.get(place).cloned());
            }
        }
        Ok(Some(TurnEntries { response, results, rounds: closed.rounds }))
    }
}
