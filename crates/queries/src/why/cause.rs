//! Causes: every state in which a conversation can wait or run, with its sentence and its hints.
//! Times are printed as stored, so that all callers read the same text.

use crate::why::texts::{
    approval_sentence, deaths_predicate, decision_hints, error_suffix, idle_hints, idle_sentence,
    pause_subject, quote_names, with_count,
};
use crate::why::{LeaseView, OVERDUE_AFTER, WaitsFor, WhyFacts, to_clause};
use turnwheel_conversation::entry::PromptState;
use turnwheel_conversation::head::{Head, READER_VERSION};
use turnwheel_conversation::inbox::{InboxBody, InboxItem};
use turnwheel_conversation::pause::{DeferReason, Deferral};
use turnwheel_conversation::phase::{CallState, CallStatus, PendingWait, Phase};
use turnwheel_conversation::request::{Request, RequestKind};
use turnwheel_conversation::step::is_supported;
use turnwheel_platform::clock::Timestamp;
use turnwheel_storage::store::TAKE_OVER_DELAY;

const SWEEP_HINT: &str = "the recovery sweep enqueues it within a minute: nothing to do";

/// Task that a worker does next, or is doing.
struct WorkerTask {
    /// Reason to wait while a worker does it.
    waits_for: WaitsFor,
    /// Time of the oldest input that it applies. Absent: it continues after the last commit.
    since: Option<Timestamp>,
    /// Subject of "… pending since T".
    subject: String,
    /// Predicate after "A worker".
    activity: String,
    /// Result that a worker has not delivered.
    result: String,
}

impl WorkerTask {
    fn new(
        waits_for: WaitsFor,
        subject: impl Into<String>,
        activity: impl Into<String>,
        result: impl Into<String>,
    ) -> Self {
        let (subject, activity, result) = (subject.into(), activity.into(), result.into());
        Self { waits_for, since: None, subject, activity, result }
    }

    /// Applies the newest input or result.
    fn apply(subject: impl Into<String>, since: Option<Timestamp>) -> Self {
        let activity = "has been applying the newest input";
        Self { since, ..Self::new(WaitsFor::Worker, subject, activity, "the newest input") }
    }

    fn check() -> Self {
        Self::apply("A check of the conversation has been", None)
    }

    /// Continues after a decision or a late tool result.
    fn resume(facts: &WhyFacts) -> Self {
        let is_result =
            |it: &&InboxItem| matches!(it.body, InboxBody::Decision(_) | InboxBody::LateResult(_));
        let item = facts.inbox.iter().find(is_result);
        let since = item.map_or(facts.head.updated_at, |item| item.accepted_at);
        Self::apply("A decision or late result has been", Some(since))
    }

    fn run(tools: &[&str]) -> Self {
        let names = quote_names(tools);
        let subject = format!("The result of {names} has been");
        let activity = format!("has been running {names}");
        Self::new(WaitsFor::Tools, subject, activity, format!("the result of {names}"))
    }

    fn call_model(attempt: u32) -> Self {
        let (subject, number) = match attempt {
            1 => ("A model call has been".to_owned(), String::new()),
            _ => (
                format!("Attempt {attempt} of a model call has been"),
                format!(" (attempt {attempt})"),
            ),
        };
        let activity = format!("has been calling the model{number}");
        Self::new(WaitsFor::Model, subject, activity, "the model response")
    }

    fn summarise() -> Self {
        let subject = "A summary of the conversation has been";
        let activity = "has been summarising the conversation";
        Self::new(WaitsFor::Summary, subject, activity, "the summary")
    }

    /// Next task of the phase.
    fn next(facts: &WhyFacts) -> Self {
        match &facts.head.phase {
            Phase::Model { attempt, .. } => Self::call_model(*attempt),
            Phase::Summary { .. } => Self::summarise(),
            Phase::Calls { calls, .. } => Self::run(&facts.tools(calls, |call| !call.is_done())),
            Phase::Idle | Phase::Deleted => Self::check(),
        }
    }

    /// Task of the worker with the lease.
    fn current(facts: &WhyFacts) -> Self {
        let Phase::Calls { calls, .. } = &facts.head.phase else { return Self::next(facts) };
        let started = facts.tools(calls, CallState::is_started);
        if started.is_empty() { Self::check() } else { Self::run(&started) }
    }
}

impl WhyFacts {
    /// Tool names of these calls.
    fn tools(&self, calls: &[CallState], is_wanted: impl Fn(&CallState) -> bool) -> Vec<&str> {
        let wanted = self.tools.iter().zip(calls).filter(|(_, call)| is_wanted(call));
        wanted.map(|(name, _)| name.as_str()).collect()
    }
}

