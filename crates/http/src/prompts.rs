//! Prompt routes: accept, list, read and wait for prompts.

use std::time::Duration;

use axum::extract::{OriginalUri, Path, State};
use http::{HeaderMap, StatusCode, Uri};

use crate::auth::Caller;
use crate::body::JsonBody;
use crate::conversation_request::{ConversationCommand, ConversationRead};
use crate::idempotency::resolve_idempotency;
use crate::lists::{QueryParams, page_response};
use crate::problem::Problem;
use crate::schema::PromptResponse;
use crate::{Api, HandlerResult, SharedApi, access, into_response, json, long_poll};
use turnwheel_commands::conversation::merge_ids;
use turnwheel_commands::insert::{FinishedPromptRequest, insert_prompt};
use turnwheel_commands::prompt::{
    FirstPromptRequest, PromptAccepted, PromptPosition, PromptRequest, Sender, WhenBusy,
    accept_prompt, begin_conversation,
};
use turnwheel_commands::waiting_client::WaitingClient;
use turnwheel_conversation::entry::{PromptState, Source};
use turnwheel_conversation::prompt_receipt::PromptReceipt;
use turnwheel_json::raw::RawJson;
use turnwheel_platform::ids::{ConversationKey, PromptId};
use turnwheel_platform::telemetry::trace;
use turnwheel_queries::prompts;
use turnwheel_record::contract::{CommandResponse, FieldError};

/// Maximum seconds of `?wait=`.
const WAIT_MAX: u64 = 60;

pub(super) fn parse_wait(uri: &Uri) -> Result<Option<Duration>, Problem> {
    Ok(QueryParams::from_uri(uri).number("wait", 0, WAIT_MAX)?.map(Duration::from_secs))
}

/// Returns the sender of a prompt from this request, whose trace the prompt joins. A request that waits is a
/// client of the conversation until the second value is dropped.
pub(super) fn request_sender(
    api: &Api,
    key: &ConversationKey,
    wait: Option<Duration>,
) -> (Sender, Option<WaitingClient>) {
    let clients = api.waiting_clients.clone();
    let waits = wait.is_some_and(|wait| !wait.is_zero());
    let client = clients.as_ref().filter(|_| waits).map(|clients| clients.add(key));
    let sender = Sender {
        source: Source::User,
        traceparent: trace::current_traceparent(),
        when_busy: WhenBusy::Reject,
        clients,
    };
    (sender, client)
}

/// Send a prompt to a conversation.
#[utoipa::path(
    post, path = "/conversations/{id}/prompts", operation_id = "createPrompt", tag = "prompts", request_body = PromptRequest,
    params(
        ("id" = String, Path), ("wait" = Option<u32>, Query, description = "Seconds to wait for the prompt, at most 60."),
        ("Idempotency-Key" = Option<String>, Header),
    ),
    responses(
        (status = 202, body = PromptResponse, description = "The input is stored; with `disposition` `waiting` a command that asks a question.", headers(("Location" = String))),
        (status = 200, body = PromptResponse, description = "The prompt left `running` in time, or the input started no prompt."),
        (status = 409, body = crate::schema::Problem, content_type = "application/problem+json", description = "`already-processing`, or a command in the mode `steer` or `followUp`"),
    )
)]
pub(crate) async fn create(command: ConversationCommand<PromptRequest>) -> HandlerResult {
    let ConversationCommand { api, key, uri, idempotency, value, .. } = command;
    let wait = parse_wait(&uri)?;
    if value.input.is_none() && value.at == PromptPosition::Leaf {
        return Err(missing_input("`POST …/continue` continues without new input"));
    }
    let (sender, _client) = request_sender(&api, &key, wait);
    let result = accept_prompt(&api.services, &key, value, &idempotency, &sender).await?;
    respond_when_finished(&api, &key, result, wait).await
}

/// Insert a prompt that ran outside the service.
/// No model and no tool is called. While a prompt runs, the insertion waits for its end.
#[utoipa::path(
    post, path = "/conversations/{id}/prompts/import", operation_id = "importPrompt", tag = "prompts", request_body = FinishedPromptRequest,
    params(
        ("id" = String, Path), ("wait" = Option<u32>, Query, description = "Seconds to wait until the prompt is in the conversation, at most 60."),
        ("Idempotency-Key" = Option<String>, Header),
    ),
    responses(
        (status = 202, body = PromptResponse, description = "The prompt is stored.", headers(("Location" = String))),
        (status = 200, body = PromptResponse, description = "The prompt was inserted in time."),
    )
)]
pub(crate) async fn import(command: ConversationCommand<FinishedPromptRequest>) -> HandlerResult {
    let ConversationCommand { api, key, uri, idempotency, value, .. } = command;
    let wait = parse_wait(&uri)?;
    let result = insert_prompt(&api.services, &key, value, &idempotency).await?;
    respond_when_finished(&api, &key, result, wait).await
}

