//! Causes: every state in which a conversation can wait or run.

use crate::why::{LeaseView, OVERDUE_AFTER, WaitsFor, WhyFacts};
use turnwheel_conversation::entry::PromptState;
use turnwheel_conversation::head::{Head, READER_VERSION};
use turnwheel_conversation::inbox::{InboxBody, InboxItem};
use turnwheel_conversation::pause::{DeferReason, Deferral, Pause};
use turnwheel_conversation::phase::{CallStatus, PendingWait, Phase};
use turnwheel_conversation::request::{Request, RequestKind};
use turnwheel_conversation::step::is_supported;
use turnwheel_conversation::waits::WaitingMessage;
use turnwheel_platform::clock::Timestamp;
use turnwheel_storage::store::TAKE_OVER_DELAY;

/// Task that a worker does next, or is doing.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum WorkerTask {
    /// Apply this many inputs, the oldest of which was accepted at `since`.
    ApplyInputs {
        inputs: usize,
        since: Timestamp,
    },
    Abort {
        since: Timestamp,
    },
    /// Continue after a decision or a late tool result.
    Resume {
        since: Timestamp,
    },
    ModelCall {
        attempt: u32,
    },
    /// Run the tools with these names.
    ToolCalls(Vec<String>),
    Summary,
    /// Apply the newest input or result.
    ApplyNewest,
}

#[derive(Clone, Debug)]
pub(super) enum Cause<'a> {
    Nothing {
        last: Option<PromptState>,
    },
    HeldInputs {
        inputs: usize,
        since: Timestamp,
    },
    Nudge(WorkerTask),
    Working {
        task: WorkerTask,
        until: Timestamp,
    },
    TakeOver {
        task: WorkerTask,
        lease_end: Timestamp,
    },
    Retry {
        attempt: u32,
        at: Timestamp,
        is_summary: bool,
    },
    /// Worker processes died during the step, which is retried in isolation.
    Suspect {
        task: WorkerTask,
        at: Timestamp,
    },
    /// An open request, and the number of other open requests.
    Approval {
        request: &'a Request,
        others: usize,
    },
    Deferred(&'a Deferral),
    /// A message of a queue that is not accepted yet.
    WaitingMessage(&'a WaitingMessage),
    Paused(&'a Pause),
    NewerVersion,
}

pub(super) fn find_cause<'a>(facts: &'a WhyFacts, lease: Option<&LeaseView>) -> Cause<'a> {
    let head = &facts.head;
    if head.min_reader > READER_VERSION {
        return Cause::NewerVersion;
    }
    let Some(lease) = lease else { return cause_without_lease(facts) };
    let with_lease = |task: WorkerTask| {
        if facts.is_live(lease) {
            Cause::Working { task, until: lease.until }
        } else {
            Cause::TakeOver { task, lease_end: lease.until }
        }
    };
    let task = current_task(facts);
    if task == WorkerTask::ApplyNewest {
        // The worker only checks the conversation, which waits for another reason.
        let cause = cause_without_lease(facts);
        if !matches!(cause, Cause::Nudge(_)) {
            return cause;
        }
    }
    with_lease(task)
}

/// Cause of a conversation without a lease.
fn cause_without_lease(facts: &WhyFacts) -> Cause<'_> {
    let head = &facts.head;
    if let Some(abort) = facts.inbox.iter().find(|item| is_abort_of_running_prompt(item, head)) {
        return Cause::Nudge(WorkerTask::Abort { since: abort.accepted_at });
    }
    if let Some(pause) = &head.pause {
        // An approver can decide meanwhile.
        return approval_cause(facts).unwrap_or(Cause::Paused(pause));
    }
    match &head.phase {
        Phase::Idle | Phase::Deleted => idle_cause(facts),
        Phase::Model { not_before, .. } | Phase::Summary { not_before, .. } => {
            model_cause(facts, *not_before)
        }
        Phase::Calls { calls, .. } => calls_cause(facts, calls.iter().map(|call| &call.status)),
    }
}

fn is_abort_of_running_prompt(item: &InboxItem, head: &Head) -> bool {
    let running = head.prompt.as_ref().map(|run| &run.id);
    matches!(&item.body, InboxBody::Abort(abort) if running.is_some() && abort.prompt_id.as_ref() == running)
}

