//! One delivery of a nudge: leases the conversation, drains the inbox, takes one turn, commits and
//! releases the lease.

use std::any::Any;
use std::panic::AssertUnwindSafe;
use std::time::Duration;

use futures_util::FutureExt as _;
use tokio_util::sync::CancellationToken;

use crate::isolation;
use crate::late_result::{SentWrite, sent_writes};
use crate::leased_conversation::{LeasedConversation, NextNudge, acquire_lease};
use crate::pending_work::{NextStep, read_inbox_with_decisions};
use crate::spans::{self, DeliverySpan};
use crate::unleased_work::{CompletedWork, UnleasedWork};
use crate::{crash_count, delivery_cost, inbox};
use turnwheel_commands::schedules;
use turnwheel_conversation::phase::Phase;
use turnwheel_platform::clock::Timestamp;
use turnwheel_platform::ids::ConversationKey;
use turnwheel_platform::telemetry::trace::Span;
use turnwheel_record::error::{DeliveryOutcome, TurnError, store_error};
use turnwheel_record::error_domain;
use turnwheel_record::isolator::Isolation;
use turnwheel_record::nudge::Nudge;
use turnwheel_record::nudge_sender::enqueue_nudge;
use turnwheel_record::services::Services;
use turnwheel_storage::queue;
use turnwheel_storage::store::outage_retry::repeat_while_store_is_away;
use turnwheel_storage::store::{ETag, Freshness, HEAD_ID, Partition};

/// Rounds of one delivery; each handles items that arrived during the one before. A flood of items
/// must not occupy a worker for ever.
const ROUNDS_MAX: u32 = 16;

/// How a round is taken.
#[derive(Clone, Copy, Debug)]
struct RoundTerms<'a> {
    /// End of the turn, on the monotonic clock.
    ends: Duration,
    /// True if no other turn runs in this process.
    is_alone: bool,
    /// See [`handle_for_client`].
    client: Option<&'a CancellationToken>,
    /// See [`Nudge::expired_lease`].
    expired_lease: Option<Timestamp>,
}

/// Handles one nudge.
///
/// # Errors
/// The message must be delivered again; see [`TurnError`].
pub async fn handle(services: &Services, nudge: &Nudge) -> Result<DeliveryOutcome, TurnError> {
    handle_for_client(services, nudge, None).await
}

/// Handles one nudge in the process at which a client waits for the outcome: one turn follows the other
/// until the client is gone. A step in which a worker has died goes to the queue. `None`: the queue has
/// brought the nudge.
///
/// # Errors
/// As of [`handle`].
#[tracing::instrument(name = "turn", skip_all, fields(conversation.id = %nudge.key.conversation_id))]
pub async fn handle_for_client(
    services: &Services,
    nudge: &Nudge,
    client: Option<&CancellationToken>,
) -> Result<DeliveryOutcome, TurnError> {
    let work = spans::record_costs(services, async {
        match &nudge.schedule {
            Some(document_id) => {
                Box::pin(schedules::fire::handle_firing(services, nudge, document_id)).await
            }
            None => Box::pin(run_rounds(services, nudge, client)).await,
        }
    });
    Box::pin(delivery_cost::log_delivery_cost(services, &nudge.key, work)).await
}

async fn run_rounds(
    services: &Services,
    nudge: &Nudge,
    client: Option<&CancellationToken>,
) -> Result<DeliveryOutcome, TurnError> {
    let began = services.clock.monotonic();
    // For all rounds together: the host's time-out covers the whole invocation.
    let ends = began + services.limits.turn_duration;
    let terms = RoundTerms { ends, is_alone: false, client, expired_lease: nudge.expired_lease };
    let mut outcome = DeliveryOutcome::NoWork;
    let is_client_gone = || client.is_some_and(CancellationToken::is_cancelled);
    for _ in 0..ROUNDS_MAX {
        if is_client_gone() {
            break;
        }
        let mut delivery_span = DeliverySpan::start(services, nudge, client.is_some());
        let round = Box::pin(run_shared_round(services, terms, &mut delivery_span)).await;
        if let Err(error) = &round {
            delivery_span.record_failure(error);
        }
        match round? {
            RoundOutcome::NoWork => return Ok(outcome),
            RoundOutcome::Suspect if client.is_some() => break,
            RoundOutcome::Suspect => {
                return Box::pin(isolation::run_isolated(services, nudge, ends)).await;
            }
            RoundOutcome::Done => return Ok(DeliveryOutcome::Worked),
            RoundOutcome::Again => outcome = DeliveryOutcome::Worked,
        }
        // Another round may need a whole turn, so it gets a delivery of its own.
        if services.shutdown.is_begun()
            || services.clock.monotonic() > began + services.limits.turn_duration / 10
        {
            break;
        }
    }
    enqueue_nudge(services, queue::TURNS, nudge, Duration::ZERO).await;
    Ok(outcome)
}

