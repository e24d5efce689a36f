//! Pending work of a leased conversation: the inbox with its automatic decisions, what there is to
//! do, and the commits that drain the inbox.

use std::sync::Arc;

use futures_util::future::BoxFuture;

use crate::commit::CommitKind;
use crate::conversation_state::ConversationState;
use crate::finish_turn::leave_turn_open;
use crate::inbox::{self, WaitingItem};
use crate::late_result::lost_writes;
use crate::leased_conversation::LeasedConversation;
use crate::plan::CommitPlan;
use crate::spans::DeliverySpan;
use crate::stages::{InboxRead, run_stages};
use crate::{abort_signal, budget_check, pause};
use turnwheel_conversation::head::Head;
use turnwheel_conversation::inbox::{InboxItem, NEXT_TURN_MESSAGES_MAX};
use turnwheel_conversation::phase::Phase;
use turnwheel_conversation::step::{Input, Replan};
use turnwheel_platform::clock::Timestamp;
use turnwheel_platform::telemetry::trace::Span;
use turnwheel_record::contract::INBOX_ITEMS_MAX;
use turnwheel_record::error::TurnError;
use turnwheel_record::isolator::SuspectAction;
use turnwheel_record::services::Services;
use turnwheel_record::{error_domain, expiry};
use turnwheel_storage::store::StoreError;

/// Times that the commit of a result reads an inbox that keeps changing.
const REREADS_MAX: u32 = 5;

/// The work of a delivery on its leased conversation.
#[derive(Debug)]
pub enum NextStep {
    /// Nothing is due.
    Release,
    /// The step is suspect: release the lease and run it in isolation. Also a step in which a worker died,
    /// if this process took it for a client: the queue brings it then.
    Isolate,
    Process(Box<PendingWork>),
}

/// Pending work of a conversation.
#[derive(Debug)]
pub struct PendingWork {
    inbox: Vec<WaitingItem>,
    has_new_items: bool,
    /// The transition that drains the inbox.
    plan: CommitPlan,
}

impl PendingWork {
    pub(crate) fn start_span(
        &self,
        conversation: &mut LeasedConversation<'_>,
        delivery_span: &mut DeliverySpan<'_>,
    ) -> Span {
        let items = self.inbox.iter().map(|waiting| Arc::clone(&waiting.item));
        let applied: Vec<Arc<InboxItem>> =
            items.filter(|item| is_applied(&self.plan, item)).collect();
        let span = delivery_span.start_turn(&conversation.state.head, &applied);
        if span.is_recording() {
            conversation.telemetry.traceparent = span.traceparent();
        }
        span
    }
}

/// The inbox, with the decisions of expired requests, of requests whose budget is available again,
/// and of an aborted prompt's requests.
pub(crate) async fn read_inbox_with_decisions(
    services: &Services,
    state: &mut ConversationState,
    now: Timestamp,
) -> Result<Vec<WaitingItem>, TurnError> {
    let freed = budget_check::approve_if_budget_freed(services, state, now)
        .await
        .map_err(|source| state.error("check the budget request of", source))?;
    let inbox = state.read_inbox(services).await;
    services.fail_points.hit("inbox.after").await;
    let mut inbox = inbox.map_err(|source| state.error("read the inbox of", source))?;
    inbox::add_new_items(&mut inbox, expiry::expired_decisions(&state.head, now).chain(freed));
    abort_signal::add_abort_decisions(services, &state.head, &mut inbox);
    Ok(inbox)
}

/// The inbox of a commit. Returns `None` if the store is unavailable: known results are still
/// committed, but nothing new may start, because an abort could be waiting.
async fn read_inbox_for_commit(
    services: &Services,
    state: &mut ConversationState,
) -> Option<Vec<WaitingItem>> {
    match state.read_inbox(services).await {
        Ok(mut waiting) => {
            abort_signal::add_abort_decisions(services, &state.head, &mut waiting);
            Some(waiting)
        }
        Err(error) => {
            tracing::warn!(conversation.id = %state.key.conversation_id, error = %error, "inbox read failed; the next turn reads it");
            None
        }
    }
}

