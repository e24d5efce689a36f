//! One delivery of a nudge: leases the conversation, drains the inbox, takes one turn, commits,
//! releases the lease and rereads the inbox.

use std::panic::AssertUnwindSafe;
use std::sync::Arc;
use std::time::Duration;

use futures_util::FutureExt as _;
use serde::{Deserialize, Serialize};

use crate::agent::head::Head;
use crate::agent::inbox::InboxItem;
use crate::agent::phase::{CallStatus, Phase};
use crate::agent::request::Effect;
use crate::agent::step::Input;
use crate::clock::Timestamp;
use crate::ids::ConversationKey;
use crate::queue;
use crate::store::{StoreError, Stored};
use crate::telemetry::metrics::Metrics;
use crate::telemetry::trace::Span;
use crate::turn::commit::ring;
use crate::turn::hold::{Hold, take};
use crate::turn::inbox::{self, Waiting};
use crate::turn::isolation::{self, Isolation, Suspect};
use crate::turn::spans::{self, Visit};
use crate::turn::tried::Tried;
use crate::turn::{Nudge, World, expiry, faults, paying, recount, schedules, spending};

/// Rounds of one delivery; each handles items that arrived during the one before. A flood of items
/// must not occupy a worker for ever.
const ROUNDS_MAX: u32 = 16;

/// Why a delivery stopped early. Nothing is lost: pending work is in the store.
#[derive(Debug, thiserror::Error)]
pub enum TurnError {
    /// Another worker has the lease: acknowledge the message.
    #[error("the lease on {key} was lost")]
    ClaimLost { key: ConversationKey },
    /// Deliver again later.
    #[error("could not {what} {key}")]
    Store { key: ConversationKey, what: &'static str, source: StoreError },
}

/// Outcome of a delivery.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Handled {
    /// No work was pending, or another worker has the lease.
    Nothing,
    Worked,
}

/// Handles one nudge.
///
/// # Errors
/// The message must be delivered again; see [`TurnError`].
#[tracing::instrument(name = "turn", skip_all, fields(conversation.id = %nudge.key.conversation_id))]
pub async fn handle(world: &World, nudge: &Nudge) -> Result<Handled, TurnError> {
    let work = spans::priced(world, async {
        match &nudge.schedule {
            Some(document_id) => Box::pin(schedules::fire::fire(world, nudge, document_id)).await,
            None => Box::pin(rounds(world, nudge)).await,
        }
    });
    Box::pin(spending::told(world, &nudge.key, work)).await
}

async fn rounds(world: &World, nudge: &Nudge) -> Result<Handled, TurnError> {
    let began = world.clock.monotonic();
    // For all rounds together: the host's time-out covers the whole invocation.
    let ends = began + world.limits.turn;
    let mut handled = Handled::Nothing;
    for _ in 0..ROUNDS_MAX {
        let mut visit = Visit::begin(world, nudge);
        let round = Box::pin(deliver_shared(world, ends, &mut visit)).await;
        if let Err(error) = &round {
            visit.failed(error);
        }
        match round? {
            Round::Nothing => return Ok(handled),
            Round::Suspect => return Box::pin(isolation::isolate(world, nudge, ends)).await,
            Round::Done => return Ok(Handled::Worked),
            Round::Again => handled = Handled::Worked,
        }
        // Another round may need a whole turn, so it gets a delivery of its own.
        if world.clock.monotonic() > began + world.limits.turn / 10 {
            break;
        }
    }
    ring(world, queue::TURNS, nudge, Duration::ZERO).await;
    Ok(handled)
}

#[derive(PartialEq, Eq)]
enum Round {
    Nothing,
    Done,
    /// Items arrived during the lease.
    Again,
    /// The step is suspect and must run in isolation; the lease is released.
    Suspect,
}