#[derive(PartialEq, Eq)]
enum RoundOutcome {
    NoWork,
    Done,
    /// Items arrived during the lease.
    Again,
    /// The step is suspect and must run in isolation; the lease is released.
    Suspect,
}

/// Runs one round beside other turns of this process.
async fn run_shared_round(
    services: &Services,
    terms: RoundTerms<'_>,
    delivery_span: &mut DeliverySpan<'_>,
) -> Result<RoundOutcome, TurnError> {
    let permit = match &services.isolation {
        Isolation::Isolator(isolator) => isolator.acquire_shared().await,
        Isolation::InIsolatedProcess => None,
    };
    let round = Box::pin(deliver(services, terms, delivery_span)).await;
    drop(permit);
    round
}

/// Runs one round while no other turn runs in this process. The caller ensures that.
///
/// # Errors
/// As of [`handle`].
pub(crate) async fn deliver_alone(
    services: &Services,
    nudge: &Nudge,
    ends: Duration,
) -> Result<DeliveryOutcome, TurnError> {
    let mut delivery_span = DeliverySpan::start(services, nudge, false);
    let terms =
        RoundTerms { ends, is_alone: true, client: None, expired_lease: nudge.expired_lease };
    let round = Box::pin(deliver(services, terms, &mut delivery_span)).await;
    if let Err(error) = &round {
        delivery_span.record_failure(error);
    }
    match round? {
        RoundOutcome::NoWork | RoundOutcome::Suspect => Ok(DeliveryOutcome::NoWork),
        RoundOutcome::Done => Ok(DeliveryOutcome::Worked),
        RoundOutcome::Again => {
            enqueue_nudge(services, queue::TURNS, nudge, Duration::ZERO).await;
            Ok(DeliveryOutcome::Worked)
        }
    }
}

/// One delivery, from the lease to its release. Each effect commits its result together with the
/// transition to the next effect.
async fn deliver(
    services: &Services,
    terms: RoundTerms<'_>,
    delivery_span: &mut DeliverySpan<'_>,
) -> Result<RoundOutcome, TurnError> {
    let key = delivery_span.key();
    services.fail_points.hit("lease.before").await;
    let lease = || Box::pin(acquire_lease(services, key, terms.ends, terms.expired_lease));
    let leased = Box::pin(repeat_while_store_is_away(&services.shutdown, lease)).await?;
    let Some(mut conversation) = leased else { return Ok(RoundOutcome::NoWork) };
    services.fail_points.hit("lease.after").await;
    conversation.crash.is_alone = terms.is_alone;
    conversation.progress.set_client(terms.client.cloned());
    let completed_before = CompletedWork::of(&conversation.state.head);
    let earlier: Vec<SentWrite> = sent_writes(&conversation.state.head).collect();
    let work = async {
        Box::pin(conversation.state.load_remote_tools(services)).await;
        let now = services.clock.now();
        let inbox = read_inbox_with_decisions(services, &mut conversation.state, now).await?;
        let plan = conversation.state.plan(services, inbox::drain_inputs(&inbox).into());
        let pending = match conversation.find_next_step(inbox, plan, now) {
            NextStep::Release => return Ok(RoundOutcome::NoWork),
            NextStep::Isolate => return Ok(RoundOutcome::Suspect),
            NextStep::Process(pending) => pending,
        };
        let mut span = pending.start_span(&mut conversation, delivery_span);
        let turn = async {
            Box::pin(conversation.commit_pending_work(pending, &span)).await?;
            if has_effects(&conversation) {
                let agent_span = spans::start_agent_span(services, &conversation.state.head);
                let effects = perform_effects(&mut conversation, &earlier);
                let performed = agent_span.run(Box::pin(effects)).await;
                record_fault(&mut conversation, &agent_span, &performed);
                performed?;
            }
            if conversation.has_usage_to_settle() {
                Box::pin(conversation.settle_usage()).await;
            }
            Ok(())
        };
        let outcome = span.run(Box::pin(turn)).await;
        let outcome = to_round_outcome(&conversation, &span, outcome);
        for request in &conversation.telemetry.applied_requests {
            span.add_link(request);
        }
        delivery_span.end_turn(&span, &conversation.state.head.agent, outcome.as_ref().err());
        outcome
    };
    let outcome = match AssertUnwindSafe(Box::pin(work)).catch_unwind().await {
        Ok(outcome) => outcome,
        Err(panic) => count_panic_and_resume(conversation, panic).await,
    };
    if outcome.is_err() {
        Box::pin(conversation.report_lost_call()).await;
    }
    let outcome = match outcome {
        Err(TurnError::Stopped { .. }) => {
            Box::pin(crash_count::give_back(&mut conversation)).await.map(|()| RoundOutcome::Done)
        }
        // Only a read of the head shows that there is nothing to do.
        Ok(RoundOutcome::NoWork | RoundOutcome::Suspect) if conversation.state.is_unconfirmed => {
            Ok(RoundOutcome::Again)
        }
        other => other,
    };
    Box::pin(finish_round(conversation, completed_before, outcome)).await
}

