//! Command that aborts a prompt. The abort names its prompt, so that a late abort never ends the
//! next prompt.

use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use crate::agent::inbox::{
    AbortInput, IdempotencyRecord, InboxBody, InboxItem, InputOutcome, Receipt,
};
use crate::agent::raw::RawJson;
use crate::commands::certain_write::{BatchOutcome, write_until_certain};
use crate::commands::idempotency::{Idempotency, PreviousRequest, find_previous_request};
use crate::commands::routing::find_running_prompt;
use crate::commands::{CommandError, CommandResponse, wake_worker};
use crate::ids::{ConversationKey, InputId, PromptId};
use crate::queries::load;
use crate::services::Services;
use crate::store::{Document, Write};
use crate::telemetry::trace;
use crate::turn::abort_signal::abort_id;
use crate::turn::documents;

#[derive(Clone, Debug, Default, Deserialize, ToSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct AbortRequest {
    /// Prompt to end; absent: the prompt that runs or waits now. The id of any other prompt changes
    /// nothing.
    #[schema(value_type = Option<String>)]
    pub prompt_id: Option<PromptId>,
}

#[derive(Debug, Serialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub struct AbortAccepted {
    /// Id of the receipt that lists what had already happened.
    #[schema(value_type = String)]
    pub input_id: InputId,
    /// Prompt that ends; absent if nothing ran.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<String>)]
    pub prompt_id: Option<PromptId>,
}

/// Stores an abort of the prompt that has not ended. If there is none, or the request names another
/// prompt, the receipt records that nothing was aborted.
///
/// # Errors
/// Returns the [`CommandError`] to report to the client. After `Unavailable`, repeat the request
/// with the same key.
pub async fn abort(
    services: &Services,
    key: &ConversationKey,
    request: AbortRequest,
    idempotency: &Idempotency,
) -> Result<CommandResponse, CommandError> {
    let input_id = idempotency.input_id(key);
    let (head, previous) = tokio::join!(
        load::head(services, key),
        find_previous_request(services, key, input_id.as_str())
    );
    let (head, _) = head?;
    if let Some(previous) = previous? {
        return replay_previous(services, key, &previous, idempotency).await;
    }
    let running = find_running_prompt(services, &head).await?;
    let target = request.prompt_id;
    let prompt_id =
        running.filter(|running| target.as_ref().is_none_or(|target| target == running));
    let response = abort_response(&input_id, prompt_id.as_ref());
    // A repeated request receives the same response, whichever prompt runs by then.
    let admission = idempotency.to_record(&response);
    let receipt = build_receipt(services, input_id.clone(), admission, prompt_id.clone());
    let document = documents::receipt_document(&receipt);
    if let Some(found) =
        store_with_abort(services, key, (&document, &input_id), prompt_id.as_ref()).await?
    {
        return replay_previous(services, key, &found, idempotency).await;
    }
    if prompt_id.is_some() {
        signal_abort(services, key).await;
    }
    Ok(response)
}

/// Stores the document of a request, and an abort of the prompt. Returns an earlier request with
/// the same key, if there is one.
pub(super) async fn store_with_abort(
    services: &Services,
    key: &ConversationKey,
    (document, input_id): (&Document, &InputId),
    prompt_id: Option<&PromptId>,
) -> Result<Option<PreviousRequest>, CommandError> {
    let create_own = || Write::Create(document.clone());
    let abort = prompt_id.map(|prompt_id| Write::Create(abort_document(services, prompt_id)));
    services.fail_points.hit("admission.accept").await;
    let writes = std::iter::once(create_own()).chain(abort).collect();
    if let BatchOutcome::Lost = write_until_certain(services, key, writes).await? {
        let found = find_previous_request(services, key, input_id.as_str()).await?;
        if found.is_some() {
            return Ok(found);
        }
        // Another request aborts the same prompt: one abort is enough.
        if let BatchOutcome::Lost = write_until_certain(services, key, vec![create_own()]).await? {
            let found = find_previous_request(services, key, input_id.as_str()).await?;
            return found.ok_or_else(CommandError::contended).map(Some);
        }
    }
    services.fail_points.hit("admission.accepted").await;
    Ok(None)
}

/// Stops the effects that run in this process at once. Also wakes a worker, whose delivery ends an
/// idle prompt.
pub(super) async fn signal_abort(services: &Services, key: &ConversationKey) {
    services.abort_signals.emit(key);
    wake_worker(services, key, trace::current_traceparent().as_deref()).await;
}

async fn replay_previous(
    services: &Services,
    key: &ConversationKey,
    previous: &PreviousRequest,
    idempotency: &Idempotency,
) -> Result<CommandResponse, CommandError> {
    let response = previous.replay(idempotency)?;
    // The first nudge may be lost.
    signal_abort(services, key).await;
    Ok(response)
}

fn abort_response(input_id: &InputId, prompt_id: Option<&PromptId>) -> CommandResponse {
    let input_id = prompt_id.map_or_else(|| input_id.clone(), abort_id);
    let body = AbortAccepted { input_id, prompt_id: prompt_id.cloned() };
    CommandResponse {
        status: 202,
        body: Some(RawJson::from_value(&body)),
        location: None,
        etag: None,
        is_replayed: false,
    }
}

/// Receipt of the request. The abort has a receipt under its own id.
fn build_receipt(
    services: &Services,
    input_id: InputId,
    admission: IdempotencyRecord,
    prompt_id: Option<PromptId>,
) -> Receipt {
    let outcome = if prompt_id.is_some() { InputOutcome::Applied } else { InputOutcome::Ignored };
    Receipt { prompt_id, ..Receipt::new(input_id, services.clock.now(), admission, outcome) }
}

fn abort_document(services: &Services, prompt_id: &PromptId) -> Document {
    let now = services.clock.now();
    let item = InboxItem {
        input_id: abort_id(prompt_id),
        accepted_at: now,
        idempotency: IdempotencyRecord::default(),
        traceparent: trace::current_traceparent(),
        body: InboxBody::Abort(AbortInput { prompt_id: Some(prompt_id.clone()) }),
    };
    documents::inbox_document(&item, Some(now))
}
