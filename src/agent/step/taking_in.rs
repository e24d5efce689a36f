//! Draining the inbox: before a model call, after each result, and where the loop would stop.

use std::borrow::Cow;

use crate::agent::draft::{Draft, Pending};
use crate::agent::entry::{EntryBody, MessageEntry, PromptState, PromptStop, Source};
use crate::agent::event::{Empty, EventBody};
use crate::agent::head::Run;
use crate::agent::inbox::{InboxBody, InboxItem, PromptInput, Queue, WhenIdle};
use crate::agent::message::{Message, UserMessage};
use crate::agent::phase::{CallState, CallStatus, Phase};
use crate::agent::raw::Extra;
use crate::agent::settings::QueueMode;
use crate::agent::step::{
    CallResult, CompactInput, calls, compacting, ending, going_on, landing, stopping,
};
use crate::ids::PromptId;

/// Text that the model receives for a call that a steer skipped.
const SKIPPED: &str = "Skipped due to queued user message.";

/// True if this version can apply such an item. Other items stay unchanged and due, for a newer
/// version. Counting them as waiting would make this version poll for ever.
pub fn is_understood(body: &InboxBody) -> bool {
    match body {
        InboxBody::Prompt(_)
        | InboxBody::Steer(_)
        | InboxBody::FollowUp(_)
        | InboxBody::Custom(_)
        | InboxBody::Decision(_)
        | InboxBody::Abort(_)
        | InboxBody::Continue(_)
        | InboxBody::LateResult(_) => true,
        InboxBody::Command(command) => command.name == compacting::COMPACT,
    }
}

/// Sets the pending inbox items without applying any: a response received before precedes them.
pub(super) fn look(draft: &mut Draft, pending: &[Pending]) {
    draft.pending = pending.to_vec();
    // Each inbox read checks again whether a pause is active.
    draft.head.brake = None;
    draft.is_unsettled = is_idle(draft) && draft.head.waiting > 0;
    count_waiting(draft);
}

fn is_idle(draft: &Draft) -> bool {
    draft.head.prompt.is_none() && draft.head.phase == Phase::Idle
}

/// Applies pending inbox items as far as one commit has room. An abort precedes all others.
pub(super) fn take_in(draft: &mut Draft) {
    if draft.head.phase == Phase::Deleted {
        return;
    }
    if stopping::is_coming(draft) {
        stopping::stop(draft);
    }
    settle_all(draft);
    begin_when_idle(draft);
    if stopping::is_coming(draft) {
        stopping::stop(draft);
    }
    stopping::ignore_late(draft);
    skip_calls(draft);
    steer(draft);
    // The items that waited at the end of the last run changed nothing, or were withdrawn.
    if draft.is_unsettled && is_idle(draft) && draft.head.waiting == 0 {
        draft.tell(EventBody::AgentSettled(Empty {}));
        draft.is_unsettled = false;
    }
}

/// Starts the oldest waiting prompt if no prompt runs, and appends the messages held for it.
/// Messages that start no prompt are appended in order.
fn begin_when_idle(draft: &mut Draft) {
    while is_idle(draft) {
        let is_next = |item: &InboxItem| {
            let is_said = item.queue().is_some() || matches!(item.body, InboxBody::Continue(_));
            (is_said && item.starts_when_idle()) || CompactInput::of(item).is_some()
        };
        let Some(item) = take(draft, is_next) else { return };
        if let Some(asked) = CompactInput::of(&item) {
            compacting::land(draft, &item, asked);
            return;
        }
        if !item.begins_prompt() {
            join(draft, &item);
            continue;
        }
        begin(draft, &item, None);
        // Messages for the next turn of a user keep waiting until a user's prompt starts.
        if !is_a_persons(&item) || is_idle(draft) {
            return;
        }
        while let Some(item) = take(draft, |item| item.queue() == Some(Queue::NextTurn)) {
            join(draft, &item);
        }
    }
}

fn is_a_persons(item: &InboxItem) -> bool {
    item.prompt().is_some_and(|prompt| matches!(prompt.source, Source::User | Source::Queue))
}

/// Applies pending decisions and late results.
pub(super) fn settle_all(draft: &mut Draft) {
    let is_meant =
        |item: &InboxItem| matches!(item.body, InboxBody::Decision(_) | InboxBody::LateResult(_));
    while let Some(item) = take(draft, is_meant) {
        landing::settle(draft, &item);
    }
}

