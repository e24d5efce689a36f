//! Applying inbox items: an item becomes entries, events and a receipt.

use crate::content::Block;
use crate::entry::{Custom, DecisionEntry, EntryBody, PromptEntry};
use crate::event::{Empty, EventBody, RequestRef};
use crate::head::{PROMPT_SPANS_MAX, PromptRun};
use crate::inbox::{InboxBody, InboxItem, InputOutcome, LateResult, PromptInput, Receipt};
use crate::message::Rejection;
use crate::phase::{ApprovedCall, CallStatus, PendingWait, Phase};
use crate::prompt_span::{PREVIEW_CHARS_MAX, PromptSpan};
use crate::question::Answers;
use crate::request::{CallRef, Decision, Request, RequestKind, Verdict};
use crate::step::input::CallResult;
use crate::step::next::Next;
use crate::step::{actions, budget, calls, questions, queue, waiting_commands};
use crate::transition::Transition;
use crate::unknown_members::Extra;
use turnwheel_json::raw::RawJson;
use turnwheel_json::text::sanitize_line;
use turnwheel_platform::clock::Timestamp;
use turnwheel_platform::ids::EffectId;

/// Applies a decision or a late result. Returns its receipt, and what follows.
pub(super) fn apply_item(transition: &mut Transition, item: &InboxItem) -> (Receipt, Next) {
    let mut receipt = queue::new_receipt(transition, item);
    receipt.prompt_id = transition.prompt_id();
    let applied = match &item.body {
        InboxBody::Decision(decision) => {
            receipt.decision = Some(decision.clone());
            apply_decision(transition, decision)
        }
        InboxBody::LateResult(late) => apply_late_result(transition, late),
        InboxBody::Prompt(_)
        | InboxBody::Steer(_)
        | InboxBody::FollowUp(_)
        | InboxBody::Abort(_)
        | InboxBody::Continue(_)
        | InboxBody::Command(_)
        | InboxBody::Custom(_) => None,
    };
    if applied.is_none() {
        receipt.outcome = InputOutcome::Ignored;
    }
    (receipt, applied.unwrap_or(Next::Wait))
}

/// Starts a prompt. `run_from_seq`: `seq` of the first entry of the agent run that the prompt
/// continues.
pub(super) fn start_prompt(
    transition: &mut Transition,
    item: &InboxItem,
    prompt: &PromptInput,
    run_from_seq: Option<u64>,
) {
    actions::count_started_prompt(transition, item);
    open_prompt(transition, item, prompt, None, run_from_seq);
    if run_from_seq.is_none() {
        transition.emit(EventBody::AgentStart(Empty {}));
    }
}

/// Appends the start of a prompt. `started_at`: its start, if it ran outside the service.
pub(super) fn open_prompt(
    transition: &mut Transition,
    item: &InboxItem,
    prompt: &PromptInput,
    started_at: Option<Timestamp>,
    run_from_seq: Option<u64>,
) {
    let head = &mut transition.head;
    debug_assert!(
        matches!(head.phase, Phase::Idle | Phase::Model { .. }),
        "a prompt starts after the end of the previous one"
    );
    head.turn += 1;
    head.waiting_message = None;
    // A follow-up continues the agent run.
    let system_prompt_seq = head.prompt.as_ref().and_then(|run| run.system_prompt_seq);
    let run_turns = head.prompt.as_ref().map_or(0, |run| run.run_turns);
    head.prompt = Some(PromptRun {
        id: prompt.prompt_id.clone(),
        from_seq: head.seq + 1,
        user: prompt.user.clone(),
        idempotency_key: prompt.idempotency_key.clone(),
        model: prompt.model.clone(),
        rounds: 0,
        run_from_seq,
        is_turn_open: false,
        has_overflowed: false,
        has_repaired_input: false,
        schema_repairs: 0,
        is_between_attempts: false,
        is_steered: false,
        has_requested_repair: false,
        has_repeated_empty: false,
        incomplete: None,
        usage: crate::usage::Usage::default(),
        traceparent: prompt.traceparent.clone(),
        last_turn: None,
        lost: crate::usage::UsageTotals::default(),
        increases: Vec::new(),
        alert_marks: Vec::new(),
        system_prompt_seq,
        run_turns,
        is_protocol: transition.policy.is_protocol,
        failures_in_row: 0,
    });
    if let Some(previous) = head.prompts.last_mut() {
        previous.preview = None;
    }
    head.prompts.push(PromptSpan {
        id: prompt.prompt_id.clone(),
        state: crate::entry::PromptState::Running,
        stop_reason: None,
        from_seq: head.seq + 1,
        to_seq: None,
        is_inserted: started_at.is_some(),
        preview: preview(prompt),
    });
    let surplus = head.prompts.len().saturating_sub(PROMPT_SPANS_MAX);
    head.prompts.drain(..surplus);
    head.phase = Phase::MODEL_CALL;
    head.reset_suspicion();
    let model = prompt.model.clone().unwrap_or_else(|| transition.policy.model.clone());
    transition.append(EntryBody::Prompt(PromptEntry {
        input_id: item.input_id.clone(),
        user: prompt.user.clone(),
        model,
        visible: prompt.visible,
        source: prompt.source,
        has_no_input: prompt.input.is_none(),
        original: prompt.original.clone(),
        started_at,
        extra: Extra::new(),
    }));
    transition.emit(EventBody::PromptCreated(Empty {}));
}

