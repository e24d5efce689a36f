//! Ends of turns and prompts, including prompts that fail because they cannot continue.

use serde_json::json;

use crate::agent::content::Block;
use crate::agent::entry::{
    EntryBody, MessageEntry, PromptEnd, PromptError, PromptState, PromptStop,
};
use crate::agent::event::{AgentEnd, Empty, EventBody, OutputRef, TurnEnd};
use crate::agent::message::{AssistantMessage, Message, StopReason};
use crate::agent::phase::{CallStatus, Phase, WaitsFor};
use crate::agent::request::{Effect, RequestKind};
use crate::agent::step::{
    CallResult, abort, budget, calls, compaction, finish_turn, inbox, results, retry,
};
use crate::agent::transition::Transition;

/// Emits the end of the turn and marks it as closed.
pub(super) fn end_turn(transition: &mut Transition, message: u64, tool_results: Vec<u64>) {
    transition.emit(EventBody::TurnEnd(TurnEnd { message, tool_results }));
    if let Some(run) = &mut transition.head.prompt {
        run.is_turn_open = false;
    }
}

/// Closes a turn whose calls all have results on the path. A model call follows, unless the results
/// or an extension ask for an end, or a round limit is reached.
pub(super) fn close_turn(transition: &mut Transition) {
    let Phase::Calls { response_seq, calls, .. } = &transition.head.phase else { return };
    let results = calls
        .iter()
        .filter_map(|call| match call.status {
            CallStatus::Done { result_seq: result, .. } => Some(result),
            CallStatus::Ready | CallStatus::Waiting { .. } | CallStatus::Started { .. } => None,
        })
        .collect();
    let response_seq = *response_seq;
    let terminates = transition.call_batch().should_terminate();
    inbox::record_batch_outcome(transition);
    end_turn(transition, response_seq, results);
    transition.head.phase = Phase::Model { attempt: 1, not_before: None };
    transition.response = None;
    transition.buffered.clear();
    if !transition.is_prompt_ending {
        finish_turn::continue_after_results(transition, terminates);
    }
}