/// Id of the prompt that an item starts when no prompt runs.
pub(super) fn begins(item: &InboxItem) -> Option<PromptId> {
    if let InboxBody::Continue(input) = &item.body {
        return Some(input.prompt_id.clone());
    }
    prompt_of(item).map(|prompt| prompt.prompt_id.clone())
}

/// Finishes the prompt, unless steers continue it. A waiting follow-up starts the next prompt in
/// the same run.
pub(super) fn stop(draft: &mut Draft) {
    if !ending::is_used_up(draft) && waits(draft, is_steer) {
        if stopping::is_coming(draft) {
            stopping::stop(draft);
            return;
        }
        draft.head.phase = Phase::Model { attempt: 1, not_before: None };
        steer(draft);
        return;
    }
    let follows = |item: &InboxItem| matches!(item.queue(), Some(Queue::FollowUp | Queue::Prompt));
    let Some(item) = take(draft, follows) else {
        ending::end(draft, PromptState::Completed, PromptStop::End, None);
        return;
    };
    let run_from_seq = draft.head.prompt.as_ref().map(Run::agent_from);
    ending::end_prompt(draft, PromptState::Completed, PromptStop::End, None);
    begin(draft, &item, run_from_seq);
    let is_follow_up = |item: &InboxItem| item.queue() == Some(Queue::FollowUp);
    if draft.rules.follow_up_mode == QueueMode::All && is_follow_up(&item) {
        while let Some(item) = take(draft, is_follow_up) {
            join(draft, &item);
        }
    }
    steer(draft);
}

/// Appends waiting steers to the prompt before its next model call: the oldest, or all of them.
fn steer(draft: &mut Draft) {
    // Everything waits while a budget request is open.
    if !matches!(draft.head.phase, Phase::Model { .. }) || draft.head.is_paused() {
        return;
    }
    let takes_all = draft.rules.steering_mode == QueueMode::All;
    while draft.head.prompt.as_ref().is_some_and(|run| takes_all || !run.is_steered) {
        let Some(item) = take(draft, is_steer) else { return };
        join(draft, &item);
        if let Some(run) = &mut draft.head.prompt {
            run.is_steered = true;
        }
    }
}

/// True if a waiting steer will skip this call as soon as the running calls have ended.
pub fn gives_way(draft: &Draft, index: usize) -> bool {
    draft.rules.steering_skips_tools
        && draft.calls().get(index).is_some_and(is_untouched)
        && draft.batch().is_running()
        && waits(draft, is_steer)
}

/// True if a steer may skip the call: it was neither started nor approved.
fn is_untouched(call: &CallState) -> bool {
    call.status == CallStatus::Ready && call.attempts == 0 && call.approved.is_none()
}

/// Skips all open calls if a steer waits and none of them was started or approved. Each still gets
/// its start event and its result.
fn skip_calls(draft: &mut Draft) {
    let open: Vec<usize> = indices(draft, |call| !call.is_done());
    let is_in_the_way = !open.is_empty() && open.len() == indices(draft, is_untouched).len();
    if !draft.rules.steering_skips_tools || !is_in_the_way || !waits(draft, is_steer) {
        return;
    }
    draft.skipped_calls = call_ids(draft, &open);
    draft.skipped.clone_from(&open);
    let skipped = CallResult::error(SKIPPED);
    for index in open {
        calls::refuse(draft, index, &skipped);
    }
}

fn indices(draft: &Draft, is_meant: impl Fn(&CallState) -> bool) -> Vec<usize> {
    let calls = draft.calls().iter().enumerate();
    calls.filter(|(_, call)| is_meant(call)).map(|(index, _)| index).collect()
}

/// The provider's ids of the calls with these indices.
fn call_ids(draft: &Draft, indices: &[usize]) -> Vec<String> {
    let Some(answer) = draft.open_answer() else { return Vec::new() };
    let calls = answer.tool_calls().enumerate();
    calls.filter(|(index, _)| indices.contains(index)).map(|(_, call)| call.id.clone()).collect()
}

