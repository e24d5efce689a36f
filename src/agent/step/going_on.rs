//! A prompt without a new input: it goes on from where the conversation stands.

use crate::agent::draft::Draft;
use crate::agent::entry::{PromptError, PromptState, PromptStop, Source};
use crate::agent::event::{Event, EventBody};
use crate::agent::inbox::{ContinueInput, InboxItem, PromptInput, Queue, WhenIdle};
use crate::agent::settings::QueueMode;
use crate::agent::step::{ending, landing, taking_in};

/// The source's (s3 §1.5).
const ANSWERED: &str = "Cannot continue from message role: assistant";

/// Begins the prompt. After an answer it goes on with what waits in the queues: with steers, or else with follow-ups; whoever
/// took them meanwhile leaves it nothing to go on from.
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

/// No turn has begun after all.
fn unopen_turn(draft: &mut Draft) {
    let is_told = |event: &Event| matches!(event.body, EventBody::TurnStart(_));
    if draft.events.pop_if(|event| is_told(event)).is_some() {
        draft.head.event_seq -= 1;
        if let Some(run) = &mut draft.head.prompt {
            run.is_turn_open = false;
        }
    }
}

/// Steers first, or else follow-ups; whether there were any. After steers no further one is looked for before the answer.
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

/// As it was seen when this was accepted; if a prompt has run since, as that one ended.
fn is_answered(draft: &Draft, input: &ContinueInput) -> bool {
    if input.turn.is_none_or(|turn| turn == draft.head.turn) {
        return input.is_answered;
    }
    draft.head.prompts.last().is_some_and(|span| span.state == PromptState::Completed)
}