fn to_round_outcome(
    conversation: &LeasedConversation<'_>,
    span: &Span,
    turn: Result<(), TurnError>,
) -> Result<RoundOutcome, TurnError> {
    match turn {
        // The cached head was old: the next round reads it.
        Err(TurnError::LeaseLost { .. }) if conversation.state.is_unconfirmed => {
            span.set_attribute("turnwheel.old_head", true);
            Ok(RoundOutcome::Again)
        }
        outcome => outcome.map(|()| RoundOutcome::Done),
    }
}

/// Releases the lease, and does the work that needs no lease. Other work of the conversation does not
/// wait for it. A last commit that releases the lease has seen every item; a lease outside the head is
/// released after it, so that an item may have come in between.
async fn finish_round(
    conversation: LeasedConversation<'_>,
    completed_before: CompletedWork,
    outcome: Result<RoundOutcome, TurnError>,
) -> Result<RoundOutcome, TurnError> {
    let (services, nudge) = (conversation.services, conversation.nudge());
    if let Some(connection) = &conversation.model_connection {
        connection.close().await;
    }
    let is_outside_head = conversation.lease.is_outside_head;
    let unleased = match &outcome {
        Ok(RoundOutcome::Done | RoundOutcome::NoWork) if !services.shutdown.is_begun() => {
            UnleasedWork::find(&conversation, completed_before)
        }
        Ok(_) | Err(_) => None,
    };
    let (etag, inbox_count) =
        (conversation.state.etag.clone(), conversation.state.head.inbox_count);
    let is_enqueued = conversation.release().await == NextNudge::Immediate;
    let may_have_missed_items = match &outcome {
        // The delivery of the nudge just sent reads the inbox before any other.
        Ok(RoundOutcome::Done | RoundOutcome::NoWork) => is_outside_head && !is_enqueued,
        Ok(RoundOutcome::Again | RoundOutcome::Suspect) | Err(_) => false,
    };
    let has_missed_items =
        may_have_missed_items && has_new_items(services, &nudge.key, &etag, inbox_count).await?;
    if let Some(unleased) = unleased {
        if has_missed_items {
            enqueue_nudge(services, queue::TURNS, &nudge, Duration::ZERO).await;
        }
        Box::pin(unleased.perform()).await;
        return outcome;
    }
    if has_missed_items { Ok(RoundOutcome::Again) } else { outcome }
}

