//! An extension's decision on a turn that closes: the prompt ends, or one more model call follows.

use crate::agent::draft::Draft;
use crate::agent::entry::{PromptState, PromptStop};
use crate::agent::phase::Phase;
use crate::agent::step::{ending, response_schema, stopping, taking_in};

/// How a prompt continues after a turn.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FinishTurn {
    /// The prompt ends as completed. Steers and follow-ups are not polled: they stay queued and
    /// start the next prompt, or wait for one if they have `whenIdle: hold`. A response that does
    /// not fit the agent's response schema fails the prompt instead.
    End,
    /// The model receives one more request, also if the response has no tool calls or all results
    /// ask for an end. Round limits and budgets apply.
    Continue,
}

/// A turn that a transition closes and on which an extension may decide.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ClosedTurn {
    /// Index of its `turn_end` among the events of the transition.
    pub event: usize,
    /// Number of model responses of the prompt, including that of this turn.
    pub rounds: u32,
}

/// Records that an extension may decide on the turn whose `turn_end` is the newest event, and
/// returns the decision. An aborted or failing prompt ends in any case.
fn take_decision(draft: &mut Draft) -> Option<FinishTurn> {
    let rounds = draft.head.prompt.as_ref().map(|run| run.rounds)?;
    if draft.gives_up || stopping::is_coming(draft) {
        return None;
    }
    let event = draft.events.len().saturating_sub(1);
    draft.closed_turn = Some(ClosedTurn { event, rounds });
    draft.finish_turn.take()
}

/// Continues after a response without tool calls. `schema_error`: why the response does not fit the
/// agent's response schema.
pub(super) fn after_response(draft: &mut Draft, misfit: Option<&str>) {
    let decision = take_decision(draft);
    match (decision, misfit) {
        (Some(FinishTurn::End), Some(misfit)) => response_schema::fail(draft, misfit),
        (Some(FinishTurn::End), None) => complete(draft),
        // A waiting steer continues the prompt: this response was not its last.
        (_, Some(misfit)) if !taking_in::waits(draft, taking_in::is_steer) => {
            response_schema::accept_misfit(draft, misfit);
        }
        // The `DrainInbox` that follows appends the steers.
        (Some(FinishTurn::Continue), _) => {
            draft.head.phase = Phase::Model { attempt: 1, not_before: None };
            ending::limit_rounds(draft);
        }
        (None, _) => taking_in::stop(draft),
    }
}

/// Continues after the results of a response's calls. `terminates`: all of them ask for an end.
pub(super) fn after_results(draft: &mut Draft, terminates: bool) {
    match take_decision(draft) {
        Some(FinishTurn::End) => complete(draft),
        None if terminates => taking_in::stop(draft),
        Some(FinishTurn::Continue) | None => ending::limit_rounds(draft),
    }
}

/// Ends the prompt without polling the queues.
fn complete(draft: &mut Draft) {
    ending::end(draft, PromptState::Completed, PromptStop::End, None);
}
