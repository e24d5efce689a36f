//! An extension's decision on a turn that closes: the prompt ends, or one more model call follows.

use crate::agent::entry::{PromptState, PromptStop};
use crate::agent::phase::Phase;
use crate::agent::step::{abort, finish, inbox, response_schema};
use crate::agent::transition::Transition;

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
fn take_decision(transition: &mut Transition) -> Option<FinishTurn> {
    let rounds = transition.head.prompt.as_ref().map(|run| run.rounds)?;
    if transition.is_prompt_ending || abort::is_abort_pending(transition) {
        return None;
    }
    let event = transition.events.len().saturating_sub(1);
    transition.closed_turn = Some(ClosedTurn { event, rounds });
    transition.finish_turn.take()
}

/// Continues after a response without tool calls. `schema_error`: why the response does not fit the
/// agent's response schema.
pub(super) fn continue_after_response(transition: &mut Transition, schema_error: Option<&str>) {
    let decision = take_decision(transition);
    match (decision, schema_error) {
        (Some(FinishTurn::End), Some(schema_error)) => {
            response_schema::fail_prompt(transition, schema_error);
        }
        (Some(FinishTurn::End), None) => complete_prompt(transition),
        // A waiting steer continues the prompt: this response was not its last.
        (_, Some(schema_error)) if !inbox::has_pending(transition, inbox::is_steer) => {
            response_schema::request_correction(transition, schema_error);
        }
        // The `DrainInbox` that follows appends the steers.
        (Some(FinishTurn::Continue), _) => {
            transition.head.phase = Phase::Model { attempt: 1, not_before: None };
            finish::enforce_round_limits(transition);
        }
        (None, _) => inbox::finish_or_continue(transition),
    }
}

/// Continues after the results of a response's calls. `terminates`: all of them ask for an end.
pub(super) fn continue_after_results(transition: &mut Transition, terminates: bool) {
    match take_decision(transition) {
        Some(FinishTurn::End) => complete_prompt(transition),
        None if terminates => inbox::finish_or_continue(transition),
        Some(FinishTurn::Continue) | None => finish::enforce_round_limits(transition),
    }
}

/// Ends the prompt without polling the queues.
fn complete_prompt(transition: &mut Transition) {
    finish::end_run(transition, PromptState::Completed, PromptStop::End, None);
}