fn preview(prompt: &PromptInput) -> Option<String> {
    let input = prompt.original.as_ref().or(prompt.input.as_ref())?;
    let line = sanitize_line(&input.joined_text(), PREVIEW_CHARS_MAX);
    (!line.is_empty()).then_some(line)
}

/// Opens the first turn of a prompt. [`start_prompt`] has counted it.
pub(super) fn open_first_turn(transition: &mut Transition) {
    if let Some(run) = &mut transition.head.prompt {
        run.is_turn_open = true;
        run.run_turns += 1;
    }
    transition.emit(EventBody::TurnStart(Empty {}));
}

/// Applies a decision. Returns `None` if its request is no longer open.
pub(super) fn apply_decision(transition: &mut Transition, decision: &Decision) -> Option<Next> {
    let position =
        transition.head.requests.iter().position(|request| request.id == decision.request_id)?;
    let request = transition.head.requests.remove(position);
    let entry = transition.append(EntryBody::Decision(DecisionEntry {
        decision: decision.clone().into(),
        extra: Extra::new(),
    }));
    let reference = RequestRef {
        request_id: request.id.clone(),
        seq: entry.base.seq,
        tool_call_id: request.tool_call_id.clone(),
    };
    transition.emit_about(&request, EventBody::PromptApprovalSettled(reference));
    if request.input_id.is_some() {
        waiting_commands::record_answer(transition, &request, decision);
        return Some(Next::Wait);
    }
    transition.head.reset_suspicion();
    if request.kind == RequestKind::Budget {
        return Some(budget::apply_decision(transition, &request, decision));
    }
    let Some(call) = request.call else {
        record_summary_answer(transition, &request, decision);
        return Some(Next::Wait);
    };
    Some(match request.kind {
        RequestKind::Tool => apply_tool_decision(transition, call.index, &request, decision),
        RequestKind::Outcome => apply_outcome_decision(transition, call.index, &request, decision),
        RequestKind::Question => apply_answer(transition, call.index, &request, decision),
        // Budget requests name no call.
        RequestKind::Budget => Next::Wait,
    })
}

fn apply_tool_decision(
    transition: &mut Transition,
    index: usize,
    request: &Request,
    decision: &Decision,
) -> Next {
    match decision.verdict {
        Verdict::Approve => {
            if let Some(call) = transition.call_mut(index) {
                call.status = CallStatus::Ready;
                call.approved.clone_from(&request.binding);
                call.approval = Some(Box::new(approved_call(request)));
            }
            Next::Wait
        }
        Verdict::Expired => {
            let text = request.refusal.as_deref().unwrap_or("Approval expired");
            calls::reject_call(transition, index, &CallResult::error(text))
        }
        Verdict::Aborted => abort_call(transition, index, decision),
        Verdict::Reject
        | Verdict::Happened
        | Verdict::DidNotHappen
        | Verdict::Again
        | Verdict::Answer => {
            let (by, reason) = (decision.decided_by.clone(), decision.reason.clone());
            calls::reject_call(
                transition,
                index,
                &CallResult::from_rejection(&Rejection { by, reason }, request.refusal.as_deref()),
            )
        }
    }
}

fn approved_call(request: &Request) -> ApprovedCall {
    ApprovedCall {
        approvers: request.approvers.clone(),
        is_requester_excluded: request.is_requester_excluded,
        destination: request.destination.clone(),
    }
}

fn abort_call(transition: &mut Transition, index: usize, decision: &Decision) -> Next {
    let text = decision.reason.as_deref().unwrap_or("Operation aborted");
    calls::reject_call(transition, index, &CallResult::error(text))
}

/// Records the answer to a question about a call, which is checked again.
fn apply_answer(
    transition: &mut Transition,
    index: usize,
    request: &Request,
    decision: &Decision,
) -> Next {
    if decision.verdict == Verdict::Aborted {
        return abort_call(transition, index, decision);
    }
    if let (Some(call), Some(asker)) = (transition.call_mut(index), &request.asker) {
        call.status = CallStatus::Ready;
        if call.answered_for != request.binding {
            // Earlier answers were given about another call.
            call.answers = Answers::default();
            call.answered_for.clone_from(&request.binding);
        }
        call.answers.add(asker, questions::answer_of(decision));
    }
    Next::Wait
}

/// Records the answer to a question about the compaction, which is attempted again.
fn record_summary_answer(transition: &mut Transition, request: &Request, decision: &Decision) {
    if let (Phase::Summary { answers, .. }, Some(asker)) =
        (&mut transition.head.phase, &request.asker)
    {
        answers.add(asker, questions::answer_of(decision));
    }
}

