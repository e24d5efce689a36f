//! Compaction route: summarises a conversation on request.

use axum::extract::{Path, State};
use axum::response::Response;
use http::HeaderMap;

use crate::http::body::Json;
use crate::http::idempotency::idempotency;
use crate::http::owner::Caller;
use crate::http::problem::Problem;
use crate::http::{Shared, answered, reach};
use crate::turn::admission::compact::{CompactRequest, Compacting, compact as ask};

type Answered = Result<Response, Problem>;

/// Summarise the conversation for the model, except its newest part.
/// A running prompt is aborted first. The event `auto_compaction_end` reports the outcome.
#[utoipa::path(
    post, path = "/conversations/{id}/compact", operation_id = "compactConversation", tag = "conversations", request_body = CompactRequest,
    params(("id" = String, Path), ("Idempotency-Key" = Option<String>, Header)),
    responses(
        (status = 202, body = Compacting),
    )
)]
pub(crate) async fn compact(
    State(api): State<Shared>,
    caller: Caller,
    Path(id): Path<String>,
    headers: HeaderMap,
    Json { value, hash }: Json<CompactRequest>,
) -> Answered {
    let key = reach::to_change(&caller, &id)?;
    let idempotency = idempotency(&api, &headers, "POST /conversations/{id}/compact", hash)?;
    Ok(answered(ask(&api.world, &key, value, &idempotency).await?))
}