/// Reason why a conversation waits or runs.
pub(super) struct Cause<'a> {
    pub(super) waits_for: WaitsFor,
    pub(super) since: Timestamp,
    /// Time when it continues by itself or a worker checks it again. `None`: another event must
    /// happen first.
    pub(super) due: Option<Timestamp>,
    pub(super) sentence: String,
    /// Events or actions that let it continue, the most likely first.
    pub(super) hints: Vec<String>,
    /// The oldest open request, if an approver must decide it.
    pub(super) request: Option<&'a Request>,
}

impl Cause<'_> {
    /// A cause without a time when it ends.
    fn new(waits_for: WaitsFor, since: Timestamp, sentence: String, hints: Vec<String>) -> Self {
        Self { waits_for, since, due: None, sentence, hints, request: None }
    }

    /// A cause that ends by itself at this time.
    fn continuing(waits_for: WaitsFor, since: Timestamp, sentence: String, at: Timestamp) -> Self {
        let hint = format!("it continues by itself at {at}");
        Self::new(waits_for, since, sentence, vec![hint]).due(at)
    }

    fn due(self, due: Timestamp) -> Self {
        Self { due: Some(due), ..self }
    }

    /// Inputs, results or calls wait for a worker to take the lease.
    fn nudge(facts: &WhyFacts, task: &WorkerTask) -> Self {
        let last_commit = facts.head.updated_at;
        let since = task.since.unwrap_or(last_commit);
        // A new input is due since it was accepted, whatever the head's `due` is.
        let due = task.since.or(facts.head.due).unwrap_or(last_commit);
        let sentence =
            format!("{} pending since {since}: no worker has taken the lease yet.", task.subject);
        Self::new(WaitsFor::Nudge, since, sentence, vec![SWEEP_HINT.to_owned()]).due(due)
    }

    fn newer_version(facts: &WhyFacts) -> Self {
        let since = facts.head.updated_at;
        let sentence = format!(
            "The conversation has waited for a newer version of Turnwheel since {since}: this version cannot process its pending work."
        );
        let hint = "deploy the newer version again: it continues where it stopped".to_owned();
        Self::new(WaitsFor::NewerVersion, since, sentence, vec![hint])
    }

    /// True if nothing runs and no work is pending.
    pub(super) fn is_idle(&self) -> bool {
        matches!(self.waits_for, WaitsFor::Nothing | WaitsFor::NextPrompt)
    }

    /// True if no worker of this version can let it continue.
    pub(super) fn is_blocked(&self) -> bool {
        matches!(self.waits_for, WaitsFor::Message | WaitsFor::NewerVersion)
    }

    /// True if a worker should have processed it long ago.
    fn is_overdue(&self, facts: &WhyFacts) -> bool {
        let is_pending =
            matches!(self.waits_for, WaitsFor::Nudge | WaitsFor::TakeOver | WaitsFor::BackOff);
        is_pending && self.due.is_some_and(|due| due.plus(OVERDUE_AFTER) < facts.now)
    }
}

/// Explains the state: its cause, and the texts that several causes have.
pub(super) fn explain<'a>(facts: &'a WhyFacts, lease: Option<&LeaseView>) -> Cause<'a> {
    let mut cause = find_cause(facts, lease);
    let is_sweep = matches!(cause.waits_for, WaitsFor::Nudge | WaitsFor::TakeOver);
    // The error of a failed prompt has the same text.
    if let Some(note) = facts.head.compaction_note.as_deref()
        && !has_failed(&cause, facts)
    {
        cause.sentence = format!("{} {}", cause.sentence, note.text);
    }
    if cause.is_overdue(facts) {
        cause.sentence.push_str(" That is overdue.");
        if is_sweep {
            cause.hints = vec![
                "`turnwheel rebuild-queue` enqueues it now".to_owned(),
                "`turnwheel doctor` checks queue and store; check also that the service and its `sweep` run".to_owned(),
            ];
        }
    }
    if cause.is_idle() || cause.is_blocked() || cause.waits_for.is_decision() {
        return cause;
    }
    // Without a prompt there is nothing to abort.
    if !is_sweep && facts.head.prompt.is_some() {
        let id = &facts.head.conversation_id;
        cause.hints.push(format!("POST /api/conversations/{id}/abort ends the prompt"));
    }
    if facts.is_service_stopped {
        let start = "start `turnwheel dev` with this data folder: it continues by itself";
        cause.hints.insert(0, start.to_owned());
    }
    cause
}

/// True if nothing runs, and the last prompt failed.
fn has_failed(cause: &Cause<'_>, facts: &WhyFacts) -> bool {
    let last = facts.head.prompts.last().map(|span| span.state);
    cause.waits_for == WaitsFor::Nothing && last == Some(PromptState::Failed)
}

