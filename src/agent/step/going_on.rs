//! The `continue` command: a prompt without a new input.

use crate::agent::draft::Draft;
use crate::agent::entry::{PromptError, PromptState, PromptStop, Source};
use crate::agent::event::{Event, EventBody};
use crate::agent::inbox::{ContinueInput, InboxItem, PromptInput, Queue, WhenIdle};
use crate::agent::settings::QueueMode;
use crate::agent::step::{ending, landing, taking_in};

/// Error text of the source (s3 §1.5).
const ANSWERED: &str = "Cannot continue from message role: assistant";

/// Starts the prompt. After a model response it continues with queued steers, or else with queued
/// follow-ups. If another prompt has consumed them, the prompt fails.
pub(super) fn begin(draft: &mut Draft, item: &InboxItem, input: &ContinueInput) {
    let is_answered = is_answered(draft, input);
    let prompt = PromptInput {
        prompt_id: input.prompt_id.clone(),
        user: input.user.clone(),
        when_idle: WhenIdle::Start,
        input: None,
        visible: true,
        model: None,
        source: Source::User,
        traceparent: item.traceparent.clone(),
    };
    landing::begin(draft, item, &prompt, None);
    let mut receipt = landing::receipt(draft, item);
    receipt.prompt_id = draft.prompt_id();
    draft.receipts.push(receipt);
    if !is_answered {
        return;
    }
    if !take_queued(draft) {
        let message = ANSWERED.to_owned();
        let error = PromptError { kind: "nothing_to_continue".to_owned(), message };
        unopen_turn(draft);
        ending::end(draft, PromptState::Failed, PromptStop::Error, Some(&error));
    }
}

/// Removes the `turn_start` event of this transition, because no turn follows.
fn unopen_turn(draft: &mut Draft) {
    let is_told = |event: &Event| matches!(event.body, EventBody::TurnStart(_));
    if draft.events.pop_if(|event| is_told(event)).is_some() {
        draft.head.event_seq -= 1;
        if let Some(run) = &mut draft.head.prompt {
            run.is_turn_open = false;
        }
    }
}

/// Appends queued steers, or else queued follow-ups. Returns true if there were any. After steers,
/// no other steer is polled before the model response.
fn take_queued(draft: &mut Draft) -> bool {
    let is_follow_up = |item: &InboxItem| item.queue() == Some(Queue::FollowUp);
    let has_steers = taking_in::waits(draft, taking_in::is_steer);
    let (is_meant, mode): (fn(&InboxItem) -> bool, _) = if has_steers {
        (taking_in::is_steer, draft.rules.steering_mode)
    } else {
        (is_follow_up, draft.rules.follow_up_mode)
    };
    if let Some(run) = &mut draft.head.prompt {
        run.is_steered = has_steers;
    }
    let mut is_any = false;
    while let Some(item) = taking_in::take(draft, is_meant) {
        taking_in::join(draft, &item);
        is_any = true;
        if mode == QueueMode::OneAtATime {
            break;
        }
    }
    is_any
}

/// True if the conversation ends with a complete model response. The value from the acceptance of
/// the command holds unless a prompt has run since.
fn is_answered(draft: &Draft, input: &ContinueInput) -> bool {
    if input.turn.is_none_or(|turn| turn == draft.head.turn) {
        return input.is_answered;
    }
    draft.head.prompts.last().is_some_and(|span| span.state == PromptState::Completed)
}
