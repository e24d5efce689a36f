//! Budget reservation and accounting of model calls.
//!
//! The estimated cost of a model call is reserved before the call is sent. Its actual usage is
//! recorded with the response. An exhausted budget creates an approval request; no call is skipped
//! silently.

use crate::budget::{
    AccountAlert, ApprovedIncrease, Budget, BudgetExceeded, BudgetLevel, LimitIncrease, Reservation,
};
use crate::entry::{EntryBody, LostCall, MessageEntry, PromptStop};
use crate::event::{EventBody, OutputRef};
use crate::head::{Head, PromptRun};
use crate::message::Message;
use crate::pause::{DeferReason, Deferral};
use crate::phase::Phase;
use crate::request::{Decision, Request, RequestKind, Verdict};
use crate::step::next::{Next, PromptEnding};
use crate::step::{budget_alerts, requests, turn};
use crate::transition::Transition;
use crate::unknown_members::Extra;
use crate::usage::{Usage, UsageTotals};
use turnwheel_json::raw::RawJson;
use turnwheel_platform::clock::Timestamp;

/// An input about budgets from the driver.
#[derive(Clone, Debug)]
pub enum BudgetInput {
    /// A model call of this estimated cost follows.
    Reserve { estimate: UsageTotals, approval: BudgetApprovalSpec },
    /// A budget of an account is exhausted: the reserved call is not sent.
    AccountExceeded { exceeded: BudgetExceeded, approval: BudgetApprovalSpec },
    /// The call is not sent before `until`. It keeps its reservation if the accounts may already
    /// include it.
    Deferred { reason: DeferReason, until: Timestamp, keeps_reservation: bool },
    /// The tenant's usage ledger now includes this usage and these limit increases, and reports
    /// these alerts.
    Settled { spent: UsageTotals, increases: Vec<ApprovedIncrease>, alerts: Vec<AccountAlert> },
    /// The ledger could not be updated: earliest time of the next attempt.
    SettleAt(Timestamp),
    /// The budget is still exhausted: earliest time of the next check.
    RecheckAt(Timestamp),
}

/// Approvers and times of the request that an exhausted budget creates.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct BudgetApprovalSpec {
    pub approvers: Vec<String>,
    pub expires_at: Timestamp,
    /// Time of the next check whether the budget has room again.
    pub recheck_at: Timestamp,
}

pub(super) fn apply(transition: &mut Transition, input: &BudgetInput) {
    match input {
        BudgetInput::Reserve { estimate, approval } => reserve(transition, *estimate, approval),
        BudgetInput::AccountExceeded { exceeded, approval } => {
            transition.head.reservation = None;
            if is_model_call_pending(&transition.head) {
                request_limit_increase(transition, exceeded, approval);
            }
        }
        BudgetInput::Deferred { reason, until, keeps_reservation } => {
            defer_call(transition, Deferral { reason: *reason, until: *until }, *keeps_reservation);
        }
        BudgetInput::Settled { spent, increases, alerts } => {
            apply_settlement(transition, spent, increases);
            budget_alerts::issue_account_alerts(transition, alerts);
        }
        BudgetInput::SettleAt(at) => {
            if let Some(settle_at) = &mut transition.head.metering.settle_at {
                *settle_at = *at;
            }
        }
        BudgetInput::RecheckAt(at) => {
            if transition.head.is_waiting_for_budget() {
                transition.head.metering.recheck_at = Some(*at);
            }
        }
    }
}

/// Adds the usage of model calls to every total and ends their reservation. Without a call, only
/// the reservation ends.
pub(super) fn record_usage(transition: &mut Transition, usage: Usage, calls: u32) {
    if calls == 0 {
        release_reservation(transition);
        return;
    }
    transition.head.reservation = None;
    add_usage(transition, usage, u64::from(calls));
}

/// Adds a tool's own model usage or fees to every total. They do not count as a model call.
pub(super) fn record_tool_usage(transition: &mut Transition, usage: Usage) {
    add_usage(transition, usage, 0);
}

fn add_usage(transition: &mut Transition, usage: Usage, calls: u64) {
    transition.head.usage += usage;
    if let Some(run) = &mut transition.head.prompt {
        run.usage += usage;
    }
    let settle_at = transition.now.plus(transition.policy.settle_after);
    let cost = UsageTotals { calls, ..UsageTotals::from_usage(&usage) };
    transition.head.metering.add_cost(cost, transition.now, settle_at);
    budget_alerts::issue_own_alerts(transition, &cost);
}

/// Ends the reservation of a call that was not made.
fn release_reservation(transition: &mut Transition) {
    if transition.head.reservation.take().is_some() {
        // The accounts may still include the reservation, so they are settled now.
        transition.head.metering.settle_at.get_or_insert(transition.now);
    }
}

