//! Prompt routes: accept, list, read and wait for prompts.

use std::time::Duration;

use axum::extract::{OriginalUri, Path, State};
use axum::response::Response;
use http::{HeaderMap, StatusCode, Uri};

use crate::agent::entry::{PromptState, Source};
use crate::agent::receipt::PromptReceipt;
use crate::http::body::Json;
use crate::http::idempotency::idempotency;
use crate::http::lists::{Params, page};
use crate::http::owner::Caller;
use crate::http::problem::Problem;
use crate::http::{Api, Asked, Shared, answered, json, reach, wait};
use crate::ids::{ConversationKey, PromptId};
use crate::telemetry::trace;
use crate::turn::admission::Answer;
use crate::turn::admission::prompt::{
    Accepted, FirstPromptRequest, PromptRequest, Sender, WhenBusy, accept_prompt,
    begin_conversation,
};
use crate::turn::views::prompts;

type Answered = Result<Response, Problem>;

/// Maximum seconds of `?wait=`.
const WAIT_MAX: u64 = 60;

pub(super) fn wait_of(uri: &Uri) -> Result<Option<Duration>, Problem> {
    Ok(Params::of(uri).number("wait", 0, WAIT_MAX)?.map(Duration::from_secs))
}

/// Returns the sender of a prompt from this request, whose trace the prompt joins.
pub(super) fn sender() -> Sender {
    Sender { source: Source::User, traceparent: trace::traceparent(), when_busy: WhenBusy::Refuse }
}

/// Send a prompt to a conversation.
#[utoipa::path(
    post, path = "/conversations/{id}/prompts", operation_id = "createPrompt", tag = "prompts", request_body = PromptRequest,
    params(
        ("id" = String, Path), ("wait" = Option<u32>, Query, description = "Seconds to wait for the prompt, at most 60."),
        ("Idempotency-Key" = Option<String>, Header),
    ),
    responses(
        (status = 202, body = Accepted, headers(("Location" = String))),
        (status = 200, body = crate::http::openapi::Prompt, description = "The prompt left `running` in time."),
        (status = 409, body = crate::http::openapi::Problem, content_type = "application/problem+json", description = "`already-processing`"),
    )
)]
pub(crate) async fn create(
    State(api): State<Shared>,
    caller: Caller,
    Path(id): Path<String>,
    Asked { uri, headers }: Asked,
    Json { value, hash }: Json<PromptRequest>,
) -> Answered {
    let key = reach::to_change(&caller, &id)?;
    let wait = wait_of(&uri)?;
    let idempotency = idempotency(&api, &headers, "POST /conversations/{id}/prompts", hash)?;
    let answer = accept_prompt(&api.world, &key, value, &idempotency, &sender()).await?;
    awaited(&api, &key, (answer, wait)).await
}

/// Start a conversation with a prompt.
#[utoipa::path(
    post, path = "/prompts", operation_id = "startConversation", tag = "prompts", request_body = FirstPromptRequest,
    params(
        ("wait" = Option<u32>, Query, description = "Seconds to wait for the prompt, at most 60."),
        ("Idempotency-Key" = Option<String>, Header),
    ),
    responses(
        (status = 202, body = Accepted, headers(("Location" = String))),
        (status = 200, body = crate::http::openapi::Prompt, description = "The prompt left `running` in time."),
    )
)]
pub(crate) async fn begin(
    State(api): State<Shared>,
    caller: Caller,
    OriginalUri(uri): OriginalUri,
    headers: HeaderMap,
    Json { value, hash }: Json<FirstPromptRequest>,
) -> Answered {
    reach::refuse_operator(&caller)?;
    let wait = wait_of(&uri)?;
    let idempotency = idempotency(&api, &headers, "POST /prompts", hash)?;
    let id = value.conversation_id.clone();
    let id = id.unwrap_or_else(|| idempotency.conversation_id(&caller.owner));
    let world = &api.world;
    let answer = begin_conversation(world, &caller.owner, value, &idempotency, &sender()).await?;
    let key = caller.owner.key(&id);
    awaited(&api, &key, (answer, wait)).await
}

