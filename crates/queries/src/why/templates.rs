//! Templates of the sentence and the hints for each cause. Times are printed as stored, so that all
//! callers read the same text.

use std::fmt::Display;

use crate::why::cause::{Cause, WorkerTask};
use crate::why::{WhyFacts, to_clause};
use turnwheel_conversation::budget::{BudgetExceeded, BudgetPeriod};
use turnwheel_conversation::entry::PromptState;
use turnwheel_conversation::head::Head;
use turnwheel_conversation::pause::{DeferReason, Deferral};
use turnwheel_conversation::request::{Request, RequestKind};
use turnwheel_conversation::suspicion::ISOLATED_DEATHS_MAX;

const PAUSED_SETTING: &str = "TURNWHEEL_PAUSED";

pub(super) fn sentence(cause: &Cause<'_>, facts: &WhyFacts) -> String {
    let since = cause.since(facts);
    let text = match cause {
        Cause::Nothing { last } => idle_sentence(*last, &since, facts),
        Cause::HeldInputs { inputs, .. } => {
            format!(
                "No prompt is running: {} held for the next prompt since {since}.",
                with_count(*inputs, "input has been", "inputs have been")
            )
        }
        Cause::Nudge(task) => {
            format!(
                "{} pending since {since}: no worker has taken the lease yet.",
                pending_subject(task)
            )
        }
        Cause::Working { task, .. } if facts.head.is_suspect() => format!(
            "A worker {} since {since}, in isolation, because the worker process {}.",
            activity(task),
            deaths_predicate(&facts.head)
        ),
        Cause::Working { task, .. } => format!("A worker {} since {since}.", activity(task)),
        Cause::TakeOver { task, .. } if facts.is_service_stopped => format!(
            "The worker process has ended, and no service runs on this data folder: {} has been pending since {since}.",
            pending_result(task)
        ),
        Cause::TakeOver { task, lease_end: stopped } => format!(
            "The worker stopped and its lease expired at {stopped}: {} until another worker takes over.",
            pending_clause(task)
        ),
        Cause::Retry { attempt, at, is_summary } => {
            let subject = if *is_summary { "The summary" } else { "The model call" };
            format!(
                "{subject} failed at {since}{}; attempt {attempt} is due at {at}.",
                error_suffix(facts)
            )
        }
        Cause::Suspect { task, at } => format!(
            "The worker process {}: {}; it is retried in isolation at {at}.",
            deaths_predicate(&facts.head),
            pending_clause(task)
        ),
        Cause::Approval { request, others } => approval_sentence(request, *others),
        Cause::Deferred(deferral) => deferred_sentence(deferral, &since),
        Cause::WaitingMessage(message) => format!(
            "A message of `agent-prompts` has waited since {since}: {}. It is tried again within minutes.",
            to_clause(&message.reason)
        ),
        Cause::Paused(pause) => {
            format!(
                "{} by {PAUSED_SETTING}: the conversation's work has been kept pending since {since}.",
                pause_subject(&pause.target)
            )
        }
        Cause::NewerVersion => {
            format!(
                "The conversation has waited for a newer version of Turnwheel since {since}: this version cannot process its pending work."
            )
        }
    };
    // The error of a failed prompt says the same.
    let is_failed = matches!(cause, Cause::Nothing { last: Some(PromptState::Failed) });
    let text = match facts.head.compaction_note.as_deref().filter(|_| !is_failed) {
        Some(note) => format!("{text} {}", note.text),
        None => text,
    };
    if cause.is_overdue(facts) { format!("{text} That is overdue.") } else { text }
}

/// Sentence for a conversation without pending work; `last` is the state of its last prompt.
fn idle_sentence(last: Option<PromptState>, since: &impl Display, facts: &WhyFacts) -> String {
    match last {
        None => format!(
            "No work is pending: the conversation has had no prompt; it last changed at {since}."
        ),
        Some(state) => format!(
            "No work is pending: the last prompt {} at {since}{}{}.",
            prompt_end_text(state),
            incomplete_suffix(facts),
            error_suffix(facts)
        ),
    }
}

/// Sentence for a deferred model call.
fn deferred_sentence(deferral: &Deferral, since: &impl Display) -> String {
    let until = deferral.until;
    match deferral.reason {
        DeferReason::RateLimit => format!(
            "The owner's model calls have been at the limit of TURNWHEEL_RATE_LIMITS since {since}; the next call is due at {until}."
        ),
        DeferReason::BudgetInUse => format!(
            "Running model calls have reserved the rest of a budget since {since}; the next check is due at {until}."
        ),
        DeferReason::LedgerUnavailable => format!(
            "The tenant's usage ledger has been unavailable since {since}, so no model call is made; the next check is due at {until}."
        ),
    }
}

