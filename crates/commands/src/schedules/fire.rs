//! Firing of a schedule. It creates an inbox item whose id is derived from schedule and time, so
//! that repetitions have no effect; then it moves the schedule to its next time.

use std::time::Duration;

use crate::prompt::{
    FirstPromptRequest, Mode as PromptMode, PromptRequest, Sender, WhenBusy, accept_prompt,
    begin_conversation,
};
use crate::schedules::{
    ATTEMPTS_MAX, delay_until, enqueue_if_near, find_document, schedule_document, scope_partition,
};
use turnwheel_conversation::entry::Source;
use turnwheel_conversation::schedule::{FiringOutcome, Schedule, ScheduleMode};
use turnwheel_platform::ids::{ConversationKey, PromptId};
use turnwheel_platform::telemetry::trace;
use turnwheel_record::certain_write::{BatchOutcome, write_until_certain_in};
use turnwheel_record::contract::{CommandError, CommandResponse, Owner};
use turnwheel_record::error::{DeliveryOutcome, TurnError, store_error};
use turnwheel_record::error_domain;
use turnwheel_record::idempotency::{Idempotency, find_previous_request};
use turnwheel_record::load;
use turnwheel_record::nudge::Nudge;
use turnwheel_record::nudge_sender::enqueue_nudge;
use turnwheel_record::services::Services;
use turnwheel_storage::queue;
use turnwheel_storage::store::conditional::{back_off, compare_and_set};
use turnwheel_storage::store::outage_retry::repeat_while_store_is_away;
use turnwheel_storage::store::{StoreError, Write};
use turnwheel_tools::sha256_hex;

/// Maximum time by which a nudge may be early. Such a nudge was sent by a clock that is ahead, and
/// is enqueued again. An earlier one belongs to a time that is already done.
const EARLY_MAX: Duration = Duration::from_secs(10);

/// Handles the nudge of a schedule.
///
/// # Errors
/// Returns an error if the message must be delivered again. Nothing is lost.
pub async fn handle_firing(
    services: &Services,
    nudge: &Nudge,
    document_id: &str,
) -> Result<DeliveryOutcome, TurnError> {
    let span = services.telemetry.span("schedule").start();
    let waits = back_off(ATTEMPTS_MAX, Duration::ZERO);
    let firing = compare_and_set(waits, || try_fire(services, nudge, document_id));
    let fired = span.run(Box::pin(firing)).await;
    fired.map_err(|error| {
        let source = into_store_error(error);
        span.record_error(&error_domain::classify_store_error(&source));
        store_error(&nudge.key, "fire", source)
    })
}

fn into_store_error(error: CommandError) -> StoreError {
    if let CommandError::Corrupt(source) = error {
        return source;
    }
    StoreError::Unavailable(Box::new(error))
}

/// Tries the firing once. `None`: another worker moved the schedule, this one won with a lost
/// response, or the schedule was cancelled.
async fn try_fire(
    services: &Services,
    nudge: &Nudge,
    document_id: &str,
) -> Result<Option<DeliveryOutcome>, CommandError> {
    let tenant = &nudge.key.tenant;
    let read = || find_document(services, tenant, document_id);
    let found = repeat_while_store_is_away(&services.shutdown, read).await?;
    let Some((schedule, etag)) = found else { return Ok(Some(DeliveryOutcome::NoWork)) };
    let now = services.clock.now();
    let Some(due) = schedule.due() else { return Ok(Some(DeliveryOutcome::NoWork)) };
    if due > now {
        if now.until(due) <= EARLY_MAX {
            enqueue_nudge(services, queue::TURNS, nudge, delay_until(now, due)).await;
        }
        return Ok(Some(DeliveryOutcome::NoWork));
    }
    let owner = Owner { tenant: tenant.clone(), user: schedule.user.clone() };
    let outcome = make_firing(services, &owner, &schedule).await?;
    log_outcome(&schedule, &outcome);
    let moved = schedule.after_firing(outcome, services.clock.now());
    services.fail_points.hit("schedule.fired").await;
    let write = Write::Replace(schedule_document(&moved), Some(etag));
    let written = write_until_certain_in(services, &scope_partition(tenant), vec![write]).await?;
    services.fail_points.hit("schedule.moved").await;
    if let BatchOutcome::Lost = written {
        return Ok(None);
    }
    enqueue_if_near(services, tenant, &moved).await;
    Ok(Some(DeliveryOutcome::Worked))
}

/// Logs the outcome of a firing, with the reason if it was not made.
fn log_outcome(schedule: &Schedule, outcome: &FiringOutcome) {
    let id = &schedule.id;
    match outcome {
        FiringOutcome::Accepted { conversation_id, .. } => {
            tracing::info!(conversation.id = %conversation_id, schedule.id = %id, "schedule fired");
        }
        FiringOutcome::Skipped(reason)
        | FiringOutcome::Retryable(reason)
        | FiringOutcome::Ended(reason) => {
            tracing::warn!(schedule.id = %id, "schedule did not fire: {reason}");
        }
    }
}

