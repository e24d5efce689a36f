//! Routes of branches: move the leaf, label an entry.

use crate::conversation_request::ConversationCommand;
use crate::{HandlerResult, into_response};
use turnwheel_commands::label::{LabelRequest, LabelView, set_label};
use turnwheel_commands::leaf::{LeafMoved, LeafRequest, move_leaf};

/// Continue an idle conversation from another entry.
/// What the branch left behind did is not undone: `writesLeft` lists it.
#[utoipa::path(
    post, path = "/conversations/{id}/leaf", operation_id = "moveLeaf", tag = "conversations", request_body = LeafRequest,
    params(("id" = String, Path), ("Idempotency-Key" = Option<String>, Header)),
    responses(
        (status = 200, body = LeafMoved),
        (status = 202, body = LeafMoved, description = "The model writes the summary first.", headers(("Location" = String))),
        (status = 409, body = crate::schema::Problem, content_type = "application/problem+json", description = "`already-processing`, or inputs are queued"),
    )
)]
pub(crate) async fn move_to(command: ConversationCommand<LeafRequest>) -> HandlerResult {
    let ConversationCommand { api, key, idempotency, value, .. } = command;
    Ok(into_response(move_leaf(&api.services, &key, &value, &idempotency).await?))
}

/// Label an entry, or remove its label.
#[utoipa::path(
    put, path = "/conversations/{id}/entries/{entryId}/label", operation_id = "labelEntry", tag = "conversations", request_body = LabelRequest,
    params(("id" = String, Path), ("entryId" = String, Path), ("Idempotency-Key" = Option<String>, Header)),
    responses((status = 200, body = LabelView))
)]
pub(crate) async fn label(command: ConversationCommand<LabelRequest>) -> HandlerResult {
    let ConversationCommand { api, key, target: entry_id, idempotency, value, .. } = command;
    let labelled = set_label(&api.services, &key, &entry_id, &value, &idempotency).await?;
    Ok(into_response(labelled))
}
