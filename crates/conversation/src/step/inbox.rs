//! Inbox items in the agent loop: before a model call, after each result, and where the loop would stop.

use std::borrow::Cow;
use std::sync::Arc;

use crate::action::StoredActions;
use crate::entry::Source;
use crate::finished_prompt::FinishedPrompt;
use crate::head::PromptRun;
use crate::inbox::{InboxBody, InboxItem, InputQueue, PromptInput, WhenIdle};
use crate::phase::{CallState, CallStatus, Phase};
use crate::settings::QueueMode;
use crate::step::compaction::{self, CompactInput};
use crate::step::input::CallResult;
use crate::step::navigate::{self, MoveInput, NavigateInput};
use crate::step::next::Next;
use crate::step::queue::{self, append_input, has_pending, is_steer, pop};
use crate::step::{actions, apply, bash, calls, continue_prompt, insert};
use crate::transition::{PendingItem, Transition};
use crate::waiting_command::AskingRequest;
use turnwheel_platform::ids::PromptId;

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
        InboxBody::Command(command) => {
            command.name == compaction::COMPACT_COMMAND
                || command.prompt_at().is_some()
                || NavigateInput::from_command(command).is_some()
                || MoveInput::from_command(command).is_some()
                || bash::is_bash_command(command)
                || command.finished_prompt().is_some()
                || StoredActions::from_command(command).is_some()
                || AskingRequest::from_command(command).is_some()
        }
    }
}

/// Sets the pending inbox items without applying any: a response received before precedes them.
pub(super) fn set_pending(transition: &mut Transition, pending: &[PendingItem]) {
    let new_items = &transition.new_items;
    transition.pending.retain(|pending| new_items.contains(&pending.item.input_id));
    transition.pending.splice(..0, pending.iter().cloned());
    let made = pending.iter().filter(|pending| pending.is_new);
    transition.new_items.extend(made.map(|pending| pending.item.input_id.clone()));
    // Each inbox read checks again whether a pause is active.
    transition.head.pause = None;
    transition.is_settled_event_due = is_idle(transition) && transition.head.waiting_items > 0;
    queue::update_waiting_count(transition);
}

fn is_idle(transition: &Transition) -> bool {
    transition.head.prompt.is_none() && transition.head.phase == Phase::Idle
}

/// Plans `agent_settled` if the items that waited at the end of the last run changed nothing, or
/// were withdrawn.
pub(super) fn settle_if_idle(transition: &mut Transition) {
    if transition.is_settled_event_due && is_idle(transition) && transition.head.waiting_items == 0
    {
        transition.settle();
        transition.is_settled_event_due = false;
    }
}

/// Removes and returns the oldest pending decision or late result.
pub(super) fn pop_decision(transition: &mut Transition) -> Option<Arc<InboxItem>> {
    let is_decision_or_result =
        |item: &InboxItem| matches!(item.body, InboxBody::Decision(_) | InboxBody::LateResult(_));
    pop(transition, is_decision_or_result)
}

/// Starts the oldest waiting prompt if no prompt runs, and appends the messages held for it.
/// Messages that start no prompt are appended in order.
pub(super) fn start_prompt_when_idle(transition: &mut Transition) -> Next {
    while is_idle(transition) {
        actions::enforce_chain_bound(transition);
        if !bash::append_results(transition) {
            return Next::Wait;
        }
        let is_next = |item: &InboxItem| {
            let is_prompt_or_message =
                item.queue().is_some() || matches!(item.body, InboxBody::Continue(_));
            (is_prompt_or_message && item.has_effect_when_idle())
                || CompactInput::from_item(item).is_some()
                || NavigateInput::from_item(item).is_some()
                || MoveInput::from_item(item).is_some()
                || FinishedPrompt::from_item(item).is_some()
        };
        if is_start_held(transition, is_next) {
            return Next::Wait;
        }
        if insert::needs_own_commit(transition, is_next) {
            return Next::Wait;
        }
        let Some(item) = pop(transition, is_next) else { return Next::Wait };
        if let Some(prompt) = FinishedPrompt::from_item(&item) {
            insert::apply_prompt(transition, &item, prompt);
            continue;
        }
        if let Some(compact_input) = CompactInput::from_item(&item) {
            return compaction::apply_command(transition, &item, compact_input);
        }
        if let Some(input) = MoveInput::from_item(&item) {
            navigate::apply_move_command(transition, &item, input);
            continue;
        }
        if let Some(input) = NavigateInput::from_item(&item) {
            return navigate::apply_command(transition, &item, input);
        }
        if !item.can_start_prompt() {
            append_input(transition, &item);
            continue;
        }
        if let InboxBody::Continue(input) = &item.body {
            return continue_prompt::start_prompt(transition, &item, input);
        }
        start_prompt(transition, &item, None);
        // Messages for the next turn of a user keep waiting until a user's prompt starts.
        let is_joining = |item: &InboxItem| item.queue() == Some(InputQueue::NextTurn);
        while is_from_user(&item)
            && let Some(message) = pop(transition, is_joining)
        {
            append_input(transition, &message);
        }
        actions::apply_start_changes(transition);
    }
    Next::Wait
}

