//! Tool calls of a model response: each gets exactly one result, in source order (invariant 5).

use crate::approval_binding;
use crate::content::ToolCall;
use crate::entry::{EntryBody, ToolStarted};
use crate::event::{EventBody, MessageReset, OutputRef, ToolDefinitionChange, ToolExecutionStart};
use crate::phase::{CallStatus, OnUnknown, PendingWait, Phase};
use crate::question::Answers;
use crate::request::{CallRef, Effect, Request, RequestKind, labelled_name};
use crate::step::input::{ApprovalSpec, CallPlan, CallResult, Preflight};
use crate::step::next::Next;
use crate::step::results::{self, ReceivedCall};
use crate::step::{budget, questions, queue, renewal, requests};
use crate::transition::Transition;
use crate::unknown_members::Extra;
use turnwheel_platform::clock::Timestamp;
use turnwheel_platform::ids::{EffectId, EntryId};

/// Text that the model receives for a write whose result was lost.
pub const UNKNOWN_OUTCOME: &str = "The outcome of this call is unknown: it may have happened. Do not repeat it; say so and go on without it.";

/// Value in `unknownWrites` in place of a request id: no decision about this write will follow.
pub(super) const UNRESOLVED: &str = "told";

/// Maximum number of indeterminate writes in the head. One more removes the one with the first key.
const INDETERMINATE_WRITES_MAX: usize = 100;

/// Reference and content of an open call, copied so that the transition can be changed.
struct OpenCall {
    call: CallRef,
    tool_call: ToolCall,
    /// Display name of the tool.
    label: Option<String>,
}

impl OpenCall {
    /// The tool as approvers read it.
    fn labelled_name(&self) -> String {
        labelled_name(&self.tool_call.name, self.label.as_deref())
    }
}

fn open_call(transition: &Transition, index: usize) -> Option<OpenCall> {
    let Phase::Calls { response_seq: answer, .. } = &transition.head.phase else { return None };
    let tool_call = transition.open_response()?.tool_calls().nth(index)?.clone();
    let label = transition.calls().get(index).and_then(|call| call.label.as_deref());
    let label = label.map(ToOwned::to_owned);
    Some(OpenCall { call: CallRef { response_seq: *answer, index }, tool_call, label })
}

pub(super) fn apply_preflight(
    transition: &mut Transition,
    index: usize,
    preflight: &Preflight,
) -> Next {
    let is_ready =
        transition.calls().get(index).is_some_and(|call| call.status == CallStatus::Ready);
    if !is_ready || transition.is_abort_requested {
        return Next::Wait;
    }
    match preflight {
        Preflight::Rejected { text, terminate } => {
            let result = CallResult { terminate: *terminate, ..CallResult::error(text.clone()) };
            reject_call(transition, index, &result)
        }
        Preflight::BlockedBy { earlier } => {
            if let Some(call) = transition.call_mut(index).filter(|_| *earlier < index) {
                call.depends_on = Some(*earlier);
            }
            Next::Wait
        }
        Preflight::Asked(asked) => {
            if let Some(open_call) = open_call(transition, index) {
                let base = Request {
                    binding: Some(asked.binding.clone()),
                    destination: asked.destination.clone(),
                    label: asked.label.clone(),
                    ..new_request(transition, &open_call)
                };
                let subject = base.tool.clone().unwrap_or_default();
                let request = questions::new_request(transition, &asked.question, base, &subject);
                append_request(transition, index, &open_call, request);
            }
            Next::Wait
        }
        Preflight::Admitted(plan) => admit_call(transition, index, plan),
    }
}

fn admit_call(transition: &mut Transition, index: usize, plan: &CallPlan) -> Next {
    let call = transition.calls().get(index);
    let approved = call.and_then(|call| call.approved.as_ref());
    let is_approved =
        approved.is_some_and(|approved| approval_binding::covers(approved, &plan.binding));
    // Later attempts of a call were approved before its first one.
    let is_first = call.is_some_and(|call| call.attempts == 0);
    if is_first && transition.head.indeterminate_writes.contains_key(&plan.fingerprint) {
        let text = "An earlier call with the same arguments has an unknown outcome, so this one was not started.";
        return reject_call(transition, index, &CallResult::error(text));
    }
    if let Some(call) = transition.call_mut(index) {
        call.changed_arguments.clone_from(&plan.changed_arguments);
        call.label = plan.label.as_deref().map(Into::into);
    }
    let renewed =
        plan.approval.clone().or_else(|| renewal::renew_approval(transition, index, &plan.binding));
    match renewed {
        Some(approval) if !is_approved => request_approval(transition, index, plan, &approval),
        _ => start_call(transition, index, plan),
    }
    Next::Wait
}