/// Ends a prompt that has reached a round limit.
pub(super) fn enforce_round_limits(transition: &mut Transition) {
    let rounds = round_count(transition);
    let text = if rounds >= transition.policy.hard_rounds_max {
        format!(
            "Stopped after {} rounds: the service's hard limit.",
            transition.policy.hard_rounds_max
        )
    } else if let Some(max) = transition.policy.rounds_max.filter(|max| rounds >= *max) {
        format!("Exceeded maximum number of rounds ({max}). Stopping.")
    } else {
        return;
    };
    let message = Message::Assistant(service_message(text, transition));
    let entry = transition.append_message(MessageEntry::new(message));
    transition.emit(EventBody::PromptOutput(OutputRef {
        seq: entry.base.seq,
        block: Some(0),
        call: None,
    }));
    end_run(transition, PromptState::Completed, PromptStop::MaxRounds, None);
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

/// A message of the service itself, stored as a model response.
pub(super) fn service_message(text: String, transition: &Transition) -> AssistantMessage {
    let content = vec![Block::text(text)];
    AssistantMessage {
        model: "none".to_owned(),
        timestamp: transition.now,
        ..AssistantMessage::new_synthetic("turnwheel", content, StopReason::Stop)
    }
}

/// Ends a prompt and its agent run.
pub(super) fn end_run(
    transition: &mut Transition,
    state: PromptState,
    stop_reason: PromptStop,
    error: Option<&PromptError>,
) {
    let Some(run) = transition.head.prompt.clone() else { return };
    abort::apply_pending_aborts(transition, state);
    compaction::abort_compaction(transition);
    // A failed response before a retry has already ended the run.
    if !run.is_between_attempts {
        let (from_seq, to_seq) = (run.run_start_seq(), transition.head.seq);
        transition.emit(EventBody::AgentEnd(AgentEnd { from_seq, to_seq, will_retry: false }));
    }
    retry::finish_with_failure(transition, error.map(|error| error.message.as_str()));
    end_prompt(transition, state, stop_reason, error);
    transition.settle();
    transition.head.prompt = None;
    transition.head.phase = Phase::Idle;
    transition.head.requests.clear();
    budget::close_prompt(transition);
    transition.head.reset_suspicion();
    transition.response = None;
    transition.buffered.clear();
}

/// Ends a prompt. Another one may follow in the same run.
pub(super) fn end_prompt(
    transition: &mut Transition,
    state: PromptState,
    stop_reason: PromptStop,
    error: Option<&PromptError>,
) {
    let Some(id) = transition.prompt_id() else { return };
    let is_normal_end = state == PromptState::Completed && stop_reason == PromptStop::End;
    let run = transition.head.prompt.as_ref().filter(|_| is_normal_end);
    let incomplete = run.and_then(|run| run.incomplete.clone());
    let end = PromptEnd { state, stop_reason, error: error.cloned(), incomplete };
    let mut data = json!({"promptId": id, "state": state, "stopReason": stop_reason, "error": error.map(|error| &error.kind)});
    if let (Some(incomplete), Some(data)) = (&end.incomplete, data.as_object_mut()) {
        data.insert("incomplete".to_owned(), json!(incomplete));
    }
    let entry = transition.append(EntryBody::PromptEnd(end));
    if let Some(span) = transition.head.prompts.iter_mut().rev().find(|span| span.id == id) {
        span.state = state;
        span.stop_reason = Some(stop_reason);
        span.to_seq = Some(entry.base.seq);
    }
    match state {
        PromptState::Failed => {
            transition.emit(EventBody::PromptError(Empty {}));
            let text = format!("A prompt of {} failed.", transition.head.agent);
            transition.enqueue_notification("prompt.error", &data, text);
        }
        PromptState::Running
        | PromptState::WaitingForApproval
        | PromptState::Completed
        | PromptState::Aborted => {
            transition.emit(EventBody::PromptCompleted(Empty {}));
            let outcome = if state == PromptState::Aborted { "was stopped" } else { "is complete" };
            let text = format!("A prompt of {} {outcome}.", transition.head.agent);
            transition.enqueue_notification("prompt.completed", &data, text);
        }
    }
}

/// Fails the prompt with the reason. Open calls get error results, so that the conversation can
/// continue.
pub(super) fn fail_poisoned_prompt(transition: &mut Transition, reason: &str) {
    if matches!(transition.head.phase, Phase::Summary { .. }) {
        budget::record_lost_call(transition);
        compaction::fail_summary(transition, reason);
        return;
    }
    if transition.head.prompt.is_none() {
        transition.head.phase = Phase::Idle;
        transition.head.reset_suspicion();
        return;
    }
    transition.is_prompt_ending = true;
    for index in 0..transition.calls().len() {
        if !is_call_open(transition, index) {
            results::flush_or_reference(transition, index);
            continue;
        }
        let text = if let Some(fingerprint) = started_write_fingerprint(transition, index) {
            calls::block_repeat(transition, index, fingerprint);
            calls::UNKNOWN_OUTCOME.to_owned()
        } else if is_outcome_requested(transition, index) {
            calls::UNKNOWN_OUTCOME.to_owned()
        } else {
            let was_sent = transition.calls().get(index).is_some_and(|call| call.attempts > 0);
            let outcome = if was_sent { "did not finish" } else { "was not run" };
            format!("This call {outcome}: {reason}")
        };
        calls::reject_call(transition, index, &CallResult::error(text));
    }
    transition.is_prompt_ending = false;
    budget::record_lost_call(transition);
    end_turn_failed(transition, reason);
    let error = PromptError { kind: "poisoned".to_owned(), message: reason.to_owned() };
    end_run(transition, PromptState::Failed, PromptStop::Error, Some(&error));
}

/// Closes an open turn with a failed response.
fn end_turn_failed(transition: &mut Transition, reason: &str) {
    if !transition.head.prompt.as_ref().is_some_and(|run| run.is_turn_open) {
        return;
    }
    let message = AssistantMessage {
        content: Vec::new(),
        stop_reason: StopReason::Error,
        error_message: Some(reason.to_owned()),
        ..service_message(String::new(), transition)
    };
    let entry = transition.append_message(MessageEntry::new(Message::Assistant(message)));
    end_turn(transition, entry.base.seq, Vec::new());
}

/// Fingerprint of a started write.
fn started_write_fingerprint(transition: &Transition, index: usize) -> Option<String> {
    let status = transition.calls().get(index).map(|call| &call.status)?;
    if let CallStatus::Started { effect: Effect::Write, fingerprint, .. } = status {
        Some(fingerprint.clone())
    } else {
        None
    }
}

/// True if a request for the outcome of the call is open.
fn is_outcome_requested(transition: &Transition, index: usize) -> bool {
    let Some(CallStatus::Waiting { on: WaitsFor::Request { request_id } }) =
        transition.calls().get(index).map(|call| &call.status)
    else {
        return false;
    };
    let mut requests = transition.head.requests.iter();
    requests.any(|request| request.id == *request_id && request.kind == RequestKind::Outcome)
}

fn is_call_open(transition: &Transition, index: usize) -> bool {
    transition.calls().get(index).is_some_and(|call| !call.is_done())
}
