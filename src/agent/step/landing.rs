//! Applying inbox items: an item becomes entries, events and a receipt.

use crate::agent::content::Block;
use crate::agent::draft::Draft;
use crate::agent::entry::{CallRef, Custom, DecisionEntry, EntryBody, PromptEntry};
use crate::agent::event::{Empty, EventBody, RequestRef};
use crate::agent::head::{PROMPTS_KEPT, PromptSpan, Run};
use crate::agent::inbox::{InboxBody, InboxItem, LateResult, Outcome, PromptInput, Receipt};
use crate::agent::message::Rejection;
use crate::agent::phase::{CallStatus, Phase, WaitsFor};
use crate::agent::raw::RawJson;
use crate::agent::request::{Decision, Request, RequestKind, Verdict};
use crate::agent::step::{CallResult, calls, paying, taking_in};
use crate::ids::EffectId;

/// Receipt of an item that is applied now.
pub(super) fn receipt(draft: &Draft, item: &InboxItem) -> Receipt {
    let (input_id, admission) = (item.input_id.clone(), item.admission.clone());
    Receipt {
        turn: draft.head.turn,
        ..Receipt::new(input_id, item.accepted_at, admission, Outcome::Landed)
    }
}

/// Applies a decision or a late result.
pub(super) fn settle(draft: &mut Draft, item: &InboxItem) {
    let mut receipt = receipt(draft, item);
    receipt.prompt_id = draft.prompt_id();
    let changes_something = match &item.body {
        InboxBody::Decision(decision) => {
            receipt.decision = Some(decision.clone());
            decide(draft, decision)
        }
        InboxBody::LateResult(late) => accept_late(draft, late),
        InboxBody::Prompt(_)
        | InboxBody::Steer(_)
        | InboxBody::FollowUp(_)
        | InboxBody::Abort(_)
        | InboxBody::Continue(_)
        | InboxBody::Command(_)
        | InboxBody::Custom(_) => false,
    };
    if !changes_something {
        receipt.outcome = Outcome::Ignored;
    }
    draft.receipts.push(receipt);
}

/// Starts a prompt. `run_from_seq`: `seq` of the first entry of the agent run that the prompt
/// continues.
pub(super) fn begin(
    draft: &mut Draft,
    item: &InboxItem,
    prompt: &PromptInput,
    run_from_seq: Option<u64>,
) {
    let head = &mut draft.head;
    head.turn += 1;
    head.prompt = Some(Run {
        id: prompt.prompt_id.clone(),
        from_seq: head.seq + 1,
        user: prompt.user.clone(),
        model: prompt.model.clone(),
        rounds: 0,
        run_from_seq,
        is_turn_open: true,
        has_overflowed: false,
        is_between_tries: false,
        is_steered: false,
        is_repaired: false,
        incomplete: None,
        usage: crate::agent::usage::Usage::default(),
        traceparent: prompt.traceparent.clone(),
        last_turn: None,
        lost: crate::agent::usage::Tally::default(),
        raised: Vec::new(),
        alert_marks: Vec::new(),
    });
    head.prompts.push(PromptSpan {
        id: prompt.prompt_id.clone(),
        state: crate::agent::entry::PromptState::Running,
        stop_reason: None,
        from_seq: head.seq + 1,
        to_seq: None,
    });
    let surplus = head.prompts.len().saturating_sub(PROMPTS_KEPT);
    head.prompts.drain(..surplus);
    head.phase = Phase::Model { attempt: 1, not_before: None };
    head.note_progress();
    let model = prompt.model.clone().unwrap_or_else(|| draft.rules.model.clone());
    draft.append(EntryBody::Prompt(PromptEntry {
        input_id: item.input_id.clone(),
        user: prompt.user.clone(),
        model,
        visible: prompt.visible,
        source: prompt.source,
        is_wordless: prompt.input.is_none(),
    }));
    draft.tell(EventBody::PromptCreated(Empty {}));
    if run_from_seq.is_none() {
        draft.tell(EventBody::AgentStart(Empty {}));
    }
    draft.tell(EventBody::TurnStart(Empty {}));
    taking_in::say(draft, item);
}

/// Applies a decision. Returns `false` if its request is no longer open.
pub(super) fn decide(draft: &mut Draft, decision: &Decision) -> bool {
    let Some(position) =
        draft.head.requests.iter().position(|request| request.id == decision.request_id)
    else {
        return false;
    };
    let request = draft.head.requests.remove(position);
    let entry = draft.append(EntryBody::Decision(DecisionEntry { decision: decision.clone() }));
    draft.tell(EventBody::PromptApprovalSettled(RequestRef {
        request_id: request.id.clone(),
        seq: entry.base.seq,
        tool_call_id: request.tool_call_id.clone(),
    }));
    draft.head.note_progress();
    if request.kind == RequestKind::Budget {
        paying::decided(draft, &request, decision);
    }
    let Some(call) = request.call else { return true };
    match request.kind {
        RequestKind::Tool => decide_tool(draft, call.index, &request, decision),
        RequestKind::Outcome => decide_outcome(draft, call.index, &request, decision),
        // Budget requests name no call, and no code path creates a question.
        RequestKind::Budget | RequestKind::Question => {}
    }
    true
}

