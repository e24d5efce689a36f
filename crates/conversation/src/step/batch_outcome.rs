//! The outcome of the open calls, for the receipts of aborts and steers.

use crate::inbox::{InboxBody, InboxItem};
use crate::phase::{CallStatus, PendingWait, Phase};
use crate::request::{CallRef, Request, RequestKind, Verdict};
use crate::step::calls;
use crate::transition::Transition;
use turnwheel_platform::ids::RequestId;

/// Outcome of the open calls, as the provider's ids.
#[derive(Default)]
pub(super) struct CallBatchOutcome {
    pub(super) ran: Vec<String>,
    pub(super) skipped: Vec<String>,
    pub(super) unknown: Vec<String>,
}

/// Outcome of the calls of the open response.
pub(super) fn batch_outcome(transition: &Transition) -> CallBatchOutcome {
    let mut batch = CallBatchOutcome::default();
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
        CallStatus::Waiting { on: PendingWait::Request { request_id } } => {
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
