//! Final responses that do not fit the response schema: one correction, then the prompt fails.

use crate::content::Content;
use crate::entry::{CustomMessageEntry, EntryBody};
use crate::phase::Phase;
use crate::step::next::{Next, PromptEnding};
use crate::step::{finish, turn};
use crate::transition::Transition;
use crate::unknown_members::Extra;

/// Type of the custom entry that reports the schema error to the model.
const CUSTOM_TYPE: &str = "response_schema";

/// Requests one correction from the model. The error is stored before the next model call, so a
/// take-over does not repeat the correction.
pub(super) fn request_correction(transition: &mut Transition, schema_error: &str) -> Next {
    debug_assert!(transition.head.prompt.is_some(), "no prompt runs");
    let is_used_up = finish::has_used_all_rounds(transition);
    let Some(run) = &mut transition.head.prompt else { return Next::Wait };
    if run.has_requested_repair || is_used_up {
        return fail_prompt(schema_error);
    }
    run.has_requested_repair = true;
    transition.head.phase = Phase::MODEL_CALL;
    turn::open_turn(transition);
    let text = format!(
        "Your response does not fit the required JSON schema: {schema_error}. Respond again with JSON that fits it and with nothing else."
    );
    let entry = transition.append(EntryBody::CustomMessage(CustomMessageEntry {
        custom_type: CUSTOM_TYPE.to_owned(),
        content: Content::Text(text),
        display: false,
        details: None,
        extra: Extra::new(),
    }));
    transition.emit_message(&entry);
    Next::Wait
}

/// Fails the prompt because its final response does not fit the schema.
pub(super) fn fail_prompt(schema_error: &str) -> Next {
    let message = format!("The response does not fit the agent's response schema: {schema_error}");
    Next::EndPrompt(PromptEnding::failed("schema", message))
}
