//! The circuit breaker of the loop `protocol`: several failures in a row end the prompt (PC-10).

use crate::entry::MessageEntry;
use crate::event::{EventBody, OutputRef};
use crate::message::{Message, ToolResultMessage};
use crate::phase::Phase;
use crate::step::next::{Next, PromptEnding};
use crate::step::{queue, turn};
use crate::transition::Transition;

/// Failures in a row that end a prompt.
const FAILURES_MAX: u32 = 3;
/// Type of the error of a prompt that ended for this reason.
pub const MAX_FAILURES: &str = "max_failures";
/// The source's text.
pub const TERMINATING: &str = "Max failures. Terminating.";

/// Counts a result of a tool call. A rejection or a skip is a decision, and no failure of the model.
pub(super) fn record_result(transition: &mut Transition, result: &ToolResultMessage) {
    let is_decision = result.rejected.is_some() || !transition.skipped.is_empty();
    if !transition.policy.is_protocol || is_decision {
        return;
    }
    if let Some(run) = &mut transition.head.prompt {
        run.failures_in_row = if result.is_error { run.failures_in_row + 1 } else { 0 };
    }
}

/// True if the prompt has failed too often in a row. A waiting steer may change its course.
pub(super) fn is_limit_reached(transition: &Transition) -> bool {
    let run = transition.head.prompt.as_ref();
    transition.policy.is_protocol
        && run.is_some_and(|run| run.failures_in_row >= FAILURES_MAX)
        && !queue::has_pending(transition, queue::is_steer)
}

/// Calls the model again, so that it corrects the calls that could not be read.
pub(super) fn continue_after_malformed_calls(transition: &mut Transition) -> Next {
    if queue::is_abort_pending(transition) {
        return Next::AbortPrompt;
    }
    if let Some(run) = &mut transition.head.prompt {
        run.failures_in_row += 1;
    }
    if is_limit_reached(transition) {
        return end_prompt(transition);
    }
    transition.head.phase = Phase::MODEL_CALL;
    Next::ContinueWithModel
}

/// Ends the prompt with the source's text.
pub(super) fn end_prompt(transition: &mut Transition) -> Next {
    let message = turn::service_message(TERMINATING.to_owned(), transition);
    let entry = transition.append_message(MessageEntry::new(Message::Assistant(message)));
    transition.emit(EventBody::PromptOutput(OutputRef {
        seq: entry.base.seq,
        block: Some(0),
        call: None,
    }));
    Next::EndPrompt(PromptEnding::failed(MAX_FAILURES, TERMINATING.to_owned()))
}
