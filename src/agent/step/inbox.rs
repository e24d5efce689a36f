//! Draining the inbox: before a model call, after each result, and where the loop would stop.

use std::borrow::Cow;

use crate::agent::entry::{EntryBody, MessageEntry, PromptState, PromptStop, Source};
use crate::agent::event::{Empty, EventBody};
use crate::agent::head::PromptRun;
use crate::agent::inbox::{InboxBody, InboxItem, InputQueue, PromptInput, WhenIdle};
use crate::agent::message::{Message, UserMessage};
use crate::agent::phase::{CallState, CallStatus, Phase};
use crate::agent::raw::Extra;
use crate::agent::settings::QueueMode;
use crate::agent::step::{
    CallResult, CompactInput, abort, apply, calls, compaction, continue_prompt, finish,
};
use crate::agent::transition::{PendingItem, Transition};
use crate::ids::PromptId;

/// Text that the model receives for a call that a steer skipped.
const SKIPPED: &str = "Skipped due to queued user message.";

/// True if this version can apply such an item. Other items stay unchanged and due, for a newer
/// version. Counting them as waiting would make this version poll for ever.
pub fn is_supported(body: &InboxBody) -> bool {
    match body {
        InboxBody::Prompt(_)
        | InboxBody::Steer(_)
        | InboxBody::FollowUp(_)
        | InboxBody::Custom(_)
        | InboxBody::Decision(_)
        | InboxBody::Abort(_)
        | InboxBody::Continue(_)
        | InboxBody::LateResult(_) => true,
        InboxBody::Command(command) => command.name == compaction::COMPACT_COMMAND,
    }
}

/// Sets the pending inbox items without applying any: a response received before precedes them.
pub(super) fn set_pending(transition: &mut Transition, pending: &[PendingItem]) {
    transition.pending = pending.to_vec();
    // Each inbox read checks again whether a pause is active.
    transition.head.pause = None;
    transition.is_settled_event_due = is_idle(transition) && transition.head.waiting_items > 0;
    update_waiting_count(transition);
}

fn is_idle(transition: &Transition) -> bool {
    transition.head.prompt.is_none() && transition.head.phase == Phase::Idle
}

/// Applies pending inbox items as far as one commit has room. An abort precedes all others.
pub(super) fn drain(transition: &mut Transition) {
    if transition.head.phase == Phase::Deleted {
        return;
    }
    if abort::is_abort_pending(transition) {
        abort::abort_prompt(transition);
    }
    apply_decisions_and_late_results(transition);
    start_prompt_when_idle(transition);
    if abort::is_abort_pending(transition) {
        abort::abort_prompt(transition);
    }
    abort::ignore_late_aborts(transition);
    skip_calls(transition);
    append_steers(transition);
    // The items that waited at the end of the last run changed nothing, or were withdrawn.
    if transition.is_settled_event_due && is_idle(transition) && transition.head.waiting_items == 0
    {
        transition.settle();
        transition.is_settled_event_due = false;
    }
}

/// Starts the oldest waiting prompt if no prompt runs, and appends the messages held for it.
/// Messages that start no prompt are appended in order.
fn start_prompt_when_idle(transition: &mut Transition) {
    while is_idle(transition) {
        let is_next = |item: &InboxItem| {
            let is_prompt_or_message =
                item.queue().is_some() || matches!(item.body, InboxBody::Continue(_));
            (is_prompt_or_message && item.has_effect_when_idle())
                || CompactInput::from_item(item).is_some()
        };
        let Some(item) = pop(transition, is_next) else { return };
        if let Some(compact_input) = CompactInput::from_item(&item) {
            compaction::apply_command(transition, &item, compact_input);
            return;
        }
        if !item.can_start_prompt() {
            append_input(transition, &item);
            continue;
        }
        start_prompt(transition, &item, None);
        // Messages for the next turn of a user keep waiting until a user's prompt starts.
        if !is_from_user(&item) || is_idle(transition) {
            return;
        }
        while let Some(item) = pop(transition, |item| item.queue() == Some(InputQueue::NextTurn)) {
            append_input(transition, &item);
        }
    }
}

fn is_from_user(item: &InboxItem) -> bool {
    item.prompt().is_some_and(|prompt| matches!(prompt.source, Source::User | Source::Queue))
}

/// Applies pending decisions and late results.
pub(super) fn apply_decisions_and_late_results(transition: &mut Transition) {
    let is_decision_or_result =
        |item: &InboxItem| matches!(item.body, InboxBody::Decision(_) | InboxBody::LateResult(_));
    while let Some(item) = pop(transition, is_decision_or_result) {
        apply::apply_item(transition, &item);
    }
}

