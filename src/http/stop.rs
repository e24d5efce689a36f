//! Routes that abort a prompt and that continue without new input.

use axum::extract::{Path, State};
use axum::response::Response;
use http::HeaderMap;

use crate::http::body::Json;
use crate::http::idempotency::idempotency;
use crate::http::owner::Caller;
use crate::http::problem::Problem;
use crate::http::prompts::{awaited, sender, wait_of};
use crate::http::{Asked, Shared, answered, reach};
use crate::turn::admission::go_on::{ContinueRequest, go_on};
use crate::turn::admission::prompt::Accepted;
use crate::turn::admission::stop::{AbortRequest, Stopping, abort as stop};

type Answered = Result<Response, Problem>;

/// Abort the prompt that has not ended.
#[utoipa::path(
    post, path = "/conversations/{id}/abort", operation_id = "abortPrompt", tag = "prompts", request_body = AbortRequest,
    params(("id" = String, Path), ("Idempotency-Key" = Option<String>, Header)),
    responses((status = 202, body = Stopping, description = "Accepted. Without effect when idle."))
)]
pub(crate) async fn abort(
    State(api): State<Shared>,
    caller: Caller,
    Path(id): Path<String>,
    headers: HeaderMap,
    Json { value, hash }: Json<AbortRequest>,
) -> Answered {
    let key = reach::to_change(&caller, &id)?;
    let idempotency = idempotency(&api, &headers, "POST /conversations/{id}/abort", hash)?;
    Ok(answered(stop(&api.world, &key, value, &idempotency).await?))
}

/// Continue the conversation without new input.
#[utoipa::path(
    post, path = "/conversations/{id}/continue", operation_id = "continueConversation", tag = "prompts", request_body = ContinueRequest,
    params(
        ("id" = String, Path), ("wait" = Option<u32>, Query, description = "Seconds to wait for the prompt, at most 60."),
        ("Idempotency-Key" = Option<String>, Header),
    ),
    responses(
        (status = 202, body = Accepted, headers(("Location" = String))),
        (status = 200, body = crate::http::openapi::Prompt, description = "The prompt left `running` in time."),
        (status = 409, body = crate::http::openapi::Problem, content_type = "application/problem+json", description = "A prompt has not ended, or there is nothing to continue."),
    )
)]
pub(crate) async fn go_on_from_here(
    State(api): State<Shared>,
    caller: Caller,
    Path(id): Path<String>,
    Asked { uri, headers }: Asked,
    Json { hash, .. }: Json<ContinueRequest>,
) -> Answered {
    let key = reach::to_change(&caller, &id)?;
    let wait = wait_of(&uri)?;
    let idempotency = idempotency(&api, &headers, "POST /conversations/{id}/continue", hash)?;
    let answer = go_on(&api.world, &key, &idempotency, &sender()).await?;
    awaited(&api, &key, (answer, wait)).await
}