/// Records a model call whose response was lost. Its cost is unknown, so the reserved estimate
/// counts as its cost.
pub(super) fn record_lost_call(transition: &mut Transition) {
    let settle_at = transition.now.plus(transition.policy.settle_after);
    let Some(reservation) = transition.head.record_lost_reservation(transition.now, settle_at)
    else {
        return;
    };
    transition.append(EntryBody::LostCall(LostCall {
        estimate: reservation.estimate.to_usage().into(),
        extra: Extra::new(),
    }));
    budget_alerts::issue_own_alerts(transition, &reservation.estimate);
}

/// Ends budget checks and the reservation of a prompt that has ended.
pub(super) fn close_prompt(transition: &mut Transition) {
    transition.head.metering.recheck_at = None;
    release_reservation(transition);
}

impl PromptRun {
    /// Usage that counts against the prompt's budget, with lost calls.
    pub(super) fn spent(&self) -> UsageTotals {
        UsageTotals::from_usage(&self.usage).plus(self.lost)
    }
}

impl Head {
    /// Usage that counts against the conversation's budget, with lost calls.
    pub(super) fn spent(&self) -> UsageTotals {
        UsageTotals::from_usage(&self.usage).plus(self.metering.lost)
    }

    /// True if a limit of the conversation is exhausted, with the increases in force.
    pub fn is_conversation_budget_exceeded(&self, budget: Option<&Budget>) -> bool {
        let limit = budget.and_then(|budget| budget.conversation);
        limit.is_some_and(|limit| {
            limit.find_exceeded(&self.metering.increases, &self.spent()).is_some()
        })
    }

    /// Records a reserved call at its estimate and removes the reservation.
    pub fn record_lost_reservation(
        &mut self,
        now: Timestamp,
        settle_at: Timestamp,
    ) -> Option<Reservation> {
        let reservation = self.reservation.take()?;
        self.metering.lost = self.metering.lost.plus(reservation.estimate);
        if let Some(run) = &mut self.prompt {
            run.lost = run.lost.plus(reservation.estimate);
        }
        self.metering.add_cost(reservation.estimate, now, settle_at);
        Some(reservation)
    }
}

/// True if the next step is a model call.
fn is_model_call_pending(head: &Head) -> bool {
    let is_call = match head.phase {
        Phase::Model { .. } | Phase::Summary { .. } => true,
        Phase::Idle | Phase::Calls { .. } | Phase::Deleted => false,
    };
    is_call && !head.is_waiting_for_decision()
}

fn reserve(transition: &mut Transition, estimate: UsageTotals, approval: &BudgetApprovalSpec) {
    if !is_model_call_pending(&transition.head) || transition.head.reservation.is_some() {
        return;
    }
    if let Some(exceeded) =
        find_exceeded_budget(&transition.head, transition.policy.budget.as_ref())
    {
        request_limit_increase(transition, &exceeded, approval);
        return;
    }
    transition.head.metering.reservations_made += 1;
    transition.head.reservation =
        Some(Reservation { number: transition.head.metering.reservations_made, estimate });
}

/// The exhausted limit of the prompt's or the conversation's own budget, if any. A summary that is
/// created after the prompt's end, or by a command, belongs to no prompt that could wait. It is
/// counted, but never rejected.
pub fn find_exceeded_budget(head: &Head, budget: Option<&Budget>) -> Option<BudgetExceeded> {
    let budget = budget?;
    let run = head.prompt.as_ref()?;
    let of_prompt = budget.prompt.and_then(|limit| {
        limit.find_exceeded(&run.increases, &run.spent()).map(|up| (BudgetLevel::Prompt, up))
    });
    let of_conversation = || {
        let limit = budget.conversation?;
        limit
            .find_exceeded(&head.metering.increases, &head.spent())
            .map(|up| (BudgetLevel::Conversation, up))
    };
    let (level, up) = of_prompt.or_else(of_conversation)?;
    Some(BudgetExceeded {
        level,
        period: None,
        date: None,
        unit: up.unit,
        configured_limit: up.configured_limit,
        limit: up.limit,
        used: up.used,
    })
}

fn defer_call(transition: &mut Transition, deferral: Deferral, keeps_reservation: bool) {
    match &mut transition.head.phase {
        Phase::Model { not_before, .. } | Phase::Summary { not_before, .. } => {
            *not_before = Some(deferral.until);
        }
        Phase::Idle | Phase::Calls { .. } | Phase::Deleted => return,
    }
    transition.head.deferral = Some(deferral);
    if !keeps_reservation {
        transition.head.reservation = None;
    }
}

fn apply_settlement(
    transition: &mut Transition,
    spent: &UsageTotals,
    increases: &[ApprovedIncrease],
) {
    let later = transition.now.plus(transition.policy.settle_after);
    let metering = &mut transition.head.metering;
    metering.days.retain(|day| !day.spent.minus(*spent).is_nothing());
    metering.approved_increases.retain(|increase| !increases.contains(increase));
    metering.settle_at = (!metering.days.is_empty()).then_some(later);
}