/// Id of the prompt that an item starts when no prompt runs.
pub(super) fn started_prompt_id(item: &InboxItem) -> Option<PromptId> {
    if let InboxBody::Continue(input) = &item.body {
        return Some(input.prompt_id.clone());
    }
    prompt_input(item).map(|prompt| prompt.prompt_id.clone())
}

/// Finishes the prompt, unless steers continue it. A waiting follow-up starts the next prompt in
/// the same run.
pub(super) fn finish_or_continue(transition: &mut Transition) {
    if !finish::has_used_all_rounds(transition) && has_pending(transition, is_steer) {
        if abort::is_abort_pending(transition) {
            abort::abort_prompt(transition);
            return;
        }
        transition.head.phase = Phase::Model { attempt: 1, not_before: None };
        append_steers(transition);
        return;
    }
    let is_next_prompt =
        |item: &InboxItem| matches!(item.queue(), Some(InputQueue::FollowUp | InputQueue::Prompt));
    let Some(item) = pop(transition, is_next_prompt) else {
        finish::end_run(transition, PromptState::Completed, PromptStop::End, None);
        return;
    };
    let run_from_seq = transition.head.prompt.as_ref().map(PromptRun::run_start_seq);
    finish::end_prompt(transition, PromptState::Completed, PromptStop::End, None);
    start_prompt(transition, &item, run_from_seq);
    let is_follow_up = |item: &InboxItem| item.queue() == Some(InputQueue::FollowUp);
    if transition.policy.follow_up_mode == QueueMode::All && is_follow_up(&item) {
        while let Some(item) = pop(transition, is_follow_up) {
            append_input(transition, &item);
        }
    }
    append_steers(transition);
}

/// Appends waiting steers to the prompt before its next model call: the oldest, or all of them.
fn append_steers(transition: &mut Transition) {
    // Everything waits while a budget request is open.
    if !matches!(transition.head.phase, Phase::Model { .. })
        || transition.head.is_waiting_for_budget()
    {
        return;
    }
    let takes_all = transition.policy.steering_mode == QueueMode::All;
    while transition.head.prompt.as_ref().is_some_and(|run| takes_all || !run.is_steered) {
        let Some(item) = pop(transition, is_steer) else { return };
        append_input(transition, &item);
        if let Some(run) = &mut transition.head.prompt {
            run.is_steered = true;
        }
    }
}

/// True if a waiting steer will skip this call as soon as the running calls have ended.
pub fn is_skipped_by_steer(transition: &Transition, index: usize) -> bool {
    transition.policy.should_steer_skip_tools
        && transition.calls().get(index).is_some_and(is_skippable)
        && transition.call_batch().is_running()
        && has_pending(transition, is_steer)
}

/// True if a steer may skip the call: it was neither started nor approved.
fn is_skippable(call: &CallState) -> bool {
    call.status == CallStatus::Ready && call.attempts == 0 && call.approved.is_none()
}

/// Skips all open calls if a steer waits and none of them was started or approved. Each still gets
/// its start event and its result.
fn skip_calls(transition: &mut Transition) {
    let open: Vec<usize> = call_indices(transition, |call| !call.is_done());
    let is_batch_skippable =
        !open.is_empty() && open.len() == call_indices(transition, is_skippable).len();
    if !transition.policy.should_steer_skip_tools
        || !is_batch_skippable
        || !has_pending(transition, is_steer)
    {
        return;
    }
    transition.skipped_calls = call_ids(transition, &open);
    transition.skipped.clone_from(&open);
    let skipped = CallResult::error(SKIPPED);
    for index in open {
        calls::reject_call(transition, index, &skipped);
    }
}

fn call_indices(transition: &Transition, predicate: impl Fn(&CallState) -> bool) -> Vec<usize> {
    let calls = transition.calls().iter().enumerate();
    calls.filter(|(_, call)| predicate(call)).map(|(index, _)| index).collect()
}

/// The provider's ids of the calls with these indices.
fn call_ids(transition: &Transition, indices: &[usize]) -> Vec<String> {
    let Some(answer) = transition.open_response() else { return Vec::new() };
    let calls = answer.tool_calls().enumerate();
    calls.filter(|(index, _)| indices.contains(index)).map(|(_, call)| call.id.clone()).collect()
}

/// Records the outcome of the closing batch for the receipts of items that are applied now.
pub(super) fn record_batch_outcome(transition: &mut Transition) {
    let batch = abort::batch_outcome(transition);
    transition.ran_calls = batch.ran;
    transition.outcome_unknown_calls = batch.unknown;
}

fn start_prompt(transition: &mut Transition, item: &InboxItem, run_from_seq: Option<u64>) {
    if let InboxBody::Continue(input) = &item.body {
        continue_prompt::start_prompt(transition, item, input);
        return;
    }
    let Some(prompt) = prompt_input(item) else { return };
    apply::start_prompt(transition, item, &prompt, run_from_seq);
    apply::open_first_turn(transition);
    append_message(transition, item);
    let mut receipt = apply::new_receipt(transition, item);
    receipt.prompt_id = transition.prompt_id();
    transition.receipts.push(receipt);
}

