//! Budget checks of a turn: reserves the next model call, requests a limit increase, and posts
//! usage to the tenant's ledger.

mod estimate;

use std::time::Duration;

use crate::commit::CommitKind;
use crate::conversation_state::ConversationState;
use crate::leased_conversation::LeasedConversation;
use crate::plan::CommitPlan;
use turnwheel_conversation::budget::{AccountAlert, BudgetLevel};
use turnwheel_conversation::head::{Head, is_model_call_due};
use turnwheel_conversation::inbox::InboxItem;
use turnwheel_conversation::pause::DeferReason;
use turnwheel_conversation::request::{Decision, RequestKind, Verdict};
use turnwheel_conversation::step::{BudgetApprovalSpec, BudgetInput, Input, find_exceeded_budget};
use turnwheel_platform::clock::Timestamp;
use turnwheel_record::error::TurnError;
use turnwheel_record::expiry;
use turnwheel_record::ledger;
use turnwheel_record::ledger::{PostOutcome, PostResult};
use turnwheel_record::services::Services;
use turnwheel_storage::store::StoreError;

/// Time for an approver to decide a budget request.
const BUDGET_REQUEST_EXPIRES: Duration = Duration::from_hours(7 * 24);
/// Delay of a retry while running calls may use the remaining budget.
const IN_USE_RETRY: Duration = Duration::from_secs(5);
/// Delay of a retry while the ledger is unavailable.
const LEDGER_RETRY: Duration = Duration::from_secs(10);
/// Bounds of the interval at which a waiting prompt rechecks its budget. The interval grows with
/// the age of the request.
const RECHECK_MIN: Duration = Duration::from_mins(1);
const RECHECK_MAX: Duration = Duration::from_mins(15);

impl LeasedConversation<'_> {
    /// True after a delivery that leaves nothing running, if its usage counts against a limit: an
    /// unused reservation blocks other calls. Without limits it blocks nothing, and the usage is
    /// posted later.
    pub(crate) fn has_usage_to_settle(&self) -> bool {
        let (head, now) = (&self.state.head, self.services.clock.now());
        let continues = self.nudge_at.is_some_and(|at| at <= now) || head.reservation.is_some();
        let has_usage_due = head.metering.settle_at.is_some() && head.lease.is_none();
        has_usage_due
            && !continues
            && !self.services.spending_limits.limiting_accounts(head).is_empty()
    }

    pub(crate) async fn settle_usage(&mut self) {
        let settled = post_usage(self.services, &self.state.head).await;
        let plan = self.state.plan(self.services, vec![settled]);
        if let Err(error) = self.commit(CommitKind::Settlement, plan).await {
            tracing::debug!(conversation.id = %self.state.key.conversation_id, error = %error, "ledger update not recorded; another worker has the conversation");
        }
    }

    /// Like [`LeasedConversation::plan_reservation`], for a further call of this delivery.
    pub(crate) async fn reserve_next(&mut self, plan: &mut CommitPlan) -> Result<(), TurnError> {
        let can_continue = self.can_call_model(&plan.transition().head);
        if can_continue { self.plan_reservation(plan).await } else { Ok(()) }
    }

    /// Adds the reservation of the model call that the inputs lead to, if this delivery makes the
    /// call.
    pub(crate) async fn plan_reservation(
        &mut self,
        plan: &mut CommitPlan,
    ) -> Result<(), TurnError> {
        let transition = plan.transition();
        if !is_model_call_due(&transition.head, transition.now) {
            return Ok(());
        }
        let (tenant, user) = (&self.state.key.tenant, &self.state.key.user);
        let now = self.services.clock.monotonic();
        let rate_limiter = &self.services.spending_limits.rate_limiter;
        let passed = self.costs.pass_rate_limit(|| rate_limiter.take_model_call(tenant, user, now));
        if let Err(wait) = passed {
            let until = transition.now.plus(wait.max(Duration::from_millis(1)));
            let deferral = BudgetInput::Deferred {
                reason: DeferReason::RateLimit,
                until,
                keeps_reservation: true,
            };
            plan.add(Input::BudgetChecked(Box::new(deferral)));
            return Ok(());
        }
        let is_bounded = transition.policy.budget.is_some()
            || !self.services.spending_limits.limiting_accounts(&self.state.head).is_empty();
        if transition.head.reservation.is_some() || !is_bounded {
            return Ok(());
        }
        let estimate = estimate::estimate_call_cost(self.services, &self.state, plan).await?;
        let approval = approval_spec(transition.now, vec!["owner".to_owned(), "link".to_owned()]);
        plan.add(Input::BudgetChecked(Box::new(BudgetInput::Reserve { estimate, approval })));
        Ok(())
    }

    /// Returns true if the model may be called now. Otherwise commits the reason for waiting,
    /// without a reservation.
    pub(crate) async fn check_budget(&mut self) -> Result<bool, TurnError> {
        let mut plan = self.state.plan(self.services, Vec::new());
        self.plan_reservation(&mut plan).await?;
        if !plan.inputs().is_empty() {
            self.commit(CommitKind::Reservation, plan).await?;
            if self.state.head.lease.is_none() {
                return Ok(false);
            }
        }
        if !is_model_call_due(&self.state.head, self.services.clock.now()) {
            return Ok(false);
        }
        if self.state.head.reservation.is_none()
            || self.services.spending_limits.limiting_accounts(&self.state.head).is_empty()
        {
            return Ok(true);
        }
        let posted = ledger::post(self.services, &self.state.head).await;
        let now = self.services.clock.now();
        let (outcome, alerts) = match posted {
            Ok(posted) => (Ok(posted.outcome), posted.alerts),
            Err(error) => (Err(error), Vec::new()),
        };
        let paying = match outcome {
            Ok(PostOutcome::Reserved | PostOutcome::Settled) => {
                self.costs.record_ledger_update(settled_input(&self.state.head, alerts));
                self.ensure_lease().await?;
                return Ok(true);
            }
            Ok(PostOutcome::Exhausted(shortage)) => {
                let approval = approval_spec(now, self.services.spending_limits.approvers.clone());
                BudgetInput::AccountExceeded { exceeded: shortage, approval }
            }
            Ok(PostOutcome::InUse) => BudgetInput::Deferred {
                reason: DeferReason::BudgetInUse,
                until: now.plus(IN_USE_RETRY),
                keeps_reservation: false,
            },
            Ok(PostOutcome::Superseded) => {
                return Err(self.state.lease_lost());
            }
            Err(error @ (StoreError::Unavailable(_) | StoreError::Conflict)) => {
                tracing::warn!(conversation.id = %self.state.key.conversation_id, tenant = %self.state.key.tenant, error = %error, "tenant ledger unavailable; model call deferred");
                let until = now.plus(LEDGER_RETRY);
                let deferral = BudgetInput::Deferred {
                    reason: DeferReason::LedgerUnavailable,
                    until,
                    keeps_reservation: true,
                };
                let plan =
                    self.state.plan(self.services, vec![Input::BudgetChecked(Box::new(deferral))]);
                self.costs.give_up_call();
                self.commit(CommitKind::Reservation, plan).await?;
                return Ok(false);
            }
            Err(error) => return Err(self.state.error("update the ledger for", error)),
        };
        self.costs.give_up_call();
        let inputs = [settled_input(&self.state.head, alerts), paying]
            .map(|paying| Input::BudgetChecked(Box::new(paying)));
        let plan = self.state.plan(self.services, inputs.into());
        self.commit(CommitKind::Reservation, plan).await?;
        Ok(false)
    }
}