/// Events or actions that let the conversation continue, the most likely first.
pub(super) fn unblock_hints(cause: &Cause<'_>, facts: &WhyFacts) -> Vec<String> {
    let id = &facts.head.conversation_id;
    let abort = format!("POST /api/conversations/{id}/abort ends the prompt");
    let mut hints = match cause {
        Cause::Nothing { .. } | Cause::HeldInputs { .. } => return idle_hints(cause, facts),
        Cause::Nudge(_) | Cause::TakeOver { .. } => {
            let mut hints =
                vec!["the recovery sweep enqueues it within a minute: nothing to do".to_owned()];
            if cause.is_overdue(facts) {
                hints = vec![
                    "`turnwheel rebuild-queue` enqueues it now".to_owned(),
                    "`turnwheel doctor` checks queue and store; check also that the service and its `sweep` run".to_owned(),
                ];
            }
            hints
        }
        Cause::Working { until, .. } => vec![
            format!(
                "the worker finishes, or its lease expires and another worker takes over after {until}"
            ),
            abort.clone(),
        ],
        Cause::Retry { at, .. } | Cause::Suspect { at, .. } => {
            vec![format!("it continues by itself at {at}"), abort.clone()]
        }
        Cause::Approval { request, .. } => decision_hints(request, facts),
        Cause::Deferred(deferral) => {
            vec![format!("it continues by itself at {}", deferral.until), abort.clone()]
        }
        Cause::Paused(pause) => vec![
            format!(
                "remove `{}` from {PAUSED_SETTING}: it continues within 90 seconds",
                pause.target
            ),
            abort.clone(),
        ],
        Cause::WaitingMessage(message) => {
            return vec![format!(
                "repair the cause: {}; the message is then accepted by itself",
                to_clause(&message.reason)
            )];
        }
        Cause::NewerVersion => {
            return vec![
                "deploy the newer version again: it continues where it stopped".to_owned(),
            ];
        }
    };
    if facts.is_service_stopped && !cause.waits_for().is_decision() {
        hints.insert(
            0,
            "start `turnwheel dev` with this data folder: it continues by itself".to_owned(),
        );
    }
    // Without a prompt there is nothing to abort.
    if facts.head.prompt.is_none() {
        hints.retain(|hint| *hint != abort);
    }
    hints
}

/// Hints for a conversation in which nothing runs.
fn idle_hints(cause: &Cause<'_>, facts: &WhyFacts) -> Vec<String> {
    if let Some(problem) = &facts.agent_problem {
        return vec![format!("repair the agent: {problem}; until then every prompt fails")];
    }
    let id = &facts.head.conversation_id;
    let mut hints = Vec::new();
    if matches!(cause, Cause::Nothing { last: Some(PromptState::Failed) }) {
        hints.push(format!("POST /api/conversations/{id}/continue tries the failed prompt again"));
    }
    if facts.incomplete.as_ref().is_some_and(|it| it.reason == "max_output_tokens") {
        hints.push("a higher `maxOutputTokens` of the agent allows longer responses".to_owned());
    }
    hints.push(format!("POST /api/conversations/{id}/prompts starts the next prompt"));
    hints.extend(facts.before_failure.as_ref().map(|entry| {
        format!(
            "if it fails in the same way, POST /api/conversations/{id}/leaf {{\"entryId\": \"{entry}\"}} continues before the failed prompt"
        )
    }));
    hints
}

/// Predicate after "The worker process", for a suspect step.
fn deaths_predicate(head: &Head) -> String {
    let times = |count: u32| match count {
        1 => "once".to_owned(),
        2 => "twice".to_owned(),
        _ => format!("{count} times"),
    };
    let isolated = head.suspicion.isolated_deaths;
    let alone = format!(
        "{} while it ran this step alone (the prompt fails after {ISOLATED_DEATHS_MAX} of these)",
        times(isolated)
    );
    match (head.leases_without_progress, isolated) {
        (claims, 0) => format!("died {} while it ran this step", times(claims)),
        (0, _) => format!("died {alone}"),
        (claims, _) => {
            format!("died {} while it ran this step beside others and {alone}", times(claims))
        }
    }
}

fn decision_hints(request: &Request, facts: &WhyFacts) -> Vec<String> {
    let id = &facts.head.conversation_id;
    let decisions: Vec<&str> = request.kind.decisions().iter().map(|it| it.name()).collect();
    let needs_value = match request.kind {
        RequestKind::Budget => " (with the new limit as `value`)",
        RequestKind::Question => " (an answer has a `value`)",
        RequestKind::Tool | RequestKind::Outcome => "",
    };
    let mut hints = vec![format!(
        "POST /api/conversations/{id}/approvals/{} with {}{needs_value}, by {}",
        request.id,
        decisions.join(" or "),
        request.approvers.join(" or ")
    )];
    // A budget without a period never has room again by itself.
    let has_period = |budget: &BudgetExceeded| {
        matches!(budget.period, Some(BudgetPeriod::Day | BudgetPeriod::Month))
    };
    if let Some(at) = facts.head.metering.recheck_at
        && request.budget.as_ref().is_some_and(has_period)
    {
        hints.push(format!(
            "it continues by itself once the budget has room again: the next check is due at {at}"
        ));
    }
    if let Some(at) = request.expires_at {
        hints.push(format!("the request expires at {at}"));
    }
    hints
}