/// Runs one round beside other turns of this process.
async fn deliver_shared(
    world: &World,
    ends: Duration,
    visit: &mut Visit<'_>,
) -> Result<Round, TurnError> {
    let shared = match &world.isolation {
        Isolation::By(isolator) => isolator.enter().await,
        Isolation::Inside => None,
    };
    let round = Box::pin(deliver(world, ends, visit, false)).await;
    drop(shared);
    round
}

/// Runs one round while no other turn runs in this process. The caller ensures that.
///
/// # Errors
/// As of [`handle`].
pub(super) async fn deliver_alone(
    world: &World,
    nudge: &Nudge,
    ends: Duration,
) -> Result<Handled, TurnError> {
    let mut visit = Visit::begin(world, nudge);
    let round = Box::pin(deliver(world, ends, &mut visit, true)).await;
    if let Err(error) = &round {
        visit.failed(error);
    }
    match round? {
        Round::Nothing | Round::Suspect => Ok(Handled::Nothing),
        Round::Done => Ok(Handled::Worked),
        Round::Again => {
            ring(world, queue::TURNS, nudge, Duration::ZERO).await;
            Ok(Handled::Worked)
        }
    }
}

async fn deliver(
    world: &World,
    ends: Duration,
    visit: &mut Visit<'_>,
    is_alone: bool,
) -> Result<Round, TurnError> {
    let key = visit.key();
    world.probe.reached("claim.before").await;
    let Some((mut hold, inbox)) = take(world, key, ends).await? else { return Ok(Round::Nothing) };
    world.probe.reached("claim.after").await;
    hold.is_alone = is_alone;
    let work = AssertUnwindSafe(Box::pin(work(&mut hold, &inbox, visit))).catch_unwind();
    let outcome = match work.await {
        Ok(outcome) => outcome,
        Err(panic) => {
            // The step caused the panic, so it counts like the death of a process.
            let worker = hold.worker.clone();
            drop(hold);
            if let Err(error) = Box::pin(recount::bury_panicked(world, key, &worker)).await {
                tracing::error!(conversation.id = %key.conversation_id, error = %error, "panic of a turn not counted");
            }
            std::panic::resume_unwind(panic)
        }
    };
    if outcome.is_err() {
        Box::pin(hold.report_lost_call()).await;
    }
    let is_settled = hold.is_settled;
    let is_rung = hold.let_go().await;
    let may_have_missed = match &outcome {
        // The delivery of the nudge just sent reads the inbox before any other.
        Ok(Round::Done) => !is_rung,
        // A lease in the head was never written, so it blocked no delivery.
        Ok(Round::Nothing) => is_settled,
        Ok(Round::Again | Round::Suspect) | Err(_) => false,
    };
    if may_have_missed && has_news(world, key).await? {
        return Ok(Round::Again);
    }
    outcome
}

/// Reads the inbox after the release: deliveries of items that arrived during the lease were turned
/// away.
async fn has_news(world: &World, key: &ConversationKey) -> Result<bool, TurnError> {
    let looked = inbox::look(world, key).await;
    let waiting = looked.map_err(|source| store_error(key, "read the inbox of", source))?;
    world.probe.reached("look.after").await;
    // Items that were read and stay in the inbox have no `due` of their own.
    Ok(waiting.iter().any(|waiting| waiting.is_due))
}

