//! Ends of turns and prompts, including prompts that fail because they cannot continue.

use serde_json::json;

use crate::agent::content::Block;
use crate::agent::draft::Draft;
use crate::agent::entry::{
    EntryBody, MessageEntry, PromptEnd, PromptError, PromptState, PromptStop,
};
use crate::agent::event::{AgentEnd, Empty, EventBody, OutputRef, TurnEnd};
use crate::agent::message::{AssistantMessage, Message, StopReason};
use crate::agent::phase::{CallStatus, Phase, WaitsFor};
use crate::agent::request::{Effect, RequestKind};
use crate::agent::step::{
    CallResult, calls, compacting, finish_turn, paying, results, retrying, stopping, taking_in,
};

/// Emits the end of the turn and marks it as closed.
pub(super) fn end_turn(draft: &mut Draft, message: u64, tool_results: Vec<u64>) {
    draft.tell(EventBody::TurnEnd(TurnEnd { message, tool_results }));
    if let Some(run) = &mut draft.head.prompt {
        run.is_turn_open = false;
    }
}

/// Closes a turn whose calls all have results on the path. A model call follows, unless the results
/// or an extension ask for an end, or a round limit is reached.
pub(super) fn close_turn(draft: &mut Draft) {
    let Phase::Calls { answer, calls, .. } = &draft.head.phase else { return };
    let results = calls
        .iter()
        .filter_map(|call| match call.status {
            CallStatus::Done { result, .. } => Some(result),
            CallStatus::Ready | CallStatus::Waiting { .. } | CallStatus::Started { .. } => None,
        })
        .collect();
    let answer = *answer;
    let terminates = draft.batch().terminates() && !draft.gives_up;
    taking_in::note_batch(draft);
    end_turn(draft, answer, results);
    draft.head.phase = Phase::Model { attempt: 1, not_before: None };
    draft.answer = None;
    draft.kept.clear();
    finish_turn::after_results(draft, terminates);
}

/// Ends a prompt that has reached a round limit.
pub(super) fn limit_rounds(draft: &mut Draft) {
    let rounds = rounds(draft);
    let said = if rounds >= draft.rules.hard_rounds_max {
        format!("Stopped after {} rounds: the service's hard limit.", draft.rules.hard_rounds_max)
    } else if let Some(max) = draft.rules.rounds_max.filter(|max| rounds >= *max) {
        format!("Exceeded maximum number of rounds ({max}). Stopping.")
    } else {
        return;
    };
    let message = Message::Assistant(own_words(said, draft));
    let entry = draft.speak(MessageEntry::plain(message));
    draft.tell(EventBody::PromptOutput(OutputRef {
        seq: entry.base.seq,
        block: Some(0),
        call: None,
    }));
    end(draft, PromptState::Completed, PromptStop::MaxRounds, None);
}

fn rounds(draft: &Draft) -> u32 {
    draft.head.prompt.as_ref().map_or(0, |run| run.rounds)
}

/// True if the prompt has used all its rounds.
pub(super) fn is_used_up(draft: &Draft) -> bool {
    let max = draft.rules.rounds_max.unwrap_or(u32::MAX).min(draft.rules.hard_rounds_max);
    rounds(draft) >= max
}

/// A message of the service itself, stored as a model response.
pub(super) fn own_words(text: String, draft: &Draft) -> AssistantMessage {
    let content = vec![Block::text(text)];
    AssistantMessage {
        model: "none".to_owned(),
        timestamp: draft.now,
        ..AssistantMessage::of_ours("turnwheel", content, StopReason::Stop)
    }
}

/// Ends a prompt and its agent run.
pub(super) fn end(
    draft: &mut Draft,
    state: PromptState,
    stop_reason: PromptStop,
    error: Option<&PromptError>,
) {
    let Some(run) = draft.head.prompt.clone() else { return };
    stopping::settle(draft, state);
    compacting::cut_off(draft);
    // A failed response before a retry has already ended the run.
    if !run.is_between_tries {
        let (from_seq, to_seq) = (run.agent_from(), draft.head.seq);
        draft.tell(EventBody::AgentEnd(AgentEnd { from_seq, to_seq, will_retry: false }));
    }
    retrying::give_up(draft, error.map(|error| error.message.as_str()));
    end_prompt(draft, state, stop_reason, error);
    if draft.head.waiting == 0 {
        draft.tell(EventBody::AgentSettled(Empty {}));
    }
    draft.head.prompt = None;
    draft.head.phase = Phase::Idle;
    draft.head.requests.clear();
    paying::close(draft);
    draft.head.note_progress();
    draft.answer = None;
    draft.kept.clear();
}

