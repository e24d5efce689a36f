//! One delivery of a nudge: claim, take in what waits, take one turn, commit, let go, look once more.

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

/// Deliveries of one nudge, one for each time that something came in meanwhile: a flood must not hold a worker for ever.
const ROUNDS_MAX: u32 = 16;

/// Why a delivery stopped before its work was done. None of these loses anything: what is owed stands in the store.
#[derive(Debug, thiserror::Error)]
pub enum TurnError {
    /// Somebody else holds the conversation now: acknowledge.
    #[error("the claim on {key} was lost")]
    ClaimLost { key: ConversationKey },
    /// Deliver again later.
    #[error("could not {what} {key}")]
    Store { key: ConversationKey, what: &'static str, source: StoreError },
}

/// What a delivery came to.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Handled {
    /// Nothing was owed, or somebody else is at it.
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
    // Of all rounds together: the host counts the whole invocation.
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
        // Another round may need a whole turn: it gets a delivery of its own.
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
    /// Something came in while the claim was held.
    Again,
    /// The step is suspect and runs in isolation; the lease is given back.
    Suspect,
}

/// Beside other turns of this process.
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

/// While no other turn runs in this process, which the caller sees to.
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
            // The panic is the step's: as with a process that died, it counts.
            let worker = hold.worker.clone();
            drop(hold);
            if let Err(error) = Box::pin(recount::bury_panicked(world, key, &worker)).await {
                tracing::error!(conversation.id = %key.conversation_id, error = %error, "panic of a turn not counted conversation={}", key.conversation_id);
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
        // The delivery that was just rung for will look, and it comes before anything else could.
        Ok(Round::Done) => !is_rung,
        // Nobody was kept away where the head carries the claim: it was never written.
        Ok(Round::Nothing) => is_settled,
        Ok(Round::Again | Round::Suspect) | Err(_) => false,
    };
    if may_have_missed && has_news(world, key).await? {
        return Ok(Round::Again);
    }
    outcome
}

/// Release, then look: what came in while the claim was held found nobody to take it.
async fn has_news(world: &World, key: &ConversationKey) -> Result<bool, TurnError> {
    let looked = inbox::look(world, key).await;
    let waiting = looked.map_err(|source| store_error(key, "look at", source))?;
    world.probe.reached("look.after").await;
    // What was looked at and left waiting owes nothing by itself.
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
        .map_err(|source| hold.error("expire", source))?;
    let has_room = paying::decide_freed(hold.world, hold, now)
        .await
        .map_err(|source| hold.error("free", source))?;
    let inbox = if has_expired || has_room {
        inbox::look(hold.world, &hold.key).await
    } else {
        inbox::in_order(inbox)
    };
    hold.world.probe.reached("inbox.after").await;
    let inbox = inbox.map_err(|source| hold.error("read the inbox of", source))?;
    let inbox = hold.with_decisions(inbox).await;
    let inbox = inbox.map_err(|source| hold.error("decide what was asked in", source))?;
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

/// What a look at a conversation has found.
struct Found {
    inbox: Vec<Waiting>,
    is_news: bool,
    /// What taking it in comes to.
    tried: Tried,
}

async fn take_turn(hold: &mut Hold<'_>, found: Found, span: &Span) -> Result<(), TurnError> {
    let Found { inbox, is_news, tried } = found;
    let now = hold.world.clock.now();
    hold.load_answer().await?;
    let mut inputs = Vec::new();
    let is_stopped = hold.is_stopped_by(&inbox);
    if hold.head.is_hopeless() && hold.death.is_none() && !is_stopped {
        // The end of the prompt is a commit of its own: what would land now lands in the next round.
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
        // A write that was under way when its worker stopped: nobody knows whether it happened. Where the prompt is stopped,
        // nobody is asked.
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
        // The mark of a brake that was taken off goes with a commit.
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

/// Whether the turn has anything to perform.
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

/// Performs what is owed until the turn is over.
async fn turn(hold: &mut Hold<'_>) -> Result<(), TurnError> {
    loop {
        let now = hold.world.clock.now();
        match &hold.head.phase {
            Phase::Idle | Phase::Deleted => return Ok(()),
            Phase::Model { not_before, .. } | Phase::Summary { not_before, .. } => {
                let is_early = not_before.is_some_and(|time| time > now);
                // A commit that kept the claim has promised to go on: time that passed since changes nothing.
                let goes_on = hold.head.claim.is_some() || hold.may_answer(&hold.head);
                // Whatever was committed: what is paused is not begun.
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

/// Whether the last holder stopped without letting go.
fn was_interrupted(head: &Head) -> bool {
    head.claim.is_some() || head.phase.batch().is_running()
}

/// A suspect step waits for its time, however often it is nudged.
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

/// How long a person has to say what became of a write.
pub(super) const OUTCOME_EXPIRES: Duration = Duration::from_hours(7 * 24);

pub(super) fn store_error(
    key: &ConversationKey,
    what: &'static str,
    source: StoreError,
) -> TurnError {
    TurnError::Store { key: key.clone(), what, source }
}
