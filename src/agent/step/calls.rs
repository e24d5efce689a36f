//! Tool calls of a model response: each gets exactly one result, in source order (invariant 5).

use serde_json::json;

use crate::agent::content::ToolCall;
use crate::agent::draft::Draft;
use crate::agent::entry::{CallRef, EntryBody, RequestEntry, ToolStarted};
use crate::agent::event::{EventBody, MessageReset, OutputRef, RequestRef, ToolExecutionStart};
use crate::agent::message::ToolResultMessage;
use crate::agent::phase::{CallStatus, OnUnknown, Phase, WaitsFor};
use crate::agent::raw::Extra;
use crate::agent::request::{Effect, Request, RequestKind};
use crate::agent::step::results::{self, Ended};
use crate::agent::step::{Asked, CallResult, Gate, Start, paying, stopping};
use crate::clock::Timestamp;
use crate::ids::{EffectId, EntryId, RequestId};

/// Text that the model receives for a write whose result was lost.
pub const UNKNOWN_OUTCOME: &str = "The outcome of this call is unknown: it may have happened. Do not repeat it; say so and go on without it.";

/// Value in `unknownWrites` in place of a request id: no decision about this write will follow.
pub(super) const TOLD: &str = "told";

/// Prefix of the reason of a request that replaces an approved one.
const TOOL_CHANGED: &str =
    "The tool changed after this call was approved, so it needs a new decision.";

/// Maximum number of indeterminate writes in the head. One more removes the one with the first key.
const UNKNOWN_WRITES_MAX: usize = 100;

/// Reference and content of an open call, copied so that the transition can be changed.
struct Named {
    call: CallRef,
    tool_call: ToolCall,
}

fn named(draft: &Draft, index: usize) -> Option<Named> {
    let Phase::Calls { answer, .. } = &draft.head.phase else { return None };
    let tool_call = draft.open_answer()?.tool_calls().nth(index)?.clone();
    Some(Named { call: CallRef { answer: *answer, index }, tool_call })
}

pub(super) fn pass_gate(draft: &mut Draft, index: usize, gate: &Gate) {
    let is_ready = draft.calls().get(index).is_some_and(|call| call.status == CallStatus::Ready);
    if !is_ready {
        return;
    }
    match gate {
        Gate::Refused { text, terminate } => {
            let result = CallResult { terminate: *terminate, ..CallResult::error(text.clone()) };
            refuse(draft, index, &result);
        }
        Gate::Behind { earlier } => {
            if let Some(call) = draft.call_mut(index).filter(|_| *earlier < index) {
                call.behind = Some(*earlier);
            }
        }
        Gate::Open(start) => open(draft, index, start),
    }
}

fn open(draft: &mut Draft, index: usize, start: &Start) {
    let call = draft.calls().get(index);
    let is_approved = call.and_then(|call| call.approved.as_ref()) == Some(&start.binding);
    // Later attempts of a call were approved before its first one.
    let is_first = call.is_some_and(|call| call.attempts == 0);
    if is_first && draft.head.unknown_writes.contains_key(&start.fingerprint) {
        let text = "An earlier call with the same arguments has an unknown outcome, so this one was not started.";
        refuse(draft, index, &CallResult::error(text));
        return;
    }
    match &start.ask {
        Some(asked) if !is_approved => ask(draft, index, start, asked),
        _ => begin(draft, index, start),
    }
}

/// Settles a call that does not run. Every call has one start event, also if it never runs.
pub(super) fn refuse(draft: &mut Draft, index: usize, result: &CallResult) {
    let is_announced = draft.calls().get(index).is_some_and(|call| call.attempts > 0);
    if !is_announced {
        announce(draft, index);
    }
    settle(draft, index, result);
}

fn announce(draft: &mut Draft, index: usize) {
    let Some(named) = named(draft, index) else { return };
    draft.tell(EventBody::ToolExecutionStart(ToolExecutionStart {
        tool_call_id: named.tool_call.id,
        tool_name: named.tool_call.name,
        call: named.call,
    }));
}

/// Stores the intent before the call is sent (invariant 6).
fn begin(draft: &mut Draft, index: usize, start: &Start) {
    let Some(named) = named(draft, index) else { return };
    let effect_id = EffectId::of_call(
        &draft.head.conversation_id,
        &draft.head.incarnation,
        named.call.answer,
        index,
    );
    let Some(call) = draft.call_mut(index) else { return };
    call.attempts += 1;
    let attempt = call.attempts;
    call.approved = Some(start.binding.clone());
    call.status = CallStatus::Started {
        effect_id: effect_id.clone(),
        effect: start.effect,
        on_unknown: start.on_unknown,
        fingerprint: start.fingerprint.clone(),
        until: start.until,
    };
    if attempt == 1 {
        announce(draft, index);
    }
    draft.append(EntryBody::ToolStarted(ToolStarted {
        call: named.call,
        effect_id,
        tool_name: named.tool_call.name,
        attempt,
        effect: Some(start.effect),
    }));
}

