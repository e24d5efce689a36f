//! The hook `finish_turn`. It runs on the transition that closes a turn, and its decision becomes
//! an input of the same commit.

use std::sync::Arc;

use crate::leased_conversation::LeasedConversation;
use crate::plan::CommitPlan;
use turnwheel_conversation::entry::Entry;
use turnwheel_conversation::event::EventBody;
use turnwheel_conversation::message::{Message, ToolResultMessage};
use turnwheel_conversation::step::Input;
use turnwheel_extensions::context::Anchor;
use turnwheel_extensions::{ClosingTurn, Hook};
use turnwheel_record::error::TurnError;

/// The entries of a turn that closes.
struct TurnEntries {
    response: Arc<Entry>,
    results: Vec<Arc<Entry>>,
    rounds: u32,
    turn_index: u32,
}

/// Runs the hook if the inputs close a turn, and puts its decision before them.
///
/// # Errors
/// The lease was lost, or an earlier result could not be read: stop the delivery.
pub(crate) async fn run_finish_turn(
    conversation: &mut LeasedConversation<'_>,
    plan: &mut CommitPlan,
) -> Result<(), TurnError> {
    if !has_turn_hook(conversation, plan) {
        return Ok(());
    }
    // Boxed only here: without extensions nothing is allocated.
    Box::pin(apply_turn_decision(conversation, plan)).await
}

/// True if the inputs close a turn for which the hook runs.
fn has_turn_hook(conversation: &LeasedConversation<'_>, plan: &CommitPlan) -> bool {
    plan.transition().closed_turn.is_some() && conversation.has_hook(Hook::TurnEnd, plan.context())
}

async fn apply_turn_decision(
    conversation: &mut LeasedConversation<'_>,
    plan: &mut CommitPlan,
) -> Result<(), TurnError> {
    let Some(turn) = closing_entries(conversation, plan).await? else { return Ok(()) };
    let mut inputs = first_turn_decision(conversation, plan, &turn).await?;
    if !inputs.is_empty() {
        inputs.extend(plan.take_inputs());
        *plan = conversation.state.plan(conversation.services, inputs);
    }
    Ok(())
}

/// Removes lost writes whose results would close the turn. No hook runs here, so the next
/// delivery closes it.
pub(crate) fn leave_turn_open(conversation: &LeasedConversation<'_>, plan: &mut CommitPlan) {
    if !has_turn_hook(conversation, plan) {
        return;
    }
    let mut inputs = plan.take_inputs();
    inputs.retain(|input| !matches!(input, Input::ToolOutcomeUnknown { .. }));
    *plan = conversation.state.plan(conversation.services, inputs);
}

/// The first decision that an extension returns, and the actions of all hooks until then.
async fn first_turn_decision(
    conversation: &mut LeasedConversation<'_>,
    plan: &CommitPlan,
    turn: &TurnEntries,
) -> Result<Vec<Input>, TurnError> {
    let mut inputs = Vec::new();
    let response = turn.response.body.message().and_then(Message::as_assistant);
    let Some(response) = response else { return Ok(inputs) };
    let tool_results: Vec<&ToolResultMessage> =
        turn.results.iter().filter_map(|entry| entry.body.tool_result()).collect();
    let closing = ClosingTurn {
        response,
        tool_results: &tool_results,
        rounds: turn.rounds,
        turn_index: turn.turn_index,
    };
    let anchor = Anchor::Response(plan.transition().head.response_count);
    for cx in conversation.hook_contexts(Hook::TurnEnd, plan.context(), anchor) {
        let work = async { cx.extension().finish_turn(&cx, &closing).await };
        let Ok(decision) = conversation.run_hook(&cx, work).await? else { continue };
        inputs.extend(cx.take_actions());
        if let Some(decision) = decision {
            inputs.insert(0, Input::FinishTurn(decision));
            break;
        }
    }
    Ok(inputs)
}

/// Earlier results are read from the store. A response without calls is in the transition
/// itself, so no read delays the commit of a paid response.
async fn closing_entries(
    conversation: &LeasedConversation<'_>,
    plan: &CommitPlan,
) -> Result<Option<TurnEntries>, TurnError> {
    let transition = plan.transition();
    let Some(closed) = transition.closed_turn else { return Ok(None) };
    let Some(EventBody::TurnEnd(end)) = transition.events.get(closed.event).map(|it| &it.body)
    else {
        return Ok(None);
    };
    let new_entry = |seq: u64| transition.entries.iter().find(|it| it.base.seq == seq).cloned();
    let open_response =
        || conversation.state.response.clone().filter(|answer| answer.base.seq == end.message);
    let Some(response) = new_entry(end.message).or_else(open_response) else { return Ok(None) };
    let mut results = Vec::with_capacity(end.tool_results.len());
    for seq in &end.tool_results {
        if let Some(result) = new_entry(*seq) {
            results.push(result);
        } else {
            results.extend(conversation.state.load_entry(conversation.services, *seq).await?);
        }
    }
    Ok(Some(TurnEntries {
        response,
        results,
        rounds: closed.rounds,
        turn_index: closed.turn_index,
    }))
}
