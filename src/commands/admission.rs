//! Handling of an input by extensions before it is stored: first a command, then the hook
//! `transform_input`.

use crate::agent::action::StoredActions;
use crate::agent::content::Content;
use crate::agent::entry::Source;
use crate::agent::head::Head;
use crate::commands::contract::{CommandError, CommandResponse};
use crate::commands::extension_command::{HandledInput, run_command, store_handled};
use crate::commands::pipeline::CommandContext;
use crate::commands::prompt_request::{Mode, PromptRequest, Sender};
use crate::commands::request_hooks::{CommandResult, RequestHooks};
use crate::extensions::command::ExtensionCommand;

/// Outcome for an input.
#[derive(Debug)]
pub(super) enum Admission {
    /// The input starts no prompt, and its receipt is stored.
    Handled(CommandResponse),
    Admitted(Box<AdmittedInput>),
}

/// An input that is to be stored.
#[derive(Debug)]
pub(super) struct AdmittedInput {
    pub(super) request: PromptRequest,
    /// The input as sent, if an extension changed it.
    pub(super) original: Option<Content>,
    pub(super) actions: Vec<StoredActions>,
}

/// Runs the command that the input names, or the input hooks. Without extensions it does nothing.
///
/// # Errors
/// The input names a command, and the mode queues it: use the mode `prompt`. Or a required input hook
/// failed: repeat the request.
pub(super) async fn admit(
    context: CommandContext<'_>,
    (head, is_new): (&Head, bool),
    mut request: PromptRequest,
    sender: &Sender,
) -> Result<Admission, CommandError> {
    let unchanged = |request| {
        let admitted = AdmittedInput { request, original: None, actions: Vec::new() };
        Ok(Admission::Admitted(Box::new(admitted)))
    };
    if request.is_moved {
        return unchanged(request);
    }
    let Some(content) = request.input.take() else { return unchanged(request) };
    let input_id = context.input_id();
    let hooks = RequestHooks::new(context.services, head, &input_id);
    if sender.source == Source::User
        && request.expand != Some(false)
        && let Some((command, args)) = hooks.find_command_in(&content)
    {
        if matches!(request.mode, Some(Mode::Steer | Mode::FollowUp)) {
            return Err(cannot_queue(&command));
        }
        let run = run_command(&hooks, command, (&args, "/input")).await?;
        return store_handled(context, (head, is_new), run).await.map(Admission::Handled);
    }
    let hooked = hooks.transform_input(content, sender.source).await?;
    let Some(content) = hooked.content else {
        let result = CommandResult { actions: hooked.actions, ..CommandResult::default() };
        let handled = HandledInput { command: None, result };
        return store_handled(context, (head, is_new), handled).await.map(Admission::Handled);
    };
    request.input = Some(content);
    let (original, actions) = (hooked.original, hooked.actions);
    Ok(Admission::Admitted(Box::new(AdmittedInput { request, original, actions })))
}

/// The text is that of the sources (SF-10).
fn cannot_queue(command: &ExtensionCommand) -> CommandError {
    let name = &command.spec.name;
    CommandError::Conflict {
        detail: format!(
            "Extension command \"/{name}\" cannot be queued. Use prompt() or execute the command when not streaming."
        ),
        retry_after: None,
    }
}