impl LeasedConversation<'_> {
    /// Decides the next step from the transition that drains the inbox.
    pub(crate) fn find_next_step(
        &mut self,
        inbox: Vec<WaitingItem>,
        plan: CommitPlan,
        now: Timestamp,
    ) -> NextStep {
        let (services, head, transition) = (self.services, &self.state.head, plan.transition());
        let has_due_work = head.next_leased_due(now).is_some_and(|due| due <= now);
        let is_due = head.has_expired_mark(now)
            || (has_due_work && !is_backing_off(head, now))
            || pause::is_pause_lifted(services, head);
        // The commit sets the count and the time of the items left.
        let has_new_items = transition.head.waiting_items != head.waiting_items
            || head.inbox_count != self.state.inbox.after_drain(transition).count()
            || (!is_due && head.due.is_some_and(|due| due <= now));
        if transition.receipts.is_empty()
            && !has_new_items
            && (!is_due || pause::is_still_paused(services, head, now))
        {
            return NextStep::Release;
        }
        let suspect = self
            .crash
            .suspect_action(&services.isolation, &transition.head, now)
            .filter(|_| !abort_signal::is_aborted_by(head, &inbox));
        let has_died = self.crash.death.is_some() || head.leases_without_progress > 0;
        if suspect == Some(SuspectAction::Isolate) || (has_died && self.progress.is_for_client()) {
            return NextStep::Isolate;
        }
        self.crash.is_commit_only = suspect.is_some();
        NextStep::Process(Box::new(PendingWork { inbox, has_new_items, plan }))
    }

    /// Commits the drained inbox, the outcome of an interrupted step, and the intents of the next
    /// effects. Writes nothing if there is nothing to record.
    pub(crate) async fn commit_pending_work(
        &mut self,
        pending: Box<PendingWork>,
        span: &Span,
    ) -> Result<(), TurnError> {
        let PendingWork { inbox, has_new_items, plan } = *pending;
        let now = self.services.clock.now();
        self.state.load_run(self.services).await?;
        let is_aborted = abort_signal::is_aborted_by(&self.state.head, &inbox);
        if self.state.head.is_poisoned() && self.crash.death.is_none() && !is_aborted {
            return self.fail_poisoned_prompt(&inbox, span).await;
        }
        let mut inputs = recovery_inputs(self.services, &self.state.head, &inbox, now, span);
        budget_check::settle_due(self.services, &self.state.head, &mut inputs).await;
        let is_plan_current =
            inputs.is_empty() && self.state.response.is_none() && self.state.run_prompt.is_none();
        inputs.extend(inbox::drain_inputs(&inbox));
        let mut plan = if is_plan_current { plan } else { self.state.plan(self.services, inputs) };
        if self.crash.is_commit_only {
            leave_turn_open(self, &mut plan);
        } else {
            let kind = CommitKind::PendingWork;
            let stages: BoxFuture<'_, _> =
                Box::pin(run_stages(self, &mut plan, kind, InboxRead::First));
            stages.await?;
        }
        // Clearing the mark of a lifted pause needs a commit.
        let is_marked = self.state.head.pause.is_some()
            || self.crash.is_alone
            || self.progress.is_client_gone()
            || self.state.head.has_expired_mark(now);
        let is_plain =
            plan.inputs().len() == 2 && !has_new_items && self.lease.is_outside_head && !is_marked;
        if is_plain && plan.transition().is_empty() {
            // The plan drains nothing: the items left wait for the phase.
            self.state.inbox = self.state.inbox.after_drain(plan.transition());
            return Ok(());
        }
        self.commit(CommitKind::PendingWork, plan).await
    }

    /// The end of the prompt is a commit of its own; the next round drains the inbox.
    async fn fail_poisoned_prompt(
        &mut self,
        inbox: &[WaitingItem],
        span: &Span,
    ) -> Result<(), TurnError> {
        let reason = give_up_reason(&self.state);
        let plan = self
            .state
            .plan(self.services, vec![inbox::inbox_input(inbox), Input::Poisoned { reason }]);
        self.commit(CommitKind::PendingWork, plan).await?;
        span.record_error(&error_domain::poisoned_step());
        if let Some(metrics) = self.services.telemetry.metrics() {
            metrics.record_poison("prompt");
        }
        Ok(())
    }

    /// Rebuilds the inputs on the current inbox, after it has changed. Speculative inputs are dropped
    /// and computed again.
    pub(crate) async fn rebase_inputs(
        &mut self,
        kind: CommitKind,
        inputs: &[Input],
        rereads: u32,
    ) -> Result<Vec<Input>, TurnError> {
        // A commit without a result is nothing without the inbox.
        let has_results =
            !Input::retain(inputs, Replan::WithoutInbox).iter().all(Input::is_of_extension);
        let items_max = INBOX_ITEMS_MAX + NEXT_TURN_MESSAGES_MAX;
        let rereads_max = if has_results { REREADS_MAX } else { items_max };
        let waiting = if rereads < rereads_max {
            read_inbox_for_commit(self.services, &mut self.state).await.map(|mut waiting| {
                inbox::add_new_items(&mut waiting, inbox::new_items_of(inputs));
                self.kept_results.filter(waiting, inputs)
            })
        } else {
            None
        };
        let Some(waiting) = waiting else {
            // Keep the results; the next turn reads the inbox.
            return if has_results {
                Ok(Input::retain(inputs, Replan::WithoutInbox))
            } else {
                Err(self.state.error("commit", StoreError::Conflict))
            };
        };
        let rebased = |input: Input| {
            if matches!(input, Input::InboxRead(_)) { inbox::inbox_input(&waiting) } else { input }
        };
        let remaining = Input::retain(inputs, Replan::ChangedInbox).into_iter();
        let remaining: Vec<Input> = remaining.map(rebased).collect();
        if remaining.iter().any(|input| matches!(input, Input::DrainInbox)) {
            self.progress.repeat_hooks(self.services.clock.monotonic());
            let mut plan = self.state.plan(self.services, remaining);
            let stages: BoxFuture<'_, _> =
                Box::pin(run_stages(self, &mut plan, kind, InboxRead::Again));
            stages.await?;
            return Ok(plan.into_inputs());
        }
        Ok(remaining)
    }

    /// Commits results together with new inbox items and the intents of the next effects.
    pub(crate) async fn commit_with_inbox(
        &mut self,
        kind: CommitKind,
        done: Vec<Input>,
    ) -> Result<(), TurnError> {
        // The ledger was updated before this result: it does not include the result's cost.
        let done: Vec<Input> = self.costs.take_ledger_input().into_iter().chain(done).collect();
        let waiting = read_inbox_for_commit(self.services, &mut self.state).await;
        let waiting = waiting.map(|waiting| self.kept_results.filter(waiting, &done));
        let inputs = match &waiting {
            Some(waiting) => [inbox::inbox_input(waiting)]
                .into_iter()
                .chain(done)
                .chain([Input::DrainInbox])
                .collect(),
            None => done,
        };
        let mut plan = self.state.plan(self.services, inputs);
        let read = if waiting.is_some() { InboxRead::First } else { InboxRead::Unavailable };
        let stages: BoxFuture<'_, _> = Box::pin(run_stages(self, &mut plan, kind, read));
        stages.await?;
        self.commit(kind, plan).await
    }
}