/// True if the next item starts an agent run that extensions may still change.
fn is_start_held(transition: &mut Transition, is_next: impl Fn(&InboxItem) -> bool) -> bool {
    if !transition.policy.has_start_hook || !queue::can_pop(transition, &is_next) {
        return false;
    }
    let next = transition.pending.iter().find(|pending| is_next(&pending.item));
    let Some(item) = next.map(|pending| Arc::clone(&pending.item)) else { return false };
    let has_changes = |prompt_id: &PromptId| {
        transition.start_changes.iter().any(|changes| changes.prompt_id == *prompt_id)
    };
    let is_held = !matches!(item.body, InboxBody::Continue(_))
        && item.can_start_prompt()
        && started_prompt_id(&item).is_some_and(|prompt_id| !has_changes(&prompt_id));
    transition.held_start = Some(item).filter(|_| is_held);
    is_held
}

fn is_from_user(item: &InboxItem) -> bool {
    item.prompt().is_some_and(|prompt| matches!(prompt.source, Source::User | Source::Queue))
}

/// Id of the prompt that an item starts when no prompt runs.
pub fn started_prompt_id(item: &InboxItem) -> Option<PromptId> {
    if let InboxBody::Continue(input) = &item.body {
        return Some(input.prompt_id.clone());
    }
    prompt_input(item).map(|prompt| prompt.prompt_id.clone())
}

/// Continues the prompt with waiting steers and a model call.
pub(super) fn continue_with_steers(transition: &mut Transition) -> Next {
    debug_assert!(transition.head.prompt.is_some(), "no prompt runs");
    transition.head.phase = Phase::MODEL_CALL;
    append_steers(transition);
    Next::Wait
}

/// Removes and returns the oldest item that starts the next prompt in the same run.
pub(super) fn pop_next_prompt(transition: &mut Transition) -> Option<Arc<InboxItem>> {
    actions::enforce_chain_bound(transition);
    let is_next_prompt = |item: &InboxItem| {
        let is_queued = matches!(item.queue(), Some(InputQueue::FollowUp | InputQueue::Prompt));
        // An agent run stays on one branch.
        is_queued && item.leaf_move().is_none()
    };
    pop(transition, is_next_prompt)
}

/// Starts the next prompt in the run of the prompt that has just ended.
pub(super) fn start_next_prompt(transition: &mut Transition, item: &InboxItem) -> Next {
    let run_from_seq = transition.head.prompt.as_ref().map(PromptRun::run_start_seq);
    start_prompt(transition, item, run_from_seq);
    let is_follow_up = |item: &InboxItem| item.queue() == Some(InputQueue::FollowUp);
    if transition.policy.follow_up_mode == QueueMode::All && is_follow_up(item) {
        while let Some(item) = pop(transition, is_follow_up) {
            append_input(transition, &item);
        }
    }
    append_steers(transition);
    Next::Wait
}

/// Appends waiting steers to the prompt before its next model call: the oldest, or all of them.
pub(super) fn append_steers(transition: &mut Transition) {
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
            run.failures_in_row = 0;
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
pub(super) fn skip_calls(transition: &mut Transition) -> Next {
    let open: Vec<usize> = call_indices(transition, |call| !call.is_done());
    let is_batch_skippable =
        !open.is_empty() && open.len() == call_indices(transition, is_skippable).len();
    if !transition.policy.should_steer_skip_tools
        || !is_batch_skippable
        || !has_pending(transition, is_steer)
    {
        return Next::Wait;
    }
    transition.skipped_calls = call_ids(transition, &open);
    transition.skipped.clone_from(&open);
    let skipped = CallResult::error(SKIPPED);
    let mut next = Next::Wait;
    for index in open {
        next = calls::reject_call(transition, index, &skipped);
    }
    next
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

fn start_prompt(transition: &mut Transition, item: &InboxItem, run_from_seq: Option<u64>) {
    let Some(prompt) = prompt_input(item) else { return };
    if let Some(to) = item.leaf_move() {
        navigate::move_before_prompt(transition, to);
    }
    apply::start_prompt(transition, item, &prompt, run_from_seq);
    apply::open_first_turn(transition);
    queue::append_message(transition, item);
    let mut receipt = queue::new_receipt(transition, item);
    receipt.prompt_id = transition.prompt_id();
    transition.receipts.push(receipt);
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
        original: None,
        idempotency_key: None,
    }))
}