/// Drops the conversation, counts the panic of its step like the death of a process, and resumes
/// the panic.
async fn count_panic_and_resume(
    conversation: LeasedConversation<'_>,
    panic: Box<dyn Any + Send>,
) -> ! {
    let (services, key) = (conversation.services, conversation.state.key.clone());
    let worker = conversation.lease.worker.clone();
    drop(conversation);
    if let Err(error) = Box::pin(crash_count::count_panic(services, &key, &worker)).await {
        tracing::error!(conversation.id = %key.conversation_id, error = %error, "panic of a turn not counted");
    }
    std::panic::resume_unwind(panic)
}

/// True if the inbox has changed since that version of the head: deliveries of items that arrived
/// during the lease were turned away.
async fn has_new_items(
    services: &Services,
    key: &ConversationKey,
    etag: &ETag,
    inbox_count: Option<u32>,
) -> Result<bool, TurnError> {
    let partition = Partition::Conversation(key.clone());
    let read = services.store.read(&partition, HEAD_ID, Freshness::Latest).await;
    let head = read.map_err(|source| store_error(key, "read", source))?;
    services.fail_points.hit("inbox.reread").await;
    Ok(head.is_some_and(|head| head.etag != *etag && head.document.inbox_count != inbox_count))
}

/// True if the turn has effects to perform.
fn has_effects(conversation: &LeasedConversation<'_>) -> bool {
    let head = &conversation.state.head;
    !conversation.crash.is_commit_only
        && match &head.phase {
            Phase::Idle | Phase::Deleted => false,
            Phase::Model { .. } | Phase::Summary { .. } => {
                !head.is_waiting_for_decision() && head.pause.is_none()
            }
            Phase::Calls { .. } => head.phase.call_batch().is_in_progress(),
        }
}

/// An effect that the head's phase asks for.
enum NextEffect {
    CallModel,
    Compact,
    RunCalls,
}

/// Performs the effects of this delivery. `earlier`: the writes that earlier workers had sent.
async fn perform_effects(
    conversation: &mut LeasedConversation<'_>,
    earlier: &[SentWrite],
) -> Result<(), TurnError> {
    crash_count::settle_open_writes(conversation, earlier).await?;
    while let Some(effect) = next_effect(conversation).await? {
        match effect {
            NextEffect::CallModel => Box::pin(conversation.call_model()).await?,
            NextEffect::Compact => Box::pin(conversation.compact()).await?,
            NextEffect::RunCalls => Box::pin(conversation.run_calls()).await?,
        }
    }
    Ok(())
}

/// The next effect of this delivery, whose budget is reserved. `None`: the turn is over, or a later
/// delivery continues it.
async fn next_effect(
    conversation: &mut LeasedConversation<'_>,
) -> Result<Option<NextEffect>, TurnError> {
    let now = conversation.services.clock.now();
    match &conversation.state.head.phase {
        Phase::Idle | Phase::Deleted => Ok(None),
        Phase::Model { not_before, .. } | Phase::Summary { not_before, .. } => {
            let is_early = not_before.is_some_and(|time| time > now);
            // A commit that kept the lease has decided to continue, whatever time has passed since.
            let can_continue = conversation.state.head.lease.is_some()
                || conversation.can_call_model(&conversation.state.head);
            // Whatever was committed, paused work is not started.
            let pauses = &conversation.services.pauses;
            let is_paused = pauses.find_for_agent(&conversation.state.head.agent).is_some();
            if is_early || is_paused || !can_continue || !conversation.check_budget().await? {
                return Ok(None);
            }
            let is_summary = matches!(conversation.state.head.phase, Phase::Summary { .. });
            Ok(Some(if is_summary { NextEffect::Compact } else { NextEffect::CallModel }))
        }
        Phase::Calls { .. } => {
            let is_in_progress = conversation.state.head.phase.call_batch().is_in_progress();
            Ok(is_in_progress.then_some(NextEffect::RunCalls))
        }
    }
}

/// Records the error that ended the turn or the prompt.
fn record_fault(
    conversation: &mut LeasedConversation<'_>,
    agent_span: &Span,
    performed: &Result<(), TurnError>,
) {
    let fault = conversation.telemetry.fault.take();
    let error = performed.as_ref().err().map(error_domain::classify_turn_error);
    if let Some(fault) = error.or(fault) {
        agent_span.record_error(&fault);
    }
}