fn request_limit_increase(
    transition: &mut Transition,
    exceeded: &BudgetExceeded,
    approval: &BudgetApprovalSpec,
) {
    if transition.head.prompt.is_none() {
        return;
    }
    let mut request = Request {
        kind: RequestKind::Budget,
        title: "May this cost more?".to_owned(),
        reason: exceeded.reason(),
        budget: Some(exceeded.clone()),
        schema: Some(limit_schema(exceeded)),
        expires_at: Some(approval.expires_at),
        approvers: approval.approvers.clone(),
        ..requests::new_request(transition)
    };
    transition.head.metering.recheck_at = Some(approval.recheck_at);
    let seq = requests::store(transition, &mut request);
    requests::emit_approval_requested(transition, &request, seq);
}

/// Schema of the new limit: a number above the usage, bare or as a member named after the unit.
fn limit_schema(exceeded: &BudgetExceeded) -> RawJson {
    let kind = match exceeded.unit {
        crate::budget::BudgetUnit::Tokens => "integer",
        crate::budget::BudgetUnit::Usd => "number",
    };
    let (name, used) = (exceeded.unit.name(), exceeded.unit.to_display(exceeded.used));
    let number = serde_json::json!({
        "type": kind, "exclusiveMinimum": used, "description": format!("The new limit in {name}."),
    });
    RawJson::from_value(&serde_json::json!({"anyOf": [
        number,
        {"type": "object", "properties": {name: number}, "required": [name], "additionalProperties": false},
    ]}))
}

/// Applies the decision on a budget request.
pub(super) fn apply_decision(
    transition: &mut Transition,
    request: &Request,
    decision: &Decision,
) -> Next {
    transition.head.metering.recheck_at = None;
    let Some(exceeded) = &request.budget else { return Next::Wait };
    match decision.verdict {
        Verdict::Approve => {
            // Without a value, the approver raised no limit: the budget already has room again.
            if let Some(limit) =
                decision.value.as_ref().and_then(|value| parse_limit(value, exceeded))
            {
                apply_limit_increase(transition, exceeded, limit);
            }
            Next::Wait
        }
        // The abort itself ends the prompt.
        Verdict::Aborted => Next::Wait,
        Verdict::Reject
        | Verdict::Expired
        | Verdict::Happened
        | Verdict::DidNotHappen
        | Verdict::Again
        | Verdict::Answer => stop_prompt(transition, request, decision.reason.as_deref()),
    }
}

fn parse_limit(value: &RawJson, exceeded: &BudgetExceeded) -> Option<u64> {
    let value = value.to_value();
    let bare = value.as_f64().or_else(|| value.get(exceeded.unit.name())?.as_f64());
    bare.map(|amount| exceeded.unit.parse_display(amount))
}

fn apply_limit_increase(transition: &mut Transition, exceeded: &BudgetExceeded, limit: u64) {
    let increase =
        LimitIncrease { unit: exceeded.unit, from: exceeded.configured_limit, to: limit };
    let replace = |increases: &mut Vec<LimitIncrease>, increase: LimitIncrease| {
        increases.retain(|old| old.unit != increase.unit);
        increases.push(increase);
    };
    match (exceeded.level, exceeded.period) {
        (BudgetLevel::Prompt, _) => {
            if let Some(run) = &mut transition.head.prompt {
                replace(&mut run.increases, increase);
            }
        }
        (BudgetLevel::Conversation, _) => {
            replace(&mut transition.head.metering.increases, increase);
        }
        (level @ (BudgetLevel::User | BudgetLevel::Agent | BudgetLevel::Tenant), Some(period)) => {
            let span = exceeded.date.clone().unwrap_or_default();
            transition.head.metering.approved_increases.push(ApprovedIncrease {
                level,
                period,
                date: span,
                increase,
            });
        }
        (BudgetLevel::User | BudgetLevel::Agent | BudgetLevel::Tenant, None) => {}
    }
}

/// Ends the prompt with a message that states the reason.
fn stop_prompt(transition: &mut Transition, request: &Request, reason: Option<&str>) -> Next {
    debug_assert!(transition.head.prompt.is_some(), "no prompt runs");
    let mut text = format!("Stopped: {}", request.reason);
    if let Some(reason) = reason {
        text = format!("{text} {reason}");
    }
    let message = Message::Assistant(turn::service_message(text, transition));
    let entry = transition.append_message(MessageEntry::new(message));
    let seq = entry.base.seq;
    transition.emit(EventBody::PromptOutput(OutputRef { seq, block: Some(0), call: None }));
    if transition.head.prompt.as_ref().is_some_and(|run| run.is_turn_open) {
        turn::end_turn(transition, seq, Vec::new());
    }
    Next::EndPrompt(PromptEnding::completed(PromptStop::Budget))
}
