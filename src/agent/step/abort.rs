//! Aborting a prompt: it ends at once, and the abort's receipt lists the calls that already ran.

use crate::agent::entry::{CallRef, PromptState, PromptStop};
use crate::agent::inbox::{InboxBody, InboxItem, InputOutcome};
use crate::agent::message::StopReason;
use crate::agent::phase::{CallStatus, Phase, WaitsFor};
use crate::agent::request::{Decision, Effect, Request, RequestKind, Verdict};
use crate::agent::step::{
    CallResult, FailureKind, ResponseInput, apply, calls, compaction, finish, inbox, response,
    results,
};
use crate::agent::transition::Transition;
use crate::ids::{PromptId, RequestId};

/// Text that the model receives for a call that was aborted before its start.
pub(super) const ABORTED: &str = "Operation aborted";

/// Error text of the entry that stands for a response that was never requested.
const NOT_REQUESTED: &str = "Request was aborted";

/// Outcome of the open calls, as the provider's ids.
#[derive(Default)]
pub(super) struct BatchOutcome {
    pub(super) ran: Vec<String>,
    pub(super) skipped: Vec<String>,
    pub(super) unknown: Vec<String>,
}

/// True if an abort of the running prompt waits in the inbox.
pub(super) fn is_abort_pending(transition: &Transition) -> bool {
    let Some(run) = &transition.head.prompt else { return false };
    transition.pending.iter().any(|pending| targets(&pending.item, &run.id))
}

fn targets(item: &InboxItem, prompt: &PromptId) -> bool {
    matches!(&item.body, InboxBody::Abort(abort) if abort.prompt_id.as_ref() == Some(prompt))
}

/// Aborts the running prompt. Queued inbox items stay queued.
pub(super) fn abort_prompt(transition: &mut Transition) {
    let batch = batch_outcome(transition);
    append_receipts(transition, InputOutcome::Applied, &batch);
    transition.is_prompt_ending = true;
    inbox::apply_decisions_and_late_results(transition);
    decide_open_requests(transition);
    compaction::abort_compaction(transition);
    match &transition.head.phase {
        Phase::Calls { .. } => finish_open_calls(transition),
        Phase::Model { .. } => finish_open_turn(transition),
        Phase::Idle | Phase::Summary { .. } | Phase::Deleted => {}
    }
    transition.is_prompt_ending = false;
    finish::end_run(transition, PromptState::Aborted, PromptStop::Aborted, None);
}

/// Writes receipts for the pending aborts of a prompt that ends: applied if the prompt was aborted,
/// otherwise ignored as too late.
pub(super) fn apply_pending_aborts(transition: &mut Transition, state: PromptState) {
    let is_stopped = state == PromptState::Aborted;
    let outcome = if is_stopped { InputOutcome::Applied } else { InputOutcome::Ignored };
    append_receipts(transition, outcome, &BatchOutcome::default());
}

fn append_receipts(transition: &mut Transition, outcome: InputOutcome, batch: &BatchOutcome) {
    let Some(prompt) = transition.prompt_id() else { return };
    while let Some(item) = inbox::pop_unbounded(transition, |item| targets(item, &prompt)) {
        let mut receipt = apply::new_receipt(transition, &item);
        receipt.outcome = outcome;
        receipt.prompt_id = Some(prompt.clone());
        receipt.ran_calls.clone_from(&batch.ran);
        receipt.skipped_calls.clone_from(&batch.skipped);
        receipt.outcome_unknown_calls.clone_from(&batch.unknown);
        transition.receipts.push(receipt);
    }
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
    while let Some(item) = inbox::pop_unbounded(transition, is_late) {
        let InboxBody::Abort(abort) = &item.body else { continue };
        let mut receipt = apply::new_receipt(transition, &item);
        let span =
            transition.head.prompts.iter().find(|span| Some(&span.id) == abort.prompt_id.as_ref());
        // The prompt's end was committed without an inbox read.
        let has_stopped = span.is_some_and(|span| span.state == PromptState::Aborted);
        receipt.outcome = if has_stopped { InputOutcome::Applied } else { InputOutcome::Ignored };
        receipt.prompt_id.clone_from(&abort.prompt_id);
        transition.receipts.push(receipt);
    }
}

/// Outcome of the calls of the open response.
pub(super) fn batch_outcome(transition: &Transition) -> BatchOutcome {
    let mut batch = BatchOutcome::default();
    let Some(answer) = transition.open_response() else { return batch };
    for (index, call) in answer.tool_calls().enumerate() {
        let list = match call_outcome(transition, index) {
            Some(CallOutcome::Ran) => &mut batch.ran,
            Some(CallOutcome::Skipped) => &mut batch.skipped,
            Some(CallOutcome::Unknown) => &mut batch.unknown,
            None => continue,
        };
        list.push(call.id.clone());
    }
    batch
}

