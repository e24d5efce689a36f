//! Command that runs a command of an extension, and the requests that start no prompt because an
//! extension has handled their input.

use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use crate::abort::abort_document;
use crate::command_run::{CommandRun, RunStart};
use crate::input::TEXT_BYTES_MAX;
use crate::pipeline::{CommandContext, RequestDocuments, Signal};
use crate::prompt_request::Disposition;
use crate::request_hooks::{CommandResult, HookResult, RequestHooks};
use crate::routing::find_running_prompt;
use turnwheel_conversation::action::{Action, StoredActions};
use turnwheel_conversation::head::Head;
use turnwheel_conversation::inbox::{IdempotencyRecord, InboxItem};
use turnwheel_conversation::raw::RawJson;
use turnwheel_conversation::waiting_command::{AskingRequest, FinishedCommand, RunOutcome};
use turnwheel_extensions::command::ExtensionCommand;
use turnwheel_platform::ids::{ConversationId, ConversationKey, InputId};
use turnwheel_platform::telemetry::trace;
use turnwheel_record::certain_write::receipt_document;
use turnwheel_record::contract::{CommandError, CommandResponse};
use turnwheel_record::documents;
use turnwheel_record::idempotency::Idempotency;
use turnwheel_record::services::Services;
use turnwheel_storage::store::Document;

/// Error of a command whose question does not fit into the head.
const NO_ROOM: &str = "the questions of other commands and calls leave no room for its question: answer them, then run it again";

#[derive(Clone, Debug, Default, Deserialize, ToSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct CommandRequest {
    /// Arguments of the command, at most 256 KB; absent: none.
    pub args: Option<String>,
}

/// Response to an input that started no prompt.
#[serde_with::skip_serializing_none]
#[derive(Debug, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub struct InputHandled {
    #[schema(value_type = String)]
    pub conversation_id: ConversationId,
    /// Id of the request; `GET …/inbox/{inputId}` returns the state of its changes.
    #[schema(value_type = String)]
    pub input_id: InputId,
    /// `handled`; `waiting` if the command asks a question and runs again after the answer.
    pub disposition: Disposition,
    /// Name of the command that ran; absent if an extension handled the input as a whole.
    pub command: Option<String>,
    /// Text of the command for the user.
    pub output: Option<String>,
    /// Why the command failed; it has changed nothing.
    pub error: Option<String>,
    /// With `waiting`: newest event of the conversation before this input.
    pub last_event_id: Option<u64>,
}

/// Runs a command of an extension at once, also while a prompt runs.
///
/// # Errors
/// Returns the [`CommandError`] to report to the client. After `Unavailable`, repeat the request
/// with the same key.
pub async fn run_extension_command(
    services: &Services,
    key: &ConversationKey,
    (name, request): (&str, CommandRequest),
    idempotency: &Idempotency,
    traceparent: Option<&str>,
) -> Result<CommandResponse, CommandError> {
    let signal = Signal::Wake(traceparent);
    let context = CommandContext { services, key, idempotency, signal };
    let accepted = context.accept(|head| async move {
        let input_id = context.input_id();
        let hooks = RequestHooks::new(services, &head, &input_id);
        let command = hooks.find_command(name).ok_or(CommandError::UnknownCommand)?;
        let args = request.args.unwrap_or_default();
        run_command(context, (&head, false), (&hooks, command), (&args, "/args")).await
    });
    accepted.await
}

/// An input that starts no prompt.
#[derive(Debug)]
pub(super) struct HandledInput {
    pub(super) command: Option<String>,
    pub(super) result: CommandResult,
}

