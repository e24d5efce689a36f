//! Paying: what a model call may cost is held before it is sent, and what it did cost is booked with its answer. A budget
//! that is used up asks a person; nothing is ever cut in silence.

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

/// What the driver found out about money.
#[derive(Clone, Debug)]
pub enum Paying {
    /// A model call is about to be made, and may cost so much.
    Reserve { estimate: Tally, asks: Asks },
    /// An account of the tenant has no room: the call that was held is not made.
    UsedUp { shortage: Shortage, asks: Asks },
    /// The call is not made before that time; one whose hold may have been entered keeps it.
    PutOff { behind: Behind, until: Timestamp, keeps_hold: bool },
    /// The tenant's usage ledger has so much of the spending, these limit increases, and these alerts to issue.
    Settled { spent: Tally, agreed: Vec<Agreed>, alerts: Vec<AccountAlert> },
    /// They could not be told: not before that time again.
    SettleAt(Timestamp),
    /// There was no room yet: not before that time again.
    LookAt(Timestamp),
}

/// Who is asked when a budget is used up, and how long.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Asks {
    pub approvers: Vec<String>,
    pub expires_at: Timestamp,
    /// When the prompt looks by itself whether there is room.
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

/// What so many calls cost goes into every sum, and their hold ends. None was made: it ends all the same.
pub(super) fn spend(draft: &mut Draft, usage: Usage, calls: u32) {
    if calls == 0 {
        release(draft);
        return;
    }
    draft.head.held = None;
    count(draft, usage, u64::from(calls));
}

/// A tool's own model calls or fees go into every sum; they count as no call of the conversation's model.
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

/// A call that was held and never made is held no longer.
fn release(draft: &mut Draft) {
    if draft.head.held.take().is_some() {
        // The accounts may hold it still.
        draft.head.books.settle_at.get_or_insert(draft.now);
    }
}

/// The answer of a held call will not come any more, and nobody knows what it cost: it is taken to have cost what was
/// held.
pub(super) fn lose(draft: &mut Draft) {
    let settle_at = draft.now.plus(draft.rules.settle_after);
    let Some(held) = draft.head.lose_hold((draft.now, settle_at)) else { return };
    draft.append(EntryBody::LostCall(LostCall { estimate: held.estimate.usage() }));
    budget_alerts::issue(draft, &held.estimate);
}

/// A prompt has ended: it asks for nothing more, and a call that was held and never made is held no longer.
pub(super) fn close(draft: &mut Draft) {
    draft.head.books.look_at = None;
    release(draft);
}

impl Run {
    /// What the prompt's budget bounds.
    pub(super) fn spent(&self) -> Tally {
        Tally::of(&self.usage).plus(self.lost)
    }
}

impl Head {
    /// What the conversation's budget bounds.
    pub(super) fn spent(&self) -> Tally {
        Tally::of(&self.usage).plus(self.books.lost)
    }

    /// Books a held call at its estimate.
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

/// Whether a model call is what comes next.
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

/// What is used up of the prompt's or the conversation's own budget. A summary after a prompt's end, or asked for by hand,
/// belongs to no prompt that could wait: it is counted, and not refused.
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

/// The new limit, bare or under the name of its unit: more than what is used already.
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

/// A person, or the clock, has said whether it may cost more.
pub(super) fn decided(draft: &mut Draft, request: &Request, decision: &Decision) {
    draft.head.books.look_at = None;
    let Some(shortage) = &request.budget else { return };
    match decision.verdict {
        Verdict::Approve => {
            // Without a limit: there is room by now, whoever made it.
            if let Some(to) = decision.value.as_ref().and_then(|value| limit_in(value, shortage)) {
                raise(draft, shortage, to);
            }
        }
        // The stop itself ends the prompt.
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

/// The prompt ends, and says why.
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
