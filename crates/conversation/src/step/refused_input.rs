//! One more model call without the part of the input that the service refused.

use crate::input_repair::RefusedInput;
use crate::phase::Phase;
use crate::step::next::Next;
use crate::transition::Transition;

/// True if one more call without the refused part may complete the prompt: once.
pub(super) fn can_repeat(transition: &Transition, refused: &RefusedInput) -> bool {
    let run = transition.head.prompt.as_ref();
    refused.is_repeatable && run.is_some_and(|run| !run.has_repaired_input)
}

pub(super) fn repeat_without_refused_part(transition: &mut Transition) -> Next {
    if let Some(run) = &mut transition.head.prompt {
        run.has_repaired_input = true;
    }
    transition.head.phase = Phase::MODEL_CALL;
    Next::Wait
}