fn ask(draft: &mut Draft, index: usize, start: &Start, asked: &Asked) {
    let Some(named) = named(draft, index) else { return };
    // An approval is bound to the tool's definition: see `CallPlan::binding`.
    let was_approved = draft.calls().get(index).is_some_and(|call| call.approved.is_some());
    let reason = if was_approved {
        format!("{TOOL_CHANGED} {}", asked.reason)
    } else {
        asked.reason.clone()
    };
    let request = Request {
        id: RequestId::new(""),
        kind: RequestKind::Tool,
        title: format!("May {} run?", named.tool_call.name),
        reason,
        binding: Some(start.binding.clone()),
        effect: Some(start.effect),
        expires_at: Some(asked.expires_at),
        approvers: asked.approvers.clone(),
        not_requester: asked.not_requester,
        ..blank_request(draft, &named)
    };
    put_request(draft, index, &named, request);
}

fn blank_request(draft: &Draft, named: &Named) -> Request {
    let (prompt_id, user) = draft.head.prompt.as_ref().map_or_else(
        || (crate::ids::PromptId::new(""), draft.head.user.clone()),
        |run| (run.id.clone(), run.user.clone()),
    );
    Request {
        id: RequestId::new(""),
        kind: RequestKind::Question,
        title: String::new(),
        reason: String::new(),
        prompt_id,
        call: Some(named.call),
        tool_call_id: Some(named.tool_call.id.clone()),
        tool: Some(named.tool_call.name.clone()),
        effect: None,
        binding: None,
        budget: None,
        schema: None,
        requested_at: draft.now,
        requested_by: user,
        expires_at: None,
        approvers: vec!["owner".to_owned()],
        not_requester: false,
    }
}

fn put_request(draft: &mut Draft, index: usize, named: &Named, mut request: Request) {
    draft.head.requests_made += 1;
    request.id = RequestId::new(format!(
        "rq_{}_{}_{}",
        draft.head.conversation_id, draft.head.incarnation, draft.head.requests_made
    ));
    let was_asked = draft.call_mut(index).is_some_and(|call| {
        call.status =
            CallStatus::Waiting { on: WaitsFor::Request { request_id: request.id.clone() } };
        std::mem::replace(&mut call.is_asked, true)
    });
    draft.head.requests.push(request.clone());
    let entry = draft.append(EntryBody::Request(RequestEntry { request: request.clone() }));
    let output = OutputRef { seq: entry.base.seq, block: None, call: Some(named.call) };
    draft.tell(if was_asked {
        EventBody::PromptOutputUpdated(output)
    } else {
        EventBody::PromptOutput(output)
    });
    tell_request(draft, &request, entry.base.seq);
}

/// Emits the event and the notification about a new request.
pub(super) fn tell_request(draft: &mut Draft, request: &Request, seq: u64) {
    draft.tell(EventBody::PromptApprovalRequested(RequestRef {
        request_id: request.id.clone(),
        seq,
        tool_call_id: request.tool_call_id.clone(),
    }));
    let text = format!("{} {}", request.title, request.reason);
    let data = json!({"promptId": request.prompt_id, "approvalId": request.id, "requestId": request.id, "approval": {
        "id": request.id, "kind": request.kind, "title": request.title, "reason": request.reason,
        "toolName": request.tool, "tool": request.tool, "toolCallId": request.tool_call_id, "effect": request.effect,
        "decisions": request.kind.decisions(), "requestedAt": request.requested_at.to_string(),
        "expiresAt": request.expires_at.map(|time| time.to_string()), "approvers": request.approvers,
    }});
    draft.owe_notice("prompt.approval-requested", &data, text);
}