/// Appends the item's message to the running prompt, or only to the conversation if no prompt runs.
pub(super) fn append_input(transition: &mut Transition, item: &InboxItem) {
    open_turn(transition);
    append_message(transition, item);
    transition.head.reset_suspicion();
    let mut receipt = apply::new_receipt(transition, item);
    receipt.prompt_id = transition.prompt_id();
    receipt.skipped_calls.clone_from(&transition.skipped_calls);
    receipt.ran_calls.clone_from(&transition.ran_calls);
    receipt.outcome_unknown_calls.clone_from(&transition.outcome_unknown_calls);
    transition.receipts.push(receipt);
}

/// Opens a turn, once, before its first entry.
pub(super) fn open_turn(transition: &mut Transition) {
    let Some(run) = &mut transition.head.prompt else { return };
    if !std::mem::replace(&mut run.is_turn_open, true) {
        let starts_agent_run = std::mem::take(&mut run.is_between_attempts);
        transition.head.turn += 1;
        if starts_agent_run {
            transition.emit(EventBody::AgentStart(Empty {}));
        }
        transition.emit(EventBody::TurnStart(Empty {}));
    }
}

/// Appends the item's message as an entry.
pub(super) fn append_message(transition: &mut Transition, item: &InboxItem) {
    if let InboxBody::Custom(custom) = &item.body {
        let entry = transition.append(EntryBody::CustomMessage(custom.message.clone()));
        transition.emit_message(&entry);
    } else if let Some(content) = item.prompt().and_then(|prompt| prompt.input.clone()) {
        let message =
            Message::User(UserMessage { content, timestamp: transition.now, extra: Extra::new() });
        transition.append_message(MessageEntry::new(message));
    }
}

pub(super) fn is_steer(item: &InboxItem) -> bool {
    item.queue() == Some(InputQueue::Steering)
}

/// Input of the prompt that the item starts.
fn prompt_input(item: &InboxItem) -> Option<Cow<'_, PromptInput>> {
    let InboxBody::Custom(custom) = &item.body else { return item.prompt().map(Cow::Borrowed) };
    Some(Cow::Owned(PromptInput {
        prompt_id: custom.prompt_id.clone(),
        user: custom.user.clone(),
        when_idle: WhenIdle::Start,
        input: None,
        visible: custom.message.display,
        model: None,
        source: Source::Plugin,
        traceparent: item.traceparent.clone(),
    }))
}

pub(super) fn has_pending(transition: &Transition, predicate: impl Fn(&InboxItem) -> bool) -> bool {
    transition.pending.iter().any(|pending| predicate(&pending.item))
}

/// Removes and returns the oldest matching item if this commit has room for it. There is always
/// room for one.
pub(super) fn pop(
    transition: &mut Transition,
    predicate: impl Fn(&InboxItem) -> bool,
) -> Option<std::sync::Arc<InboxItem>> {
    let position = transition.pending.iter().position(|pending| predicate(&pending.item))?;
    if !has_room(transition, position) {
        return None;
    }
    let pending = transition.pending.remove(position);
    transition.drained_bytes += pending.bytes;
    update_waiting_count(transition);
    Some(pending.item)
}

/// True if [`pop`] returns an item.
pub(super) fn can_pop(transition: &Transition, predicate: impl Fn(&InboxItem) -> bool) -> bool {
    let position = transition.pending.iter().position(|pending| predicate(&pending.item));
    position.is_some_and(|position| has_room(transition, position))
}

fn has_room(transition: &Transition, position: usize) -> bool {
    let bytes = transition.pending.get(position).map_or(0, |pending| pending.bytes);
    transition.drained_bytes == 0
        || (transition.operation_count() < transition.policy.drained_operations_max
            && transition.drained_bytes + bytes <= transition.policy.drained_bytes_max)
}

/// Like [`pop`], but ignores the size limit. For aborts, which are small and must always be
/// applied.
pub(super) fn pop_unbounded(
    transition: &mut Transition,
    predicate: impl Fn(&InboxItem) -> bool,
) -> Option<std::sync::Arc<InboxItem>> {
    let position = transition.pending.iter().position(|pending| predicate(&pending.item))?;
    let pending = transition.pending.remove(position);
    transition.drained_bytes += pending.bytes;
    update_waiting_count(transition);
    Some(pending.item)
}

fn update_waiting_count(transition: &mut Transition) {
    let count =
        transition.pending.iter().filter(|pending| pending.item.has_effect_when_idle()).count();
    transition.head.waiting_items = u32::try_from(count).unwrap_or(u32::MAX);
}
