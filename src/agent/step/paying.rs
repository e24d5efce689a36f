//! Budget reservation and accounting of model calls.
//!
//! The estimated cost of a model call is reserved before the call is sent. Its actual usage is
//! recorded with the response. An exhausted budget creates an approval request; no call is skipped
//! silently.

use crate::agent::brake::{Behind, PutOff};
use crate::agent::budget::{AccountAlert, Agreed, Budget, Held, Level, Raise, Shortage};
use crate::agent::draft::Draft;
use crate::agent::entry::{
    EntryBody, LostCall, MessageEntry, PromptState, PromptStop, RequestEntry,
};
use crate::agent::event::{EventBody, OutputRef};
use crate::agent::head::{Head, Run};
use crate::agent::message::Message;
use crate::agent::phase::Phase;
use crate::agent::raw::RawJson;
use crate::agent::request::{Decision, Request, RequestKind, Verdict};
use crate::agent::step::{budget_alerts, calls, ending};
use crate::agent::usage::{Tally, Usage};
use crate::clock::Timestamp;
use crate::ids::RequestId;

/// An input about budgets from the driver.
#[derive(Clone, Debug)]
pub enum Paying {
    /// A model call of this estimated cost follows.
    Reserve { estimate: Tally, asks: Asks },
    /// A budget of an account is exhausted: the reserved call is not sent.
    UsedUp { shortage: Shortage, asks: Asks },
    /// The call is not sent before `until`. It keeps its reservation if the accounts may already
    /// include it.
    PutOff { behind: Behind, until: Timestamp, keeps_hold: bool },
    /// The tenant's usage ledger now includes this usage and these limit increases, and reports
    /// these alerts.
    Settled { spent: Tally, agreed: Vec<Agreed>, alerts: Vec<AccountAlert> },
    /// The ledger could not be updated: earliest time of the next attempt.
    SettleAt(Timestamp),
    /// The budget is still exhausted: earliest time of the next check.
    LookAt(Timestamp),
}

/// Approvers and times of the request that an exhausted budget creates.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Asks {
    pub approvers: Vec<String>,
    pub expires_at: Timestamp,
    /// Time of the next check whether the budget has room again.
    pub look_at: Timestamp,
}

pub(super) fn pay(draft: &mut Draft, paying: &Paying) {
    match paying {
        Paying::Reserve { estimate, asks } => reserve(draft, *estimate, asks),
        Paying::UsedUp { shortage, asks } => {
            draft.head.held = None;
            if is_call_owed(&draft.head) {
                ask(draft, shortage, asks);
            }
        }
        Paying::PutOff { behind, until, keeps_hold } => {
            put_off(draft, PutOff { behind: *behind, until: *until }, *keeps_hold);
        }
        Paying::Settled { spent, agreed, alerts } => {
            settled(draft, spent, agreed);
            budget_alerts::issue_of_accounts(draft, alerts);
        }
        Paying::SettleAt(at) => {
            if let Some(settle_at) = &mut draft.head.books.settle_at {
                *settle_at = *at;
            }
        }
        Paying::LookAt(at) => {
            if draft.head.is_paused() {
                draft.head.books.look_at = Some(*at);
            }
        }
    }
}

/// Adds the usage of model calls to every total and ends their reservation. Without a call, only
/// the reservation ends.
pub(super) fn spend(draft: &mut Draft, usage: Usage, calls: u32) {
    if calls == 0 {
        release(draft);
        return;
    }
    draft.head.held = None;
    count(draft, usage, u64::from(calls));
}

/// Adds a tool's own model usage or fees to every total. They do not count as a model call.
pub(super) fn spend_in_tool(draft: &mut Draft, usage: Usage) {
    count(draft, usage, 0);
}

fn count(draft: &mut Draft, usage: Usage, calls: u64) {
    draft.head.usage += usage;
    if let Some(run) = &mut draft.head.prompt {
        run.usage += usage;
    }
    let settle_at = draft.now.plus(draft.rules.settle_after);
    let cost = Tally { calls, ..Tally::of(&usage) };
    draft.head.books.add(cost, (draft.now, settle_at));
    budget_alerts::issue(draft, &cost);
}

/// Ends the reservation of a call that was not made.
fn release(draft: &mut Draft) {
    if draft.head.held.take().is_some() {
        // The accounts may still include the reservation, so they are settled now.
        draft.head.books.settle_at.get_or_insert(draft.now);
    }
}

