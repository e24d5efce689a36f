//! Command that runs a command of an extension.

use serde::Deserialize;
use utoipa::ToSchema;

use crate::command_run::{RunReservation, RunStart};
use crate::input::TEXT_BYTES_MAX;
use crate::pipeline::{CommandContext, Signal};
use crate::prompt_request::Disposition;
use crate::request_hooks::{CommandResult, HookResult, RequestHooks};
use crate::store_input::{HandledInput, InputHandled, store_handled};
use crate::target::Target;
use turnwheel_conversation::waiting_command::{AskingRequest, FinishedCommand, RunOutcome};
use turnwheel_extensions::command::ExtensionCommand;
use turnwheel_json::raw::RawJson;
use turnwheel_platform::ids::ConversationKey;
use turnwheel_record::contract::{CommandError, CommandResponse};
use turnwheel_record::idempotency::Idempotency;
use turnwheel_record::services::Services;

/// Error of a command whose question does not fit into the head.
const NO_ROOM: &str = "the questions of other commands and calls leave no room for its question: answer them, then run it again";

#[derive(Clone, Debug, Default, Deserialize, ToSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct CommandRequest {
    /// Arguments of the command, at most 256 KB; absent: none.
    pub args: Option<String>,
}

/// A command of an extension, as a request names it.
#[derive(Clone, Debug)]
pub struct NamedCommand<'a> {
    pub name: &'a str,
    pub request: CommandRequest,
}

/// Runs a command of an extension at once, also while a prompt runs.
///
/// # Errors
/// Returns the [`CommandError`] to report to the client. After `Unavailable`, repeat the request
/// with the same key.
pub async fn run_extension_command(
    services: &Services,
    key: &ConversationKey,
    command: NamedCommand<'_>,
    idempotency: &Idempotency,
    traceparent: Option<&str>,
) -> Result<CommandResponse, CommandError> {
    let signal = Signal::Wake(traceparent);
    let context = CommandContext { services, key, idempotency, signal };
    let accepted = context.accept(|head| async move {
        let input_id = context.input_id();
        let target = Target::Existing(head);
        let hooks = RequestHooks::new(services, target.head(), &input_id);
        let found = hooks.find_command(command.name).ok_or(CommandError::UnknownCommand)?;
        let args = command.request.args.unwrap_or_default();
        check_args(&args, "/args")?;
        run_command(context, &target, &hooks, found, &args).await
    });
    accepted.await
}

/// `pointer`: the member of the request with the arguments.
///
/// # Errors
/// The arguments are too long.
pub(super) fn check_args(args: &str, pointer: &str) -> Result<(), CommandError> {
    let bytes = args.len();
    if bytes <= TEXT_BYTES_MAX {
        return Ok(());
    }
    let detail = format!(
        "the arguments of a command have {bytes} bytes: at most {TEXT_BYTES_MAX} are allowed"
    );
    Err(CommandError::invalid(pointer, detail))
}

/// Runs the command and stores its receipt, or the command itself if it asks a question.
///
/// # Errors
/// The store does not respond. A failure of the command is not an error.
pub(super) async fn run_command(
    context: CommandContext<'_>,
    target: &Target,
    hooks: &RequestHooks<'_>,
    command: ExtensionCommand,
    args: &str,
) -> Result<CommandResponse, CommandError> {
    match Box::pin(RunReservation::begin(context)).await? {
        RunStart::Finished(response) => Ok(response),
        RunStart::Own(run) => {
            let outcome = Box::pin(run_and_store(context, target, hooks, command, args)).await;
            Box::pin(run.end()).await;
            outcome
        }
    }
}

async fn run_and_store(
    context: CommandContext<'_>,
    target: &Target,
    hooks: &RequestHooks<'_>,
    command: ExtensionCommand,
    args: &str,
) -> Result<CommandResponse, CommandError> {
    let name = command.spec.name.clone();
    match hooks.run_command(command, args).await {
        HookResult::Done(result) => {
            let run = HandledInput { command: Some(name), result };
            store_handled(context, target, run).await
        }
        HookResult::Asked(_) | HookResult::Deferred => {
            let key = context.key;
            let response = InputHandled {
                disposition: Disposition::Waiting,
                last_event_id: Some(target.head().event_seq),
                ..InputHandled::new(key, context.input_id(), Some(name.clone()))
            };
            let request = AskingRequest::Command { name, args: args.to_owned() };
            context.store_asking(target, &request, &response).await
        }
    }
}

/// Runs a command again after its question. `None`: no time is left in this turn.
pub(super) async fn run_again(
    hooks: &RequestHooks<'_>,
    name: String,
    args: &str,
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
    let handled = InputHandled::new(&hooks.head.key(), hooks.input_id.clone(), Some(name));
    let response = InputHandled { output, error, ..handled };
    let result = RawJson::from_value(&response);
    Some(RunOutcome::Done(Box::new(FinishedCommand { result, actions, leaf_change: None })))
}