/// Ends a prompt. Another one may follow in the same run.
pub(super) fn end_prompt(
    draft: &mut Draft,
    state: PromptState,
    stop_reason: PromptStop,
    error: Option<&PromptError>,
) {
    let Some(id) = draft.prompt_id() else { return };
    let is_answered = state == PromptState::Completed && stop_reason == PromptStop::End;
    let run = draft.head.prompt.as_ref().filter(|_| is_answered);
    let incomplete = run.and_then(|run| run.incomplete.clone());
    let end = PromptEnd { state, stop_reason, error: error.cloned(), incomplete };
    let mut data = json!({"promptId": id, "state": state, "stopReason": stop_reason, "error": error.map(|error| &error.kind)});
    if let (Some(incomplete), Some(data)) = (&end.incomplete, data.as_object_mut()) {
        data.insert("incomplete".to_owned(), json!(incomplete));
    }
    let entry = draft.append(EntryBody::PromptEnd(end));
    if let Some(span) = draft.head.prompts.iter_mut().rev().find(|span| span.id == id) {
        span.state = state;
        span.stop_reason = Some(stop_reason);
        span.to_seq = Some(entry.base.seq);
    }
    match state {
        PromptState::Failed => {
            draft.tell(EventBody::PromptError(Empty {}));
            let text = format!("A prompt of {} failed.", draft.head.agent);
            draft.owe_notice("prompt.error", &data, text);
        }
        PromptState::Running
        | PromptState::WaitingForApproval
        | PromptState::Completed
        | PromptState::Aborted => {
            draft.tell(EventBody::PromptCompleted(Empty {}));
            let became = if state == PromptState::Aborted { "was stopped" } else { "is complete" };
            let text = format!("A prompt of {} {became}.", draft.head.agent);
            draft.owe_notice("prompt.completed", &data, text);
        }
    }
}

/// Fails the prompt with the reason. Open calls get error results, so that the conversation can
/// continue.
pub(super) fn poison(draft: &mut Draft, reason: &str) {
    if matches!(draft.head.phase, Phase::Summary { .. }) {
        paying::lose(draft);
        compacting::fail(draft, reason);
        return;
    }
    if draft.head.prompt.is_none() {
        draft.head.phase = Phase::Idle;
        draft.head.note_progress();
        return;
    }
    // Settling the last call must not continue with another model call.
    let rules = draft.rules.clone();
    draft.rules.rounds_max = None;
    draft.rules.hard_rounds_max = u32::MAX;
    draft.gives_up = true;
    for index in 0..draft.calls().len() {
        if !is_open(draft, index) {
            results::put_or_name(draft, index);
            continue;
        }
        let text = if let Some(fingerprint) = started_write(draft, index) {
            calls::block_told(draft, index, fingerprint);
            calls::UNKNOWN_OUTCOME.to_owned()
        } else if is_outcome_asked(draft, index) {
            calls::UNKNOWN_OUTCOME.to_owned()
        } else {
            let was_sent = draft.calls().get(index).is_some_and(|call| call.attempts > 0);
            let what = if was_sent { "did not finish" } else { "was not run" };
            format!("This call {what}: {reason}")
        };
        calls::refuse(draft, index, &CallResult::error(text));
    }
    draft.rules = rules;
    draft.gives_up = false;
    paying::lose(draft);
    end_unanswered(draft, reason);
    let error = PromptError { kind: "poisoned".to_owned(), message: reason.to_owned() };
    end(draft, PromptState::Failed, PromptStop::Error, Some(&error));
}

/// Closes an open turn with a failed response.
fn end_unanswered(draft: &mut Draft, reason: &str) {
    if !draft.head.prompt.as_ref().is_some_and(|run| run.is_turn_open) {
        return;
    }
    let message = AssistantMessage {
        content: Vec::new(),
        stop_reason: StopReason::Error,
        error_message: Some(reason.to_owned()),
        ..own_words(String::new(), draft)
    };
    let entry = draft.speak(MessageEntry::plain(Message::Assistant(message)));
    end_turn(draft, entry.base.seq, Vec::new());
}

/// Fingerprint of a started write.
fn started_write(draft: &Draft, index: usize) -> Option<String> {
    let status = draft.calls().get(index).map(|call| &call.status)?;
    if let CallStatus::Started { effect: Effect::Write, fingerprint, .. } = status {
        Some(fingerprint.clone())
    } else {
        None
    }
}

/// True if a request for the outcome of the call is open.
fn is_outcome_asked(draft: &Draft, index: usize) -> bool {
    let Some(CallStatus::Waiting { on: WaitsFor::Request { request_id } }) =
        draft.calls().get(index).map(|call| &call.status)
    else {
        return false;
    };
    let mut requests = draft.head.requests.iter();
    requests.any(|request| request.id == *request_id && request.kind == RequestKind::Outcome)
}

fn is_open(draft: &Draft, index: usize) -> bool {
    draft.calls().get(index).is_some_and(|call| !call.is_done())
}
