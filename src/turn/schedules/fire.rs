//! Firing of a schedule. It creates an inbox item whose id is derived from schedule and time, so
//! that repetitions have no effect; then it moves the schedule to its next time.

use std::time::Duration;

use super::{delay_until, document, find, partition, ring_if_soon};
use crate::agent::entry::Source;
use crate::agent::schedule::{Mode, Outcome, Schedule};
use crate::ids::{ConversationKey, PromptId};
use crate::queue;
use crate::store::{StoreError, Write};
use crate::telemetry::trace;
use crate::tools::sha256_hex;
use crate::turn::admission::idempotency::{Idempotency, earlier};
use crate::turn::admission::prompt::{
    FirstPromptRequest, Mode as PromptMode, PromptRequest, Sender, WhenBusy, accept_prompt,
    begin_conversation,
};
use crate::turn::admission::write::{Written, write_surely_in};
use crate::turn::admission::{Answer, Owner, Refusal};
use crate::turn::commit::ring;
use crate::turn::delivery::{Handled, TurnError, store_error};
use crate::turn::views::load;
use crate::turn::{Nudge, World, faults};

/// Maximum time by which a nudge may be early. Such a nudge was sent by a clock that is ahead, and
/// is enqueued again. An earlier one belongs to a time that is already done.
const EARLY: Duration = Duration::from_secs(10);
/// Number of writes lost to other workers after which a firing gives up.
const TRIES_MAX: u32 = 10;

/// Handles the nudge of a schedule.
///
/// # Errors
/// Returns an error if the message must be delivered again. Nothing is lost.
pub(in crate::turn) async fn fire(
    world: &World,
    nudge: &Nudge,
    document_id: &str,
) -> Result<Handled, TurnError> {
    let span = world.telemetry.span("schedule").start();
    let fired = span.run(Box::pin(fire_once(world, nudge, document_id))).await;
    fired.map_err(|error| {
        let source = store_fault(error);
        span.fail(&faults::of_store(&source));
        store_error(&nudge.key, "fire", source)
    })
}

fn store_fault(refusal: Refusal) -> StoreError {
    if let Refusal::Corrupt(source) = refusal {
        return source;
    }
    StoreError::Unavailable(Box::new(refusal))
}

async fn fire_once(world: &World, nudge: &Nudge, document_id: &str) -> Result<Handled, Refusal> {
    let tenant = &nudge.key.tenant;
    for _ in 0..TRIES_MAX {
        let Some((schedule, etag)) = find(world, tenant, document_id).await? else {
            return Ok(Handled::Nothing);
        };
        let now = world.clock.now();
        let Some(due) = schedule.due() else { return Ok(Handled::Nothing) };
        if due > now {
            let left = now.until(due);
            if left <= EARLY {
                ring(world, queue::TURNS, nudge, delay_until(now, due)).await;
            }
            return Ok(Handled::Nothing);
        }
        let owner = Owner { tenant: tenant.clone(), user: schedule.user.clone() };
        let outcome = outcome_of(world, &owner, &schedule).await?;
        tell(&schedule, &outcome);
        let moved = schedule.after(outcome, world.clock.now());
        world.probe.reached("schedule.fired").await;
        let write = Write::Replace(document(&moved), Some(etag));
        let written = write_surely_in(world, &partition(tenant), vec![write]).await?;
        world.probe.reached("schedule.moved").await;
        if let Written::Won(_) = written {
            ring_if_soon(world, tenant, &moved).await;
            return Ok(Handled::Worked);
        }
        // Another worker moved the schedule, this one won with a lost response, or the schedule was
        // cancelled: read it again.
    }
    Err(Refusal::contended())
}

/// Logs the outcome of a firing, with the reason if it was not made.
fn tell(schedule: &Schedule, outcome: &Outcome) {
    let id = &schedule.id;
    match outcome {
        Outcome::Accepted { conversation_id, .. } => {
            tracing::info!(conversation.id = %conversation_id, schedule.id = %id, "schedule fired");
        }
        Outcome::LeftOut(why) | Outcome::NotYet(why) | Outcome::Over(why) => {
            tracing::warn!(schedule.id = %id, "schedule did not fire: {why}");
        }
    }
}