/// Records the outcome of the closing batch for the receipts of items that are applied now.
pub(super) fn note_batch(draft: &mut Draft) {
    let batch = stopping::batch(draft);
    draft.ran_calls = batch.ran;
    draft.unknown_calls = batch.unknown;
}

fn begin(draft: &mut Draft, item: &InboxItem, run_from_seq: Option<u64>) {
    if let InboxBody::Continue(input) = &item.body {
        going_on::begin(draft, item, input);
        return;
    }
    let Some(prompt) = prompt_of(item) else { return };
    landing::begin(draft, item, &prompt, run_from_seq);
    let mut receipt = landing::receipt(draft, item);
    receipt.prompt_id = draft.prompt_id();
    draft.receipts.push(receipt);
}

/// Appends the item's message to the running prompt, or only to the conversation if no prompt runs.
pub(super) fn join(draft: &mut Draft, item: &InboxItem) {
    open_turn(draft);
    say(draft, item);
    draft.head.note_progress();
    let mut receipt = landing::receipt(draft, item);
    receipt.prompt_id = draft.prompt_id();
    receipt.skipped_calls.clone_from(&draft.skipped_calls);
    receipt.ran_calls.clone_from(&draft.ran_calls);
    receipt.unknown_calls.clone_from(&draft.unknown_calls);
    draft.receipts.push(receipt);
}

/// Opens a turn, once, before its first entry.
pub(super) fn open_turn(draft: &mut Draft) {
    let Some(run) = &mut draft.head.prompt else { return };
    if !std::mem::replace(&mut run.is_turn_open, true) {
        let begins_agent = std::mem::take(&mut run.is_between_tries);
        draft.head.turn += 1;
        if begins_agent {
            draft.tell(EventBody::AgentStart(Empty {}));
        }
        draft.tell(EventBody::TurnStart(Empty {}));
    }
}

/// Appends the item's message as an entry.
pub(super) fn say(draft: &mut Draft, item: &InboxItem) {
    if let InboxBody::Custom(custom) = &item.body {
        let entry = draft.append(EntryBody::CustomMessage(custom.message.clone()));
        draft.tell_message(&entry);
    } else if let Some(content) = item.prompt().and_then(|prompt| prompt.input.clone()) {
        let message =
            Message::User(UserMessage { content, timestamp: draft.now, extra: Extra::new() });
        draft.speak(MessageEntry::plain(message));
    }
}

pub(super) fn is_steer(item: &InboxItem) -> bool {
    item.queue() == Some(Queue::Steering)
}

/// Input of the prompt that the item starts.
fn prompt_of(item: &InboxItem) -> Option<Cow<'_, PromptInput>> {
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

pub(super) fn waits(draft: &Draft, is_meant: impl Fn(&InboxItem) -> bool) -> bool {
    draft.pending.iter().any(|pending| is_meant(&pending.item))
}

/// Removes and returns the oldest matching item if this commit has room for it. There is always
/// room for one.
pub(super) fn take(
    draft: &mut Draft,
    is_meant: impl Fn(&InboxItem) -> bool,
) -> Option<std::sync::Arc<InboxItem>> {
    let position = draft.pending.iter().position(|pending| is_meant(&pending.item))?;
    let bytes = draft.pending.get(position)?.bytes;
    let has_room = draft.operations() < draft.rules.taken_in_operations_max
        && draft.taken_in_bytes + bytes <= draft.rules.taken_in_bytes_max;
    if !has_room && draft.taken_in_bytes > 0 {
        return None;
    }
    draft.taken_in_bytes += bytes;
    let pending = draft.pending.remove(position);
    count_waiting(draft);
    Some(pending.item)
}

/// Like [`pop`], but ignores the size limit. For aborts, which are small and must always be
/// applied.
pub(super) fn take_surely(
    draft: &mut Draft,
    is_meant: impl Fn(&InboxItem) -> bool,
) -> Option<std::sync::Arc<InboxItem>> {
    let position = draft.pending.iter().position(|pending| is_meant(&pending.item))?;
    let pending = draft.pending.remove(position);
    draft.taken_in_bytes += pending.bytes;
    count_waiting(draft);
    Some(pending.item)
}

fn count_waiting(draft: &mut Draft) {
    let count = draft.pending.iter().filter(|pending| pending.item.starts_when_idle()).count();
    draft.head.waiting = u32::try_from(count).unwrap_or(u32::MAX);
}