fn find_cause<'a>(facts: &'a WhyFacts, lease: Option<&LeaseView>) -> Cause<'a> {
    if facts.head.min_reader > READER_VERSION {
        return Cause::newer_version(facts);
    }
    let Some(lease) = lease else { return cause_without_lease(facts) };
    let task = WorkerTask::current(facts);
    if task.waits_for == WaitsFor::Worker {
        // The worker only checks the conversation, which waits for another reason.
        let cause = cause_without_lease(facts);
        if cause.waits_for != WaitsFor::Nudge {
            return cause;
        }
    }
    if facts.is_live(lease) {
        working_cause(facts, &task, lease.until)
    } else {
        lost_worker_cause(facts, &task, lease.until)
    }
}

fn working_cause(facts: &WhyFacts, task: &WorkerTask, until: Timestamp) -> Cause<'static> {
    let (since, activity) = (facts.head.updated_at, &task.activity);
    let isolation = if facts.head.is_suspect() {
        let deaths = deaths_predicate(&facts.head);
        format!(", in isolation, because the worker process {deaths}")
    } else {
        String::new()
    };
    let sentence = format!("A worker {activity} since {since}{isolation}.");
    let hint = format!(
        "the worker finishes, or its lease expires and another worker takes over after {until}"
    );
    Cause::new(task.waits_for, since, sentence, vec![hint]).due(until.plus(TAKE_OVER_DELAY))
}

fn lost_worker_cause(facts: &WhyFacts, task: &WorkerTask, until: Timestamp) -> Cause<'static> {
    let (since, result) = (facts.head.updated_at, &task.result);
    let (since, sentence) = if facts.is_service_stopped {
        let sentence = format!(
            "The worker process has ended, and no service runs on this data folder: {result} has been pending since {since}."
        );
        (since, sentence)
    } else {
        let sentence = format!(
            "The worker stopped and its lease expired at {until}: {result} is pending until another worker takes over."
        );
        (until, sentence)
    };
    Cause::new(WaitsFor::TakeOver, since, sentence, vec![SWEEP_HINT.to_owned()])
        .due(until.plus(TAKE_OVER_DELAY))
}

/// Cause of a conversation without a lease.
fn cause_without_lease(facts: &WhyFacts) -> Cause<'_> {
    let head = &facts.head;
    if let Some(abort) = facts.inbox.iter().find(|item| is_abort_of_running_prompt(item, head)) {
        let task = WorkerTask::apply("An abort has been".to_owned(), Some(abort.accepted_at));
        return Cause::nudge(facts, &task);
    }
    if let Some(pause) = &head.pause {
        // An approver can decide meanwhile.
        return approval_cause(facts).unwrap_or_else(|| {
            let (subject, since) = (pause_subject(&pause.target), pause.since);
            let sentence = format!(
                "{subject} by TURNWHEEL_PAUSED: the conversation's work has been kept pending since {since}."
            );
            let hint = format!(
                "remove `{}` from TURNWHEEL_PAUSED: it continues within 90 seconds",
                pause.target
            );
            Cause::new(WaitsFor::Paused, since, sentence, vec![hint]).due(pause.recheck_at)
        });
    }
    match &head.phase {
        Phase::Idle | Phase::Deleted => idle_cause(facts),
        Phase::Model { .. } | Phase::Summary { .. } => model_cause(facts),
        Phase::Calls { calls, .. } => calls_cause(facts, calls),
    }
}

fn is_abort_of_running_prompt(item: &InboxItem, head: &Head) -> bool {
    let running = head.prompt.as_ref().map(|run| &run.id);
    matches!(&item.body, InboxBody::Abort(abort) if running.is_some() && abort.prompt_id.as_ref() == running)
}

/// Cause while nothing runs: the queued inbox items, if any.
fn idle_cause(facts: &WhyFacts) -> Cause<'_> {
    let items = || facts.inbox.iter();
    let mut due_items = items()
        .filter(|item| item.has_effect_when_idle() && is_supported(&item.body))
        .filter(|item| facts.head.question_of(&item.input_id).is_none());
    if let Some(first) = due_items.next() {
        let count = 1 + due_items.count();
        let subject = with_count(count, "input has been", "inputs have been");
        return Cause::nudge(facts, &WorkerTask::apply(subject, Some(first.accepted_at)));
    }
    if let Some(cause) = approval_cause(facts) {
        return cause;
    }
    if items().any(|item| !is_supported(&item.body)) {
        return Cause::newer_version(facts);
    }
    if let Some(first) = facts.inbox.first() {
        let inputs = with_count(facts.inbox.len(), "input has been", "inputs have been");
        let since = first.accepted_at;
        let sentence =
            format!("No prompt is running: {inputs} held for the next prompt since {since}.");
        return Cause::new(WaitsFor::NextPrompt, since, sentence, idle_hints(facts));
    }
    if let Some(message) = facts.head.waiting_message.as_deref()
        && message.until > facts.now
    {
        let (since, reason) = (message.since, to_clause(&message.reason));
        let sentence = format!(
            "A message of `agent-prompts` has waited since {since}: {reason}. It is tried again within minutes."
        );
        let hint = format!("repair the cause: {reason}; the message is then accepted by itself");
        return Cause::new(WaitsFor::Message, since, sentence, vec![hint]);
    }
    let (since, last) = (facts.head.updated_at, facts.head.prompts.last().map(|span| span.state));
    Cause::new(WaitsFor::Nothing, since, idle_sentence(last, facts), idle_hints(facts))
}

