//! Causes: every state in which a conversation can wait or run.

use crate::agent::brake::{Behind, Brake, PutOff};
use crate::agent::entry::PromptState;
use crate::agent::head::{Head, READER};
use crate::agent::inbox::{InboxBody, InboxItem};
use crate::agent::phase::{CallStatus, Phase, WaitsFor as CallWaits};
use crate::agent::request::{Request, RequestKind};
use crate::agent::step::is_understood;
use crate::clock::Timestamp;
use crate::ids::ConversationId;
use crate::store::TAKE_OVER_AFTER;
use crate::turn::views::why::{ClaimView, Facts, OVERDUE, WaitsFor};

/// Task that a worker does next, or is doing.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Step {
    /// Apply this many inputs, the oldest of which was accepted at `since`.
    TakeIn {
        inputs: usize,
        since: Timestamp,
    },
    Stop {
        since: Timestamp,
    },
    /// Continue after a decision or a late tool result.
    GoOn {
        since: Timestamp,
    },
    Answer {
        attempt: u32,
    },
    /// Run the tools with these names.
    Calls(Vec<String>),
    Summary,
    /// Apply the newest input or result.
    Rest,
}

#[derive(Clone, Debug)]
pub(super) enum Cause<'a> {
    Nothing {
        last: Option<PromptState>,
    },
    Held {
        inputs: usize,
        since: Timestamp,
    },
    Nudge(Step),
    Busy {
        step: Step,
        until: Timestamp,
    },
    TakeOver {
        step: Step,
        stopped: Timestamp,
    },
    Retry {
        attempt: u32,
        at: Timestamp,
        is_summary: bool,
    },
    /// Worker processes died during the step, which is retried in isolation.
    Suspect {
        step: Step,
        at: Timestamp,
    },
    /// An open request, and the number of other open requests.
    Asked {
        request: &'a Request,
        others: usize,
    },
    PutOff(&'a PutOff),
    Paused(&'a Brake),
    NewerVersion,
    Conversation(&'a ConversationId),
    Callback,
}

pub(super) fn of<'a>(facts: &'a Facts, claim: Option<&ClaimView>) -> Cause<'a> {
    let head = &facts.head;
    if head.min_reader > READER {
        return Cause::NewerVersion;
    }
    let Some(claim) = claim else { return unheld(facts) };
    let held = |step: Step| {
        if facts.is_live(claim) {
            Cause::Busy { step, until: claim.until }
        } else {
            Cause::TakeOver { step, stopped: claim.until }
        }
    };
    let step = under_way(facts);
    if step == Step::Rest {
        // The worker only checks the conversation, which waits for another reason.
        let cause = unheld(facts);
        if !matches!(cause, Cause::Nudge(_)) {
            return cause;
        }
    }
    held(step)
}

/// Cause of a conversation without a lease.
fn unheld(facts: &Facts) -> Cause<'_> {
    let head = &facts.head;
    if let Some(stop) = facts.inbox.iter().find(|item| is_stop(item, head)) {
        return Cause::Nudge(Step::Stop { since: stop.accepted_at });
    }
    if let Some(brake) = &head.brake {
        // An approver can decide meanwhile.
        return asked(facts).unwrap_or(Cause::Paused(brake));
    }
    match &head.phase {
        Phase::Idle | Phase::Deleted => at_rest(facts),
        Phase::Model { not_before, .. } | Phase::Summary { not_before, .. } => {
            of_model(facts, *not_before)
        }
        Phase::Calls { calls, .. } => of_calls(facts, calls.iter().map(|call| &call.status)),
    }
}

fn is_stop(item: &InboxItem, head: &Head) -> bool {
    let running = head.prompt.as_ref().map(|run| &run.id);
    matches!(&item.body, InboxBody::Abort(abort) if running.is_some() && abort.prompt_id.as_ref() == running)
}

/// Cause while nothing runs: the queued inbox items, if any.
fn at_rest(facts: &Facts) -> Cause<'_> {
    let items = || facts.inbox.iter();
    let news: Vec<&InboxItem> =
        items().filter(|item| item.starts_when_idle() && is_understood(&item.body)).collect();
    if let Some(first) = news.first() {
        return Cause::Nudge(Step::TakeIn { inputs: news.len(), since: first.accepted_at });
    }
    if items().any(|item| !is_understood(&item.body)) {
        return Cause::NewerVersion;
    }
    if let Some(first) = facts.inbox.first() {
        return Cause::Held { inputs: facts.inbox.len(), since: first.accepted_at };
    }
    Cause::Nothing { last: facts.head.prompts.last().map(|span| span.state) }
}

