//! The pending inbox items of a transition: finding, removing and appending them.

use std::sync::Arc;

use crate::entry::{EntryBody, MessageEntry};
use crate::inbox::{
    InboxBody, InboxItem, InputOutcome, InputQueue, NEXT_TURN_MESSAGES_MAX, Receipt,
};
use crate::message::{Message, UserMessage};
use crate::person_messages::is_written_by_person;
use crate::step::turn;
use crate::transition::{PendingItem, Transition};
use crate::unknown_members::Extra;
use turnwheel_json::raw::RawJson;
use turnwheel_platform::ids::PromptId;

pub(super) fn is_steer(item: &InboxItem) -> bool {
    item.queue() == Some(InputQueue::Steering)
}

/// True if an abort of the running prompt waits in the inbox.
pub(super) fn is_abort_pending(transition: &Transition) -> bool {
    let Some(run) = &transition.head.prompt else { return false };
    transition.is_abort_requested
        || transition.pending.iter().any(|pending| targets(&pending.item, &run.id))
}

pub(super) fn targets(item: &InboxItem, prompt: &PromptId) -> bool {
    matches!(&item.body, InboxBody::Abort(abort) if abort.prompt_id.as_ref() == Some(prompt))
}

pub(super) fn has_pending(transition: &Transition, predicate: impl Fn(&InboxItem) -> bool) -> bool {
    transition.pending.iter().any(|pending| predicate(&pending.item))
}

/// True if another message for the next turn may wait.
pub(super) fn has_next_turn_room(transition: &Transition) -> bool {
    let queues = transition.pending.iter().map(|pending| pending.item.queue());
    let waiting = queues.filter(|queue| *queue == Some(InputQueue::NextTurn)).count();
    u32::try_from(waiting).is_ok_and(|waiting| waiting < NEXT_TURN_MESSAGES_MAX)
}

/// Removes and returns the oldest matching item if this commit has room for it. There is always
/// room for one.
pub(super) fn pop(
    transition: &mut Transition,
    predicate: impl Fn(&InboxItem) -> bool,
) -> Option<Arc<InboxItem>> {
    let position = transition.pending.iter().position(|pending| predicate(&pending.item))?;
    if !has_room(transition, position) {
        return None;
    }
    Some(remove(transition, position))
}

/// True if the head counts the item as waiting. A command that waits for an answer is in the head.
fn is_counted(item: &InboxItem) -> bool {
    item.has_effect_when_idle() && !item.is_waiting_command()
}

fn remove(transition: &mut Transition, position: usize) -> Arc<InboxItem> {
    let pending = transition.pending.remove(position);
    transition.drained_bytes += pending.bytes;
    let count = u32::from(is_counted(&pending.item));
    // Without an inbox read the count includes items that are not in `pending`.
    transition.head.waiting_items = transition.head.waiting_items.saturating_sub(count);
    pending.item
}

/// Adds an inbox item that this commit creates.
pub(super) fn add_new_item(transition: &mut Transition, item: InboxItem) {
    let bytes = RawJson::from_value(&item).text().len();
    if is_counted(&item) {
        transition.head.waiting_items += 1;
        transition.postpone_settled_event();
    }
    transition.new_items.push(item.input_id.clone());
    transition.pending.push(PendingItem { item: Arc::new(item), bytes, is_new: true });
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
) -> Option<Arc<InboxItem>> {
    let position = transition.pending.iter().position(|pending| predicate(&pending.item))?;
    Some(remove(transition, position))
}

pub(super) fn update_waiting_count(transition: &mut Transition) {
    let count = transition.pending.iter().filter(|pending| is_counted(&pending.item)).count();
    transition.head.waiting_items = u32::try_from(count).unwrap_or(u32::MAX);
}

/// Receipt of an item that is applied now.
pub(super) fn new_receipt(transition: &Transition, item: &InboxItem) -> Receipt {
    let (input_id, admission) = (item.input_id.clone(), item.idempotency.clone());
    Receipt {
        turn: transition.head.turn,
        ..Receipt::new(input_id, item.accepted_at, admission, InputOutcome::Applied)
    }
}

/// Appends the item's message to the running prompt, or only to the conversation if no prompt runs.
pub(super) fn append_input(transition: &mut Transition, item: &InboxItem) {
    turn::open_turn(transition);
    append_message(transition, item);
    if !item.is_made_by_extension() {
        transition.head.extension_chain = None;
    }
    transition.head.reset_suspicion();
    let mut receipt = new_receipt(transition, item);
    receipt.prompt_id = transition.prompt_id();
    receipt.skipped_calls.clone_from(&transition.skipped_calls);
    receipt.ran_calls.clone_from(&transition.ran_calls);
    receipt.outcome_unknown_calls.clone_from(&transition.outcome_unknown_calls);
    transition.receipts.push(receipt);
}

/// Appends the item's message as an entry.
pub(super) fn append_message(transition: &mut Transition, item: &InboxItem) {
    if let InboxBody::Custom(custom) = &item.body {
        let entry = transition.append(EntryBody::CustomMessage(custom.message.clone()));
        transition.emit_message_of(&entry, Some(&item.input_id));
    } else if let Some(prompt) = item.prompt()
        && let Some(content) = prompt.input.clone()
    {
        let message =
            Message::User(UserMessage { content, timestamp: transition.now, extra: Extra::new() });
        let entry = transition.append(EntryBody::Message(MessageEntry::new(message)));
        transition.emit_message_of(&entry, Some(&item.input_id));
        if !is_written_by_person(prompt.visible, prompt.source) {
            transition.other_messages.push(entry.base.seq);
        }
    }
}