/// Cause while nothing runs: the queued inbox items, if any.
fn idle_cause(facts: &WhyFacts) -> Cause<'_> {
    let items = || facts.inbox.iter();
    let due_items: Vec<&InboxItem> = items()
        .filter(|item| item.has_effect_when_idle() && is_supported(&item.body))
        .filter(|item| facts.head.question_of(&item.input_id).is_none())
        .collect();
    if let Some(first) = due_items.first() {
        return Cause::Nudge(WorkerTask::ApplyInputs {
            inputs: due_items.len(),
            since: first.accepted_at,
        });
    }
    if let Some(cause) = approval_cause(facts) {
        return cause;
    }
    if items().any(|item| !is_supported(&item.body)) {
        return Cause::NewerVersion;
    }
    if let Some(first) = facts.inbox.first() {
        return Cause::HeldInputs { inputs: facts.inbox.len(), since: first.accepted_at };
    }
    if let Some(message) = facts.head.waiting_message.as_deref()
        && message.until > facts.now
    {
        return Cause::WaitingMessage(message);
    }
    Cause::Nothing { last: facts.head.prompts.last().map(|span| span.state) }
}

fn model_cause(facts: &WhyFacts, not_before: Option<Timestamp>) -> Cause<'_> {
    let head = &facts.head;
    if head.is_waiting_for_decision() {
        return approval_cause(facts).unwrap_or_else(|| Cause::Nudge(resume_task(facts)));
    }
    if let Some(cause) = suspect_cause(facts) {
        return cause;
    }
    let Some(at) = not_before.filter(|time| *time > facts.now) else {
        return Cause::Nudge(next_task(facts));
    };
    if let Some(deferral) = head.deferral() {
        return Cause::Deferred(deferral);
    }
    match head.phase {
        Phase::Summary { attempt, .. } => Cause::Retry { attempt, at, is_summary: true },
        Phase::Model { attempt, .. } => Cause::Retry { attempt, at, is_summary: false },
        Phase::Idle | Phase::Calls { .. } | Phase::Deleted => Cause::Nudge(next_task(facts)),
    }
}

fn calls_cause<'a>(facts: &'a WhyFacts, calls: impl Iterator<Item = &'a CallStatus>) -> Cause<'a> {
    if let Some(cause) = suspect_cause(facts) {
        return cause;
    }
    if facts.head.phase.call_batch().has_pending_work() {
        return Cause::Nudge(next_task(facts));
    }
    if let Some(cause) = approval_cause(facts) {
        return cause;
    }
    let on = calls
        .filter_map(|status| if let CallStatus::Waiting { on } = status { Some(on) } else { None });
    for on in on {
        match on {
            PendingWait::Request { .. } => {}
            // No version waits for these yet.
            PendingWait::Conversation { .. } | PendingWait::Callback { .. } => {
                return Cause::NewerVersion;
            }
        }
    }
    Cause::Nudge(resume_task(facts))
}

/// The oldest open request without a decision.
fn approval_cause(facts: &WhyFacts) -> Option<Cause<'_>> {
    let is_decided = |request: &Request| {
        facts.inbox.iter().any(|item| {
            matches!(&item.body, InboxBody::Decision(decision) if decision.request_id == request.id)
        })
    };
    // A prompt does not wait for the questions of commands.
    let is_idle = facts.head.prompt.is_none();
    let all = || facts.head.requests.iter().filter(|it| is_idle || it.input_id.is_none());
    let open: Vec<&Request> = all().filter(|request| !is_decided(request)).collect();
    // An accepted decision lets its call continue, whatever the other calls wait for.
    if open.len() < all().count() {
        return None;
    }
    let (first, others) = open.split_first()?;
    Some(Cause::Approval { request: first, others: others.len() })
}

fn resume_task(facts: &WhyFacts) -> WorkerTask {
    let item = facts
        .inbox
        .iter()
        .find(|item| matches!(item.body, InboxBody::Decision(_) | InboxBody::LateResult(_)));
    WorkerTask::Resume { since: item.map_or(facts.head.updated_at, |item| item.accepted_at) }
}

/// Cause of a step during which worker processes died.
fn suspect_cause(facts: &WhyFacts) -> Option<Cause<'_>> {
    let head = &facts.head;
    let at = head.suspicion.retry_at.or(head.due).unwrap_or(head.updated_at);
    head.is_suspect().then(|| Cause::Suspect { task: next_task(facts), at })
}

/// Next task of the phase.
fn next_task(facts: &WhyFacts) -> WorkerTask {
    match &facts.head.phase {
        Phase::Model { attempt, .. } => WorkerTask::ModelCall { attempt: *attempt },
        Phase::Summary { .. } => WorkerTask::Summary,
        Phase::Calls { calls, .. } => {
            let open = facts.tools.iter().zip(calls).filter(|(_, call)| !call.is_done());
            WorkerTask::ToolCalls(open.map(|(name, _)| name.clone()).collect())
        }
        Phase::Idle | Phase::Deleted => WorkerTask::ApplyNewest,
    }
}

