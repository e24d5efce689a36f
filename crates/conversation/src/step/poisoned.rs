//! Prompts that fail because their step cannot succeed, and inputs that no commit can apply.

use crate::entry::MessageEntry;
use crate::event::{CommandEnd, EventBody};
use crate::inbox::{InboxItem, InputOutcome};
use crate::message::{AssistantMessage, Message, StopReason};
use crate::phase::{CallStatus, PendingWait, Phase};
use crate::request::{Decision, Effect, RequestKind, Verdict};
use crate::step::input::CallResult;
use crate::step::next::{Next, PromptEnding};
use crate::step::{apply, budget, calls, compaction, finish_turn, inbox, queue, results, turn};
use crate::transition::Transition;

/// Fails the prompt with the reason. Open calls get error results, so that the conversation can
/// continue.
pub(super) fn fail_prompt(transition: &mut Transition, reason: &str) -> Next {
    if matches!(transition.head.phase, Phase::Summary { .. }) {
        budget::record_lost_call(transition);
        return compaction::fail_summary(transition, reason);
    }
    if transition.head.prompt.is_none() {
        transition.head.phase = Phase::Idle;
        transition.head.reset_suspicion();
        ignore_input(transition, reason);
        return Next::Wait;
    }
    transition.is_prompt_ending = true;
    finish_open_calls(transition, reason);
    transition.is_prompt_ending = false;
    budget::record_lost_call(transition);
    end_turn_failed(transition, reason);
    Next::EndPrompt(PromptEnding::failed("poisoned", reason.to_owned()))
}

/// Ends a waiting input without effect: the oldest that starts a prompt, or else the oldest. Each
/// delivery would fail at it again. Adds nothing to the head, which may be full.
fn ignore_input(transition: &mut Transition, reason: &str) {
    let item = queue::pop_unbounded(transition, InboxItem::can_start_prompt)
        .or_else(|| queue::pop_unbounded(transition, InboxItem::has_effect_when_idle));
    let Some(item) = item else { return };
    end_command(transition, &item, reason);
    let mut receipt = queue::new_receipt(transition, &item);
    receipt.outcome = InputOutcome::Ignored;
    transition.receipts.push(receipt);
    inbox::settle_if_idle(transition);
}

/// Ends a command that waits in the head, and decides its open question as aborted.
fn end_command(transition: &mut Transition, item: &InboxItem, reason: &str) {
    if !item.is_waiting_command() {
        return;
    }
    let input_id = item.input_id.clone();
    transition.head.waiting_commands.retain(|command| command.input_id != input_id);
    if let Some(request) = transition.head.question_of(&input_id) {
        let decision = Decision {
            request_id: request.id.clone(),
            verdict: Verdict::Aborted,
            reason: Some(reason.to_owned()),
            value: None,
            decided_by: "abort".to_owned(),
            decided_at: transition.now,
        };
        apply::apply_decision(transition, &decision);
    }
    transition.emit_outside_prompt(EventBody::CommandEnd(CommandEnd { input_id }));
}

/// Gives each open call an error result and closes their turn.
fn finish_open_calls(transition: &mut Transition, reason: &str) {
    let mut next = Next::Wait;
    for index in 0..transition.calls().len() {
        if !is_call_open(transition, index) {
            next = results::flush_or_reference(transition, index);
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
        next = calls::reject_call(transition, index, &CallResult::error(text));
    }
    if matches!(next, Next::CloseTurn) {
        finish_turn::close_turn(transition);
    }
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
        ..turn::service_message(String::new(), transition)
    };
    let entry = transition.append_message(MessageEntry::new(Message::Assistant(message)));
    turn::end_turn(transition, entry.base.seq, Vec::new());
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
    let Some(CallStatus::Waiting { on: PendingWait::Request { request_id } }) =
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
