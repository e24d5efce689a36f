//! The `continue` command: a prompt without a new input.

use crate::agent::entry::{PromptError, PromptState, PromptStop, Source};
use crate::agent::event::{Event, EventBody};
use crate::agent::inbox::{ContinueInput, InboxItem, InputQueue, PromptInput, WhenIdle};
use crate::agent::settings::QueueMode;
use crate::agent::step::{apply, finish, inbox};
use crate::agent::transition::Transition;

/// Error text of the source (s3 §1.5).
const CANNOT_CONTINUE: &str = "Cannot continue from message role: assistant";

/// Starts the prompt. After a model response it continues with queued steers, or else with queued
/// follow-ups. If another prompt has consumed them, the prompt fails.
pub(super) fn start_prompt(transition: &mut Transition, item: &InboxItem, input: &ContinueInput) {
    let has_response = has_response(transition, input);
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
    apply::start_prompt(transition, item, &prompt, None);
    let mut receipt = apply::new_receipt(transition, item);
    receipt.prompt_id = transition.prompt_id();
    transition.receipts.push(receipt);
    if !has_response {
        return;
    }
    if !append_queued(transition) {
        let message = CANNOT_CONTINUE.to_owned();
        let error = PromptError { kind: "nothing_to_continue".to_owned(), message };
        retract_turn_start(transition);
        finish::end_run(transition, PromptState::Failed, PromptStop::Error, Some(&error));
    }
}

/// Removes the `turn_start` event of this transition, because no turn follows.
fn retract_turn_start(transition: &mut Transition) {
    let is_turn_start = |event: &Event| matches!(event.body, EventBody::TurnStart(_));
    if transition.events.pop_if(|event| is_turn_start(event)).is_some() {
        transition.head.event_seq -= 1;
        if let Some(run) = &mut transition.head.prompt {
            run.is_turn_open = false;
        }
    }
}

/// Appends queued steers, or else queued follow-ups. Returns true if there were any. After steers,
/// no other steer is polled before the model response.
fn append_queued(transition: &mut Transition) -> bool {
    let is_follow_up = |item: &InboxItem| item.queue() == Some(InputQueue::FollowUp);
    let has_steers = inbox::has_pending(transition, inbox::is_steer);
    let (predicate, mode): (fn(&InboxItem) -> bool, _) = if has_steers {
        (inbox::is_steer, transition.policy.steering_mode)
    } else {
        (is_follow_up, transition.policy.follow_up_mode)
    };
    if let Some(run) = &mut transition.head.prompt {
        run.is_steered = has_steers;
    }
    let mut has_any = false;
    while let Some(item) = inbox::pop(transition, predicate) {
        inbox::append_input(transition, &item);
        has_any = true;
        if mode == QueueMode::OneAtATime {
            break;
        }
    }
    has_any
}

/// True if the conversation ends with a complete model response. The value from the acceptance of
/// the command holds unless a prompt has run since.
fn has_response(transition: &Transition, input: &ContinueInput) -> bool {
    if input.turn.is_none_or(|turn| turn == transition.head.turn) {
        return input.has_model_response;
    }
    transition.head.prompts.last().is_some_and(|span| span.state == PromptState::Completed)
}