/// Task of the worker with the lease.
fn current_task(facts: &WhyFacts) -> WorkerTask {
    let Phase::Calls { calls, .. } = &facts.head.phase else { return next_task(facts) };
    let started = facts.tools.iter().zip(calls).filter(|(_, call)| call.is_started());
    let started: Vec<String> = started.map(|(name, _)| name.clone()).collect();
    if started.is_empty() { WorkerTask::ApplyNewest } else { WorkerTask::ToolCalls(started) }
}

impl WorkerTask {
    fn since(&self, facts: &WhyFacts) -> Timestamp {
        match self {
            Self::ApplyInputs { since, .. } | Self::Abort { since } | Self::Resume { since } => {
                *since
            }
            Self::ModelCall { .. } | Self::ToolCalls(_) | Self::Summary | Self::ApplyNewest => {
                facts.head.updated_at
            }
        }
    }
}

impl Cause<'_> {
    pub(super) fn waits_for(&self) -> WaitsFor {
        match self {
            Self::Nothing { .. } => WaitsFor::Nothing,
            Self::HeldInputs { .. } => WaitsFor::NextPrompt,
            Self::Nudge(_) => WaitsFor::Nudge,
            Self::Working { task: WorkerTask::ModelCall { .. }, .. } => WaitsFor::Model,
            Self::Working { task: WorkerTask::ToolCalls(_), .. } => WaitsFor::Tools,
            Self::Working { task: WorkerTask::Summary, .. } => WaitsFor::Summary,
            Self::Working { .. } => WaitsFor::Worker,
            Self::TakeOver { .. } => WaitsFor::TakeOver,
            Self::Retry { .. } => WaitsFor::Retry,
            Self::Suspect { .. } => WaitsFor::BackOff,
            Self::Approval { request, .. } => match request.kind {
                RequestKind::Tool => WaitsFor::Approval,
                RequestKind::Outcome => WaitsFor::Outcome,
                RequestKind::Budget => WaitsFor::Budget,
                RequestKind::Question => WaitsFor::Answer,
            },
            Self::Deferred(put_off) => match put_off.reason {
                DeferReason::RateLimit => WaitsFor::Rate,
                DeferReason::BudgetInUse => WaitsFor::BudgetInUse,
                DeferReason::LedgerUnavailable => WaitsFor::Ledger,
            },
            Self::WaitingMessage(_) => WaitsFor::Message,
            Self::Paused(_) => WaitsFor::Paused,
            Self::NewerVersion => WaitsFor::NewerVersion,
        }
    }

    pub(super) fn since(&self, facts: &WhyFacts) -> Timestamp {
        match self {
            Self::HeldInputs { since, .. } => *since,
            Self::Nudge(step) => step.since(facts),
            Self::TakeOver { .. } if facts.is_service_stopped => facts.head.updated_at,
            Self::TakeOver { lease_end: stopped, .. } => *stopped,
            Self::Approval { request, .. } => request.requested_at,
            Self::WaitingMessage(message) => message.since,
            Self::Paused(pause) => pause.since,
            Self::Nothing { .. }
            | Self::Working { .. }
            | Self::Retry { .. }
            | Self::Suspect { .. }
            | Self::Deferred(_)
            | Self::NewerVersion => facts.head.updated_at,
        }
    }

    /// Time when it continues by itself or a worker checks it again. `None`: another event must
    /// happen first.
    pub(super) fn due(&self, facts: &WhyFacts) -> Option<Timestamp> {
        match self {
            Self::Nothing { .. }
            | Self::HeldInputs { .. }
            | Self::WaitingMessage(_)
            | Self::NewerVersion => None,
            Self::Nudge(
                WorkerTask::ModelCall { .. }
                | WorkerTask::ToolCalls(_)
                | WorkerTask::Summary
                | WorkerTask::ApplyNewest,
            ) => facts.head.due.or(Some(facts.head.updated_at)),
            // A new input is due since it was accepted, whatever the head's `due` is.
            Self::Nudge(step) => Some(step.since(facts)),
            Self::Working { until, .. } | Self::TakeOver { lease_end: until, .. } => {
                Some(until.plus(TAKE_OVER_DELAY))
            }
            Self::Retry { at, .. } | Self::Suspect { at, .. } => Some(*at),
            Self::Approval { request, .. } => facts.head.metering.recheck_at.or(request.expires_at),
            Self::Deferred(put_off) => Some(put_off.until),
            Self::Paused(pause) => Some(pause.recheck_at),
        }
    }

    /// True if a worker should have processed it long ago.
    pub(super) fn is_overdue(&self, facts: &WhyFacts) -> bool {
        let is_pending =
            matches!(self, Self::Nudge(_) | Self::TakeOver { .. } | Self::Suspect { .. });
        is_pending && self.due(facts).is_some_and(|due| due.plus(OVERDUE_AFTER) < facts.now)
    }
}
