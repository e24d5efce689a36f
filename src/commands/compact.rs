//! Command that requests a summary of a conversation.

use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use crate::agent::inbox::InboxItem;
use crate::agent::raw::RawJson;
use crate::agent::step::CompactInput;
use crate::commands::abort::{signal_abort, store_with_abort};
use crate::commands::idempotency::{Idempotency, PreviousRequest, find_previous_request};
use crate::commands::routing::find_running_prompt;
use crate::commands::{CommandError, CommandResponse};
use crate::ids::{ConversationKey, InputId};
use crate::queries::load;
use crate::services::Services;
use crate::telemetry::trace;
use crate::turn::documents;

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
    let input_id = idempotency.input_id(key);
    if let Some(previous) = find_previous_request(services, key, input_id.as_str()).await? {
        return replay_previous(services, key, &previous, idempotency).await;
    }
    let instructions = request.instructions.filter(|text| !text.trim().is_empty());
    if instructions.as_ref().is_some_and(|text| text.len() > INSTRUCTIONS_BYTES_MAX) {
        return Err(CommandError::invalid(
            "/instructions",
            format!("`instructions` may be at most {INSTRUCTIONS_BYTES_MAX} bytes"),
        ));
    }
    let (head, _) = load::head(services, key).await?;
    let running = find_running_prompt(services, &head).await?;
    let response = compact_response(&input_id);
    let item = InboxItem {
        input_id: input_id.clone(),
        accepted_at: services.clock.now(),
        idempotency: idempotency.to_record(&response),
        traceparent: trace::current_traceparent(),
        body: CompactInput { instructions }.to_inbox_body(),
    };
    let document = documents::inbox_document(&item, Some(item.accepted_at));
    if let Some(found) =
        store_with_abort(services, key, (&document, &input_id), running.as_ref()).await?
    {
        return replay_previous(services, key, &found, idempotency).await;
    }
    signal_abort(services, key).await;
    Ok(response)
}

async fn replay_previous(
    services: &Services,
    key: &ConversationKey,
    previous: &PreviousRequest,
    idempotency: &Idempotency,
) -> Result<CommandResponse, CommandError> {
    let response = previous.replay(idempotency)?;
    if previous.is_queued() {
        signal_abort(services, key).await;
    }
    Ok(response)
}

fn compact_response(input_id: &InputId) -> CommandResponse {
    CommandResponse {
        status: 202,
        body: Some(RawJson::from_value(&CompactAccepted { input_id: input_id.clone() })),
        location: None,
        etag: None,
        is_replayed: false,
    }
}
