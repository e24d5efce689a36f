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
use crate::schedules;
use crate::services::Services;
use crate::store::{StoreError, StoredDocument};
use crate::telemetry::metrics::Metrics;
use crate::telemetry::trace::Span;
use crate::turn::error::{DeliveryOutcome, OUTCOME_REQUEST_EXPIRES, TurnError, store_error};
use crate::turn::inbox::{self, WaitingItem};
use crate::turn::isolation::{self, Isolation, SuspectAction};
use crate::turn::leased_conversation::{LeasedConversation, acquire_lease};
use crate::turn::nudge::Nudge;
use crate::turn::nudge::enqueue_nudge;
use crate::turn::plan::CommitPlan;
use crate::turn::spans::{self, DeliverySpan};
use crate::turn::{budget_check, crash_count, delivery_cost, error_domain, expiry};

/// Rounds of one delivery; each handles items that arrived during the one before. A flood of items
/// must not occupy a worker for ever.
const ROUNDS_MAX: u32 = 16;

/// Handles one nudge.
///
/// # Errors
/// The message must be delivered again; see [`TurnError`].
#[tracing::instrument(name = "turn", skip_all, fields(conversation.id = %nudge.key.conversation_id))]
pub async fn handle(services: &Services, nudge: &Nudge) -> Result<DeliveryOutcome, TurnError> {
    let work = spans::record_costs(services, async {
        match &nudge.schedule {
            Some(document_id) => {
                Box::pin(schedules::fire::handle_firing(services, nudge, document_id)).await
            }
            None => Box::pin(run_rounds(services, nudge)).await,
        }
    });
    Box::pin(delivery_cost::log_delivery_cost(services, &nudge.key, work)).await
}

