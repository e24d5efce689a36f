//! Aborting a prompt: it ends at once, and the abort's receipt lists the calls that already ran.

use crate::entry::PromptState;
use crate::finished_prompt::FinishedPrompt;
use crate::inbox::{InboxBody, InboxItem, InputOutcome};
use crate::message::StopReason;
use crate::phase::{CallStatus, Phase};
use crate::request::{Decision, Effect, Verdict};
use crate::step::batch_outcome::{self, CallBatchOutcome};
use crate::step::input::{CallResult, ResponseInput};
use crate::step::next::Next;
use crate::step::queue::{self, targets};
use crate::step::retry::FailureKind;
use crate::step::{actions, apply, calls, compaction, inbox, response, results, turn};
use crate::transition::Transition;
use turnwheel_platform::ids::PromptId;

/// Text that the model receives for a call that was aborted before its start.
pub(super) const ABORTED: &str = "Operation aborted";

/// Error text of the entry that stands for a response that was never requested.
const NOT_REQUESTED: &str = "Request was aborted";

/// Writes the receipts of the pending aborts, with the outcome of the open calls.
pub(super) fn acknowledge_aborts(transition: &mut Transition) {
    debug_assert!(queue::is_abort_pending(transition), "no abort of the running prompt is pending");
    let batch = batch_outcome::batch_outcome(transition);
    append_receipts(transition, InputOutcome::Applied, &batch);
    transition.is_abort_requested = false;
}

/// Ends the open step: a compaction, calls, or a turn without a response.
pub(super) fn finish_open_step(transition: &mut Transition) -> Next {
    debug_assert!(transition.is_prompt_ending, "the prompt does not end");
    compaction::abort_compaction(transition);
    match &transition.head.phase {
        Phase::Calls { .. } => finish_open_calls(transition),
        Phase::Model { .. } => finish_open_turn(transition),
        Phase::Idle | Phase::Summary { .. } | Phase::Deleted => Next::Wait,
    }
}

/// Writes receipts for the pending aborts of a prompt that ends: applied if the prompt was aborted,
/// otherwise ignored as too late.
pub(super) fn apply_pending_aborts(transition: &mut Transition, state: PromptState) {
    let is_stopped = state == PromptState::Aborted;
    let outcome = if is_stopped { InputOutcome::Applied } else { InputOutcome::Ignored };
    append_receipts(transition, outcome, &CallBatchOutcome::default());
}

fn append_receipts(transition: &mut Transition, outcome: InputOutcome, batch: &CallBatchOutcome) {
    let Some(prompt) = transition.prompt_id() else { return };
    while let Some(item) = queue::pop_unbounded(transition, |item| targets(item, &prompt)) {
        let mut receipt = queue::new_receipt(transition, &item);
        receipt.outcome = outcome;
        receipt.prompt_id = Some(prompt.clone());
        receipt.ran_calls.clone_from(&batch.ran);
        receipt.skipped_calls.clone_from(&batch.skipped);
        receipt.outcome_unknown_calls.clone_from(&batch.unknown);
        transition.receipts.push(receipt);
    }
}

/// True if this commit ends a prompt as aborted, or the commit before it did so without an inbox read.
pub(super) fn has_stopped_prompt(transition: &Transition) -> bool {
    let has_stopped = |item: &InboxItem| match &item.body {
        InboxBody::Abort(abort) => is_span_aborted(transition, abort.prompt_id.as_ref()),
        InboxBody::Prompt(_)
        | InboxBody::Steer(_)
        | InboxBody::FollowUp(_)
        | InboxBody::Custom(_)
        | InboxBody::Decision(_)
        | InboxBody::Continue(_)
        | InboxBody::LateResult(_)
        | InboxBody::Command(_) => false,
    };
    actions::has_aborted(transition) || queue::has_pending(transition, has_stopped)
}

