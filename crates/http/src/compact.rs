//! Compaction route: summarises a conversation on request.

use axum::extract::{Path, State};
use http::HeaderMap;

use crate::auth::Caller;
use crate::body::JsonBody;
use crate::idempotency::resolve_idempotency;
use crate::{HandlerResult, SharedApi, access, into_response};
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
pub(crate) async fn compact(
    State(api): State<SharedApi>,
    caller: Caller,
    Path(id): Path<String>,
    headers: HeaderMap,
    JsonBody { value, hash }: JsonBody<CompactRequest>,
) -> HandlerResult {
    let key = access::authorize_change(&caller, &id)?;
    let idempotency =
        resolve_idempotency(&api, &headers, "POST /conversations/{id}/compact", hash)?;
    Ok(into_response(accept_compaction(&api.services, &key, value, &idempotency).await?))
}