/// Stores the result of a call and sets the pending work: the next call or the next model call.
pub(super) fn settle(draft: &mut Draft, index: usize, result: &CallResult) {
    let is_open = draft.calls().get(index).is_some_and(|call| !call.is_done());
    let Some(named) = named(draft, index).filter(|_| is_open) else { return };
    draft.head.note_progress();
    if let Some(usage) = result.usage.as_deref() {
        paying::spend_in_tool(draft, *usage);
    }
    let was_asked = draft.call_mut(index).is_some_and(|call| {
        call.terminates = result.terminate;
        call.is_asked
    });
    let message = ToolResultMessage {
        tool_call_id: named.tool_call.id.clone(),
        tool_name: named.tool_call.name.clone(),
        content: result.content.clone(),
        details: result.details.clone(),
        structured_content: result.structured.clone(),
        usage: result.usage.clone(),
        is_error: result.is_error,
        terminate: result.terminate,
        rejected: result.rejected.clone(),
        timestamp: draft.now,
        workspace: result.workspace.clone(),
        extra: Extra::new(),
    };
    let ended = Ended { call: named.call, is_asked: was_asked };
    if draft.batch().next_placed() == Some(index) {
        results::put(draft, &ended, message, &result.outputs);
    } else {
        results::keep(draft, &ended, message, &result.outputs);
    }
    results::put_kept(draft);
}

/// Handles a lost result. If an abort is pending, no approver is involved: the prompt ends, and the
/// result says that the outcome is unknown.
pub(super) fn lose_outcome(draft: &mut Draft, index: usize, reason: &str, expires_at: Timestamp) {
    let Some(CallStatus::Started { on_unknown, effect, fingerprint, .. }) =
        draft.calls().get(index).map(|call| call.status.clone())
    else {
        return;
    };
    let Some(named) = named(draft, index) else { return };
    let on_unknown = if stopping::is_coming(draft) { OnUnknown::Tell } else { on_unknown };
    match on_unknown {
        OnUnknown::Tell => {
            block_told(draft, index, fingerprint);
            settle(draft, index, &CallResult::error(format!("{UNKNOWN_OUTCOME} ({reason})")));
        }
        OnUnknown::Ask => {
            let binding = draft.calls().get(index).and_then(|call| call.approved.clone());
            let request = Request {
                kind: RequestKind::Outcome,
                title: format!("Did {} happen?", named.tool_call.name),
                reason: reason.to_owned(),
                binding,
                effect: Some(effect),
                expires_at: Some(expires_at),
                approvers: vec!["owner".to_owned(), "link".to_owned()],
                ..blank_request(draft, &named)
            };
            put_request(draft, index, &named, request);
            if let Some(open) = draft.head.requests.last() {
                let id = open.id.as_str().to_owned();
                block_equal(draft, fingerprint, id);
            }
        }
    }
}

/// Blocks equal calls without a request. The value is the call's effect id, because a late result
/// may still settle the outcome.
pub(super) fn block_told(draft: &mut Draft, index: usize, fingerprint: String) {
    let why = effect_id(draft, index).map_or_else(|| TOLD.to_owned(), |effect| effect.to_string());
    block_equal(draft, fingerprint, why);
}

/// True if the outcome of a call of the open response is unknown.
pub(super) fn is_in_doubt(draft: &Draft, index: usize) -> bool {
    let Some(effect) = effect_id(draft, index) else { return false };
    draft.head.unknown_writes.values().any(|why| why == effect.as_str())
}

/// Effect id of a call of the open response.
pub(super) fn effect_id(draft: &Draft, index: usize) -> Option<EffectId> {
    let Phase::Calls { answer, .. } = draft.head.phase else { return None };
    let head = &draft.head;
    Some(EffectId::of_call(&head.conversation_id, &head.incarnation, answer, index))
}

/// Blocks later calls with the same tool name and arguments.
pub(super) fn block_equal(draft: &mut Draft, fingerprint: String, why: String) {
    while draft.head.unknown_writes.len() >= UNKNOWN_WRITES_MAX {
        draft.head.unknown_writes.pop_first();
    }
    draft.head.unknown_writes.insert(fingerprint, why);
}

/// Continues after another worker stopped. Its streamed deltas are void. Started `read` and
/// `idempotent` calls become ready again under the same effect id. A `write` stays started: the
/// driver reports its outcome as unknown.
pub(super) fn take_over(draft: &mut Draft) {
    match &mut draft.head.phase {
        Phase::Model { .. } => {
            let message_id = EntryId::of_answer(&draft.head.incarnation, draft.head.answers + 1);
            draft.tell(EventBody::MessageReset(MessageReset { message_id }));
            paying::lose(draft);
        }
        Phase::Calls { calls, .. } => {
            for call in calls {
                // The next preflight computes the dependency again.
                call.behind = None;
                if let CallStatus::Started { effect: Effect::Read | Effect::Idempotent, .. } =
                    call.status
                {
                    call.status = CallStatus::Ready;
                }
            }
        }
        Phase::Summary { .. } => paying::lose(draft),
        Phase::Idle | Phase::Deleted => {}
    }
}
