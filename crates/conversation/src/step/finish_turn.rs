//! The end of a turn: it closes with the results of its calls, and an extension may decide how the
//! prompt continues.

use crate::phase::{CallStatus, Phase};
use crate::step::{batch_outcome, queue, turn};
use crate::transition::{ClosedTurn, FinishTurn, Transition};

/// Closes the turn of the open calls. All of them have results on the path. Returns true if all
/// results ask for the end of the prompt.
pub(super) fn close_turn(transition: &mut Transition) -> bool {
    assert!(transition.call_batch().next_in_order().is_none(), "a call has no result on the path");
    let Phase::Calls { response_seq, calls, .. } = &transition.head.phase else {
        unreachable!("no calls are open")
    };
    let results = calls
        .iter()
        .filter_map(|call| match call.status {
            CallStatus::Done { result_seq: result, .. } => Some(result),
            CallStatus::Ready | CallStatus::Waiting { .. } | CallStatus::Started { .. } => None,
        })
        .collect();
    let response_seq = *response_seq;
    let is_end_requested = transition.call_batch().should_terminate();
    // For the receipts of items that are applied now.
    let batch = batch_outcome::batch_outcome(transition);
    transition.ran_calls = batch.ran;
    transition.outcome_unknown_calls = batch.unknown;
    turn::end_turn(transition, response_seq, results);
    transition.head.phase = Phase::MODEL_CALL;
    transition.response = None;
    transition.buffered.clear();
    is_end_requested
}

/// Records that an extension may decide on the turn whose `turn_end` is the newest event, and
/// returns the decision. An aborted or failing prompt ends in any case.
pub(super) fn take_decision(transition: &mut Transition) -> Option<FinishTurn> {
    let run = transition.head.prompt.as_ref()?;
    let (rounds, turn_index) = (run.rounds, run.turn_index());
    if transition.is_prompt_ending || queue::is_abort_pending(transition) {
        return None;
    }
    let event = transition.events.len().saturating_sub(1);
    transition.closed_turn = Some(ClosedTurn { event, rounds, turn_index });
    transition.finish_turn.take()
}