/// Inputs that report the interruption of the last worker.
fn recovery_inputs(
    services: &Services,
    head: &Head,
    inbox: &[WaitingItem],
    now: Timestamp,
    span: &Span,
) -> Vec<Input> {
    let mut inputs = Vec::new();
    if was_interrupted(head) {
        inputs.push(Input::LeaseTakenOver);
        span.set_attribute("turnwheel.recovered", true);
        if let Some(metrics) = services.telemetry.metrics() {
            metrics.record_recovery(&head.agent);
        }
    }
    // A write was running when its worker stopped, so its outcome is unknown. No request is made if
    // the prompt is aborted.
    if !abort_signal::is_aborted_by(head, inbox) {
        inputs.extend(lost_writes(head, inbox, now));
    }
    inputs
}

/// Why the step is given up, in one sentence. Load the response with open calls first.
fn give_up_reason(state: &ConversationState) -> String {
    let step = match &state.head.phase {
        Phase::Model { .. } => "the model call".to_owned(),
        Phase::Summary { .. } => "the summary of the conversation".to_owned(),
        Phase::Calls { calls, .. } => {
            let open = calls.iter().enumerate().filter(|(_, call)| !call.is_done());
            let calls: Vec<_> = open.filter_map(|(index, _)| state.open_call(index)).collect();
            let names: Vec<String> = calls.iter().map(|call| format!("`{}`", call.name)).collect();
            let noun = if names.len() == 1 { "the call of tool" } else { "the calls of tools" };
            format!("{noun} {}", names.join(", "))
        }
        Phase::Idle | Phase::Deleted => "no step".to_owned(),
    };
    let deaths = state.head.suspicion.isolated_deaths;
    let times = if deaths == 3 { "three".to_owned() } else { deaths.to_string() };
    format!("The process died {times} times while it ran this step alone: {step}.")
}

fn is_applied(plan: &CommitPlan, item: &InboxItem) -> bool {
    plan.transition().receipts.iter().any(|receipt| receipt.input_id == item.input_id)
}

/// True if the last worker stopped without releasing its lease.
fn was_interrupted(head: &Head) -> bool {
    head.lease.is_some() || head.phase.call_batch().is_running()
}

/// True if a suspect step waits for its retry time, however often it is nudged.
fn is_backing_off(head: &Head, now: Timestamp) -> bool {
    head.suspicion.retry_at.is_some_and(|time| time > now)
}