async fn work(
    hold: &mut Hold<'_>,
    inbox: &[Stored],
    visit: &mut Visit<'_>,
) -> Result<Round, TurnError> {
    let now = hold.world.clock.now();
    let has_expired = expiry::decide_expired(hold.world, &hold.head, now)
        .await
        .map_err(|source| hold.error("decide the expired requests of", source))?;
    let has_room = paying::decide_freed(hold.world, hold, now)
        .await
        .map_err(|source| hold.error("check the budget request of", source))?;
    let inbox = if has_expired || has_room {
        inbox::look(hold.world, &hold.key).await
    } else {
        inbox::in_order(inbox)
    };
    hold.world.probe.reached("inbox.after").await;
    let inbox = inbox.map_err(|source| hold.error("read the inbox of", source))?;
    let inbox = hold.with_decisions(inbox).await;
    let inbox = inbox.map_err(|source| hold.error("decide the open requests of", source))?;
    let tried = hold.try_out(vec![inbox::looked(&inbox), Input::TakeIn]);
    let draft = tried.draft();
    let landed = |item: &InboxItem| draft.receipts.iter().any(|it| it.input_id == item.input_id);
    let is_owed = hold.head.owed_at(now).is_some_and(|due| due <= now);
    let is_due = (is_owed && !is_backing_off(&hold.head, now)) || hold.is_let_go();
    let is_left = |waiting: &Waiting| waiting.is_due && !landed(&waiting.item);
    let is_news = inbox.iter().any(is_left) || draft.head.waiting != hold.head.waiting;
    if draft.receipts.is_empty() && !is_due && !is_news {
        return Ok(Round::Nothing);
    }
    if draft.receipts.is_empty() && !is_news && hold.is_kept_back(now) {
        return Ok(Round::Nothing);
    }
    let suspect = hold.suspect(&draft.head, now).filter(|_| !hold.is_stopped_by(&inbox));
    if suspect == Some(Suspect::Isolate) {
        return Ok(Round::Suspect);
    }
    hold.is_counting = suspect.is_some();
    let landing: Vec<Arc<InboxItem>> =
        inbox.iter().map(|waiting| Arc::clone(&waiting.item)).filter(|item| landed(item)).collect();
    let span = visit.turn(&hold.head, &landing);
    if span.is_recording() {
        hold.traceparent = span.traceparent();
    }
    let found = Found { inbox, is_news, tried };
    let outcome = span.run(Box::pin(take_turn(hold, found, &span))).await;
    visit.end(&span, &hold.head.agent, outcome.as_ref().err());
    outcome.map(|()| Round::Done)
}

/// Pending work of a conversation.
struct Found {
    inbox: Vec<Waiting>,
    is_news: bool,
    /// The transition that drains the inbox.
    tried: Tried,
}

async fn take_turn(hold: &mut Hold<'_>, found: Found, span: &Span) -> Result<(), TurnError> {
    let Found { inbox, is_news, tried } = found;
    let now = hold.world.clock.now();
    hold.load_answer().await?;
    let mut inputs = Vec::new();
    let is_stopped = hold.is_stopped_by(&inbox);
    if hold.head.is_hopeless() && hold.death.is_none() && !is_stopped {
        // The end of the prompt is a commit of its own; the next round drains the inbox.
        let reason = hold.verdict();
        let tried = hold.try_out(vec![inbox::looked(&inbox), Input::Poisoned { reason }]);
        hold.commit("take-in", tried, &[]).await?;
        span.fail(&faults::poisoned());
        count(hold, |metrics, _| metrics.poison("prompt"));
    } else {
        if was_interrupted(&hold.head) {
            inputs.push(Input::TakenOver);
            span.set("turnwheel.recovered", true);
            count(hold, Metrics::recovered);
        }
        // A write was running when its worker stopped, so its outcome is unknown. No request is
        // made if the prompt is aborted.
        if !is_stopped {
            inputs.extend(lost_writes(&hold.head, now));
        }
        hold.settle_due(&mut inputs).await;
        let is_as_tried = inputs.is_empty() && hold.answer.is_none();
        inputs.extend([inbox::looked(&inbox), Input::TakeIn]);
        let mut tried = if is_as_tried { tried } else { hold.try_out(inputs) };
        if hold.is_counting {
            hold.leave_turn_open(&mut tried);
        } else {
            Box::pin(hold.prepare(&mut tried)).await?;
            hold.finish_turn(&mut tried).await?;
            hold.measure(&mut tried).await?;
            hold.brake_agent(&mut tried);
            hold.reserve(&mut tried).await?;
        }
        // Clearing the mark of a lifted pause needs a commit.
        let is_marked = hold.head.brake.is_some() || hold.is_alone;
        let is_plain = tried.inputs().len() == 2 && !is_news && hold.is_settled && !is_marked;
        if !is_plain || !tried.draft().is_empty() {
            hold.commit("take-in", tried, &inbox).await?;
        }
    }
    if hold.is_counting || !is_performing(&hold.head) {
        Box::pin(hold.settle_at_rest()).await;
        return Ok(());
    }
    let agent = spans::agent(hold);
    let outcome = agent.run(Box::pin(turn(hold))).await;
    let fault = hold.fault.take();
    if let Some(fault) = outcome.as_ref().err().map(faults::of_turn).or(fault) {
        agent.fail(&fault);
    }
    if outcome.is_ok() {
        Box::pin(hold.settle_at_rest()).await;
    }
    outcome
}