fn decide_tool(draft: &mut Draft, index: usize, request: &Request, decision: &Decision) {
    match decision.verdict {
        Verdict::Approve => {
            if let Some(call) = draft.call_mut(index) {
                call.status = CallStatus::Ready;
                call.approved.clone_from(&request.binding);
            }
        }
        Verdict::Expired => calls::refuse(draft, index, &CallResult::error("Approval expired")),
        Verdict::Aborted => {
            let text = decision.reason.as_deref().unwrap_or("Operation aborted");
            calls::refuse(draft, index, &CallResult::error(text));
        }
        Verdict::Reject
        | Verdict::Happened
        | Verdict::DidNotHappen
        | Verdict::Again
        | Verdict::Answer => {
            let (by, reason) = (decision.decided_by.clone(), decision.reason.clone());
            calls::refuse(draft, index, &CallResult::rejected(&Rejection { by, reason }));
        }
    }
}

fn decide_outcome(draft: &mut Draft, index: usize, request: &Request, decision: &Decision) {
    let said = |text: &str| match &decision.reason {
        Some(reason) => format!("{text} {reason}"),
        None => text.to_owned(),
    };
    let is_known =
        matches!(decision.verdict, Verdict::Happened | Verdict::DidNotHappen | Verdict::Again);
    if is_known {
        draft.head.unknown_writes.retain(|_, open| open != request.id.as_str());
    } else {
        // The outcome is still unknown: an equal call could repeat the effect.
        let effect = calls::effect_id(draft, index);
        for open in draft.head.unknown_writes.values_mut() {
            if open == request.id.as_str() {
                *open = effect.as_ref().map_or_else(|| calls::TOLD.to_owned(), ToString::to_string);
            }
        }
    }
    match decision.verdict {
        Verdict::Happened => calls::settle(draft, index, &told(decision.value.as_ref())),
        Verdict::DidNotHappen => {
            calls::settle(
                draft,
                index,
                &CallResult::error(said("A person checked: this call did not happen.")),
            );
        }
        Verdict::Again => {
            if let Some(call) = draft.call_mut(index) {
                call.status = CallStatus::Ready;
                call.approved.clone_from(&request.binding);
            }
        }
        Verdict::Approve
        | Verdict::Reject
        | Verdict::Answer
        | Verdict::Expired
        | Verdict::Aborted => {
            calls::settle(draft, index, &CallResult::error(calls::UNKNOWN_OUTCOME));
        }
    }
}

/// Result of a call that an approver confirmed, with the response value if the approver gave one.
fn told(value: Option<&RawJson>) -> CallResult {
    let Some(value) = value else {
        let text = "A person checked: this call happened. Its result is not known.";
        return CallResult { content: vec![Block::text(text)], ..CallResult::default() };
    };
    if let Ok(text) = value.read::<String>() {
        return CallResult { content: vec![Block::text(text)], ..CallResult::default() };
    }
    CallResult {
        content: vec![Block::text(value.text())],
        structured: Some(value.clone()),
        ..CallResult::default()
    }
}

/// Applies the result of a call that a stopped worker left. It replaces a decision by an approver.
fn accept_late(draft: &mut Draft, late: &LateResult) -> bool {
    settle_late(draft, late) || keep_late(draft, late)
}

/// Stores a late result after the prompt has continued without it. The outcome is known now, so
/// equal calls are allowed again.
fn keep_late(draft: &mut Draft, late: &LateResult) -> bool {
    let head = &mut draft.head;
    let CallRef { answer, index } = late.call;
    let effect = EffectId::of_call(&head.conversation_id, &head.incarnation, answer, index);
    let before = head.unknown_writes.len();
    head.unknown_writes.retain(|_, why| why != effect.as_str());
    if head.unknown_writes.len() == before {
        return false;
    }
    let data = Some(RawJson::of(late));
    draft.append(EntryBody::Custom(Custom { custom_type: "late-result".to_owned(), data }));
    true
}

fn settle_late(draft: &mut Draft, late: &LateResult) -> bool {
    let Phase::Calls { answer, calls, .. } = &draft.head.phase else { return false };
    let Some(call) = calls.get(late.call.index).filter(|_| *answer == late.call.answer) else {
        return false;
    };
    match &call.status {
        CallStatus::Started { .. } => {}
        // Taken over and not yet sent again: the known result makes another attempt needless.
        CallStatus::Ready if call.attempts > 0 => {}
        CallStatus::Waiting { on: WaitsFor::Request { request_id } } => {
            let is_outcome = |request: &Request| {
                request.id == *request_id && request.kind == RequestKind::Outcome
            };
            let Some(position) = draft.head.requests.iter().position(is_outcome) else {
                return false;
            };
            let request = draft.head.requests.remove(position);
            draft.head.unknown_writes.retain(|_, open| open != request.id.as_str());
            let decision = Decision {
                request_id: request.id.clone(),
                verdict: Verdict::Happened,
                reason: None,
                value: None,
                decided_by: "late-result".to_owned(),
                decided_at: draft.now,
            };
            let entry = draft.append(EntryBody::Decision(DecisionEntry { decision }));
            draft.tell(EventBody::PromptApprovalSettled(RequestRef {
                request_id: request.id,
                seq: entry.base.seq,
                tool_call_id: request.tool_call_id,
            }));
        }
        CallStatus::Ready | CallStatus::Waiting { .. } | CallStatus::Done { .. } => return false,
    }
    let result = CallResult {
        content: late.message.content.clone(),
        details: late.message.details.clone(),
        structured: late.message.structured_content.clone(),
        usage: late.message.usage.clone(),
        is_error: late.message.is_error,
        terminate: late.message.terminate,
        rejected: None,
        outputs: late.outputs.clone(),
        workspace: late.message.workspace.clone(),
    };
    calls::settle(draft, late.call.index, &result);
    true
}