fn model_cause(facts: &WhyFacts) -> Cause<'_> {
    let (head, since) = (&facts.head, facts.head.updated_at);
    if head.is_waiting_for_decision() {
        return approval_cause(facts)
            .unwrap_or_else(|| Cause::nudge(facts, &WorkerTask::resume(facts)));
    }
    if let Some(cause) = suspect_cause(facts) {
        return cause;
    }
    let (subject, attempt, not_before) = match head.phase {
        Phase::Model { attempt, not_before, .. } => ("The model call", attempt, not_before),
        Phase::Summary { attempt, not_before, .. } => ("The summary", attempt, not_before),
        Phase::Idle | Phase::Calls { .. } | Phase::Deleted => ("The step", 1, None),
    };
    let Some(at) = not_before.filter(|time| *time > facts.now) else {
        return Cause::nudge(facts, &WorkerTask::next(facts));
    };
    if let Some(deferral) = head.deferral() {
        let (waits_for, sentence) = deferred_sentence(deferral, since);
        return Cause::continuing(waits_for, since, sentence, deferral.until);
    }
    let error = error_suffix(facts);
    let sentence = format!("{subject} failed at {since}{error}; attempt {attempt} is due at {at}.");
    Cause::continuing(WaitsFor::Retry, since, sentence, at)
}

/// Reason of a deferred model call, and its sentence.
fn deferred_sentence(deferral: &Deferral, since: Timestamp) -> (WaitsFor, String) {
    let until = deferral.until;
    let (waits_for, reason, next) = match deferral.reason {
        DeferReason::RateLimit => (
            WaitsFor::Rate,
            format!(
                "The owner's model calls have been at the limit of TURNWHEEL_RATE_LIMITS since {since}"
            ),
            "call",
        ),
        DeferReason::BudgetInUse => (
            WaitsFor::BudgetInUse,
            format!("Running model calls have reserved the rest of a budget since {since}"),
            "check",
        ),
        DeferReason::LedgerUnavailable => (
            WaitsFor::Ledger,
            format!(
                "The tenant's usage ledger has been unavailable since {since}, so no model call is made"
            ),
            "check",
        ),
    };
    (waits_for, format!("{reason}; the next {next} is due at {until}."))
}

fn calls_cause<'a>(facts: &'a WhyFacts, calls: &[CallState]) -> Cause<'a> {
    if let Some(cause) = suspect_cause(facts) {
        return cause;
    }
    if facts.head.phase.call_batch().has_pending_work() {
        return Cause::nudge(facts, &WorkerTask::next(facts));
    }
    if let Some(cause) = approval_cause(facts) {
        return cause;
    }
    // No version waits for these yet.
    let is_unknown = |call: &CallState| {
        matches!(
            call.status,
            CallStatus::Waiting {
                on: PendingWait::Conversation { .. } | PendingWait::Callback { .. }
            }
        )
    };
    if calls.iter().any(is_unknown) {
        return Cause::newer_version(facts);
    }
    Cause::nudge(facts, &WorkerTask::resume(facts))
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
    let (request, others) = open.split_first()?;
    let waits_for = match request.kind {
        RequestKind::Tool => WaitsFor::Approval,
        RequestKind::Outcome => WaitsFor::Outcome,
        RequestKind::Budget => WaitsFor::Budget,
        RequestKind::Question => WaitsFor::Answer,
    };
    let sentence = approval_sentence(request, others.len());
    let hints = decision_hints(request, facts);
    let due = facts.head.metering.recheck_at.or(request.expires_at);
    let cause = Cause::new(waits_for, request.requested_at, sentence, hints);
    Some(Cause { request: Some(request), due, ..cause })
}

/// Cause of a step during which worker processes died.
fn suspect_cause(facts: &WhyFacts) -> Option<Cause<'_>> {
    let head = &facts.head;
    if !head.is_suspect() {
        return None;
    }
    let at = head.suspicion.retry_at.or(head.due).unwrap_or(head.updated_at);
    let (deaths, result) = (deaths_predicate(head), WorkerTask::next(facts).result);
    let sentence = format!(
        "The worker process {deaths}: {result} is pending; it is retried in isolation at {at}."
    );
    Some(Cause::continuing(WaitsFor::BackOff, head.updated_at, sentence, at))
}