fn of_model(facts: &Facts, not_before: Option<Timestamp>) -> Cause<'_> {
    let head = &facts.head;
    if head.is_paused() {
        return asked(facts).unwrap_or_else(|| Cause::Nudge(decided(facts)));
    }
    if let Some(cause) = suspect(facts) {
        return cause;
    }
    let Some(at) = not_before.filter(|time| *time > facts.now) else {
        return Cause::Nudge(next(facts));
    };
    if let Some(put_off) = head.put_off() {
        return Cause::PutOff(put_off);
    }
    match head.phase {
        Phase::Summary { attempt, .. } => Cause::Retry { attempt, at, is_summary: true },
        Phase::Model { attempt, .. } => Cause::Retry { attempt, at, is_summary: false },
        Phase::Idle | Phase::Calls { .. } | Phase::Deleted => Cause::Nudge(next(facts)),
    }
}

fn of_calls<'a>(facts: &'a Facts, calls: impl Iterator<Item = &'a CallStatus>) -> Cause<'a> {
    if let Some(cause) = suspect(facts) {
        return cause;
    }
    if facts.head.phase.batch().is_owed() {
        return Cause::Nudge(next(facts));
    }
    if let Some(asked) = asked(facts) {
        return asked;
    }
    let on = calls
        .filter_map(|status| if let CallStatus::Waiting { on } = status { Some(on) } else { None });
    for on in on {
        match on {
            CallWaits::Request { .. } => {}
            CallWaits::Conversation { conversation_id } => {
                return Cause::Conversation(conversation_id);
            }
            CallWaits::Callback { .. } => return Cause::Callback,
        }
    }
    Cause::Nudge(decided(facts))
}

/// The oldest open request without a decision.
fn asked(facts: &Facts) -> Option<Cause<'_>> {
    let is_decided = |request: &Request| {
        facts.inbox.iter().any(|item| {
            matches!(&item.body, InboxBody::Decision(decision) if decision.request_id == request.id)
        })
    };
    let open: Vec<&Request> =
        facts.head.requests.iter().filter(|request| !is_decided(request)).collect();
    // An accepted decision lets its call continue, whatever the other calls wait for.
    if open.len() < facts.head.requests.len() {
        return None;
    }
    let (first, others) = open.split_first()?;
    Some(Cause::Asked { request: first, others: others.len() })
}

fn decided(facts: &Facts) -> Step {
    let said = facts
        .inbox
        .iter()
        .find(|item| matches!(item.body, InboxBody::Decision(_) | InboxBody::LateResult(_)));
    Step::GoOn { since: said.map_or(facts.head.updated_at, |item| item.accepted_at) }
}

/// Cause of a step during which worker processes died.
fn suspect(facts: &Facts) -> Option<Cause<'_>> {
    let head = &facts.head;
    let at = head.suspicion.retry_at.or(head.due).unwrap_or(head.updated_at);
    head.is_suspect().then(|| Cause::Suspect { step: next(facts), at })
}

/// Next task of the phase.
fn next(facts: &Facts) -> Step {
    match &facts.head.phase {
        Phase::Model { attempt, .. } => Step::Answer { attempt: *attempt },
        Phase::Summary { .. } => Step::Summary,
        Phase::Calls { calls, .. } => {
            let open = facts.tools.iter().zip(calls).filter(|(_, call)| !call.is_done());
            Step::Calls(open.map(|(name, _)| name.clone()).collect())
        }
        Phase::Idle | Phase::Deleted => Step::Rest,
    }
}

/// Task of the worker with the lease.
fn under_way(facts: &Facts) -> Step {
    let Phase::Calls { calls, .. } = &facts.head.phase else { return next(facts) };
    let started = facts.tools.iter().zip(calls).filter(|(_, call)| call.is_started());
    let started: Vec<String> = started.map(|(name, _)| name.clone()).collect();
    if started.is_empty() { Step::Rest } else { Step::Calls(started) }
}

