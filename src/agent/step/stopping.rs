//! Aborting a prompt: it ends at once, and the abort's receipt lists the calls that already ran.

use crate::agent::draft::Draft;
use crate::agent::entry::{CallRef, PromptState, PromptStop};
use crate::agent::inbox::{InboxBody, InboxItem, Outcome};
use crate::agent::message::StopReason;
use crate::agent::phase::{CallStatus, Phase, WaitsFor};
use crate::agent::request::{Decision, Effect, Request, RequestKind, Verdict};
use crate::agent::step::{
    Answered, CallResult, Setback, answer, calls, compacting, ending, landing, results, taking_in,
};
use crate::ids::{PromptId, RequestId};

/// Text that the model receives for a call that was aborted before its start.
pub(super) const ABORTED: &str = "Operation aborted";

/// Error text of the entry that stands for a response that was never requested.
const NOT_ASKED: &str = "Request was aborted";

/// Outcome of the open calls, as the provider's ids.
#[derive(Default)]
pub(super) struct Batch {
    pub(super) ran: Vec<String>,
    pub(super) skipped: Vec<String>,
    pub(super) unknown: Vec<String>,
}

/// True if an abort of the running prompt waits in the inbox.
pub(super) fn is_coming(draft: &Draft) -> bool {
    let Some(run) = &draft.head.prompt else { return false };
    draft.pending.iter().any(|pending| names(&pending.item, &run.id))
}

fn names(item: &InboxItem, prompt: &PromptId) -> bool {
    matches!(&item.body, InboxBody::Abort(abort) if abort.prompt_id.as_ref() == Some(prompt))
}

/// Aborts the running prompt. Queued inbox items stay queued.
pub(super) fn stop(draft: &mut Draft) {
    let batch = batch(draft);
    land(draft, Outcome::Landed, &batch);
    // Settling the last call must not continue with another model call.
    let rules = draft.rules.clone();
    draft.rules.rounds_max = None;
    draft.rules.hard_rounds_max = u32::MAX;
    draft.gives_up = true;
    taking_in::settle_all(draft);
    decide_all(draft);
    compacting::cut_off(draft);
    match &draft.head.phase {
        Phase::Calls { .. } => end_calls(draft),
        Phase::Model { .. } => end_turn(draft),
        Phase::Idle | Phase::Summary { .. } | Phase::Deleted => {}
    }
    draft.rules = rules;
    draft.gives_up = false;
    ending::end(draft, PromptState::Aborted, PromptStop::Aborted, None);
}

/// Writes receipts for the pending aborts of a prompt that ends: applied if the prompt was aborted,
/// otherwise ignored as too late.
pub(super) fn settle(draft: &mut Draft, state: PromptState) {
    let is_stopped = state == PromptState::Aborted;
    let outcome = if is_stopped { Outcome::Landed } else { Outcome::Ignored };
    land(draft, outcome, &Batch::default());
}

fn land(draft: &mut Draft, outcome: Outcome, batch: &Batch) {
    let Some(prompt) = draft.prompt_id() else { return };
    while let Some(item) = taking_in::take_surely(draft, |item| names(item, &prompt)) {
        let mut receipt = landing::receipt(draft, &item);
        receipt.outcome = outcome;
        receipt.prompt_id = Some(prompt.clone());
        receipt.ran_calls.clone_from(&batch.ran);
        receipt.skipped_calls.clone_from(&batch.skipped);
        receipt.unknown_calls.clone_from(&batch.unknown);
        draft.receipts.push(receipt);
    }
}

/// Writes receipts for aborts that came too late: their prompts neither run nor wait.
pub(super) fn ignore_late(draft: &mut Draft) {
    let to_come: Vec<PromptId> = draft
        .pending
        .iter()
        .filter_map(|pending| taking_in::begins(&pending.item))
        .chain(draft.prompt_id())
        .collect();
    let is_late = |item: &InboxItem| {
        matches!(&item.body, InboxBody::Abort(_))
            && !to_come.iter().any(|prompt| names(item, prompt))
    };
    while let Some(item) = taking_in::take_surely(draft, is_late) {
        let InboxBody::Abort(abort) = &item.body else { continue };
        let mut receipt = landing::receipt(draft, &item);
        let span =
            draft.head.prompts.iter().find(|span| Some(&span.id) == abort.prompt_id.as_ref());
        // The prompt's end was committed without an inbox read.
        let has_stopped = span.is_some_and(|span| span.state == PromptState::Aborted);
        receipt.outcome = if has_stopped { Outcome::Landed } else { Outcome::Ignored };
        receipt.prompt_id.clone_from(&abort.prompt_id);
        draft.receipts.push(receipt);
    }
}

