//! Where an accepted input goes: it begins a prompt, joins the one that runs, or waits in a queue.

use crate::agent::head::Head;
use crate::agent::inbox::WhenIdle;
use crate::ids::PromptId;
use crate::turn::World;
use crate::turn::admission::conversation::model_fault;
use crate::turn::admission::prompt::{Disposition, Mode, PromptRequest, Sender, WhenBusy};
use crate::turn::admission::{Intent, Refusal, SAYS_NOTHING};
use crate::turn::views::load;

/// What is promised to whoever asked. Where it comes otherwise, since the prompt that it was to join ended before, the
/// receipt says so.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Place {
    pub(crate) mode: Mode,
    pub(crate) disposition: Disposition,
    /// The prompt that runs, for what becomes part of it; otherwise it begins one of its own.
    pub(crate) joins: Option<PromptId>,
}

/// Where an input goes in a conversation as it is now.
///
/// # Errors
/// [`Refusal::AlreadyProcessing`], what is wrong with the request, and the store's.
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

/// Where the input goes that a conversation begins with.
///
/// # Errors
/// What is wrong with the request.
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

/// The prompt that runs, waits for a person, or has been accepted and not yet taken in.
pub(crate) async fn busy_with(world: &World, head: &Head) -> Result<Option<PromptId>, Refusal> {
    if let Some(run) = &head.prompt {
        return Ok(Some(run.id.clone()));
    }
    let (inbox, head) = load::inbox_then_head(world, &head.key()).await?;
    let waiting = load::to_come(&head, &inbox).next().map(|coming| coming.prompt_id);
    Ok(head.prompt.as_ref().map(|run| &run.id).or(waiting).cloned())
}
