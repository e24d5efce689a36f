//! Command that aborts a prompt. The abort names its prompt, so that a late abort never ends the
//! next prompt.

use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use crate::inbox_clear::clear_queues;
use crate::pipeline::{CommandContext, RequestDocuments, Signal};
use crate::routing::find_running_prompt;
use turnwheel_conversation::head::Head;
use turnwheel_conversation::inbox::{
    AbortInput, IdempotencyRecord, InboxBody, InboxItem, InputOutcome, Receipt,
};
use turnwheel_platform::ids::{ConversationKey, InputId, PromptId};
use turnwheel_platform::telemetry::trace;
use turnwheel_record::abort_channel::abort_id;
use turnwheel_record::contract::{CommandError, CommandResponse};
use turnwheel_record::documents;
use turnwheel_record::idempotency::Idempotency;
use turnwheel_record::services::Services;
use turnwheel_storage::store::Document;

#[derive(Clone, Debug, Default, Deserialize, ToSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct AbortRequest {
    /// Prompt to end; absent: the prompt that runs or waits now. The id of any other prompt changes
    /// nothing.
    #[schema(value_type = Option<String>)]
    pub prompt_id: Option<PromptId>,
    /// True: queued steers and follow-ups are removed, too, and start no prompt after the abort.
    /// Absent: false.
    pub clear_inbox: Option<bool>,
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
    /// With `clearInbox`: ids of the inputs that were removed, oldest first.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    #[schema(value_type = Vec<String>)]
    pub cleared_inputs: Vec<InputId>,
    /// Newest event of the conversation before the abort.
    pub last_event_id: u64,
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
    let context = CommandContext { services, key, idempotency, signal: Signal::Abort };
    let input_id = context.input_id();
    let accepted = context.accept(|head| async move {
        let running = find_running_prompt(services, &head).await?;
        let target = request.prompt_id;
        let prompt_id =
            running.filter(|running| target.as_ref().is_none_or(|target| target == running));
        let is_other_prompt = target.is_some() && prompt_id.is_none();
        let cleared = if request.clear_inbox == Some(true) && !is_other_prompt {
            // Before the abort: a worker that applies it finds nothing to start.
            clear_queues(services, key, None).await?
        } else {
            Vec::new()
        };
        let cleared = cleared.into_iter().map(|input| input.input_id).collect();
        let response = abort_response(&head, &input_id, prompt_id.as_ref(), cleared);
        // A repeated request receives the same response, whichever prompt runs by then.
        let admission = idempotency.to_record(&response);
        let receipt = build_receipt(services, input_id, admission, prompt_id.clone());
        let document = documents::receipt_document(&receipt);
        let abort = prompt_id.map(|prompt_id| abort_document(services, &prompt_id));
        let documents = RequestDocuments { own: vec![document], abort, ..Default::default() };
        context.store(documents, response).await
    });
    accepted.await
}

fn abort_response(
    head: &Head,
    input_id: &InputId,
    prompt_id: Option<&PromptId>,
    cleared_inputs: Vec<InputId>,
) -> CommandResponse {
    let body = AbortAccepted {
        input_id: prompt_id.map_or_else(|| input_id.clone(), abort_id),
        prompt_id: prompt_id.cloned(),
        cleared_inputs,
        last_event_id: head.event_seq,
    };
    CommandResponse::new(202, &body)
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

pub(super) fn abort_document(services: &Services, prompt_id: &PromptId) -> Document {
    let now = services.clock.now();
    let item = InboxItem {
        input_id: abort_id(prompt_id),
        accepted_at: now,
        idempotency: IdempotencyRecord::default(),
        traceparent: trace::current_traceparent(),
        body: InboxBody::Abort(AbortInput { prompt_id: Some(prompt_id.clone()) }),
    };
    documents::inbox_document(&item)
}
