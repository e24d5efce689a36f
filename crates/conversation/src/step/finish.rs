//! Ends of prompts: the round limits, the end of the agent run, and the end of the prompt.

use serde_json::json;

use crate::entry::{MessageEntry, PromptEnd, PromptState, PromptStop};
use crate::event::{AgentEnd, Empty, EventBody, OutputRef};
use crate::message::Message;
use crate::phase::Phase;
use crate::step::next::{Next, PromptEnding};
use crate::step::{abort, budget, compaction, retry, turn};
use crate::transition::Transition;
use crate::unknown_members::Extra;

/// Ends a prompt that has reached a round limit.
pub(super) fn enforce_round_limits(transition: &mut Transition) -> Next {
    debug_assert!(transition.head.prompt.is_some(), "no prompt runs");
    let rounds = round_count(transition);
    let text = if rounds >= transition.policy.hard_rounds_max {
        format!(
            "Stopped after {} rounds: the service's hard limit.",
            transition.policy.hard_rounds_max
        )
    } else if let Some(max) = transition.policy.rounds_max.filter(|max| rounds >= *max) {
        if transition.policy.is_resume {
            // The source's text (PC-16).
            format!("Max iterations ({max}) exceeded in resume mode.")
        } else {
            format!("Exceeded maximum number of rounds ({max}). Stopping.")
        }
    } else {
        return Next::Wait;
    };
    let message = Message::Assistant(turn::service_message(text, transition));
    let entry = transition.append_message(MessageEntry::new(message));
    transition.emit(EventBody::PromptOutput(OutputRef {
        seq: entry.base.seq,
        block: Some(0),
        call: None,
    }));
    Next::EndPrompt(PromptEnding::completed(PromptStop::MaxRounds))
}

fn round_count(transition: &Transition) -> u32 {
    transition.head.prompt.as_ref().map_or(0, |run| run.rounds)
}

/// True if the prompt has used all its rounds.
pub(super) fn has_used_all_rounds(transition: &Transition) -> bool {
    let max =
        transition.policy.rounds_max.unwrap_or(u32::MAX).min(transition.policy.hard_rounds_max);
    round_count(transition) >= max
}

/// Ends a prompt and its agent run.
pub(super) fn end_run(transition: &mut Transition, ending: &PromptEnding) -> Next {
    debug_assert!(transition.head.prompt.is_some(), "no prompt runs");
    let Some(run) = transition.head.prompt.clone() else { return Next::Wait };
    abort::apply_pending_aborts(transition, ending.state);
    compaction::abort_compaction(transition);
    // A failed response before a retry has already ended the run.
    if !run.is_between_attempts {
        let (from_seq, to_seq) = (run.run_start_seq(), transition.head.seq);
        transition.emit(EventBody::AgentEnd(AgentEnd { from_seq, to_seq, will_retry: false }));
    }
    retry::finish_with_failure(
        transition,
        ending.error.as_ref().map(|error| error.message.as_str()),
    );
    end_prompt(transition, ending);
    transition.settle();
    transition.head.prompt = None;
    transition.head.phase = Phase::Idle;
    transition.head.requests.retain(|request| request.input_id.is_some());
    budget::close_prompt(transition);
    transition.head.reset_suspicion();
    transition.response = None;
    transition.buffered.clear();
    Next::Wait
}

/// Ends a prompt. Another one may follow in the same run.
pub(super) fn end_prompt(transition: &mut Transition, ending: &PromptEnding) {
    let PromptEnding { state, stop_reason, ref error } = *ending;
    let Some(id) = transition.prompt_id() else { return };
    transition.is_abort_requested = false;
    let is_normal_end = state == PromptState::Completed && stop_reason == PromptStop::End;
    let run = transition.head.prompt.as_ref().filter(|_| is_normal_end);
    let incomplete = run.and_then(|run| run.incomplete.clone());
    let end = PromptEnd {
        state,
        stop_reason,
        error: error.clone().map(Into::into),
        incomplete: incomplete.map(Into::into),
        extra: Extra::new(),
    };
    let mut data = json!({"promptId": id, "state": state, "stopReason": stop_reason, "error": error.as_ref().map(|error| &error.kind)});
    if let (Some(incomplete), Some(data)) = (&end.incomplete, data.as_object_mut()) {
        data.insert("incomplete".to_owned(), json!(incomplete));
    }
    transition.append_prompt_end(&id, end);
    match state {
        PromptState::Failed => {
            transition.emit(EventBody::PromptError(Empty {}));
            let text = format!("A prompt of {} failed.", transition.head.agent);
            transition.enqueue_notification("prompt.error", &data, &text);
        }
        PromptState::Running
        | PromptState::WaitingForApproval
        | PromptState::Completed
        | PromptState::Aborted => {
            transition.emit(EventBody::PromptCompleted(Empty {}));
            let outcome = if state == PromptState::Aborted { "was stopped" } else { "is complete" };
            let text = format!("A prompt of {} {outcome}.", transition.head.agent);
            transition.enqueue_notification("prompt.completed", &data, &text);
        }
    }
}