/// Makes the firing that is due.
async fn outcome_of(world: &World, owner: &Owner, schedule: &Schedule) -> Result<Outcome, Refusal> {
    let Some(at) = schedule.next_at else {
        return Ok(Outcome::Over("no firing is due".to_owned()));
    };
    let idempotency = Idempotency {
        key: format!("{} {} {}", schedule.id, schedule.incarnation, at.0),
        is_repeatable: true,
        route: "schedule",
        body_hash: sha256_hex(schedule.incarnation.as_bytes()),
    };
    let accepted = match &schedule.conversation {
        None => begin(world, owner, schedule, &idempotency).await,
        Some(target) => {
            let key = owner.key(target.id.as_str());
            match obstacle(world, &key, schedule, &idempotency).await? {
                Some(outcome) => return Ok(outcome),
                None => go_on(world, &key, schedule, &idempotency).await,
            }
        }
    };
    match accepted {
        Ok((key, answer)) => {
            let input_id = idempotency.input_id(&key);
            let promised = answer.body.and_then(|body| body.string_member("promptId"));
            let prompt_id = promised.map_or_else(|| PromptId::of(&input_id), PromptId::new);
            Ok(Outcome::Accepted { conversation_id: key.conversation_id, input_id, prompt_id })
        }
        Err(refusal) => refused(refusal),
    }
}

fn sender() -> Sender {
    Sender {
        source: Source::Schedule,
        traceparent: trace::traceparent(),
        when_busy: WhenBusy::WaitItsTurn,
    }
}

async fn begin(
    world: &World,
    owner: &Owner,
    schedule: &Schedule,
    idempotency: &Idempotency,
) -> Result<(ConversationKey, Answer), Refusal> {
    let request = FirstPromptRequest {
        agent: Some(schedule.agent.clone()),
        metadata: Some(schedule.metadata.clone()),
        input: schedule.input.clone(),
        ..FirstPromptRequest::default()
    };
    let key = owner.key(&idempotency.conversation_id(owner));
    let answer = begin_conversation(world, owner, request, idempotency, &sender()).await?;
    Ok((key, answer))
}

async fn go_on(
    world: &World,
    key: &ConversationKey,
    schedule: &Schedule,
    idempotency: &Idempotency,
) -> Result<(ConversationKey, Answer), Refusal> {
    let mode = match schedule.mode {
        Mode::Prompt => Some(PromptMode::Prompt),
        Mode::Steer => Some(PromptMode::Steer),
        // The default of the sender applies: in an idle conversation it is a prompt.
        Mode::FollowUp => None,
    };
    let request = PromptRequest { input: schedule.input.clone(), mode, ..PromptRequest::default() };
    let answer = accept_prompt(world, key, request, idempotency, &sender()).await?;
    Ok((key.clone(), answer))
}

/// Outcome of a firing that the conversation cannot accept. `None`: it can.
async fn obstacle(
    world: &World,
    key: &ConversationKey,
    schedule: &Schedule,
    idempotency: &Idempotency,
) -> Result<Option<Outcome>, Refusal> {
    let head = load::find_head(world, key).await?.map(|(head, _)| head);
    let is_meant = |incarnation: &str| {
        schedule.conversation.as_ref().is_some_and(|target| target.incarnation == incarnation)
    };
    let Some(head) = head.filter(|head| is_meant(&head.incarnation)) else {
        let detail = format!("the conversation `{}` is gone", key.conversation_id);
        return Ok(Some(Outcome::Over(detail)));
    };
    // A conversation that waits for days accepts one prompt of a schedule, not one for each firing.
    let Some(last) = &schedule.last_fired else { return Ok(None) };
    let is_this = last.input_id == idempotency.input_id(key);
    if is_this || head.prompts.iter().any(|prompt| prompt.id == PromptId::of(&last.input_id)) {
        return Ok(None);
    }
    let is_waiting = earlier(world, key, last.input_id.as_str())
        .await?
        .is_some_and(|earlier| earlier.is_waiting());
    Ok(is_waiting
        .then(|| Outcome::LeftOut("the prompt of the last firing has not begun yet".to_owned())))
}

/// Outcome of a firing that failed with an error.
///
/// # Errors
/// Returns a transient error, after which the nudge must be delivered again.
fn refused(refusal: Refusal) -> Result<Outcome, Refusal> {
    let detail = refusal.to_string();
    match refusal {
        Refusal::Unavailable { .. } | Refusal::Conflict { retry_after: Some(_), .. } => {
            Err(refusal)
        }
        Refusal::NotFound(_) => Ok(Outcome::Over("the conversation is gone".to_owned())),
        // A deployment or an operator repairs these.
        Refusal::AgentUnavailable(_) | Refusal::Corrupt(_) => Ok(Outcome::NotYet(detail)),
        Refusal::Invalid(faults) if faults.iter().all(|fault| fault.pointer == "/agent") => {
            Ok(Outcome::NotYet(detail))
        }
        Refusal::Invalid(_)
        | Refusal::Conflict { .. }
        | Refusal::AlreadyProcessing { .. }
        | Refusal::AlreadyDecided(_)
        | Refusal::Expired { .. }
        | Refusal::Landed { .. }
        | Refusal::Forbidden(_)
        | Refusal::KeyReused
        | Refusal::EffectInFlight { .. }
        | Refusal::PreconditionFailed { .. }
        | Refusal::TooLarge(_) => Ok(Outcome::LeftOut(detail)),
    }
}
