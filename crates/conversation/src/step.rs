//! The step function: it applies one input to the transition, and decides what follows.
//!
//! It cannot fail: every input is defined in every state, if only as "ignored". A handler returns
//! an outcome and never calls another handler; [`advance`] is the agent loop.

mod abort;
mod actions;
mod apply;
mod audit;
mod bash;
mod batch_outcome;
mod budget;
mod budget_alerts;
mod calls;
mod compaction;
mod continue_prompt;
mod empty_response;
mod failures;
mod finish;
mod finish_turn;
mod inbox;
mod input;
mod insert;
mod navigate;
mod next;
mod poisoned;
mod profile;
mod questions;
mod queue;
mod refused_input;
mod renewal;
mod requests;
mod response;
mod response_schema;
mod results;
mod retry;
mod turn;
mod waiting_commands;

use crate::entry::PromptStop;
use crate::phase::Phase;
use crate::step::next::{Next, PromptEnding};
use crate::transition::Transition;

pub use crate::transition::FinishTurn;
pub use bash::BashInput;
pub use budget::{BudgetApprovalSpec, BudgetInput, find_exceeded_budget};
pub use calls::UNKNOWN_OUTCOME;
pub use compaction::{
    CompactInput, FinishedSummary, SummaryAttempt, SummaryOutcome, should_measure_before_start,
    should_measure_context,
};
pub use failures::{MAX_FAILURES, TERMINATING};
pub use inbox::{is_skipped_by_steer, is_supported, started_prompt_id};
pub use input::{ApprovalSpec, AskedQuestion, CallPlan, CallResult, Preflight};
pub use input::{Input, Replan, ResponseInput};
pub use insert::OUTPUTS_MAX;
pub use navigate::{MoveInput, NavigateInput, SummarisedMove};
pub(crate) use profile::record_messages;
pub use questions::has_room_for_question;
pub use renewal::renew_approval;
pub use response::CALLS_MAX;
pub use retry::FailureKind;
pub use waiting_commands::ready_commands;

/// Applies one input to the transition.
pub fn step(transition: &mut Transition, input: &Input) {
    let next = apply_input(transition, input);
    advance(transition, next);
}

/// Ends the commit after its last input: a requested abort ends the prompt, and `agent_settled` is
/// emitted if it is planned.
pub fn finish_commit(transition: &mut Transition) {
    if transition.is_abort_requested {
        abort_prompt(transition);
    }
    if let Some(run) = &mut transition.head.prompt {
        run.is_protocol = transition.policy.is_protocol;
    }
    transition.finish();
    record_messages(transition);
    audit::notify_results(transition);
}

fn apply_input(transition: &mut Transition, input: &Input) -> Next {
    match input {
        Input::InboxRead(pending) => inbox::set_pending(transition, pending),
        Input::DrainInbox => return Next::DrainInbox,
        Input::LeaseTakenOver => calls::take_over(transition),
        Input::ResponseReceived(response) => {
            return response::apply_response(transition, response);
        }
        Input::ContextWindowExceeded => return compaction::start_at_threshold(transition),
        Input::FixedPartMeasured(text) => {
            compaction::note_fixed_part(transition, text.as_deref());
        }
        Input::SummaryFinished(attempt) => return compaction::apply_summary(transition, attempt),
        Input::ToolCallChecked { index, preflight } => {
            return calls::apply_preflight(transition, *index, preflight);
        }
        Input::ToolCallReturned { index, result } => {
            return calls::settle_call(transition, *index, result);
        }
        Input::FlushBufferedResults => return results::flush_buffered(transition),
        Input::ToolOutcomeUnknown { index, reason, expires_at } => {
            return calls::handle_unknown_outcome(transition, *index, reason, *expires_at);
        }
        Input::Poisoned { reason } => return poisoned::fail_prompt(transition, reason),
        Input::BudgetChecked(budget_input) => budget::apply(transition, budget_input),
        Input::Paused(pause) => {
            transition.head.pause =
                transition.head.next_step_due(transition.now).map(|_| pause.clone());
        }
        Input::FinishTurn(decision) => transition.finish_turn = Some(*decision),
        Input::HookActions(hook) => actions::apply(transition, hook),
        Input::CommandRan(run) => waiting_commands::apply_run(transition, run),
        Input::StartChanges(changes) => {
            transition.held_start = None;
            transition.start_changes.push((**changes).clone());
        }
    }
    Next::Wait
}