/// Posts overdue usage to the tenant's ledger. The added inputs record the outcome.
pub(crate) async fn settle_due(services: &Services, head: &Head, inputs: &mut Vec<Input>) {
    let now = services.clock.now();
    if head.metering.settle_at.is_some_and(|at| at <= now) {
        inputs.push(post_usage(services, head).await);
    }
    if head.metering.recheck_at.is_some_and(|at| at <= now) {
        let at = recheck_at(head, now);
        inputs.push(Input::BudgetChecked(Box::new(BudgetInput::RecheckAt(at))));
    }
}

async fn post_usage(services: &Services, head: &Head) -> Input {
    let paying = match ledger::post(services, head).await {
        Ok(PostResult { outcome: PostOutcome::Superseded, .. }) => {
            BudgetInput::SettleAt(ledger::retry_at(services.clock.now()))
        }
        Ok(PostResult { alerts, .. }) => settled_input(head, alerts),
        Err(error) => {
            tracing::warn!(conversation.id = %head.conversation_id, tenant = %head.tenant, error = %error, "usage not posted to the ledger; retrying later");
            BudgetInput::SettleAt(ledger::retry_at(services.clock.now()))
        }
    };
    Input::BudgetChecked(Box::new(paying))
}

fn settled_input(head: &Head, alerts: Vec<AccountAlert>) -> BudgetInput {
    let metering = &head.metering;
    BudgetInput::Settled {
        spent: metering.spent,
        increases: metering.approved_increases.clone(),
        alerts,
    }
}

fn approval_spec(now: Timestamp, approvers: Vec<String>) -> BudgetApprovalSpec {
    BudgetApprovalSpec {
        approvers,
        expires_at: now.plus(BUDGET_REQUEST_EXPIRES),
        recheck_at: now.plus(RECHECK_MIN),
    }
}

fn recheck_at(head: &Head, now: Timestamp) -> Timestamp {
    let request = head.requests.iter().find(|request| request.kind == RequestKind::Budget);
    let since = request.map_or(Duration::ZERO, |request| request.requested_at.until(now));
    now.plus((since / 4).clamp(RECHECK_MIN, RECHECK_MAX))
}

/// Approves the budget request of a waiting prompt if budget is available again: a limit was
/// raised, a setting changed or a new day began. Returns the same decision as an approver's.
///
/// # Errors
/// The store is unavailable: deliver again later.
pub(crate) async fn approve_if_budget_freed(
    services: &Services,
    state: &ConversationState,
    now: Timestamp,
) -> Result<Option<InboxItem>, StoreError> {
    let head = &state.head;
    if head.metering.recheck_at.is_none_or(|at| now < at) {
        return Ok(None);
    }
    let open_request = head.requests.iter().find(|request| request.kind == RequestKind::Budget);
    let Some((request, shortage)) = open_request.and_then(|it| Some((it, it.budget.as_ref()?)))
    else {
        return Ok(None);
    };
    let is_free = match shortage.level {
        BudgetLevel::Prompt | BudgetLevel::Conversation => {
            let budget = state.context(services).settings.parse_budget();
            find_exceeded_budget(head, budget.as_ref()).is_none()
        }
        BudgetLevel::User | BudgetLevel::Agent | BudgetLevel::Tenant => {
            ledger::has_budget(services, head).await?
        }
    };
    if !is_free {
        return Ok(None);
    }
    let reason = Some("The budget is available again.".to_owned());
    let decision =
        Decision { reason, ..expiry::automatic_decision(request, Verdict::Approve, "budget", now) };
    Ok(Some(expiry::decision_item(decision)))
}
