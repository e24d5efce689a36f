//! Pending work of a leased conversation: the inbox with its automatic decisions, what there is to
//! do, and the first commit of a delivery.

use std::sync::Arc;

use crate::agent::head::Head;
use crate::agent::inbox::InboxItem;
use crate::agent::step::Input;
use crate::clock::Timestamp;
use crate::store::StoredDocument;
use crate::telemetry::metrics::Metrics;
use crate::telemetry::trace::Span;
use crate::turn::crash_count::lost_writes;
use crate::turn::error::TurnError;
use crate::turn::inbox::{self, WaitingItem};
use crate::turn::isolator::SuspectAction;
use crate::turn::leased_conversation::LeasedConversation;
use crate::turn::plan::CommitPlan;
use crate::turn::spans::DeliverySpan;
use crate::turn::{budget_check, error_domain, expiry};

/// The work of a delivery on its leased conversation.
pub(crate) enum NextStep {
    /// Nothing is due.
    Release,
    /// The step is suspect: release the lease and run it in isolation.
    Isolate,
    Process(Box<PendingWork>),
}

/// Pending work of a conversation.
pub(crate) struct PendingWork {
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
        let span = delivery_span.start_turn(&conversation.head, &applied);
        if span.is_recording() {
            conversation.traceparent = span.traceparent();
        }
        span
    }
}

impl LeasedConversation<'_> {
    /// The inbox, with the decisions of expired requests, of requests whose budget is available
    /// again, and of an aborted prompt's requests. `stored` is the inbox as the lease returned it.
    pub(crate) async fn read_inbox_with_decisions(
        &self,
        stored: &[StoredDocument],
        now: Timestamp,
    ) -> Result<Vec<WaitingItem>, TurnError> {
        let services = self.services;
        let has_expired = expiry::decide_expired(services, &self.head, now)
            .await
            .map_err(|source| self.error("decide the expired requests of", source))?;
        let has_budget = budget_check::approve_if_budget_freed(services, self, now)
            .await
            .map_err(|source| self.error("check the budget request of", source))?;
        let inbox = if has_expired || has_budget {
            inbox::read_inbox(services, &self.key).await
        } else {
            inbox::parse_inbox(stored)
        };
        services.fail_points.hit("inbox.after").await;
        let inbox = inbox.map_err(|source| self.error("read the inbox of", source))?;
        let inbox = self.with_abort_decisions(inbox).await;
        inbox.map_err(|source| self.error("decide the open requests of", source))
    }

    /// Decides the next step from the transition that drains the inbox.
    pub(crate) fn find_next_step(
        &mut self,
        inbox: Vec<WaitingItem>,
        plan: CommitPlan,
        now: Timestamp,
    ) -> NextStep {
        let transition = plan.transition();
        let has_due_work = self.head.next_due(now).is_some_and(|due| due <= now);
        let is_due = (has_due_work && !is_backing_off(&self.head, now)) || self.is_pause_lifted();
        let is_unapplied =
            |waiting: &WaitingItem| waiting.is_due && !is_applied(&plan, &waiting.item);
        let has_new_items = inbox.iter().any(is_unapplied)
            || transition.head.waiting_items != self.head.waiting_items;
        if transition.receipts.is_empty()
            && !has_new_items
            && (!is_due || self.is_still_paused(now))
        {
            return NextStep::Release;
        }
        let suspect =
            self.suspect_action(&transition.head, now).filter(|_| !self.is_aborted_by(&inbox));
        if suspect == Some(SuspectAction::Isolate) {
            return NextStep::Isolate;
        }
        self.is_commit_only = suspect.is_some();
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
        self.load_response().await?;
        let is_aborted = self.is_aborted_by(&inbox);
        if self.head.is_poisoned() && self.death.is_none() && !is_aborted {
            return self.fail_poisoned_prompt(&inbox, span).await;
        }
        let mut inputs = self.recovery_inputs(is_aborted, now, span);
        self.settle_due(&mut inputs).await;
        let is_plan_current = inputs.is_empty() && self.response.is_none();
        inputs.extend(drain_inputs(&inbox));
        let mut plan = if is_plan_current { plan } else { self.plan(inputs) };
        if self.is_commit_only {
            self.leave_turn_open(&mut plan);
        } else {
            Box::pin(self.check_ready_calls(&mut plan)).await?;
            self.run_finish_turn(&mut plan).await?;
            self.check_context_window(&mut plan).await?;
            self.pause_model_call(&mut plan);
            self.plan_reservation(&mut plan).await?;
        }
        // Clearing the mark of a lifted pause needs a commit.
        let is_marked = self.head.pause.is_some() || self.is_alone;
        let is_plain =
            plan.inputs().len() == 2 && !has_new_items && self.is_outside_head && !is_marked;
        if is_plain && plan.transition().is_empty() {
            return Ok(());
        }
        self.commit("take-in", plan, &inbox).await
    }

    /// The end of the prompt is a commit of its own; the next round drains the inbox.
    async fn fail_poisoned_prompt(
        &mut self,
        inbox: &[WaitingItem],
        span: &Span,
    ) -> Result<(), TurnError> {
        let reason = self.give_up_reason();
        let plan = self.plan(vec![inbox::inbox_input(inbox), Input::Poisoned { reason }]);
        self.commit("take-in", plan, &[]).await?;
        span.record_error(&error_domain::poisoned_step());
        self.record_metric(|metrics, _| metrics.record_poison("prompt"));
        Ok(())
    }

    /// Inputs that report the interruption of the last worker.
    fn recovery_inputs(&self, is_aborted: bool, now: Timestamp, span: &Span) -> Vec<Input> {
        let mut inputs = Vec::new();
        if was_interrupted(&self.head) {
            inputs.push(Input::LeaseTakenOver);
            span.set_attribute("turnwheel.recovered", true);
            self.record_metric(Metrics::record_recovery);
        }
        // A write was running when its worker stopped, so its outcome is unknown. No request is
        // made if the prompt is aborted.
        if !is_aborted {
            inputs.extend(lost_writes(&self.head, now));
        }
        inputs
    }

    fn record_metric(&self, record: impl FnOnce(&Metrics, &str)) {
        if let Some(metrics) = self.services.telemetry.metrics() {
            record(metrics, &self.head.agent);
        }
    }
}

/// The inputs that drain the inbox.
pub(crate) fn drain_inputs(inbox: &[WaitingItem]) -> [Input; 2] {
    [inbox::inbox_input(inbox), Input::DrainInbox]
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