/// Runs the command and stores its receipt, or the command itself if it asks a question. `pointer`:
/// the member of the request with the arguments. `is_new`: the conversation is created, too.
///
/// # Errors
/// The arguments are too long. A failure of the command is not an error.
pub(super) async fn run_command(
    context: CommandContext<'_>,
    (head, is_new): (&Head, bool),
    (hooks, command): (&RequestHooks<'_>, ExtensionCommand),
    (args, pointer): (&str, &str),
) -> Result<CommandResponse, CommandError> {
    if args.len() > TEXT_BYTES_MAX {
        let detail = format!(
            "the arguments of a command have {} bytes: at most {TEXT_BYTES_MAX} are allowed",
            args.len()
        );
        return Err(CommandError::invalid(pointer, detail));
    }
    match Box::pin(CommandRun::begin(context)).await? {
        RunStart::Finished(response) => Ok(response),
        RunStart::Own(run) => {
            let outcome =
                Box::pin(run_and_store(context, (head, is_new), (hooks, command), args)).await;
            Box::pin(run.end()).await;
            outcome
        }
    }
}

async fn run_and_store(
    context: CommandContext<'_>,
    (head, is_new): (&Head, bool),
    (hooks, command): (&RequestHooks<'_>, ExtensionCommand),
    args: &str,
) -> Result<CommandResponse, CommandError> {
    let name = command.spec.name.clone();
    match hooks.run_command(command, args).await {
        HookResult::Done(result) => {
            let run = HandledInput { command: Some(name), result };
            store_handled(context, (head, is_new), run).await
        }
        HookResult::Asked(_) | HookResult::Deferred => {
            let key = context.key;
            let response = InputHandled {
                disposition: Disposition::Waiting,
                last_event_id: Some(head.event_seq),
                ..InputHandled::new(key, context.input_id(), Some(name.clone()))
            };
            let request = AskingRequest::Command { name, args: args.to_owned() };
            context.store_asking((head, is_new), &request, &response).await
        }
    }
}

impl InputHandled {
    fn new(key: &ConversationKey, input_id: InputId, command: Option<String>) -> Self {
        Self {
            conversation_id: key.conversation_id.clone(),
            input_id,
            disposition: Disposition::Handled,
            command,
            output: None,
            error: None,
            last_event_id: None,
        }
    }
}

/// Runs a command again whose hook had asked a question. `None`: no time is left in this turn.
pub(super) async fn run_again(
    hooks: &RequestHooks<'_>,
    (key, input_id): (&ConversationKey, &InputId),
    (name, args): (String, &str),
) -> Option<RunOutcome> {
    let result = match hooks.find_command(&name) {
        Some(command) => match hooks.run_command(command, args).await {
            HookResult::Done(result) => result,
            HookResult::Asked(question) if !hooks.has_room_for(&question) => {
                CommandResult::failed(NO_ROOM.to_owned())
            }
            HookResult::Asked(question) => {
                return Some(RunOutcome::Asked {
                    question,
                    subject: format!("the command /{name}"),
                });
            }
            HookResult::Deferred => return None,
        },
        None => CommandResult::failed("no extension has this command any more".to_owned()),
    };
    let CommandResult { output, error, actions } = result;
    let response =
        InputHandled { output, error, ..InputHandled::new(key, input_id.clone(), Some(name)) };
    let result = RawJson::from_value(&response);
    Some(RunOutcome::Done(Box::new(FinishedCommand { result, actions, leaf_change: None })))
}

/// Stores the receipt of a handled input, or the inbox item with its actions. `is_new`: the
/// conversation is created, too.
pub(super) async fn store_handled(
    context: CommandContext<'_>,
    (head, is_new): (&Head, bool),
    handled: HandledInput,
) -> Result<CommandResponse, CommandError> {
    let CommandContext { services, key, idempotency, .. } = context;
    let CommandResult { output, error, mut actions } = handled.result;
    let body = InputHandled {
        output,
        error,
        ..InputHandled::new(key, context.input_id(), handled.command)
    };
    let response = CommandResponse::new(200, &body);
    let abort = take_abort(services, (head, is_new), &mut actions).await?;
    let is_effective = abort.is_some() || !actions.is_empty();
    let document = if actions.is_empty() {
        receipt_document(idempotency, key, &response, services.clock.now())
    } else {
        let item = actions_item(services, context.input_id(), &actions);
        let item = InboxItem { idempotency: idempotency.to_record(&response), ..item };
        documents::inbox_document(&item, Some(item.accepted_at))
    };
    let signal = if abort.is_some() { Signal::Abort } else { context.signal };
    let new_head = is_new.then_some(head);
    let documents = RequestDocuments { own: vec![document], abort, new_head };
    let context = CommandContext { signal, ..context };
    context.store_documents(documents, (response, is_effective)).await
}

/// Stores an inbox item, and the actions of the hooks that ran for it. `is_new`: the conversation is
/// created, too.
pub(super) async fn store_with_actions(
    context: CommandContext<'_>,
    (head, is_new): (&Head, bool),
    (item, actions): (InboxItem, Vec<StoredActions>),
    response: CommandResponse,
) -> Result<CommandResponse, CommandError> {
    let documents = action_documents(context, (head, is_new), actions).await?;
    let signal = if documents.abort.is_some() { Signal::Abort } else { context.signal };
    let documents = RequestDocuments { new_head: is_new.then_some(head), ..documents };
    CommandContext { signal, ..context }.store_item_with(item, documents, response).await
}

/// The documents of the actions that extensions took on an input: none, an inbox item, the abort of
/// the running prompt, or both.
pub(super) async fn action_documents(
    context: CommandContext<'_>,
    (head, is_new): (&Head, bool),
    mut actions: Vec<StoredActions>,
) -> Result<RequestDocuments<'static>, CommandError> {
    let services = context.services;
    let abort = take_abort(services, (head, is_new), &mut actions).await?;
    let mut own = Vec::new();
    if !actions.is_empty() {
        let id = InputId::new(format!("{}-actions", context.input_id()));
        let item = actions_item(services, id, &actions);
        own.push(documents::inbox_document(&item, Some(item.accepted_at)));
    }
    Ok(RequestDocuments { own, abort, new_head: None })
}

/// Takes the aborts out of the actions. Returns the abort of the running prompt, which takes effect
/// at once; `None`: no abort, or no prompt runs.
async fn take_abort(
    services: &Services,
    (head, is_new): (&Head, bool),
    actions: &mut Vec<StoredActions>,
) -> Result<Option<Document>, CommandError> {
    let is_abort = |action: &Action| matches!(action, Action::Abort);
    if !actions.iter().any(|stored| stored.actions.iter().any(is_abort)) {
        return Ok(None);
    }
    for stored in &mut *actions {
        stored.actions.retain(|action| !is_abort(action));
    }
    actions.retain(|stored| !stored.actions.is_empty());
    let running = if is_new { None } else { find_running_prompt(services, head).await? };
    Ok(running.map(|prompt_id| abort_document(services, &prompt_id)))
}

/// The inbox item with actions on a request.
fn actions_item(services: &Services, input_id: InputId, actions: &[StoredActions]) -> InboxItem {
    InboxItem {
        input_id,
        accepted_at: services.clock.now(),
        idempotency: IdempotencyRecord::default(),
        traceparent: trace::current_traceparent(),
        body: StoredActions::to_inbox_body(actions),
    }
}