fn is_span_aborted(transition: &Transition, prompt: Option<&PromptId>) -> bool {
    let span = transition.head.prompts.iter().find(|span| Some(&span.id) == prompt);
    span.is_some_and(|span| span.state == PromptState::Aborted)
}

/// Writes receipts for aborts that came too late: their prompts neither run nor wait.
pub(super) fn ignore_late_aborts(transition: &mut Transition) {
    let startable_prompts: Vec<PromptId> = transition
        .pending
        .iter()
        .filter_map(|pending| inbox::started_prompt_id(&pending.item))
        .chain(transition.prompt_id())
        .collect();
    let is_late = |item: &InboxItem| {
        matches!(&item.body, InboxBody::Abort(_))
            && !startable_prompts.iter().any(|prompt| targets(item, prompt))
    };
    while let Some(item) = queue::pop_unbounded(transition, is_late) {
        let InboxBody::Abort(abort) = &item.body else { continue };
        let mut receipt = queue::new_receipt(transition, &item);
        // The prompt's end was committed without an inbox read.
        let has_stopped = is_span_aborted(transition, abort.prompt_id.as_ref());
        receipt.outcome = if has_stopped { InputOutcome::Applied } else { InputOutcome::Ignored };
        receipt.prompt_id.clone_from(&abort.prompt_id);
        transition.receipts.push(receipt);
    }
}

/// Decides the oldest open request of the prompt as aborted. Returns `None` if none is open.
pub(super) fn decide_next_request(transition: &mut Transition) -> Option<Next> {
    let decision = Decision {
        request_id: transition.head.step_requests().next()?.id.clone(),
        verdict: Verdict::Aborted,
        reason: None,
        value: None,
        decided_by: "abort".to_owned(),
        decided_at: transition.now,
    };
    apply::apply_decision(transition, &decision)
}

/// Ends a compaction that waits for an answer, if an input waits for it that starts or inserts a
/// prompt. The question is decided as aborted.
pub(super) fn end_wait_for_prompt(transition: &mut Transition) -> Next {
    let head = &transition.head;
    let is_outside_prompt = head.prompt.is_none() && matches!(head.phase, Phase::Summary { .. });
    let has_prompt =
        |item: &InboxItem| item.can_start_prompt() || FinishedPrompt::from_item(item).is_some();
    if !is_outside_prompt || !queue::has_pending(transition, has_prompt) {
        return Next::Wait;
    }
    match decide_next_request(transition) {
        Some(_) => compaction::cancel(transition),
        None => Next::Wait,
    }
}

fn finish_open_calls(transition: &mut Transition) -> Next {
    let mut next = Next::Wait;
    for index in 0..transition.calls().len() {
        let Some(call) = transition.calls().get(index).filter(|call| !call.is_done()).cloned()
        else {
            next = results::flush_or_reference(transition, index);
            continue;
        };
        if let CallStatus::Started { effect: Effect::Write, fingerprint, .. } = call.status {
            calls::block_repeat(transition, index, fingerprint);
            let text = format!("{} (The prompt was stopped.)", calls::UNKNOWN_OUTCOME);
            next = calls::settle_call(transition, index, &CallResult::error(text));
        } else {
            next = calls::reject_call(transition, index, &CallResult::error(ABORTED));
        }
    }
    next
}

/// Closes an open turn with an empty, aborted response.
fn finish_open_turn(transition: &mut Transition) -> Next {
    if !transition.head.prompt.as_ref().is_some_and(|run| run.is_turn_open) {
        return Next::Wait;
    }
    let mut message = turn::service_message(String::new(), transition);
    message.content = Vec::new();
    message.stop_reason = StopReason::Aborted;
    message.error_message = Some(NOT_REQUESTED.to_owned());
    let response = ResponseInput {
        refused: None,
        message,
        revision: String::new(),
        started_at: transition.now,
        failure_kind: FailureKind::Permanent,
        error_type: "model",
        schema_error: None,
        frame: None,
        plugin_state: Vec::new(),
    };
    response::apply_response(transition, &response)
}