/// Records a model call whose response was lost. Its cost is unknown, so the reserved estimate
/// counts as its cost.
pub(super) fn lose(draft: &mut Draft) {
    let settle_at = draft.now.plus(draft.rules.settle_after);
    let Some(held) = draft.head.lose_hold((draft.now, settle_at)) else { return };
    draft.append(EntryBody::LostCall(LostCall { estimate: held.estimate.usage() }));
    budget_alerts::issue(draft, &held.estimate);
}

/// Ends budget checks and the reservation of a prompt that has ended.
pub(super) fn close(draft: &mut Draft) {
    draft.head.books.look_at = None;
    release(draft);
}

impl Run {
    /// Usage that counts against the prompt's budget, with lost calls.
    pub(super) fn spent(&self) -> Tally {
        Tally::of(&self.usage).plus(self.lost)
    }
}

impl Head {
    /// Usage that counts against the conversation's budget, with lost calls.
    pub(super) fn spent(&self) -> Tally {
        Tally::of(&self.usage).plus(self.books.lost)
    }

    /// Records a reserved call at its estimate and removes the reservation.
    pub fn lose_hold(&mut self, at: (Timestamp, Timestamp)) -> Option<Held> {
        let held = self.held.take()?;
        self.books.lost = self.books.lost.plus(held.estimate);
        if let Some(run) = &mut self.prompt {
            run.lost = run.lost.plus(held.estimate);
        }
        self.books.add(held.estimate, at);
        Some(held)
    }
}

/// True if the next step is a model call.
fn is_call_owed(head: &Head) -> bool {
    let is_call = match head.phase {
        Phase::Model { .. } | Phase::Summary { .. } => true,
        Phase::Idle | Phase::Calls { .. } | Phase::Deleted => false,
    };
    is_call && !head.is_paused()
}

fn reserve(draft: &mut Draft, estimate: Tally, asks: &Asks) {
    if !is_call_owed(&draft.head) || draft.head.held.is_some() {
        return;
    }
    if let Some(shortage) = own_shortage(&draft.head, draft.rules.budget.as_ref()) {
        ask(draft, &shortage, asks);
        return;
    }
    draft.head.books.holds += 1;
    draft.head.held = Some(Held { number: draft.head.books.holds, estimate });
}

/// The exhausted limit of the prompt's or the conversation's own budget, if any. A summary that is
/// created after the prompt's end, or by a command, belongs to no prompt that could wait. It is
/// counted, but never rejected.
pub fn own_shortage(head: &Head, budget: Option<&Budget>) -> Option<Shortage> {
    let budget = budget?;
    let run = head.prompt.as_ref()?;
    let of_prompt = budget
        .prompt
        .and_then(|limit| limit.used_up(&run.raised, &run.spent()).map(|up| (Level::Prompt, up)));
    let of_conversation = || {
        let limit = budget.conversation?;
        limit.used_up(&head.books.raised, &head.spent()).map(|up| (Level::Conversation, up))
    };
    let (level, up) = of_prompt.or_else(of_conversation)?;
    Some(Shortage {
        level,
        period: None,
        span: None,
        unit: up.unit,
        set: up.set,
        limit: up.limit,
        used: up.used,
    })
}

fn put_off(draft: &mut Draft, put_off: PutOff, keeps_hold: bool) {
    match &mut draft.head.phase {
        Phase::Model { not_before, .. } | Phase::Summary { not_before, .. } => {
            *not_before = Some(put_off.until);
        }
        Phase::Idle | Phase::Calls { .. } | Phase::Deleted => return,
    }
    draft.head.put_off = Some(put_off);
    if !keeps_hold {
        draft.head.held = None;
    }
}

fn settled(draft: &mut Draft, spent: &Tally, agreed: &[Agreed]) {
    let later = draft.now.plus(draft.rules.settle_after);
    let books = &mut draft.head.books;
    books.days.retain(|end| !end.spent.minus(*spent).is_nothing());
    books.agreed.retain(|raise| !agreed.contains(raise));
    books.settle_at = (!books.days.is_empty()).then_some(later);
}