/// Settles a call that does not run. Every call has one start event, also if it never runs.
pub(super) fn reject_call(transition: &mut Transition, index: usize, result: &CallResult) -> Next {
    let has_start_event = transition.calls().get(index).is_some_and(|call| call.attempts > 0);
    if !has_start_event {
        emit_execution_start(transition, index);
    }
    settle_call(transition, index, result)
}

fn emit_execution_start(transition: &mut Transition, index: usize) {
    let Some(open_call) = open_call(transition, index) else { return };
    transition.emit(EventBody::ToolExecutionStart(ToolExecutionStart {
        tool_call_id: open_call.tool_call.id,
        tool_name: open_call.tool_call.name,
        label: open_call.label,
        call: open_call.call,
    }));
}

/// Stores the intent before the call is sent (invariant 6).
fn start_call(transition: &mut Transition, index: usize, plan: &CallPlan) {
    let Some(open_call) = open_call(transition, index) else { return };
    let effect_id = EffectId::from_call(
        &transition.head.conversation_id,
        &transition.head.incarnation,
        open_call.call.response_seq,
        index,
    );
    let Some(call) = transition.call_mut(index) else { return };
    call.attempts += 1;
    let attempt = call.attempts;
    call.approved = Some(plan.binding.clone());
    if plan.effect == Effect::Write {
        call.sent_to = plan.destination.clone().map(Box::new);
    }
    call.status = CallStatus::Started {
        effect_id: effect_id.clone(),
        effect: plan.effect,
        on_unknown: plan.on_unknown,
        fingerprint: plan.fingerprint.clone(),
        until: plan.until,
    };
    if attempt == 1 {
        emit_execution_start(transition, index);
    }
    transition.append(EntryBody::ToolStarted(ToolStarted {
        call: open_call.call,
        effect_id,
        tool_name: open_call.tool_call.name,
        attempt,
        effect: Some(plan.effect),
        arguments: plan.sent_arguments.clone(),
        extra: Extra::new(),
    }));
}

fn request_approval(
    transition: &mut Transition,
    index: usize,
    plan: &CallPlan,
    approval: &ApprovalSpec,
) {
    let Some(open_call) = open_call(transition, index) else { return };
    let renewal = renewal::describe(transition, index, plan);
    if renewal.is_changed {
        transition.emit(EventBody::ToolDefinitionChanged(ToolDefinitionChange {
            tools: vec![open_call.tool_call.name.clone()],
            tool_call_id: Some(open_call.tool_call.id.clone()),
        }));
    }
    let reason = renewal.prefix + &approval.reason;
    let request = Request {
        kind: RequestKind::Tool,
        title: format!("May {} run?", open_call.labelled_name()),
        reason,
        arguments: plan.sent_arguments.clone(),
        binding: Some(plan.binding.clone()),
        destination: plan.destination.clone(),
        effect: Some(plan.effect),
        expires_at: Some(approval.expires_at),
        approvers: approval.approvers.clone(),
        is_requester_excluded: approval.not_requester,
        refusal: approval.refusal.clone(),
        ..new_request(transition, &open_call)
    };
    append_request(transition, index, &open_call, request);
}

fn new_request(transition: &Transition, open_call: &OpenCall) -> Request {
    Request {
        call: Some(open_call.call),
        tool_call_id: Some(open_call.tool_call.id.clone()),
        tool: Some(open_call.tool_call.name.clone()),
        label: open_call.label.clone(),
        ..requests::new_request(transition)
    }
}

fn append_request(
    transition: &mut Transition,
    index: usize,
    open_call: &OpenCall,
    mut request: Request,
) {
    let seq = requests::store(transition, &mut request);
    let has_output = transition.call_mut(index).is_some_and(|call| {
        call.status =
            CallStatus::Waiting { on: PendingWait::Request { request_id: request.id.clone() } };
        std::mem::replace(&mut call.has_approval_request, true)
    });
    let output = OutputRef { seq, block: None, call: Some(open_call.call) };
    transition.emit(if has_output {
        EventBody::PromptOutputUpdated(output)
    } else {
        EventBody::PromptOutput(output)
    });
    requests::emit_approval_requested(transition, &request, seq);
}

/// Stores the result of a call.
pub(super) fn settle_call(transition: &mut Transition, index: usize, result: &CallResult) -> Next {
    let is_open = transition.calls().get(index).is_some_and(|call| !call.is_done());
    let Some(open_call) = open_call(transition, index).filter(|_| is_open) else {
        return Next::Wait;
    };
    transition.head.reset_suspicion();
    if let Some(usage) = result.usage.as_deref() {
        budget::record_tool_usage(transition, *usage);
    }
    let has_output = transition.call_mut(index).is_some_and(|call| {
        call.should_terminate = result.terminate;
        call.answers = Answers::default();
        call.answered_for = None;
        call.approval = None;
        call.sent_to = None;
        call.label = None;
        call.changed_arguments = None;
        call.has_approval_request
    });
    let states = &mut transition.head.plugin_state;
    if let Some(entry) = result.state.as_ref().and_then(|change| change.apply(states)) {
        transition.append(entry);
    }
    let ToolCall { id, name, .. } = &open_call.tool_call;
    let message = result.to_message(id, name, transition.now);
    let finished_call = ReceivedCall { call: open_call.call, has_output };
    if transition.call_batch().next_in_order() == Some(index) {
        results::append_result(transition, &finished_call, message, &result.outputs);
    } else {
        results::buffer_result(transition, &finished_call, message, &result.outputs);
    }
    results::flush_buffered(transition)
}