fn approval_sentence(request: &Request, others: usize) -> String {
    let tool = request.tool.as_deref().unwrap_or("a call");
    let at = request.requested_at;
    let text = match request.kind {
        RequestKind::Tool => {
            format!("An approver must decide whether `{tool}` may run; requested at {at}")
        }
        RequestKind::Outcome => {
            format!(
                "An approver must settle the outcome of `{tool}`, whose response was lost; requested at {at}"
            )
        }
        RequestKind::Question => {
            format!("An approver must reply to a question of an extension; requested at {at}")
        }
        RequestKind::Budget => {
            let used_up = request.budget.as_ref().map(BudgetExceeded::reason);
            let used_up = used_up.unwrap_or_else(|| "A budget is used up.".to_owned());
            let used_up = used_up.trim_end_matches('.').to_owned();
            format!("{used_up}; an approver must decide whether to extend it; requested at {at}")
        }
    };
    if others == 0 {
        return format!("{text}.");
    }
    format!("{text}, and {} open.", with_count(others, "other request is", "other requests are"))
}

fn prompt_end_text(state: PromptState) -> &'static str {
    match state {
        // An ended prompt in the head has none of these states.
        PromptState::Running | PromptState::WaitingForApproval => "ended",
        PromptState::Completed => "was completed",
        PromptState::Failed => "failed",
        PromptState::Aborted => "was aborted",
    }
}

/// Error after "failed at …"; empty if there is none.
fn error_suffix(facts: &WhyFacts) -> String {
    facts.last_error.as_ref().map(|error| format!(": {error}")).unwrap_or_default()
}

/// Reason why the last response is incomplete, after "was completed at …"; empty if it is complete.
fn incomplete_suffix(facts: &WhyFacts) -> String {
    let details = facts.incomplete.as_ref();
    details
        .map(|details| {
            let message = details.message.trim_end_matches('.');
            format!(", but its last response is incomplete (`{}`): {message}", details.reason)
        })
        .unwrap_or_default()
}

fn with_count(count: usize, one: &str, many: &str) -> String {
    if count == 1 { format!("1 {one}") } else { format!("{count} {many}") }
}

fn quote_names(tools: &[String]) -> String {
    let names: Vec<String> = tools.iter().map(|name| format!("`{name}`")).collect();
    if names.is_empty() { "a call".to_owned() } else { names.join(", ") }
}

/// Subject of "… pending since T".
fn pending_subject(step: &WorkerTask) -> String {
    match step {
        WorkerTask::ApplyInputs { inputs, .. } => {
            with_count(*inputs, "input has been", "inputs have been")
        }
        WorkerTask::Abort { .. } => "An abort has been".to_owned(),
        WorkerTask::Resume { .. } => "A decision or late result has been".to_owned(),
        WorkerTask::ModelCall { attempt: 1 } => "A model call has been".to_owned(),
        WorkerTask::ModelCall { attempt } => format!("Attempt {attempt} of a model call has been"),
        WorkerTask::ToolCalls(tools) => format!("The result of {} has been", quote_names(tools)),
        WorkerTask::Summary => "A summary of the conversation has been".to_owned(),
        WorkerTask::ApplyNewest => "A check of the conversation has been".to_owned(),
    }
}

/// Predicate after "A worker".
fn activity(step: &WorkerTask) -> String {
    match step {
        WorkerTask::ModelCall { attempt: 1 } => "has been calling the model".to_owned(),
        WorkerTask::ModelCall { attempt } => {
            format!("has been calling the model (attempt {attempt})")
        }
        WorkerTask::ToolCalls(tools) => format!("has been running {}", quote_names(tools)),
        WorkerTask::Summary => "has been summarising the conversation".to_owned(),
        WorkerTask::ApplyInputs { .. }
        | WorkerTask::Abort { .. }
        | WorkerTask::Resume { .. }
        | WorkerTask::ApplyNewest => "has been applying the newest input".to_owned(),
    }
}

fn pending_clause(step: &WorkerTask) -> String {
    format!("{} is pending", pending_result(step))
}

/// Result that a worker has not delivered.
fn pending_result(step: &WorkerTask) -> String {
    match step {
        WorkerTask::ModelCall { .. } => "the model response".to_owned(),
        WorkerTask::ToolCalls(tools) => format!("the result of {}", quote_names(tools)),
        WorkerTask::Summary => "the summary".to_owned(),
        WorkerTask::ApplyInputs { .. }
        | WorkerTask::Abort { .. }
        | WorkerTask::Resume { .. }
        | WorkerTask::ApplyNewest => "the newest input".to_owned(),
    }
}

fn pause_subject(on: &str) -> String {
    match on.split_once(':') {
        Some(("agent", name)) => format!("The agent `{name}` is paused"),
        Some(("tool", name)) => format!("The tool `{name}` is paused"),
        _ => "Everything is paused".to_owned(),
    }
}