/// Responds with the prompt if it leaves `running` within `wait`, else with the accepted input.
pub(super) async fn awaited(
    api: &Api,
    key: &ConversationKey,
    (answer, wait): (Answer, Option<Duration>),
) -> Answered {
    let Some(wait) = wait else { return Ok(answered(answer)) };
    let accepted = answer.body.as_ref().and_then(|body| body.read::<Accepted>().ok());
    let Some(Accepted { prompt_id, .. }) = accepted else { return Ok(answered(answer)) };
    let view = wait::prompt(&api.world, key, &prompt_id, wait).await?;
    if view.state == PromptState::Running {
        return Ok(answered(answer));
    }
    let body = crate::agent::raw::RawJson::of(&view);
    Ok(answered(Answer { status: StatusCode::OK.as_u16(), body: Some(body), ..answer }))
}

/// List the prompts of the conversation, oldest first.
#[utoipa::path(
    get, path = "/conversations/{id}/prompts", operation_id = "listPrompts", tag = "prompts",
    params(("id" = String, Path), ("limit" = Option<u32>, Query), ("continuation" = Option<String>, Query)),
    responses((status = 200, body = crate::http::openapi::Prompts))
)]
pub(crate) async fn list(
    State(api): State<Shared>,
    caller: Caller,
    Path(id): Path<String>,
    OriginalUri(uri): OriginalUri,
) -> Answered {
    let (key, head) = reach::to_read(&api, &caller, (&id, &uri)).await?;
    let params = Params::of(&uri);
    let binding = format!("prompts {key} {}", head.incarnation);
    let (after, limit) = (params.position(&binding)?, params.limit()?);
    let (items, next) = prompts::prompts(&api.world, &head, after, limit).await?;
    let next = next.map(|next| next.to_string());
    Ok(page(&items, next.as_deref(), (&uri, &binding)))
}

/// Get the receipt of a prompt: cost, effects and decisions.
#[utoipa::path(
    get, path = "/conversations/{id}/prompts/{promptId}/receipt", operation_id = "getReceipt", tag = "prompts",
    params(("id" = String, Path), ("promptId" = String, Path)),
    responses((status = 200, body = PromptReceipt, description = "The receipt. While the prompt runs: its state so far."))
)]
pub(crate) async fn receipt(
    State(api): State<Shared>,
    caller: Caller,
    Path((id, prompt_id)): Path<(String, String)>,
    OriginalUri(uri): OriginalUri,
) -> Answered {
    let (_, head) = reach::to_read(&api, &caller, (&id, &uri)).await?;
    let receipt = prompts::receipt(&api.world, &head, &PromptId::new(prompt_id)).await?;
    Ok(json(StatusCode::OK, &receipt))
}

/// Get a prompt with its input and its outputs.
#[utoipa::path(
    get, path = "/conversations/{id}/prompts/{promptId}", operation_id = "getPrompt", tag = "prompts",
    params(
        ("id" = String, Path), ("promptId" = String, Path),
        ("wait" = Option<u32>, Query, description = "Seconds to wait until it leaves `running`, at most 60."),
    ),
    responses((status = 200, body = crate::http::openapi::Prompt))
)]
pub(crate) async fn read(
    State(api): State<Shared>,
    caller: Caller,
    Path((id, prompt_id)): Path<(String, String)>,
    OriginalUri(uri): OriginalUri,
) -> Answered {
    let wait = wait_of(&uri)?.unwrap_or_default();
    let (key, _) = reach::to_read(&api, &caller, (&id, &uri)).await?;
    let view = wait::prompt(&api.world, &key, &PromptId::new(prompt_id), wait).await?;
    Ok(json(StatusCode::OK, &view))
}