async fn run_rounds(services: &Services, nudge: &Nudge) -> Result<DeliveryOutcome, TurnError> {
    let began = services.clock.monotonic();
    // For all rounds together: the host's time-out covers the whole invocation.
    let ends = began + services.limits.turn_duration;
    let mut outcome = DeliveryOutcome::NoWork;
    for _ in 0..ROUNDS_MAX {
        let mut delivery_span = DeliverySpan::start(services, nudge);
        let round = Box::pin(run_shared_round(services, ends, &mut delivery_span)).await;
        if let Err(error) = &round {
            delivery_span.record_failure(error);
        }
        match round? {
            RoundOutcome::NoWork => return Ok(outcome),
            RoundOutcome::Suspect => {
                return Box::pin(isolation::run_isolated(services, nudge, ends)).await;
            }
            RoundOutcome::Done => return Ok(DeliveryOutcome::Worked),
            RoundOutcome::Again => outcome = DeliveryOutcome::Worked,
        }
        // Another round may need a whole turn, so it gets a delivery of its own.
        if services.clock.monotonic() > began + services.limits.turn_duration / 10 {
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
    ends: Duration,
    delivery_span: &mut DeliverySpan<'_>,
) -> Result<RoundOutcome, TurnError> {
    let permit = match &services.isolation {
        Isolation::Isolator(isolator) => isolator.acquire_shared().await,
        Isolation::InIsolatedProcess => None,
    };
    let round = Box::pin(run_round(services, ends, delivery_span, false)).await;
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
    let mut delivery_span = DeliverySpan::start(services, nudge);
    let round = Box::pin(run_round(services, ends, &mut delivery_span, true)).await;
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

async fn run_round(
    services: &Services,
    ends: Duration,
    delivery_span: &mut DeliverySpan<'_>,
    is_alone: bool,
) -> Result<RoundOutcome, TurnError> {
    let key = delivery_span.key();
    services.fail_points.hit("claim.before").await;
    let Some((mut conversation, inbox)) = acquire_lease(services, key, ends).await? else {
        return Ok(RoundOutcome::NoWork);
    };
    services.fail_points.hit("claim.after").await;
    conversation.is_alone = is_alone;
    let work =
        AssertUnwindSafe(Box::pin(run_pending_work(&mut conversation, &inbox, delivery_span)))
            .catch_unwind();
    let outcome = match work.await {
        Ok(outcome) => outcome,
        Err(panic) => {
            // The step caused the panic, so it counts like the death of a process.
            let worker = conversation.worker.clone();
            drop(conversation);
            if let Err(error) = Box::pin(crash_count::count_panic(services, key, &worker)).await {
                tracing::error!(conversation.id = %key.conversation_id, error = %error, "panic of a turn not counted");
            }
            std::panic::resume_unwind(panic)
        }
    };
    if outcome.is_err() {
        Box::pin(conversation.report_lost_call()).await;
    }
    let is_outside_head = conversation.is_outside_head;
    let is_enqueued = conversation.release().await;
    let may_have_missed = match &outcome {
        // The delivery of the nudge just sent reads the inbox before any other.
        Ok(RoundOutcome::Done) => !is_enqueued,
        // A lease in the head was never written, so it blocked no delivery.
        Ok(RoundOutcome::NoWork) => is_outside_head,
        Ok(RoundOutcome::Again | RoundOutcome::Suspect) | Err(_) => false,
    };
    if may_have_missed && has_new_items(services, key).await? {
        return Ok(RoundOutcome::Again);
    }
    outcome
}

/// Reads the inbox after the release: deliveries of items that arrived during the lease were turned
/// away.
async fn has_new_items(services: &Services, key: &ConversationKey) -> Result<bool, TurnError> {
    let read = inbox::read_inbox(services, key).await;
    let waiting = read.map_err(|source| store_error(key, "read the inbox of", source))?;
    services.fail_points.hit("look.after").await;
    // Items that were read and stay in the inbox have no `due` of their own.
    Ok(waiting.iter().any(|waiting| waiting.is_due))
}

async fn run_pending_work(
    conversation: &mut LeasedConversation<'_>,
    inbox: &[StoredDocument],
    delivery_span: &mut DeliverySpan<'_>,
) -> Result<RoundOutcome, TurnError> {
    let now = conversation.services.clock.now();
    let has_expired = expiry::decide_expired(conversation.services, &conversation.head, now)
        .await
        .map_err(|source| conversation.error("decide the expired requests of", source))?;
    let has_budget =
        budget_check::approve_if_budget_freed(conversation.services, conversation, now)
            .await
            .map_err(|source| conversation.error("check the budget request of", source))?;
    let inbox = if has_expired || has_budget {
        inbox::read_inbox(conversation.services, &conversation.key).await
    } else {
        inbox::parse_inbox(inbox)
    };
    conversation.services.fail_points.hit("inbox.after").await;
    let inbox = inbox.map_err(|source| conversation.error("read the inbox of", source))?;
    let inbox = conversation.with_abort_decisions(inbox).await;
    let inbox =
        inbox.map_err(|source| conversation.error("decide the open requests of", source))?;
    let plan = conversation.plan(vec![inbox::inbox_input(&inbox), Input::DrainInbox]);
    let transition = plan.transition();
    let is_applied =
        |item: &InboxItem| transition.receipts.iter().any(|it| it.input_id == item.input_id);
    let has_due_work = conversation.head.next_due(now).is_some_and(|due| due <= now);
    let is_due = (has_due_work && !is_backing_off(&conversation.head, now))
        || conversation.is_pause_lifted();
    let is_unapplied = |waiting: &WaitingItem| waiting.is_due && !is_applied(&waiting.item);
    let has_new_items = inbox.iter().any(is_unapplied)
        || transition.head.waiting_items != conversation.head.waiting_items;
    if transition.receipts.is_empty() && !is_due && !has_new_items {
        return Ok(RoundOutcome::NoWork);
    }
    if transition.receipts.is_empty() && !has_new_items && conversation.is_still_paused(now) {
        return Ok(RoundOutcome::NoWork);
    }
    let suspect = conversation
        .suspect_action(&transition.head, now)
        .filter(|_| !conversation.is_aborted_by(&inbox));
    if suspect == Some(SuspectAction::Isolate) {
        return Ok(RoundOutcome::Suspect);
    }
    conversation.is_commit_only = suspect.is_some();
    let applied: Vec<Arc<InboxItem>> = inbox
        .iter()
        .map(|waiting| Arc::clone(&waiting.item))
        .filter(|item| is_applied(item))
        .collect();
    let span = delivery_span.start_turn(&conversation.head, &applied);
    if span.is_recording() {
        conversation.traceparent = span.traceparent();
    }
    let pending = PendingWork { inbox, has_new_items, plan };
    let outcome = span.run(Box::pin(take_turn(conversation, pending, &span))).await;
    delivery_span.end_turn(&span, &conversation.head.agent, outcome.as_ref().err());
    outcome.map(|()| RoundOutcome::Done)
}

/// Pending work of a conversation.
struct PendingWork {
    inbox: Vec<WaitingItem>,
    has_new_items: bool,
    /// The transition that drains the inbox.
    plan: CommitPlan,
}

async fn take_turn(
    conversation: &mut LeasedConversation<'_>,
    pending: PendingWork,
    span: &Span,
) -> Result<(), TurnError> {
    let PendingWork { inbox, has_new_items, plan } = pending;
    let now = conversation.services.clock.now();
    conversation.load_response().await?;
    let mut inputs = Vec::new();
    let is_aborted = conversation.is_aborted_by(&inbox);
    if conversation.head.is_poisoned() && conversation.death.is_none() && !is_aborted {
        // The end of the prompt is a commit of its own; the next round drains the inbox.
        let reason = conversation.give_up_reason();
        let plan = conversation.plan(vec![inbox::inbox_input(&inbox), Input::Poisoned { reason }]);
        conversation.commit("take-in", plan, &[]).await?;
        span.record_error(&error_domain::poisoned_step());
        record_metric(conversation, |metrics, _| metrics.record_poison("prompt"));
    } else {
        if was_interrupted(&conversation.head) {
            inputs.push(Input::LeaseTakenOver);
            span.set_attribute("turnwheel.recovered", true);
            record_metric(conversation, Metrics::record_recovery);
        }
        // A write was running when its worker stopped, so its outcome is unknown. No request is
        // made if the prompt is aborted.
        if !is_aborted {
            inputs.extend(lost_writes(&conversation.head, now));
        }
        conversation.settle_due(&mut inputs).await;
        let is_plan_current = inputs.is_empty() && conversation.response.is_none();
        inputs.extend([inbox::inbox_input(&inbox), Input::DrainInbox]);
        let mut plan = if is_plan_current { plan } else { conversation.plan(inputs) };
        if conversation.is_commit_only {
            conversation.leave_turn_open(&mut plan);
        } else {
            Box::pin(conversation.check_ready_calls(&mut plan)).await?;
            conversation.run_finish_turn(&mut plan).await?;
            conversation.check_context_window(&mut plan).await?;
            conversation.pause_model_call(&mut plan);
            conversation.plan_reservation(&mut plan).await?;
        }
        // Clearing the mark of a lifted pause needs a commit.
        let is_marked = conversation.head.pause.is_some() || conversation.is_alone;
        let is_plain = plan.inputs().len() == 2
            && !has_new_items
            && conversation.is_outside_head
            && !is_marked;
        if !is_plain || !plan.transition().is_empty() {
            conversation.commit("take-in", plan, &inbox).await?;
        }
    }
    if conversation.is_commit_only || !is_performing(&conversation.head) {
        Box::pin(conversation.settle_when_idle()).await;
        return Ok(());
    }
    let agent = spans::start_agent_span(conversation);
    let outcome = agent.run(Box::pin(perform_turn(conversation))).await;
    let fault = conversation.fault.take();
    if let Some(fault) = outcome.as_ref().err().map(error_domain::classify_turn_error).or(fault) {
        agent.record_error(&fault);
    }
    if outcome.is_ok() {
        Box::pin(conversation.settle_when_idle()).await;
    }
    outcome
}

/// True if the turn has effects to perform.
fn is_performing(head: &Head) -> bool {
    match &head.phase {
        Phase::Idle | Phase::Deleted => false,
        Phase::Model { .. } | Phase::Summary { .. } => {
            !head.is_waiting_for_budget() && head.pause.is_none()
        }
        Phase::Calls { .. } => head.phase.call_batch().is_in_progress(),
    }
}

fn record_metric(conversation: &LeasedConversation<'_>, record: impl FnOnce(&Metrics, &str)) {
    if let Some(metrics) = conversation.services.telemetry.metrics() {
        record(metrics, &conversation.head.agent);
    }
}

/// Performs pending effects until the turn is over.
async fn perform_turn(conversation: &mut LeasedConversation<'_>) -> Result<(), TurnError> {
    loop {
        let now = conversation.services.clock.now();
        match &conversation.head.phase {
            Phase::Idle | Phase::Deleted => return Ok(()),
            Phase::Model { not_before, .. } | Phase::Summary { not_before, .. } => {
                let is_early = not_before.is_some_and(|time| time > now);
                // A commit that kept the lease has decided to continue, whatever time has passed
                // since.
                let can_continue = conversation.head.lease.is_some()
                    || conversation.can_call_model(&conversation.head);
                // Whatever was committed, paused work is not started.
                let is_paused =
                    conversation.services.pauses.find_for_agent(&conversation.head.agent).is_some();
                if is_early
                    || is_paused
                    || !can_continue
                    || !Box::pin(conversation.check_budget()).await?
                {
                    return Ok(());
                }
                if matches!(conversation.head.phase, Phase::Summary { .. }) {
                    Box::pin(conversation.compact()).await?;
                } else {
                    Box::pin(conversation.call_model()).await?;
                }
            }
            Phase::Calls { .. } => {
                if !conversation.head.phase.call_batch().is_in_progress() {
                    return Ok(());
                }
                Box::pin(conversation.run_calls()).await?;
            }
        }
    }
}

/// True if the last worker stopped without releasing its lease.
fn was_interrupted(head: &Head) -> bool {
    head.lease.is_some() || head.phase.call_batch().is_running()
}

/// True if a suspect step waits for its retry time, however often it is nudged.
fn is_backing_off(head: &Head, now: Timestamp) -> bool {
    head.suspicion.retry_at.is_some_and(|time| time > now)
}

pub(crate) fn lost_writes(head: &Head, now: Timestamp) -> Vec<Input> {
    let Phase::Calls { calls, .. } = &head.phase else { return Vec::new() };
    let lost = calls.iter().enumerate().filter(|(_, call)| {
        matches!(call.status, CallStatus::Started { effect: Effect::Write, .. })
    });
    lost.map(|(index, _)| Input::ToolOutcomeUnknown {
        index,
        reason:
            "The worker stopped while this call was under way; whether it happened is not known."
                .to_owned(),
        expires_at: now.plus(OUTCOME_REQUEST_EXPIRES),
    })
    .collect()
}