/// Handles a lost result. If an abort is pending, no approver is involved: the prompt ends, and the
/// result says that the outcome is unknown.
pub(super) fn handle_unknown_outcome(
    transition: &mut Transition,
    index: usize,
    reason: &str,
    expires_at: Timestamp,
) -> Next {
    let Some(CallStatus::Started { on_unknown, effect, fingerprint, .. }) =
        transition.calls().get(index).map(|call| call.status.clone())
    else {
        return Next::Wait;
    };
    let Some(open_call) = open_call(transition, index) else { return Next::Wait };
    let on_unknown = if queue::is_abort_pending(transition) { OnUnknown::Tell } else { on_unknown };
    match on_unknown {
        OnUnknown::Tell => {
            block_repeat(transition, index, fingerprint);
            settle_call(
                transition,
                index,
                &CallResult::error(format!("{UNKNOWN_OUTCOME} ({reason})")),
            )
        }
        OnUnknown::Ask => {
            let call = transition.calls().get(index);
            let binding = call.and_then(|call| call.approved.clone());
            let destination = call.and_then(|call| call.sent_to.as_deref().cloned());
            let request = Request {
                kind: RequestKind::Outcome,
                title: format!("Did {} happen?", open_call.labelled_name()),
                reason: reason.to_owned(),
                binding,
                destination,
                effect: Some(effect),
                expires_at: Some(expires_at),
                approvers: vec!["owner".to_owned(), "link".to_owned()],
                ..new_request(transition, &open_call)
            };
            append_request(transition, index, &open_call, request);
            if let Some(open) = transition.head.requests.last() {
                let id = open.id.as_str().to_owned();
                block_equal_calls(transition, fingerprint, id);
            }
            Next::Wait
        }
    }
}

/// Blocks equal calls without a request. The value is the call's effect id, because a late result
/// may still settle the outcome.
pub(super) fn block_repeat(transition: &mut Transition, index: usize, fingerprint: String) {
    let marker = effect_id(transition, index)
        .map_or_else(|| UNRESOLVED.to_owned(), |effect| effect.to_string());
    block_equal_calls(transition, fingerprint, marker);
}

/// True if the outcome of a call of the open response is unknown.
pub(super) fn is_indeterminate(transition: &Transition, index: usize) -> bool {
    let Some(effect) = effect_id(transition, index) else { return false };
    transition.head.indeterminate_writes.values().any(|marker| marker == effect.as_str())
}

/// Effect id of a call of the open response.
pub(super) fn effect_id(transition: &Transition, index: usize) -> Option<EffectId> {
    let Phase::Calls { response_seq: answer, .. } = transition.head.phase else { return None };
    let head = &transition.head;
    Some(EffectId::from_call(&head.conversation_id, &head.incarnation, answer, index))
}

/// Blocks later calls with the same tool name and arguments.
pub(super) fn block_equal_calls(transition: &mut Transition, fingerprint: String, marker: String) {
    while transition.head.indeterminate_writes.len() >= INDETERMINATE_WRITES_MAX {
        transition.head.indeterminate_writes.pop_first();
    }
    transition.head.indeterminate_writes.insert(fingerprint, marker);
}

/// Continues after another worker stopped. Its streamed deltas are void. Started `read` and
/// `idempotent` calls become ready again under the same effect id. A `write` stays started: the
/// driver reports its outcome as unknown.
pub(super) fn take_over(transition: &mut Transition) {
    match &mut transition.head.phase {
        Phase::Model { .. } => {
            let message_id = EntryId::from_call_number(
                &transition.head.incarnation,
                transition.head.response_count + 1,
            );
            transition.emit(EventBody::MessageReset(MessageReset { message_id }));
            budget::record_lost_call(transition);
        }
        Phase::Calls { calls, .. } => {
            for call in calls {
                // The next preflight computes the dependency again.
                call.depends_on = None;
                if let CallStatus::Started { effect: Effect::Read | Effect::Idempotent, .. } =
                    call.status
                {
                    call.status = CallStatus::Ready;
                }
            }
        }
        Phase::Summary { .. } => budget::record_lost_call(transition),
        Phase::Idle | Phase::Deleted => {}
    }
}