enum CallOutcome {
    Ran,
    Skipped,
    Unknown,
}

/// Outcome of one call of the open response. Pending inbox items count. Returns `None` if the call
/// was rejected before its start.
fn call_outcome(transition: &Transition, index: usize) -> Option<CallOutcome> {
    let state = transition.calls().get(index)?;
    Some(match &state.status {
        CallStatus::Done { .. } if state.attempts == 0 => return None,
        CallStatus::Done { .. } if calls::is_indeterminate(transition, index) => {
            CallOutcome::Unknown
        }
        CallStatus::Done { .. } => CallOutcome::Ran,
        CallStatus::Started { .. } if has_late_result(transition, index) => CallOutcome::Ran,
        CallStatus::Started { .. } => CallOutcome::Unknown,
        CallStatus::Waiting { on: WaitsFor::Request { request_id } } => {
            let is_outcome = |request: &Request| {
                request.id == *request_id && request.kind == RequestKind::Outcome
            };
            if !transition.head.requests.iter().any(is_outcome) {
                return Some(CallOutcome::Skipped);
            }
            match pending_verdict(transition, request_id) {
                _ if has_late_result(transition, index) => CallOutcome::Ran,
                Some(Verdict::Happened) => CallOutcome::Ran,
                Some(Verdict::DidNotHappen | Verdict::Again) => CallOutcome::Skipped,
                Some(
                    Verdict::Approve
                    | Verdict::Reject
                    | Verdict::Answer
                    | Verdict::Expired
                    | Verdict::Aborted,
                )
                | None => CallOutcome::Unknown,
            }
        }
        // The worker stopped during the call, and no worker has sent it again.
        CallStatus::Ready if state.attempts > 0 && !has_late_result(transition, index) => {
            CallOutcome::Unknown
        }
        CallStatus::Ready if state.attempts > 0 => CallOutcome::Ran,
        CallStatus::Ready | CallStatus::Waiting { .. } => CallOutcome::Skipped,
    })
}

/// Verdict of a pending decision on this request.
fn pending_verdict(transition: &Transition, id: &RequestId) -> Option<Verdict> {
    transition.pending.iter().find_map(|pending| {
        let InboxBody::Decision(decision) = &pending.item.body else { return None };
        (decision.request_id == *id).then_some(decision.verdict)
    })
}

/// True if a late result of the call, from a stopped worker, waits in the inbox.
fn has_late_result(transition: &Transition, index: usize) -> bool {
    let Phase::Calls { response_seq: answer, .. } = transition.head.phase else { return false };
    let call = CallRef { response_seq: answer, index };
    let is_result_of_call =
        |item: &InboxItem| matches!(&item.body, InboxBody::LateResult(late) if late.call == call);
    transition.pending.iter().any(|pending| is_result_of_call(&pending.item))
}

/// Decides all open requests as aborted. Accepted decisions are applied before.
fn decide_open_requests(transition: &mut Transition) {
    while let Some(request) = transition.head.requests.first() {
        let decision = Decision {
            request_id: request.id.clone(),
            verdict: Verdict::Aborted,
            reason: None,
            value: None,
            decided_by: "abort".to_owned(),
            decided_at: transition.now,
        };
        if !apply::apply_decision(transition, &decision) {
            return;
        }
    }
}

fn finish_open_calls(transition: &mut Transition) {
    for index in 0..transition.calls().len() {
        let Some(call) = transition.calls().get(index).filter(|call| !call.is_done()).cloned()
        else {
            results::flush_or_reference(transition, index);
            continue;
        };
        if let CallStatus::Started { effect: Effect::Write, fingerprint, .. } = call.status {
            calls::block_repeat(transition, index, fingerprint);
            let text = format!("{} (The prompt was stopped.)", calls::UNKNOWN_OUTCOME);
            calls::settle_call(transition, index, &CallResult::error(text));
        } else {
            calls::reject_call(transition, index, &CallResult::error(ABORTED));
        }
    }
}

/// Closes an open turn with an empty, aborted response.
fn finish_open_turn(transition: &mut Transition) {
    if !transition.head.prompt.as_ref().is_some_and(|run| run.is_turn_open) {
        return;
    }
    let mut message = finish::service_message(String::new(), transition);
    message.content = Vec::new();
    message.stop_reason = StopReason::Aborted;
    message.error_message = Some(NOT_REQUESTED.to_owned());
    let (revision, started_at) = (String::new(), transition.now);
    let (failure_kind, schema_error) = (FailureKind::Permanent, None);
    response::apply_response(
        transition,
        &ResponseInput { message, revision, started_at, failure_kind, schema_error },
    );
}