fn ask(draft: &mut Draft, shortage: &Shortage, asks: &Asks) {
    let Some(run) = &draft.head.prompt else { return };
    let (prompt_id, requested_by) = (run.id.clone(), run.user.clone());
    draft.head.requests_made += 1;
    let id = RequestId::new(format!(
        "rq_{}_{}_{}",
        draft.head.conversation_id, draft.head.incarnation, draft.head.requests_made
    ));
    let request = Request {
        id,
        kind: RequestKind::Budget,
        title: "May this cost more?".to_owned(),
        reason: shortage.reason(),
        prompt_id,
        call: None,
        tool_call_id: None,
        tool: None,
        effect: None,
        binding: None,
        budget: Some(shortage.clone()),
        schema: Some(schema(shortage)),
        requested_at: draft.now,
        requested_by,
        expires_at: Some(asks.expires_at),
        approvers: asks.approvers.clone(),
        not_requester: false,
    };
    draft.head.books.look_at = Some(asks.look_at);
    draft.head.requests.push(request.clone());
    let entry = draft.append(EntryBody::Request(RequestEntry { request: request.clone() }));
    calls::tell_request(draft, &request, entry.base.seq);
}

/// Schema of the new limit: a number above the usage, bare or as a member named after the unit.
fn schema(shortage: &Shortage) -> RawJson {
    let kind = match shortage.unit {
        crate::agent::budget::Unit::Tokens => "integer",
        crate::agent::budget::Unit::Usd => "number",
    };
    let (name, used) = (shortage.unit.name(), shortage.unit.told(shortage.used));
    let number = serde_json::json!({
        "type": kind, "exclusiveMinimum": used, "description": format!("The new limit in {name}."),
    });
    RawJson::of(&serde_json::json!({"anyOf": [
        number,
        {"type": "object", "properties": {name: number}, "required": [name], "additionalProperties": false},
    ]}))
}

/// Applies the decision on a budget request.
pub(super) fn decided(draft: &mut Draft, request: &Request, decision: &Decision) {
    draft.head.books.look_at = None;
    let Some(shortage) = &request.budget else { return };
    match decision.verdict {
        Verdict::Approve => {
            // Without a value, the approver raised no limit: the budget already has room again.
            if let Some(to) = decision.value.as_ref().and_then(|value| limit_in(value, shortage)) {
                raise(draft, shortage, to);
            }
        }
        // The abort itself ends the prompt.
        Verdict::Aborted => {}
        Verdict::Reject
        | Verdict::Expired
        | Verdict::Happened
        | Verdict::DidNotHappen
        | Verdict::Again
        | Verdict::Answer => stop(draft, request, decision.reason.as_deref()),
    }
}

fn limit_in(value: &RawJson, shortage: &Shortage) -> Option<u64> {
    let value = value.value();
    let bare = value.as_f64().or_else(|| value.get(shortage.unit.name())?.as_f64());
    bare.map(|told| shortage.unit.amount(told))
}

fn raise(draft: &mut Draft, shortage: &Shortage, to: u64) {
    let raise = Raise { unit: shortage.unit, from: shortage.set, to };
    let replace = |raised: &mut Vec<Raise>, raise: Raise| {
        raised.retain(|old| old.unit != raise.unit);
        raised.push(raise);
    };
    match (shortage.level, shortage.period) {
        (Level::Prompt, _) => {
            if let Some(run) = &mut draft.head.prompt {
                replace(&mut run.raised, raise);
            }
        }
        (Level::Conversation, _) => replace(&mut draft.head.books.raised, raise),
        (level @ (Level::User | Level::Agent | Level::Tenant), Some(period)) => {
            let span = shortage.span.clone().unwrap_or_default();
            draft.head.books.agreed.push(Agreed { level, period, span, raise });
        }
        (Level::User | Level::Agent | Level::Tenant, None) => {}
    }
}

/// Ends the prompt with a message that states the reason.
fn stop(draft: &mut Draft, request: &Request, why: Option<&str>) {
    let mut said = format!("Stopped: {}", request.reason);
    if let Some(why) = why {
        said = format!("{said} {why}");
    }
    let entry = draft.speak(MessageEntry {
        message: Message::Assistant(ending::own_words(said, draft)),
        revision: None,
        call: None,
        started_at: None,
        is_retried: false,
    });
    let seq = entry.base.seq;
    draft.tell(EventBody::PromptOutput(OutputRef { seq, block: Some(0), call: None }));
    if draft.head.prompt.as_ref().is_some_and(|run| run.is_turn_open) {
        ending::end_turn(draft, seq, Vec::new());
    }
    ending::end(draft, PromptState::Completed, PromptStop::Budget, None);
}
