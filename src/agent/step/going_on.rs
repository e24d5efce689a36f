//! A prompt without a new input: it goes on from where the conversation stands.

use crate::agent::draft::Draft;
use crate::agent::entry::{PromptError, PromptState, PromptStop, Source};
use crate::agent::inbox::{ContinueInput, InboxItem, PromptInput, WhenIdle};
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
    let rules = &draft.rules;
    let queues: [(fn(&InboxItem) -> bool, QueueMode); 2] = [
        (taking_in::is_steer, rules.steering_mode),
        (taking_in::is_follow_up, rules.follow_up_mode),
    ];
    let Some((is_meant, mode)) =
        queues.into_iter().find(|(is_meant, _)| taking_in::waits(draft, is_meant))
    else {
        let message = ANSWERED.to_owned();
        let error = PromptError { kind: "nothing_to_continue".to_owned(), message };
        ending::end(draft, PromptState::Failed, PromptStop::Error, Some(&error));
        return;
    };
    let is_steered = mode == rules.steering_mode && taking_in::waits(draft, taking_in::is_steer);
    while let Some(waiting) = taking_in::take(draft, is_meant) {
        taking_in::join(draft, &waiting);
        if mode == QueueMode::OneAtATime {
            break;
        }
    }
    let _ = is_steered;
}

/// As it was seen when this was accepted; if a prompt has run since, as that one ended.
fn is_answered(draft: &Draft, input: &ContinueInput) -> bool {
    if input.turn.is_none_or(|turn| turn == draft.head.turn) {
        return input.is_answered;
    }
    draft.head.prompts.last().is_some_and(|span| span.state == PromptState::Completed)
}
