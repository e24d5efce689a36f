//! Routing of an accepted input: it starts a prompt, joins the running one, or waits in a queue.

use crate::agent::head::Head;
use crate::agent::inbox::WhenIdle;
use crate::ids::PromptId;
use crate::turn::World;
use crate::turn::admission::conversation::model_fault;
use crate::turn::admission::prompt::{Disposition, Mode, PromptRequest, Sender, WhenBusy};
use crate::turn::admission::{Intent, Refusal, SAYS_NOTHING};
use crate::turn::views::load;

/// Route that the response promises. If the prompt to join ends first, the route changes and the
/// receipt records it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Place {
    pub(crate) mode: Mode,
    pub(crate) disposition: Disposition,
    /// Running prompt that the input joins; absent if it starts a prompt of its own.
    pub(crate) joins: Option<PromptId>,
}

/// Routes an input in the current state of a conversation.
///
/// # Errors
/// Returns [`CommandError::AlreadyProcessing`] if a prompt runs: send a steer or follow-up, or
/// wait. Returns other errors for an invalid request and an unavailable store.
pub(crate) async fn place(
    world: &World,
    head: &Head,
    request: &PromptRequest,
    sender: &Sender,
) -> Result<Place, Refusal> {
    check(world, request)?;
    let busy_with = busy_with(world, head).await?;
    let mode = match (request.mode, sender.when_busy) {
        (Some(mode), _) => mode,
        (None, WhenBusy::WaitItsTurn) if busy_with.is_some() => Mode::FollowUp,
        (None, WhenBusy::WaitItsTurn | WhenBusy::Refuse) => Mode::Prompt,
    };
    match (mode, busy_with) {
        (Mode::Prompt, Some(prompt_id)) => {
            Err(Refusal::AlreadyProcessing { prompt_id, intent: Intent::Prompt })
        }
        (Mode::Prompt | Mode::Steer | Mode::FollowUp, None) => Ok(when_idle(request, mode)),
        (Mode::Steer, Some(prompt_id)) => {
            Ok(Place { mode, disposition: Disposition::Queued, joins: Some(prompt_id) })
        }
        (Mode::FollowUp, Some(_)) => {
            Ok(Place { mode, disposition: Disposition::Queued, joins: None })
        }
    }
}

/// Routes the first input of a new conversation.
///
/// # Errors
/// Returns an error for an invalid request: correct it.
pub(crate) fn first_place(world: &World, request: &PromptRequest) -> Result<Place, Refusal> {
    check(world, request)?;
    Ok(when_idle(request, request.mode.unwrap_or(Mode::Prompt)))
}

fn when_idle(request: &PromptRequest, mode: Mode) -> Place {
    let disposition = match request.when_idle.unwrap_or_default() {
        WhenIdle::Start => Disposition::Started,
        WhenIdle::Hold => Disposition::Queued,
    };
    Place { mode, disposition, joins: None }
}

fn check(world: &World, request: &PromptRequest) -> Result<(), Refusal> {
    let is_prompt = matches!(request.mode, None | Some(Mode::Prompt));
    if is_prompt && request.when_idle == Some(WhenIdle::Hold) {
        return Err(Refusal::invalid(
            "/whenIdle",
            "`hold` is for the modes `steer` and `followUp`: a prompt begins at once",
        ));
    }
    if request.mode == Some(Mode::Steer) && request.input.is_none() {
        return Err(Refusal::invalid("/input", SAYS_NOTHING));
    }
    if let Some(model) = &request.model {
        let fault = model_fault(world, model);
        fault.map_or(Ok(()), |why| Err(Refusal::invalid("/model", why)))?;
    }
    Ok(())
}

/// Finds the prompt that runs, waits for an approver, or is accepted and not yet started.
pub(crate) async fn busy_with(world: &World, head: &Head) -> Result<Option<PromptId>, Refusal> {
    if let Some(run) = &head.prompt {
        return Ok(Some(run.id.clone()));
    }
    let (inbox, head) = load::inbox_then_head(world, &head.key()).await?;
    let waiting = load::to_come(&head, &inbox).next().map(|coming| coming.prompt_id);
    Ok(head.prompt.as_ref().map(|run| &run.id).or(waiting).cloned())
}