/// Start a conversation with a prompt.
#[utoipa::path(
    post, path = "/prompts", operation_id = "startConversation", tag = "prompts", request_body = FirstPromptRequest,
    params(
        ("wait" = Option<u32>, Query, description = "Seconds to wait for the prompt, at most 60."),
        ("Idempotency-Key" = Option<String>, Header),
    ),
    responses(
        (status = 202, body = PromptResponse, description = "The input is stored; with `disposition` `waiting` a command that asks a question.", headers(("Location" = String))),
        (status = 200, body = PromptResponse, description = "The prompt left `running` in time, or the input started no prompt."),
    )
)]
pub(crate) async fn start_conversation(
    State(api): State<SharedApi>,
    caller: Caller,
    OriginalUri(uri): OriginalUri,
    headers: HeaderMap,
    JsonBody { value, hash }: JsonBody<FirstPromptRequest>,
) -> HandlerResult {
    access::refuse_operator(&caller)?;
    let wait = parse_wait(&uri)?;
    if value.input.is_none() {
        return Err(missing_input(
            "`POST /api/conversations` creates a conversation without a prompt",
        ));
    }
    let idempotency = resolve_idempotency(&api, &headers, "POST /prompts", hash)?;
    let id = merge_ids(value.id.clone(), value.conversation_id.clone())?;
    let id = id.unwrap_or_else(|| idempotency.conversation_id(&caller.owner));
    let key = caller.owner.conversation_key(&id);
    let (services, (sender, _client)) = (&api.services, request_sender(&api, &key, wait));
    let result = begin_conversation(services, &caller.owner, value, &idempotency, &sender).await?;
    respond_when_finished(&api, &key, result, wait).await
}

fn missing_input(alternative: &str) -> Problem {
    let detail = format!("`input` is missing: send a text or blocks ({alternative})");
    Problem::bad_request(detail.clone()).with_errors(vec![FieldError::new("/input", detail)])
}

/// Responds with the prompt if it leaves `running` within `wait`, else with the accepted input.
pub(super) async fn respond_when_finished(
    api: &Api,
    key: &ConversationKey,
    result: CommandResponse,
    wait: Option<Duration>,
) -> HandlerResult {
    let result = CommandResponse { body: result.body.map(with_command_members), ..result };
    let Some(wait) = wait else { return Ok(into_response(result)) };
    let accepted = result.body.as_ref().and_then(|body| body.read::<PromptAccepted>().ok());
    let Some(PromptAccepted { prompt_id, .. }) = accepted else { return Ok(into_response(result)) };
    let view = long_poll::wait_for_prompt(api, key, &prompt_id, wait).await?;
    if view.state == PromptState::Running {
        return Ok(into_response(result));
    }
    let body = RawJson::from_value(&view);
    Ok(into_response(CommandResponse {
        status: StatusCode::OK.as_u16(),
        body: Some(body),
        ..result
    }))
}

/// Renames the members of a command's result whose names a prompt has for values of other types: all
/// responses have one schema.
fn with_command_members(body: RawJson) -> RawJson {
    let is_command =
        matches!(body.string_member("disposition").as_deref(), Some("handled" | "waiting"));
    let Some(members) = body.members().filter(|_| is_command) else { return body };
    let renamed = members.into_iter().map(|(name, value)| match name.as_str() {
        "output" => ("commandOutput".to_owned(), value),
        "error" => ("commandError".to_owned(), value),
        _ => (name, value),
    });
    RawJson::from_members(renamed.collect())
}

/// List the prompts of the conversation, oldest first.
#[utoipa::path(
    get, path = "/conversations/{id}/prompts", operation_id = "listPrompts", tag = "prompts",
    params(("id" = String, Path), ("limit" = Option<u32>, Query), ("continuation" = Option<String>, Query)),
    responses((status = 200, body = crate::schema::Prompts))
)]
pub(crate) async fn list(read: ConversationRead) -> HandlerResult {
    let ConversationRead { api, key, head, uri, params, .. } = read;
    let binding = format!("prompts {key} {}", head.incarnation);
    let (after, limit) = (params.position(&binding)?, params.limit()?);
    let (items, next) = prompts::list_prompts(&api.services, &head, after, limit).await?;
    let next = next.map(|next| next.to_string());
    Ok(page_response(&items, next.as_deref(), &uri, &binding))
}

/// Get the receipt of a prompt: cost, effects and decisions.
#[utoipa::path(
    get, path = "/conversations/{id}/prompts/{promptId}/receipt", operation_id = "getReceipt", tag = "prompts",
    params(("id" = String, Path), ("promptId" = String, Path)),
    responses((status = 200, body = PromptReceipt, description = "The receipt. While the prompt runs: its state so far."))
)]
pub(crate) async fn receipt(read: ConversationRead) -> HandlerResult {
    let ConversationRead { api, head, target: prompt_id, .. } = read;
    let receipt = prompts::read_receipt(&api.services, &head, &PromptId::new(prompt_id)).await?;
    Ok(json(StatusCode::OK, &receipt))
}

/// Get a prompt with its input and its outputs.
#[utoipa::path(
    get, path = "/conversations/{id}/prompts/{promptId}", operation_id = "getPrompt", tag = "prompts",
    params(
        ("id" = String, Path), ("promptId" = String, Path),
        ("wait" = Option<u32>, Query, description = "Seconds to wait until it leaves `running`, at most 60."),
    ),
    responses((status = 200, body = crate::schema::Prompt))
)]
pub(crate) async fn read(
    State(api): State<SharedApi>,
    caller: Caller,
    Path((id, prompt_id)): Path<(String, String)>,
    OriginalUri(uri): OriginalUri,
) -> HandlerResult {
    let wait = parse_wait(&uri)?.unwrap_or_default();
    let (key, _) = access::authorize_read(&api, &caller, &id, &uri).await?;
    let view = long_poll::wait_for_prompt(&api, &key, &PromptId::new(prompt_id), wait).await?;
    Ok(json(StatusCode::OK, &view))
}
