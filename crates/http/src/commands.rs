//! Routes of commands: list and run those of extensions, record those that a client ran in a shell.

use axum::extract::{OriginalUri, State};
use http::StatusCode;

use crate::auth::Caller;
use crate::conversation_request::ConversationCommand;
use crate::lists::QueryParams;
use crate::{HandlerResult, SharedApi, into_response, json};
use turnwheel_commands::bash::{BashRecord, record_bash};
use turnwheel_commands::extension_command::{CommandRequest, NamedCommand, run_extension_command};
use turnwheel_commands::message::MessageAccepted;
use turnwheel_commands::store_input::InputHandled;
use turnwheel_platform::telemetry::trace;
use turnwheel_queries::commands::{Commands, list_commands};

/// List the commands that users can run.
#[utoipa::path(
    get, path = "/commands", operation_id = "listCommands", tag = "service",
    params(("agent" = Option<String>, Query, description = "Name of the agent, by default the default agent.")),
    responses((status = 200, body = Commands))
)]
pub(crate) async fn list(
    State(api): State<SharedApi>,
    caller: Caller,
    OriginalUri(uri): OriginalUri,
) -> HandlerResult {
    let params = QueryParams::from_uri(&uri);
    let commands = list_commands(&api.services, &caller.owner, params.get("agent")).await?;
    Ok(json(StatusCode::OK, &commands))
}

/// Run a command of an extension, at once.
/// A failed command has `error` in its response, and changes nothing.
#[utoipa::path(
    post, path = "/conversations/{id}/commands/{name}", operation_id = "runCommand", tag = "prompts", request_body = CommandRequest,
    params(("id" = String, Path), ("name" = String, Path), ("Idempotency-Key" = Option<String>, Header)),
    responses(
        (status = 200, body = InputHandled),
        (status = 202, body = InputHandled, description = "The command asks a question, and runs again after the answer. The input has its result.", headers(("Location" = String))),
    )
)]
pub(crate) async fn run(command: ConversationCommand<CommandRequest>) -> HandlerResult {
    let ConversationCommand { api, key, target: name, idempotency, value, .. } = command;
    let (services, traceparent) = (&api.services, trace::current_traceparent());
    let command = NamedCommand { name: &name, request: value };
    let trace = traceparent.as_deref();
    let accepted = run_extension_command(services, &key, command, &idempotency, trace).await?;
    Ok(into_response(accepted))
}

/// Record a shell command that the client ran.
/// While a prompt runs, the result waits for the next prompt.
#[utoipa::path(
    post, path = "/conversations/{id}/bash", operation_id = "recordBash", tag = "inbox", request_body = BashRecord,
    params(("id" = String, Path), ("Idempotency-Key" = Option<String>, Header)),
    responses((status = 202, body = MessageAccepted, headers(("Location" = String))))
)]
pub(crate) async fn bash(command: ConversationCommand<BashRecord>) -> HandlerResult {
    let ConversationCommand { api, key, idempotency, value, .. } = command;
    Ok(into_response(record_bash(&api.services, &key, value, &idempotency).await?))
}
