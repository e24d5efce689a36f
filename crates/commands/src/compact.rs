//! Command that requests a summary of a conversation.

use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use crate::abort::abort_document;
use crate::pipeline::{CommandContext, RequestDocuments, Signal};
use crate::routing::find_running_prompt;
use turnwheel_conversation::head::State;
use turnwheel_conversation::inbox::{IdempotencyRecord, InboxItem};
use turnwheel_conversation::step::CompactInput;
use turnwheel_platform::ids::{ConversationKey, InputId};
use turnwheel_platform::telemetry::trace;
use turnwheel_record::contract::{CommandError, CommandResponse};
use turnwheel_record::idempotency::Idempotency;
use turnwheel_record::load;
use turnwheel_record::services::Services;

const WAITS: &str =
    "The prompt waits for an approval. Decide the request, or abort the prompt first.";
const INSTRUCTIONS_BYTES_MAX: usize = 4 * 1024;

#[derive(Clone, Debug, Default, Deserialize, ToSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct CompactRequest {
    /// Topics that the summary should emphasise.
    pub instructions: Option<String>,
}

#[derive(Debug, Serialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub struct CompactAccepted {
    #[schema(value_type = String)]
    pub input_id: InputId,
    /// Newest event of the conversation before the compaction.
    pub last_event_id: u64,
}

/// Stores the request and an abort of the running prompt, because the source document aborts it
/// first, too. The conversation's events report the result.
///
/// # Errors
/// Returns the [`CommandError`] to report to the client. After `Unavailable`, repeat the request
/// with the same key.
pub async fn compact(
    services: &Services,
    key: &ConversationKey,
    request: CompactRequest,
    idempotency: &Idempotency,
) -> Result<CommandResponse, CommandError> {
    let context = CommandContext { services, key, idempotency, signal: Signal::Compact };
    if let Some(replayed) = context.find_response().await? {
        return Ok(replayed);
    }
    let instructions = request.instructions.filter(|text| !text.trim().is_empty());
    if instructions.as_ref().is_some_and(|text| text.len() > INSTRUCTIONS_BYTES_MAX) {
        return Err(CommandError::invalid(
            "/instructions",
            format!("`instructions` may be at most {INSTRUCTIONS_BYTES_MAX} bytes"),
        ));
    }
    let (head, _) = load::head(services, key).await?;
    // An abort would decide the request of an approver.
    if head.prompt.is_some() && head.state() == State::WaitingForApproval {
        return Err(CommandError::Conflict { detail: WAITS.to_owned(), retry_after: None });
    }
    let running = find_running_prompt(services, &head).await?;
    let input_id = context.input_id();
    let body = CompactAccepted { input_id: input_id.clone(), last_event_id: head.event_seq };
    let response = CommandResponse::new(202, &body);
    let item = InboxItem {
        input_id,
        accepted_at: services.clock.now(),
        idempotency: IdempotencyRecord::default(),
        traceparent: trace::current_traceparent(),
        body: CompactInput { instructions }.to_inbox_body(),
    };
    let abort = running.map(|prompt_id| abort_document(services, &prompt_id));
    context.store(RequestDocuments { abort, ..item.into() }, response).await
}
