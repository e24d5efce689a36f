//! Inbox routes: list, add, edit and remove queued inputs.

use axum::extract::{OriginalUri, Path, State};
use axum::response::IntoResponse;
use http::header::ETAG;
use http::{HeaderValue, StatusCode};

use crate::auth::Caller;
use crate::conversation_request::{ConversationCommand, ConversationRead};
use crate::lists::{QueryParams, page_response};
use crate::precondition::is_match_allowed;
use crate::problem::Problem;
use crate::{HandlerResult, SharedApi, access, into_response, json};
use turnwheel_commands::inbox_edit::{InputChange, InputEdit};
use turnwheel_commands::message::{MessageAccepted, MessageRequest, accept_message};
use turnwheel_commands::prompt::Mode;
use turnwheel_commands::{inbox_clear, inbox_edit};
use turnwheel_json::raw::raw_object;
use turnwheel_platform::telemetry::trace;
use turnwheel_queries::inbox;
use turnwheel_queries::inbox::InputView;
use turnwheel_record::contract::FieldError;

/// List the queued inputs, oldest first.
#[utoipa::path(
    get, path = "/conversations/{id}/inbox", operation_id = "listInputs", tag = "inbox",
    params(("id" = String, Path), ("limit" = Option<u32>, Query), ("continuation" = Option<String>, Query)),
    responses((status = 200, body = crate::schema::Inputs))
)]
pub(crate) async fn list(read: ConversationRead) -> HandlerResult {
    let ConversationRead { api, key, head, uri, params, .. } = read;
    let binding = format!("inbox {key} {}", head.incarnation);
    let (after, limit) = (params.continuation(&binding)?, params.limit()?);
    let (items, next) = inbox::list_inputs(&api.services, &key, after.as_deref(), limit).await?;
    Ok(page_response(&items, next.as_deref(), &uri, &binding))
}

/// Add a custom message to the conversation.
#[utoipa::path(
    post, path = "/conversations/{id}/messages", operation_id = "addMessage", tag = "inbox", request_body = MessageRequest,
    params(("id" = String, Path), ("Idempotency-Key" = Option<String>, Header)),
    responses((status = 202, body = MessageAccepted, headers(("Location" = String))))
)]
pub(crate) async fn add_message(command: ConversationCommand<MessageRequest>) -> HandlerResult {
    let ConversationCommand { api, key, idempotency, value, .. } = command;
    let traceparent = trace::current_traceparent();
    let result = accept_message(&api.services, &key, value, &idempotency, traceparent).await?;
    Ok(into_response(result))
}

/// Get an accepted input: queued, or with its outcome.
#[utoipa::path(
    get, path = "/conversations/{id}/inbox/{inputId}", operation_id = "getInput", tag = "inbox",
    params(("id" = String, Path), ("inputId" = String, Path)),
    responses((status = 200, body = InputView, headers(("ETag" = String))))
)]
pub(crate) async fn read(read: ConversationRead) -> HandlerResult {
    let ConversationRead { api, key, target: input_id, .. } = read;
    let (view, etag) = inbox::read_input(&api.services, &key, &input_id).await?;
    let mut response = json(StatusCode::OK, &view);
    if let Some(value) = etag.and_then(|etag| HeaderValue::from_str(&etag).ok()) {
        response.headers_mut().insert(ETAG, value);
    }
    Ok(response)
}

/// Edit a queued input.
#[utoipa::path(
    patch, path = "/conversations/{id}/inbox/{inputId}", operation_id = "updateInput", tag = "inbox", request_body = InputChange,
    params(
        ("id" = String, Path), ("inputId" = String, Path),
        ("If-Match" = Option<String>, Header), ("Idempotency-Key" = Option<String>, Header),
    ),
    responses(
        (status = 200, body = InputView, headers(("ETag" = String))),
        (status = 409, body = crate::schema::Problem, content_type = "application/problem+json", description = "The input is no longer queued: `input` has its outcome."),
        (status = 412, body = crate::schema::Problem, content_type = "application/problem+json"),
    )
)]
pub(crate) async fn change(command: ConversationCommand<InputChange>) -> HandlerResult {
    let ConversationCommand { api, key, target: input_id, headers, idempotency, value, .. } =
        command;
    let is_allowed = |etag: &str| is_match_allowed(&headers, etag);
    let edit = InputEdit { id: &input_id, change: &value };
    let result =
        inbox_edit::edit_input(&api.services, &key, edit, &idempotency, is_allowed).await?;
    Ok(into_response(result))
}

/// Remove a queued input.
#[utoipa::path(
    delete, path = "/conversations/{id}/inbox/{inputId}", operation_id = "deleteInput", tag = "inbox",
    params(("id" = String, Path), ("inputId" = String, Path)),
    responses(
        (status = 204),
        (status = 409, body = crate::schema::Problem, content_type = "application/problem+json", description = "The input is no longer queued: `input` has its outcome."),
    )
)]
pub(crate) async fn clear(
    State(api): State<SharedApi>,
    caller: Caller,
    Path((id, input_id)): Path<(String, String)>,
) -> HandlerResult {
    let key = access::authorize_change(&caller, &id)?;
    inbox_clear::clear_input(&api.services, &key, &input_id).await?;
    Ok(StatusCode::NO_CONTENT.into_response())
}

/// Remove all queued steers and follow-ups.
/// The response lists the removed inputs.
#[utoipa::path(
    delete, path = "/conversations/{id}/inbox", operation_id = "clearInputs", tag = "inbox",
    params(
        ("id" = String, Path),
        ("mode" = Option<String>, Query, description = "`steer` or `followUp`: only inputs of this mode."),
    ),
    responses((status = 200, body = crate::schema::Inputs))
)]
pub(crate) async fn clear_all(
    State(api): State<SharedApi>,
    caller: Caller,
    Path(id): Path<String>,
    OriginalUri(uri): OriginalUri,
) -> HandlerResult {
    let key = access::authorize_change(&caller, &id)?;
    let queue = match QueryParams::from_uri(&uri).get("mode") {
        None => None,
        Some("steer") => Some(Mode::Steer),
        Some("followUp") => Some(Mode::FollowUp),
        Some(_) => {
            let detail = "`mode` must be `steer` or `followUp`. Omit it to remove both.";
            return Err(
                Problem::bad_request(detail).with_errors(vec![FieldError::new("?mode", detail)])
            );
        }
    };
    let items = inbox_clear::clear_queues(&api.services, &key, queue).await?;
    Ok(json(StatusCode::OK, &raw_object!({"items": items})))
}