fn apply_outcome_decision(
    transition: &mut Transition,
    index: usize,
    request: &Request,
    decision: &Decision,
) -> Next {
    let with_reason = |text: &str| match &decision.reason {
        Some(reason) => format!("{text} {reason}"),
        None => text.to_owned(),
    };
    let is_known =
        matches!(decision.verdict, Verdict::Happened | Verdict::DidNotHappen | Verdict::Again);
    if is_known {
        transition.head.indeterminate_writes.retain(|_, marker| marker != request.id.as_str());
    } else {
        // The outcome is still unknown: an equal call could repeat the effect.
        let effect = calls::effect_id(transition, index);
        for marker in transition.head.indeterminate_writes.values_mut() {
            if marker == request.id.as_str() {
                *marker = effect
                    .as_ref()
                    .map_or_else(|| calls::UNRESOLVED.to_owned(), ToString::to_string);
            }
        }
    }
    match decision.verdict {
        Verdict::Happened => {
            calls::settle_call(transition, index, &confirmed_result(decision.value.as_ref()))
        }
        Verdict::DidNotHappen => calls::settle_call(
            transition,
            index,
            &CallResult::error(with_reason("A person checked: this call did not happen.")),
        ),
        Verdict::Again => {
            if let Some(call) = transition.call_mut(index) {
                call.status = CallStatus::Ready;
                call.approved.clone_from(&request.binding);
                // The approvers of the call itself decide if it has changed.
                call.approval.get_or_insert_with(|| Box::new(approved_call(request)));
            }
            Next::Wait
        }
        Verdict::Approve
        | Verdict::Reject
        | Verdict::Answer
        | Verdict::Expired
        | Verdict::Aborted => {
            calls::settle_call(transition, index, &CallResult::error(calls::UNKNOWN_OUTCOME))
        }
    }
}

/// Result of a call that an approver confirmed, with the response value if the approver gave one.
fn confirmed_result(value: Option<&RawJson>) -> CallResult {
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
fn apply_late_result(transition: &mut Transition, late: &LateResult) -> Option<Next> {
    settle_with_late_result(transition, late)
        .or_else(|| store_late_result(transition, late).then_some(Next::Wait))
}

/// Stores a late result after the prompt has continued without it. The outcome is known now, so
/// equal calls are allowed again.
fn store_late_result(transition: &mut Transition, late: &LateResult) -> bool {
    let head = &mut transition.head;
    let CallRef { response_seq: answer, index } = late.call;
    let effect = EffectId::from_call(&head.conversation_id, &head.incarnation, answer, index);
    let before = head.indeterminate_writes.len();
    head.indeterminate_writes.retain(|_, marker| marker != effect.as_str());
    if head.indeterminate_writes.len() == before {
        return false;
    }
    let data = Some(RawJson::from_value(late));
    transition.append(EntryBody::Custom(Custom::new("late-result", data)));
    true
}

fn settle_with_late_result(transition: &mut Transition, late: &LateResult) -> Option<Next> {
    let Phase::Calls { response_seq: answer, calls, .. } = &transition.head.phase else {
        return None;
    };
    let call = calls.get(late.call.index).filter(|_| *answer == late.call.response_seq)?;
    match &call.status {
        CallStatus::Started { .. } => {}
        // Taken over and not yet sent again: the known result makes another attempt needless.
        CallStatus::Ready if call.attempts > 0 => {}
        CallStatus::Waiting { on: PendingWait::Request { request_id } } => {
            let is_outcome = |request: &Request| {
                request.id == *request_id && request.kind == RequestKind::Outcome
            };
            let position = transition.head.requests.iter().position(is_outcome)?;
            let request = transition.head.requests.remove(position);
            transition.head.indeterminate_writes.retain(|_, marker| marker != request.id.as_str());
            let decision = Decision {
                request_id: request.id.clone(),
                verdict: Verdict::Happened,
                reason: None,
                value: None,
                decided_by: "late-result".to_owned(),
                decided_at: transition.now,
            };
            let entry = transition.append(EntryBody::Decision(DecisionEntry {
                decision: decision.into(),
                extra: Extra::new(),
            }));
            transition.emit(EventBody::PromptApprovalSettled(RequestRef {
                request_id: request.id,
                seq: entry.base.seq,
                tool_call_id: request.tool_call_id,
            }));
        }
        CallStatus::Ready | CallStatus::Waiting { .. } | CallStatus::Done { .. } => return None,
    }
    let result = CallResult {
        content: late.message.content.clone(),
        details: late.message.details.clone(),
        structured: late.message.structured_content.clone(),
        usage: late.message.usage.as_deref().map(|usage| Box::new(**usage)),
        is_error: late.message.is_error,
        terminate: late.message.terminate,
        rejected: None,
        outputs: late.outputs.clone(),
        workspace: late.message.workspace.clone(),
        state: late.state.clone(),
    };
    Some(calls::settle_call(transition, late.call.index, &result))
}