/// Makes the firing that is due.
async fn make_firing(
    services: &Services,
    owner: &Owner,
    schedule: &Schedule,
) -> Result<FiringOutcome, CommandError> {
    let Some(at) = schedule.next_at else {
        return Ok(FiringOutcome::Ended("no firing is due".to_owned()));
    };
    let idempotency = Idempotency {
        key: format!("{} {} {}", schedule.id, schedule.incarnation, at.0),
        is_repeatable: true,
        route: "schedule".to_owned(),
        body_hash: sha256_hex(schedule.incarnation.as_bytes()),
    };
    let accepted = match &schedule.conversation {
        None => start_conversation(services, owner, schedule, &idempotency).await,
        Some(target) => {
            let key = owner.conversation_key(target.id.as_str());
            match find_obstacle(services, &key, schedule, &idempotency).await? {
                Some(outcome) => return Ok(outcome),
                None => prompt_conversation(services, &key, schedule, &idempotency).await,
            }
        }
    };
    match accepted {
        Ok((key, response)) => {
            let input_id = idempotency.input_id(&key);
            let member = |name: &str| response.body.as_ref()?.string_member(name);
            if member("disposition").as_deref() == Some("handled") {
                return Ok(FiringOutcome::Skipped("an extension has handled the input".to_owned()));
            }
            let promised = response.body.and_then(|body| body.string_member("promptId"));
            let prompt_id = promised.map_or_else(|| PromptId::from_input(&input_id), PromptId::new);
            Ok(FiringOutcome::Accepted {
                conversation_id: key.conversation_id,
                input_id,
                prompt_id,
            })
        }
        Err(refusal) => error_outcome(refusal),
    }
}

fn schedule_sender() -> Sender {
    Sender {
        source: Source::Schedule,
        traceparent: trace::current_traceparent(),
        when_busy: WhenBusy::Queue,
        clients: None,
    }
}

async fn start_conversation(
    services: &Services,
    owner: &Owner,
    schedule: &Schedule,
    idempotency: &Idempotency,
) -> Result<(ConversationKey, CommandResponse), CommandError> {
    let request = FirstPromptRequest {
        agent: Some(schedule.agent.clone()),
        metadata: Some(schedule.metadata.clone()),
        input: schedule.input.clone(),
        ..FirstPromptRequest::default()
    };
    let key = owner.conversation_key(&idempotency.conversation_id(owner));
    let answer =
        begin_conversation(services, owner, request, idempotency, &schedule_sender()).await?;
    Ok((key, answer))
}

async fn prompt_conversation(
    services: &Services,
    key: &ConversationKey,
    schedule: &Schedule,
    idempotency: &Idempotency,
) -> Result<(ConversationKey, CommandResponse), CommandError> {
    let mode = match schedule.mode {
        ScheduleMode::Prompt => Some(PromptMode::Prompt),
        ScheduleMode::Steer => Some(PromptMode::Steer),
        // The default of the sender applies: in an idle conversation it is a prompt.
        ScheduleMode::FollowUp => None,
    };
    let request = PromptRequest { input: schedule.input.clone(), mode, ..PromptRequest::default() };
    let answer = accept_prompt(services, key, request, idempotency, &schedule_sender()).await?;
    Ok((key.clone(), answer))
}

/// Outcome of a firing that the conversation cannot accept. `None`: it can.
async fn find_obstacle(
    services: &Services,
    key: &ConversationKey,
    schedule: &Schedule,
    idempotency: &Idempotency,
) -> Result<Option<FiringOutcome>, CommandError> {
    let head = load::find_head(services, key).await?.map(|(head, _)| head);
    let is_target_incarnation = |incarnation: &str| {
        schedule.conversation.as_ref().is_some_and(|target| target.incarnation == incarnation)
    };
    let Some(head) = head.filter(|head| is_target_incarnation(&head.incarnation)) else {
        let detail = format!("the conversation `{}` is gone", key.conversation_id);
        return Ok(Some(FiringOutcome::Ended(detail)));
    };
    // A conversation that waits for days accepts one prompt of a schedule, not one for each firing.
    let Some(last) = &schedule.last_firing else { return Ok(None) };
    let is_this = last.input_id == idempotency.input_id(key);
    if is_this
        || head.prompts.iter().any(|prompt| prompt.id == PromptId::from_input(&last.input_id))
    {
        return Ok(None);
    }
    let is_waiting = find_previous_request(services, key, last.input_id.as_str())
        .await?
        .is_some_and(|earlier| earlier.is_queued());
    Ok(is_waiting.then(|| {
        FiringOutcome::Skipped("the prompt of the last firing has not begun yet".to_owned())
    }))
}

/// Outcome of a firing that failed with an error.
///
/// # Errors
/// Returns a transient error, after which the nudge must be delivered again.
fn error_outcome(error: CommandError) -> Result<FiringOutcome, CommandError> {
    let detail = error.to_string();
    match error {
        CommandError::Unavailable { .. }
        | CommandError::InboxFull { .. }
        | CommandError::Conflict { retry_after: Some(_), .. } => Err(error),
        CommandError::NotFound(_) => {
            Ok(FiringOutcome::Ended("the conversation is gone".to_owned()))
        }
        // A deployment or an operator repairs these.
        CommandError::AgentUnavailable(_)
        | CommandError::ExtensionFailed(_)
        | CommandError::Corrupt(_) => Ok(FiringOutcome::Retryable(detail)),
        CommandError::Invalid(errors) if errors.iter().all(|fault| fault.pointer == "/agent") => {
            Ok(FiringOutcome::Retryable(detail))
        }
        CommandError::Invalid(_)
        | CommandError::Conflict { .. }
        | CommandError::UnknownCommand
        | CommandError::EntryNotFound(_)
        | CommandError::AlreadyProcessing { .. }
        | CommandError::AlreadyDecided(_)
        | CommandError::Expired { .. }
        | CommandError::AlreadyApplied { .. }
        | CommandError::Forbidden(_)
        | CommandError::KeyReused
        | CommandError::EffectInFlight { .. }
        | CommandError::PreconditionFailed { .. }
        | CommandError::TooLarge(_) => Ok(FiringOutcome::Skipped(detail)),
    }
}
