//! Final responses that do not fit the response schema: one correction, then the prompt fails.

use crate::agent::content::Content;
use crate::agent::draft::Draft;
use crate::agent::entry::{CustomMessageEntry, EntryBody, PromptError, PromptState, PromptStop};
use crate::agent::phase::Phase;
use crate::agent::step::{ending, stopping, taking_in};

/// Type of the custom entry that reports the schema error to the model.
const CUSTOM_TYPE: &str = "response_schema";

/// Requests one correction from the model. The error is stored before the next model call, so a
/// take-over does not repeat the correction.
pub(super) fn accept_misfit(draft: &mut Draft, misfit: &str) {
    if stopping::is_coming(draft) {
        draft.head.phase = Phase::Model { attempt: 1, not_before: None };
        stopping::stop(draft);
        return;
    }
    let is_used_up = ending::is_used_up(draft);
    let Some(run) = &mut draft.head.prompt else { return };
    if run.is_repaired || is_used_up {
        fail(draft, misfit);
        return;
    }
    run.is_repaired = true;
    draft.head.phase = Phase::Model { attempt: 1, not_before: None };
    taking_in::open_turn(draft);
    let text = format!(
        "Your response does not fit the required JSON schema: {misfit}. Respond again with JSON that fits it and with nothing else."
    );
    let entry = draft.append(EntryBody::CustomMessage(CustomMessageEntry {
        custom_type: CUSTOM_TYPE.to_owned(),
        content: Content::Text(text),
        display: false,
        details: None,
    }));
    draft.tell_message(&entry);
}

/// Fails the prompt because its final response does not fit the schema.
pub(super) fn fail(draft: &mut Draft, misfit: &str) {
    let message = format!("The response does not fit the agent's response schema: {misfit}");
    let error = PromptError { kind: "schema".to_owned(), message };
    ending::end(draft, PromptState::Failed, PromptStop::Error, Some(&error));
}