impl Step {
    fn since(&self, facts: &Facts) -> Timestamp {
        match self {
            Self::TakeIn { since, .. } | Self::Stop { since } | Self::GoOn { since } => *since,
            Self::Answer { .. } | Self::Calls(_) | Self::Summary | Self::Rest => {
                facts.head.updated_at
            }
        }
    }
}

impl Cause<'_> {
    pub(super) fn waits_for(&self) -> WaitsFor {
        match self {
            Self::Nothing { .. } => WaitsFor::Nothing,
            Self::Held { .. } => WaitsFor::NextPrompt,
            Self::Nudge(_) => WaitsFor::Nudge,
            Self::Busy { step: Step::Answer { .. }, .. } => WaitsFor::Model,
            Self::Busy { step: Step::Calls(_), .. } => WaitsFor::Tools,
            Self::Busy { step: Step::Summary, .. } => WaitsFor::Summary,
            Self::Busy { .. } => WaitsFor::Worker,
            Self::TakeOver { .. } => WaitsFor::TakeOver,
            Self::Retry { .. } => WaitsFor::Retry,
            Self::Suspect { .. } => WaitsFor::BackOff,
            Self::Asked { request, .. } => match request.kind {
                RequestKind::Tool => WaitsFor::Approval,
                RequestKind::Outcome => WaitsFor::Outcome,
                RequestKind::Budget => WaitsFor::Budget,
                RequestKind::Question => WaitsFor::Answer,
            },
            Self::PutOff(put_off) => match put_off.behind {
                Behind::Rate => WaitsFor::Rate,
                Behind::BudgetInUse => WaitsFor::BudgetInUse,
                Behind::Books => WaitsFor::Books,
            },
            Self::Paused(_) => WaitsFor::Paused,
            Self::NewerVersion => WaitsFor::NewerVersion,
            Self::Conversation(_) => WaitsFor::Conversation,
            Self::Callback => WaitsFor::Callback,
        }
    }

    pub(super) fn since(&self, facts: &Facts) -> Timestamp {
        match self {
            Self::Held { since, .. } => *since,
            Self::Nudge(step) => step.since(facts),
            Self::TakeOver { .. } if facts.is_unserved => facts.head.updated_at,
            Self::TakeOver { stopped, .. } => *stopped,
            Self::Asked { request, .. } => request.requested_at,
            Self::Paused(brake) => brake.since,
            Self::Nothing { .. }
            | Self::Busy { .. }
            | Self::Retry { .. }
            | Self::Suspect { .. }
            | Self::PutOff(_)
            | Self::NewerVersion
            | Self::Conversation(_)
            | Self::Callback => facts.head.updated_at,
        }
    }

    /// Time when it continues by itself or a worker checks it again. `None`: another event must
    /// happen first.
    pub(super) fn due(&self, facts: &Facts) -> Option<Timestamp> {
        match self {
            Self::Nothing { .. }
            | Self::Held { .. }
            | Self::NewerVersion
            | Self::Conversation(_)
            | Self::Callback => None,
            Self::Nudge(Step::Answer { .. } | Step::Calls(_) | Step::Summary | Step::Rest) => {
                facts.head.due.or(Some(facts.head.updated_at))
            }
            // A new input is due since it was accepted, whatever the head's `due` is.
            Self::Nudge(step) => Some(step.since(facts)),
            Self::Busy { until, .. } | Self::TakeOver { stopped: until, .. } => {
                Some(until.plus(TAKE_OVER_AFTER))
            }
            Self::Retry { at, .. } | Self::Suspect { at, .. } => Some(*at),
            Self::Asked { request, .. } => facts.head.books.look_at.or(request.expires_at),
            Self::PutOff(put_off) => Some(put_off.until),
            Self::Paused(brake) => Some(brake.look_at),
        }
    }

    /// True if a worker should have processed it long ago.
    pub(super) fn is_overdue(&self, facts: &Facts) -> bool {
        let is_owed = matches!(self, Self::Nudge(_) | Self::TakeOver { .. } | Self::Suspect { .. });
        is_owed && self.due(facts).is_some_and(|due| due.plus(OVERDUE) < facts.now)
    }
}
