//! Routes that abort a prompt and that continue without new input.

use crate::conversation_request::ConversationCommand;
use crate::prompts::{parse_wait, request_sender, respond_when_finished};
use crate::schema::PromptResponse;
use crate::{HandlerResult, into_response};
use turnwheel_commands::abort::{AbortAccepted, AbortRequest, abort as accept_abort};
use turnwheel_commands::continue_prompt::{ContinueRequest, accept_continue};

/// Abort the prompt that has not ended.
#[utoipa::path(
    post, path = "/conversations/{id}/abort", operation_id = "abortPrompt", tag = "prompts", request_body = AbortRequest,
    params(("id" = String, Path), ("Idempotency-Key" = Option<String>, Header)),
    responses((status = 202, body = AbortAccepted, description = "Accepted. Without effect when idle."))
)]
pub(crate) async fn abort(command: ConversationCommand<AbortRequest>) -> HandlerResult {
    let ConversationCommand { api, key, idempotency, value, .. } = command;
    Ok(into_response(accept_abort(&api.services, &key, value, &idempotency).await?))
}

/// Continue the conversation without new input.
#[utoipa::path(
    post, path = "/conversations/{id}/continue", operation_id = "continueConversation", tag = "prompts", request_body = ContinueRequest,
    params(
        ("id" = String, Path), ("wait" = Option<u32>, Query, description = "Seconds to wait for the prompt, at most 60."),
        ("Idempotency-Key" = Option<String>, Header),
    ),
    responses(
        (status = 202, body = PromptResponse, description = "The prompt is stored.", headers(("Location" = String))),
        (status = 200, body = PromptResponse, description = "The prompt left `running` in time."),
        (status = 409, body = crate::schema::Problem, content_type = "application/problem+json", description = "A prompt has not ended, or there is nothing to continue."),
    )
)]
pub(crate) async fn continue_prompt(
    command: ConversationCommand<ContinueRequest>,
) -> HandlerResult {
    let ConversationCommand { api, key, uri, idempotency, .. } = command;
    let wait = parse_wait(&uri)?;
    let (sender, _client) = request_sender(&api, &key, wait);
    let result = accept_continue(&api.services, &key, &idempotency, &sender).await?;
    respond_when_finished(&api, &key, result, wait).await
}
