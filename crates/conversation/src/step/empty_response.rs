//! Responses with neither text nor calls: the model is called once more. A second one ends the prompt
//! (LO-09), which is then marked as incomplete.

use crate::phase::Phase;
use crate::step::next::Next;
use crate::step::{finish, queue};
use crate::transition::Transition;

/// True if another call is allowed: the first one in a row, within the limits of the prompt.
pub(super) fn may_repeat(transition: &Transition) -> bool {
    let retry = &transition.policy.retry;
    let run = transition.head.prompt.as_ref();
    retry.enabled
        && retry.max_retries > 0
        && run.is_some_and(|run| !run.has_repeated_empty)
        && !finish::has_used_all_rounds(transition)
}

/// Calls the model again. The empty response stays stored.
pub(super) fn repeat_call(transition: &mut Transition) -> Next {
    if queue::is_abort_pending(transition) {
        return Next::AbortPrompt;
    }
    if let Some(run) = &mut transition.head.prompt {
        run.has_repeated_empty = true;
    }
    transition.head.phase = Phase::MODEL_CALL;
    Next::ContinueWithModel
}
