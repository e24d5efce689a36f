//! Final responses that do not fit the response schema: one correction, then the prompt fails.

use crate::agent::content::Content;
use crate::agent::entry::{CustomMessageEntry, EntryBody, PromptError, PromptState, PromptStop};
use crate::agent::phase::Phase;
use crate::agent::step::{abort, finish, inbox};
use crate::agent::transition::Transition;

/// Type of the custom entry that reports the schema error to the model.
const CUSTOM_TYPE: &str = "response_schema";

/// Requests one correction from the model. The error is stored before the next model call, so a
/// take-over does not repeat the correction.
pub(super) fn request_correction(transition: &mut Transition, schema_error: &str) {
    if abort::is_abort_pending(transition) {
        transition.head.phase = Phase::Model { attempt: 1, not_before: None };
        abort::abort_prompt(transition);
        return;
    }
    let is_used_up = finish::has_used_all_rounds(transition);
    let Some(run) = &mut transition.head.prompt else { return };
    if run.has_requested_repair || is_used_up {
        fail_prompt(transition, schema_error);
        return;
    }
    run.has_requested_repair = true;
    transition.head.phase = Phase::Model { attempt: 1, not_before: None };
    inbox::open_turn(transition);
    let text = format!(
        "Your response does not fit the required JSON schema: {schema_error}. Respond again with JSON that fits it and with nothing else."
    );
    let entry = transition.append(EntryBody::CustomMessage(CustomMessageEntry {
        custom_type: CUSTOM_TYPE.to_owned(),
        content: Content::Text(text),
        display: false,
        details: None,
    }));
    transition.emit_message(&entry);
}

/// Fails the prompt because its final response does not fit the schema.
pub(super) fn fail_prompt(transition: &mut Transition, schema_error: &str) {
    let message = format!("The response does not fit the agent's response schema: {schema_error}");
    let error = PromptError { kind: "schema".to_owned(), message };
    finish::end_run(transition, PromptState::Failed, PromptStop::Error, Some(&error));
}
