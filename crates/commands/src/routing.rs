//! Routing of an accepted input: it starts a prompt, joins the running one, or waits in a queue.

use crate::prompt_request::{Disposition, Mode, PromptPosition, PromptRequest, Sender, WhenBusy};
use turnwheel_conversation::head::{Head, State};
use turnwheel_conversation::inbox::WhenIdle;
use turnwheel_platform::ids::PromptId;
use turnwheel_queries::approvals::pending_approvals;
use turnwheel_queries::conversation::effective_state;
use turnwheel_queries::models::{find_model_error, find_next_model_error};
use turnwheel_record::contract::{CommandError, RequestIntent, STEER_WITHOUT_INPUT};
use turnwheel_record::load;
use turnwheel_record::services::Services;

/// Route that the response promises. If the prompt to join ends first, the route changes and the
/// receipt records it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Route {
    pub mode: Mode,
    pub disposition: Disposition,
    /// Running prompt that the input joins; absent if it starts a prompt of its own.
    pub joins: Option<PromptId>,
}

/// Routes an input in the current state of a conversation.
///
/// # Errors
/// Returns [`CommandError::AlreadyProcessing`] if a prompt runs: send a steer or follow-up, or
/// wait. Returns other errors for an invalid request and an unavailable store.
pub(crate) async fn route_input(
    services: &Services,
    head: &Head,
    request: &PromptRequest,
    sender: &Sender,
) -> Result<Route, CommandError> {
    validate_request(services, request)?;
    let running_prompt = find_running_prompt(services, head).await?;
    let mode = match (request.mode, sender.when_busy) {
        (Some(mode), _) => mode,
        (None, WhenBusy::Queue) if running_prompt.is_some() => Mode::FollowUp,
        (None, WhenBusy::Queue | WhenBusy::Reject) => Mode::Prompt,
    };
    match (mode, running_prompt) {
        (Mode::Prompt, Some(prompt_id)) => {
            Err(already_processing(services, head, prompt_id, RequestIntent::Prompt).await?)
        }
        (Mode::Prompt | Mode::Steer | Mode::FollowUp, None) => Ok(route_when_idle(request, mode)),
        (Mode::Steer, Some(prompt_id)) => {
            Ok(Route { mode, disposition: Disposition::Queued, joins: Some(prompt_id) })
        }
        (Mode::FollowUp, Some(_)) => {
            Ok(Route { mode, disposition: Disposition::Queued, joins: None })
        }
    }
}

/// Routes the first input of a new conversation.
///
/// # Errors
/// Returns an error for an invalid request: correct it.
pub(crate) fn route_first_input(
    services: &Services,
    request: &PromptRequest,
) -> Result<Route, CommandError> {
    validate_request(services, request)?;
    Ok(route_when_idle(request, request.mode.unwrap_or(Mode::Prompt)))
}

fn route_when_idle(request: &PromptRequest, mode: Mode) -> Route {
    let disposition = match request.when_idle.unwrap_or_default() {
        WhenIdle::Start => Disposition::Started,
        WhenIdle::Hold => Disposition::Queued,
    };
    Route { mode, disposition, joins: None }
}

fn validate_request(services: &Services, request: &PromptRequest) -> Result<(), CommandError> {
    let is_prompt = matches!(request.mode, None | Some(Mode::Prompt));
    if is_prompt && request.when_idle == Some(WhenIdle::Hold) {
        return Err(CommandError::invalid(
            "/whenIdle",
            "`hold` is for the modes `steer` and `followUp`: a prompt begins at once",
        ));
    }
    if request.at != PromptPosition::Leaf && !is_prompt {
        return Err(CommandError::invalid(
            "/at",
            "`at` is for the mode `prompt`: an input of another mode joins the current path",
        ));
    }
    if request.mode == Some(Mode::Steer) && request.input.is_none() {
        return Err(CommandError::invalid("/input", STEER_WITHOUT_INPUT));
    }
    if let Some(model) = &request.model {
        let model_error = find_model_error(services, model);
        model_error.map_or(Ok(()), |detail| Err(CommandError::invalid("/model", detail)))?;
    }
    Ok(())
}

/// Rejects an input that would start a prompt without a model.
///
/// # Errors
/// Returns [`CommandError::AgentUnavailable`], whose text names the setting to set.
pub(crate) fn check_model(
    services: &Services,
    head: &Head,
    request: &PromptRequest,
    route: &Route,
) -> Result<(), CommandError> {
    // The prompt of a removed agent fails with that reason.
    let Ok(agent) = services.agents.find(Some(&head.agent)) else { return Ok(()) };
    if route.disposition != Disposition::Started || request.model.is_some() {
        return Ok(());
    }
    let error = find_next_model_error(services, head, &agent);
    error.map_or(Ok(()), |why| Err(CommandError::AgentUnavailable(why)))
}

/// Finds the prompt that runs, waits for an approver, or is accepted and not yet started.
pub(crate) async fn find_running_prompt(
    services: &Services,
    head: &Head,
) -> Result<Option<PromptId>, CommandError> {
    if let Some(run) = &head.prompt {
        return Ok(Some(run.id.clone()));
    }
    if head.inbox_count == Some(0) {
        return Ok(None);
    }
    let (inbox, head) = load::inbox_then_head(services, &head.key()).await?;
    let queued = load::queued_prompts(&head, &inbox).next().map(|prompt| prompt.prompt_id);
    Ok(head.prompt.as_ref().map(|run| &run.id).or(queued).cloned())
}

/// The error of a request that needs an idle conversation.
///
/// # Errors
/// The store is unavailable.
pub async fn already_processing(
    services: &Services,
    head: &Head,
    prompt_id: PromptId,
    intent: RequestIntent,
) -> Result<CommandError, CommandError> {
    let awaits_decision = head.state() == State::WaitingForApproval && {
        let pending = pending_approvals(services, head).await?;
        effective_state(head, &pending) == State::WaitingForApproval
    };
    Ok(CommandError::AlreadyProcessing { prompt_id, intent, awaits_decision })
}