/// The agent loop: carries out an outcome and decides what follows it, until the phase names the
/// pending work.
fn advance(transition: &mut Transition, outcome: Next) {
    let mut next = outcome;
    loop {
        if matches!(next, Next::PollQueues) {
            // A message of an extension may continue the prompt.
            actions::apply_waiting(transition);
        }
        next = match next {
            Next::Wait => return,
            Next::DrainInbox => return drain_inbox(transition),
            Next::CloseTurn => {
                let is_end_requested = finish_turn::close_turn(transition);
                match finish_turn::take_decision(transition) {
                    // The end of the prompt follows.
                    _ if transition.is_prompt_ending => Next::Wait,
                    Some(FinishTurn::End) => completed(),
                    None if is_end_requested => Next::PollQueues,
                    Some(FinishTurn::Continue) | None if failures::is_limit_reached(transition) => {
                        failures::end_prompt(transition)
                    }
                    Some(FinishTurn::Continue) | None => Next::ContinueWithModel,
                }
            }
            Next::FinishResponse { schema_error, has_malformed_calls, is_empty } => {
                let decision = finish_turn::take_decision(transition);
                // A waiting steer continues the prompt: this response was not its last.
                let is_last = !queue::has_pending(transition, queue::is_steer);
                match (decision, schema_error) {
                    (Some(FinishTurn::End), None) => completed(),
                    (Some(FinishTurn::End), Some(error)) => response_schema::fail_prompt(&error),
                    (_, Some(_)) if is_last && queue::is_abort_pending(transition) => {
                        Next::AbortPrompt
                    }
                    (_, Some(error)) if is_last => {
                        response_schema::request_correction(transition, &error)
                    }
                    // The `DrainInbox` that follows appends the steers.
                    (Some(FinishTurn::Continue), _) => {
                        transition.head.phase = Phase::MODEL_CALL;
                        Next::ContinueWithModel
                    }
                    (None, _) if has_malformed_calls && is_last => {
                        failures::continue_after_malformed_calls(transition)
                    }
                    (None, _) if is_empty && is_last && empty_response::may_repeat(transition) => {
                        empty_response::repeat_call(transition)
                    }
                    (None, _) => Next::PollQueues,
                }
            }
            Next::ContinueWithModel => finish::enforce_round_limits(transition),
            Next::PollQueues
                if queue::has_pending(transition, queue::is_steer)
                    && !finish::has_used_all_rounds(transition) =>
            {
                if queue::is_abort_pending(transition) {
                    Next::AbortPrompt
                } else {
                    inbox::continue_with_steers(transition)
                }
            }
            Next::PollQueues => match inbox::pop_next_prompt(transition) {
                Some(item) => {
                    finish::end_prompt(transition, &PromptEnding::completed(PromptStop::End));
                    inbox::start_next_prompt(transition, &item)
                }
                None => completed(),
            },
            Next::AbortPrompt => return abort_prompt(transition),
            Next::EndPrompt(ending) => finish::end_run(transition, &ending),
            Next::StartCompaction { reason, instructions } => {
                compaction::start(transition, reason, instructions)
            }
        };
    }
}

fn completed() -> Next {
    Next::EndPrompt(PromptEnding::completed(PromptStop::End))
}

/// Applies pending inbox items as far as one commit has room. An abort precedes all others.
fn drain_inbox(transition: &mut Transition) {
    if transition.head.phase == Phase::Deleted {
        return;
    }
    abort_if_requested(transition);
    apply_decisions(transition);
    actions::apply_waiting(transition);
    waiting_commands::enter(transition);
    let next = abort::end_wait_for_prompt(transition);
    advance(transition, next);
    if transition.head.prompt.is_none() && abort::has_stopped_prompt(transition) {
        actions::drop_waiting_starts(transition);
    }
    let next = inbox::start_prompt_when_idle(transition);
    advance(transition, next);
    abort_if_requested(transition);
    abort::ignore_late_aborts(transition);
    let next = inbox::skip_calls(transition);
    advance(transition, next);
    inbox::append_steers(transition);
    inbox::settle_if_idle(transition);
}

/// Applies pending decisions and late results, oldest first.
fn apply_decisions(transition: &mut Transition) {
    while let Some(item) = inbox::pop_decision(transition) {
        let (receipt, next) = apply::apply_item(transition, &item);
        advance(transition, next);
        transition.receipts.push(receipt);
    }
}

fn abort_if_requested(transition: &mut Transition) {
    if queue::is_abort_pending(transition) {
        abort_prompt(transition);
    }
}

/// Aborts the running prompt. Accepted decisions are applied before; queued messages stay queued.
fn abort_prompt(transition: &mut Transition) {
    abort::acknowledge_aborts(transition);
    transition.is_prompt_ending = true;
    apply_decisions(transition);
    while let Some(next) = abort::decide_next_request(transition) {
        advance(transition, next);
    }
    let next = abort::finish_open_step(transition);
    advance(transition, next);
    transition.is_prompt_ending = false;
    // A rejected budget increase has already ended the prompt.
    if transition.head.prompt.is_some() {
        advance(transition, Next::EndPrompt(PromptEnding::aborted()));
    }
    actions::drop_waiting_starts(transition);
}
