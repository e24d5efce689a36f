//! Compaction route: summarises a conversation on request.

use crate::conversation_request::ConversationCommand;
use crate::{HandlerResult, into_response};
use turnwheel_commands::compact::{CompactAccepted, CompactRequest, compact as accept_compaction};

/// Summarise the conversation for the model, except its newest part.
/// A running prompt is aborted first. The event `auto_compaction_end` reports the outcome.
#[utoipa::path(
    post, path = "/conversations/{id}/compact", operation_id = "compactConversation", tag = "conversations", request_body = CompactRequest,
    params(("id" = String, Path), ("Idempotency-Key" = Option<String>, Header)),
    responses(
        (status = 202, body = CompactAccepted),
    )
)]
pub(crate) async fn compact(command: ConversationCommand<CompactRequest>) -> HandlerResult {
    let ConversationCommand { api, key, idempotency, value, .. } = command;
    Ok(into_response(accept_compaction(&api.services, &key, value, &idempotency).await?))
}