/// True if the turn has effects to perform.
fn is_performing(head: &Head) -> bool {
    match &head.phase {
        Phase::Idle | Phase::Deleted => false,
        Phase::Model { .. } | Phase::Summary { .. } => !head.is_paused() && head.brake.is_none(),
        Phase::Calls { .. } => head.phase.batch().is_performing(),
    }
}

fn count(hold: &Hold<'_>, told: impl FnOnce(&Metrics, &str)) {
    if let Some(metrics) = hold.world.telemetry.metrics() {
        told(metrics, &hold.head.agent);
    }
}

/// Performs pending effects until the turn is over.
async fn turn(hold: &mut Hold<'_>) -> Result<(), TurnError> {
    loop {
        let now = hold.world.clock.now();
        match &hold.head.phase {
            Phase::Idle | Phase::Deleted => return Ok(()),
            Phase::Model { not_before, .. } | Phase::Summary { not_before, .. } => {
                let is_early = not_before.is_some_and(|time| time > now);
                // A commit that kept the lease has decided to continue, whatever time has passed
                // since.
                let goes_on = hold.head.claim.is_some() || hold.may_answer(&hold.head);
                // Whatever was committed, paused work is not started.
                let is_braked = hold.world.brakes.of_agent(&hold.head.agent).is_some();
                if is_early || is_braked || !goes_on || !Box::pin(hold.pay()).await? {
                    return Ok(());
                }
                if matches!(hold.head.phase, Phase::Summary { .. }) {
                    Box::pin(hold.sum_up()).await?;
                } else {
                    Box::pin(hold.answer()).await?;
                }
            }
            Phase::Calls { .. } => {
                if !hold.head.phase.batch().is_performing() {
                    return Ok(());
                }
                Box::pin(hold.run_calls()).await?;
            }
        }
    }
}

/// True if the last worker stopped without releasing its lease.
fn was_interrupted(head: &Head) -> bool {
    head.claim.is_some() || head.phase.batch().is_running()
}

/// True if a suspect step waits for its retry time, however often it is nudged.
fn is_backing_off(head: &Head, now: Timestamp) -> bool {
    head.suspicion.retry_at.is_some_and(|time| time > now)
}

pub(super) fn lost_writes(head: &Head, now: Timestamp) -> Vec<Input> {
    let Phase::Calls { calls, .. } = &head.phase else { return Vec::new() };
    let lost = calls.iter().enumerate().filter(|(_, call)| {
        matches!(call.status, CallStatus::Started { effect: Effect::Write, .. })
    });
    lost.map(|(index, _)| Input::OutcomeUnknown {
        index,
        reason:
            "The worker stopped while this call was under way; whether it happened is not known."
                .to_owned(),
        expires_at: now.plus(OUTCOME_EXPIRES),
    })
    .collect()
}

/// Time for an approver to decide the outcome of a write.
pub(super) const OUTCOME_EXPIRES: Duration = Duration::from_hours(7 * 24);

pub(super) fn store_error(
    key: &ConversationKey,
    what: &'static str,
    source: StoreError,
) -> TurnError {
    TurnError::Store { key: key.clone(), what, source }
}
