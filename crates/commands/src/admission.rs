//! Handling of an input before it is stored: first a command, then the hook `transform_input` of
//! extensions, then a skill, then a prompt template.

use crate::expansion::expand_input;
use crate::extension_command::{check_args, run_command};
use crate::pipeline::CommandContext;
use crate::prompt_request::{Mode, PromptRequest, Sender};
use crate::request_hooks::{CommandResult, RequestHooks};
use crate::store_input::{HandledInput, store_handled};
use crate::target::Target;
use turnwheel_conversation::action::StoredActions;
use turnwheel_conversation::content::Content;
use turnwheel_conversation::entry::Source;
use turnwheel_extensions::command::ExtensionCommand;
use turnwheel_record::contract::{CommandError, CommandResponse};

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
    /// The input as sent, if an extension, a skill or a template changed it.
    pub(super) original: Option<Content>,
    pub(super) actions: Vec<StoredActions>,
}

/// Runs the command that the input names; or runs the input hooks and expands the skill or template
/// that the input then names.
///
/// # Errors
/// The input names a command, and the mode queues it: use the mode `prompt`. Or a required input hook
/// failed: repeat the request. Or the expanded input is too large.
pub(super) async fn admit(
    context: CommandContext<'_>,
    target: &Target,
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
    let hooks = RequestHooks::new(context.services, target.head(), &input_id);
    if is_expanded(&request, sender)
        && let Some((command, args)) = hooks.find_command_in(&content)
    {
        if matches!(request.mode, Some(Mode::Steer | Mode::FollowUp)) {
            return Err(cannot_queue(&command));
        }
        check_args(&args, "/input")?;
        let run = run_command(context, target, &hooks, command, &args).await?;
        return Ok(Admission::Handled(run));
    }
    let hooked = hooks.transform_input(content, sender.source).await?;
    let Some(content) = hooked.content else {
        let result = CommandResult { actions: hooked.actions, ..CommandResult::default() };
        let handled = HandledInput { command: None, result };
        return store_handled(context, target, handled).await.map(Admission::Handled);
    };
    let (mut original, actions) = (hooked.original, hooked.actions);
    request.input = Some(if is_expanded(&request, sender) {
        expand_input(content, &hooks, &mut original).await?
    } else {
        content
    });
    Ok(Admission::Admitted(Box::new(AdmittedInput { request, original, actions })))
}

/// True if a text that begins with `/` may name a command, a skill or a template. Queues and
/// schedules deliver data of other systems, which is no command.
fn is_expanded(request: &PromptRequest, sender: &Sender) -> bool {
    sender.source == Source::User && request.expand != Some(false)
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
