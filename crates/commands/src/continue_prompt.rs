//! Command that continues a conversation without new input, as a prompt of its own.

use serde::Deserialize;
use utoipa::ToSchema;

use crate::pipeline::CommandContext;
use crate::prompt::{Disposition, Mode, Sender, accepted_response};
use crate::routing::{Route, already_processing, find_running_prompt};
use turnwheel_conversation::continue_check::check_continue;
use turnwheel_conversation::head::Head;
use turnwheel_conversation::inbox::{ContinueInput, IdempotencyRecord, InboxBody, InboxItem};
use turnwheel_conversation::path::path_to_leaf;
use turnwheel_platform::ids::{ConversationKey, PromptId};
use turnwheel_record::contract::{CommandError, CommandResponse, RequestIntent};
use turnwheel_record::idempotency::Idempotency;
use turnwheel_record::load;
use turnwheel_record::services::Services;

/// Body without members.
#[derive(Clone, Copy, Debug, Default, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct ContinueRequest {}

/// Continues a conversation: from an input or results without a response, or from a response if
/// inputs are queued.
///
/// # Errors
/// Returns [`CommandError::AlreadyProcessing`] and [`CommandError::Conflict`] with the texts of the
/// source document. Returns any other [`CommandError`] to report to the client.
pub async fn accept_continue(
    services: &Services,
    key: &ConversationKey,
    idempotency: &Idempotency,
    sender: &Sender,
) -> Result<CommandResponse, CommandError> {
    let signal = sender.wake_signal();
    let context = CommandContext { services, key, idempotency, signal };
    let accepted = context.accept(|head| async move {
        let intent = RequestIntent::Continue;
        if let Some(prompt_id) = find_running_prompt(services, &head).await? {
            return Err(already_processing(services, &head, prompt_id, intent).await?);
        }
        let has_response = has_model_response(services, &head).await?;
        let input_id = context.input_id();
        let prompt_id = PromptId::from_input(&input_id);
        let item = InboxItem {
            input_id,
            accepted_at: services.clock.now(),
            idempotency: IdempotencyRecord::default(),
            traceparent: sender.traceparent.clone(),
            body: InboxBody::Continue(ContinueInput {
                prompt_id,
                user: head.user.clone(),
                has_model_response: has_response,
                turn: Some(head.turn),
            }),
        };
        let route = Route { mode: Mode::Prompt, disposition: Disposition::Started, joins: None };
        let signal = sender.start_signal(services, &head);
        let response = accepted_response(&head, &item, route, Vec::new());
        CommandContext { signal, ..context }.store(item.into(), response).await
    });
    accepted.await
}

/// True if the conversation continues from a model response.
///
/// # Errors
/// The conversation cannot continue.
async fn has_model_response(services: &Services, head: &Head) -> Result<bool, CommandError> {
    let entries = load::all_entries(services, head).await?;
    let inbox = load::inbox_of(services, head).await?;
    let path = path_to_leaf(&entries, head.leaf_id.as_ref());
    let conflict =
        |reason: &str| CommandError::Conflict { detail: reason.to_owned(), retry_after: None };
    check_continue(&path, &inbox).map_err(conflict)
}
