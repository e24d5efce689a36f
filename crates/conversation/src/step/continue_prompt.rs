//! The `continue` command: a prompt without a new input.

use crate::continue_check::LAST_MESSAGE_IS_RESPONSE;
use crate::entry::{PromptState, Source};
use crate::inbox::{ContinueInput, InboxItem, InputQueue, PromptInput, WhenIdle};
use crate::settings::QueueMode;
use crate::step::next::{Next, PromptEnding};
use crate::step::{apply, queue};
use crate::transition::Transition;

/// Starts the prompt. After a model response it continues with queued steers, or else with queued
/// follow-ups. If another prompt has consumed them, the prompt fails.
pub(super) fn start_prompt(
    transition: &mut Transition,
    item: &InboxItem,
    input: &ContinueInput,
) -> Next {
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
        original: None,
        idempotency_key: None,
    };
    apply::start_prompt(transition, item, &prompt, None);
    let mut receipt = queue::new_receipt(transition, item);
    receipt.prompt_id = transition.prompt_id();
    transition.receipts.push(receipt);
    if !has_response {
        apply::open_first_turn(transition);
    } else if let Some(input_queue) = next_queue(transition) {
        apply::open_first_turn(transition);
        append_queued(transition, input_queue);
    } else {
        let message = LAST_MESSAGE_IS_RESPONSE.to_owned();
        return Next::EndPrompt(PromptEnding::failed("nothing_to_continue", message));
    }
    Next::Wait
}

/// The queue with which the prompt continues: steers, or else follow-ups.
fn next_queue(transition: &Transition) -> Option<InputQueue> {
    let has_steers = queue::has_pending(transition, queue::is_steer);
    let input_queue = if has_steers { InputQueue::Steering } else { InputQueue::FollowUp };
    queue::can_pop(transition, |item| item.queue() == Some(input_queue)).then_some(input_queue)
}

/// Appends the queued messages. After steers, no other steer is polled before the model response.
fn append_queued(transition: &mut Transition, input_queue: InputQueue) {
    let is_steering = input_queue == InputQueue::Steering;
    let policy = &transition.policy;
    let mode = if is_steering { policy.steering_mode } else { policy.follow_up_mode };
    if let Some(run) = &mut transition.head.prompt {
        run.is_steered = is_steering;
    }
    while let Some(item) = queue::pop(transition, |item| item.queue() == Some(input_queue)) {
        queue::append_input(transition, &item);
        if mode == QueueMode::OneAtATime {
            break;
        }
    }
}

/// True if the conversation ends with a complete model response. The value from the acceptance of
/// the command holds unless a prompt has run since.
fn has_response(transition: &Transition, input: &ContinueInput) -> bool {
    if input.turn.is_none_or(|turn| turn == transition.head.turn) {
        return input.has_model_response;
    }
    transition.head.prompts.last().is_some_and(|span| span.state == PromptState::Completed)
}