/// Outcome of the calls of the open response.
pub(super) fn batch(draft: &Draft) -> Batch {
    let mut batch = Batch::default();
    let Some(answer) = draft.open_answer() else { return batch };
    for (index, call) in answer.tool_calls().enumerate() {
        let list = match what_became(draft, index) {
            Some(Became::Ran) => &mut batch.ran,
            Some(Became::Skipped) => &mut batch.skipped,
            Some(Became::Unknown) => &mut batch.unknown,
            None => continue,
        };
        list.push(call.id.clone());
    }
    batch
}

enum Became {
    Ran,
    Skipped,
    Unknown,
}

/// Outcome of one call of the open response. Pending inbox items count. Returns `None` if the call
/// was rejected before its start.
fn what_became(draft: &Draft, index: usize) -> Option<Became> {
    let state = draft.calls().get(index)?;
    Some(match &state.status {
        CallStatus::Done { .. } if state.attempts == 0 => return None,
        CallStatus::Done { .. } if calls::is_in_doubt(draft, index) => Became::Unknown,
        CallStatus::Done { .. } => Became::Ran,
        CallStatus::Started { .. } if has_come_late(draft, index) => Became::Ran,
        CallStatus::Started { .. } => Became::Unknown,
        CallStatus::Waiting { on: WaitsFor::Request { request_id } } => {
            let is_outcome = |request: &Request| {
                request.id == *request_id && request.kind == RequestKind::Outcome
            };
            if !draft.head.requests.iter().any(is_outcome) {
                return Some(Became::Skipped);
            }
            match said_of(draft, request_id) {
                _ if has_come_late(draft, index) => Became::Ran,
                Some(Verdict::Happened) => Became::Ran,
                Some(Verdict::DidNotHappen | Verdict::Again) => Became::Skipped,
                Some(
                    Verdict::Approve
                    | Verdict::Reject
                    | Verdict::Answer
                    | Verdict::Expired
                    | Verdict::Aborted,
                )
                | None => Became::Unknown,
            }
        }
        // The worker stopped during the call, and no worker has sent it again.
        CallStatus::Ready if state.attempts > 0 && !has_come_late(draft, index) => Became::Unknown,
        CallStatus::Ready if state.attempts > 0 => Became::Ran,
        CallStatus::Ready | CallStatus::Waiting { .. } => Became::Skipped,
    })
}

/// Verdict of a pending decision on this request.
fn said_of(draft: &Draft, id: &RequestId) -> Option<Verdict> {
    draft.pending.iter().find_map(|pending| {
        let InboxBody::Decision(decision) = &pending.item.body else { return None };
        (decision.request_id == *id).then_some(decision.verdict)
    })
}

/// True if a late result of the call, from a stopped worker, waits in the inbox.
fn has_come_late(draft: &Draft, index: usize) -> bool {
    let Phase::Calls { answer, .. } = draft.head.phase else { return false };
    let call = CallRef { answer, index };
    let is_it =
        |item: &InboxItem| matches!(&item.body, InboxBody::LateResult(late) if late.call == call);
    draft.pending.iter().any(|pending| is_it(&pending.item))
}

/// Decides all open requests as aborted. Accepted decisions are applied before.
fn decide_all(draft: &mut Draft) {
    while let Some(request) = draft.head.requests.first() {
        let decision = Decision {
            request_id: request.id.clone(),
            verdict: Verdict::Aborted,
            reason: None,
            value: None,
            decided_by: "abort".to_owned(),
            decided_at: draft.now,
        };
        if !landing::decide(draft, &decision) {
            return;
        }
    }
}

fn end_calls(draft: &mut Draft) {
    for index in 0..draft.calls().len() {
        let Some(call) = draft.calls().get(index).filter(|call| !call.is_done()).cloned() else {
            results::put_or_name(draft, index);
            continue;
        };
        if let CallStatus::Started { effect: Effect::Write, fingerprint, .. } = call.status {
            calls::block_told(draft, index, fingerprint);
            let text = format!("{} (The prompt was stopped.)", calls::UNKNOWN_OUTCOME);
            calls::settle(draft, index, &CallResult::error(text));
        } else {
            calls::refuse(draft, index, &CallResult::error(ABORTED));
        }
    }
}

/// Closes an open turn with an empty, aborted response.
fn end_turn(draft: &mut Draft) {
    if !draft.head.prompt.as_ref().is_some_and(|run| run.is_turn_open) {
        return;
    }
    let mut message = ending::own_words(String::new(), draft);
    message.content = Vec::new();
    message.stop_reason = StopReason::Aborted;
    message.error_message = Some(NOT_ASKED.to_owned());
    let (revision, started_at) = (String::new(), draft.now);
    let (setback, misfit) = (Setback::Final, None);
    answer::accept(draft, &Answered { message, revision, started_at, setback, misfit });
}
