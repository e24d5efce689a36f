//! Templates of the sentence and the hints for each cause. Times are printed as stored, so that all
//! callers read the same text.

use std::fmt::Display;

use crate::agent::brake::{Behind, PutOff};
use crate::agent::budget::Shortage;
use crate::agent::entry::PromptState;
use crate::agent::head::Head;
use crate::agent::request::{Request, RequestKind};
use crate::agent::suspicion::ISOLATED_DEATHS_MAX;
use crate::turn::views::why::Facts;
use crate::turn::views::why::cause::{Cause, Step};

const SETTING: &str = "TURNWHEEL_PAUSED";

pub(super) fn sentence(cause: &Cause<'_>, facts: &Facts) -> String {
    let since = cause.since(facts);
    let text = match cause {
        Cause::Nothing { last: None } => {
            format!(
                "No work is pending: the conversation has had no prompt; it last changed at {since}."
            )
        }
        Cause::Nothing { last: Some(state) } => {
            format!(
                "No work is pending: the last prompt {} at {since}{}.",
                end(*state),
                because(facts)
            )
        }
        Cause::Held { inputs, .. } => {
            format!(
                "No prompt is running: {} held for the next prompt since {since}.",
                counted(*inputs, "input has been", "inputs have been")
            )
        }
        Cause::Nudge(step) => {
            format!("{} pending since {since}: no worker has taken the lease yet.", owed(step))
        }
        Cause::Busy { step, .. } if facts.head.is_suspect() => format!(
            "A worker {} since {since}, in isolation, because the worker process {}.",
            doing(step),
            deaths(&facts.head)
        ),
        Cause::Busy { step, .. } => format!("A worker {} since {since}.", doing(step)),
        Cause::TakeOver { step, .. } if facts.is_unserved => format!(
            "The worker process has ended, and no service runs on this data folder: {} has been pending since {since}.",
            pending(step)
        ),
        Cause::TakeOver { step, stopped } => format!(
            "The worker stopped and its lease expired at {stopped}: {} until another worker takes over.",
            undone(step)
        ),
        Cause::Retry { attempt, at, is_summary } => {
            let what = if *is_summary { "The summary" } else { "The model call" };
            format!("{what} failed at {since}{}; attempt {attempt} is due at {at}.", because(facts))
        }
        Cause::Suspect { step, at } => format!(
            "The worker process {}: {}; it is retried in isolation at {at}.",
            deaths(&facts.head),
            undone(step)
        ),
        Cause::Asked { request, others } => asked(request, *others),
        Cause::PutOff(put_off) => deferred(put_off, &since),
        Cause::Paused(brake) => {
            format!(
                "{} by {SETTING}: the conversation's work has been kept pending since {since}.",
                braked(&brake.on)
            )
        }
        Cause::NewerVersion => {
            format!(
                "The conversation has waited for a newer version of Turnwheel since {since}: this version cannot process its pending work."
            )
        }
        Cause::Conversation(id) => {
            format!("A tool call has waited for the conversation `{id}` since {since}.")
        }
        Cause::Callback => format!("A tool call has waited for a callback since {since}."),
    };
    if cause.is_overdue(facts) { format!("{text} That is overdue.") } else { text }
}

/// Sentence for a deferred model call.
fn deferred(put_off: &PutOff, since: &impl Display) -> String {
    let until = put_off.until;
    match put_off.behind {
        Behind::Rate => format!(
            "The owner's model calls have been at the limit of TURNWHEEL_RATE_LIMITS since {since}; the next call is due at {until}."
        ),
        Behind::BudgetInUse => format!(
            "Running model calls have reserved the rest of a budget since {since}; the next check is due at {until}."
        ),
        Behind::Books => format!(
            "The tenant's usage ledger has been unavailable since {since}, so no model call is made; the next check is due at {until}."
        ),
    }
}

/// Events or actions that let the conversation continue, the most likely first.
pub(super) fn unblock(cause: &Cause<'_>, facts: &Facts) -> Vec<String> {
    let id = &facts.head.conversation_id;
    let abort = format!("POST /api/conversations/{id}/abort ends the prompt");
    let mut ways = match cause {
        Cause::Nothing { .. } | Cause::Held { .. } => {
            return vec![match &facts.agent_problem {
                Some(problem) => {
                    format!("repair the agent: {problem}; until then every prompt fails")
                }
                None => format!("POST /api/conversations/{id}/prompts starts the next prompt"),
            }];
        }
        Cause::Nudge(_) | Cause::TakeOver { .. } => {
            let mut ways =
                vec!["the recovery sweep enqueues it within a minute: nothing to do".to_owned()];
            if cause.is_overdue(facts) {
                ways = vec![
                    "`turnwheel rebuild-queue` enqueues it now".to_owned(),
                    "`turnwheel doctor` checks queue and store; check also that the service and its `sweep` run".to_owned(),
                ];
            }
            ways
        }
        Cause::Busy { until, .. } => vec![
            format!(
                "the worker finishes, or its lease expires and another worker takes over after {until}"
            ),
            abort.clone(),
        ],
        Cause::Retry { at, .. } | Cause::Suspect { at, .. } => {
            vec![format!("it continues by itself at {at}"), abort.clone()]
        }
        Cause::Asked { request, .. } => decide(request, facts),
        Cause::PutOff(put_off) => {
            vec![format!("it continues by itself at {}", put_off.until), abort.clone()]
        }
        Cause::Paused(brake) => vec![
            format!("remove `{}` from {SETTING}: it continues within 90 seconds", brake.on),
            abort.clone(),
        ],
        Cause::NewerVersion => {
            return vec!["deploy the newer version again: it continues where it stopped".to_owned()];
        }
        Cause::Conversation(other) => {
            vec![
                format!("GET /api/conversations/{other}/why explains that conversation"),
                abort.clone(),
            ]
        }
        Cause::Callback => vec!["the callback arrives".to_owned(), abort.clone()],
    };
    if facts.is_unserved && !cause.waits_for().is_person() {
        ways.insert(
            0,
            "start `turnwheel dev` with this data folder: it continues by itself".to_owned(),
        );
    }
    // Without a prompt there is nothing to abort.
    if facts.head.prompt.is_none() {
        ways.retain(|way| *way != abort);
    }
    ways
}

/// Predicate after "The worker process", for a suspect step.
fn deaths(head: &Head) -> String {
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
    match (head.claims, isolated) {
        (claims, 0) => format!("died {} while it ran this step", times(claims)),
        (0, _) => format!("died {alone}"),
        (claims, _) => format!(
            "died {} while it ran this step beside others and {alone}",
            times(claims)
        ),
    }
}

fn decide(request: &Request, facts: &Facts) -> Vec<String> {
    let id = &facts.head.conversation_id;
    let decisions: Vec<&str> = request.kind.decisions().iter().map(|it| it.name()).collect();
    let mut ways = vec![format!(
        "POST /api/conversations/{id}/approvals/{} with {}, by {}",
        request.id,
        decisions.join(" or "),
        request.approvers.join(" or ")
    )];
    if let Some(at) = facts.head.books.look_at.filter(|_| request.kind == RequestKind::Budget) {
        ways.push(format!("the budget has room again: the next check is due at {at}"));
    }
    if let Some(at) = request.expires_at {
        ways.push(format!("the request expires at {at}"));
    }
    ways
}

fn asked(request: &Request, others: usize) -> String {
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
            let used_up = request.budget.as_ref().map(Shortage::reason);
            let used_up = used_up.unwrap_or_else(|| "A budget is used up.".to_owned());
            let used_up = used_up.trim_end_matches('.').to_owned();
            format!("{used_up}; an approver must decide whether to extend it; requested at {at}")
        }
    };
    if others == 0 {
        return format!("{text}.");
    }
    format!("{text}, and {} open.", counted(others, "other request is", "other requests are"))
}

fn end(state: PromptState) -> &'static str {
    match state {
        // An ended prompt in the head has none of these states.
        PromptState::Running | PromptState::WaitingForApproval => "ended",
        PromptState::Completed => "was completed",
        PromptState::Failed => "failed",
        PromptState::Aborted => "was aborted",
    }
}

/// Error after "failed at …"; empty if there is none.
fn because(facts: &Facts) -> String {
    facts.last_error.as_ref().map(|error| format!(": {error}")).unwrap_or_default()
}

fn counted(count: usize, one: &str, many: &str) -> String {
    if count == 1 { format!("1 {one}") } else { format!("{count} {many}") }
}

fn listed(tools: &[String]) -> String {
    let names: Vec<String> = tools.iter().map(|name| format!("`{name}`")).collect();
    if names.is_empty() { "a call".to_owned() } else { names.join(", ") }
}

/// Subject of "… pending since T".
fn owed(step: &Step) -> String {
    match step {
        Step::TakeIn { inputs, .. } => counted(*inputs, "input has been", "inputs have been"),
        Step::Stop { .. } => "An abort has been".to_owned(),
        Step::GoOn { .. } => "A decision or late result has been".to_owned(),
        Step::Answer { attempt: 1 } => "A model call has been".to_owned(),
        Step::Answer { attempt } => format!("Attempt {attempt} of a model call has been"),
        Step::Calls(tools) => format!("The result of {} has been", listed(tools)),
        Step::Summary => "A summary of the conversation has been".to_owned(),
        Step::Rest => "A check of the conversation has been".to_owned(),
    }
}

/// Predicate after "A worker".
fn doing(step: &Step) -> String {
    match step {
        Step::Answer { attempt: 1 } => "has been calling the model".to_owned(),
        Step::Answer { attempt } => format!("has been calling the model (attempt {attempt})"),
        Step::Calls(tools) => format!("has been running {}", listed(tools)),
        Step::Summary => "has been summarising the conversation".to_owned(),
        Step::TakeIn { .. } | Step::Stop { .. } | Step::GoOn { .. } | Step::Rest => {
            "has been applying the newest input".to_owned()
        }
    }
}

fn undone(step: &Step) -> String {
    format!("{} is pending", pending(step))
}

/// Result that a worker has not delivered.
fn pending(step: &Step) -> String {
    match step {
        Step::Answer { .. } => "the model response".to_owned(),
        Step::Calls(tools) => format!("the result of {}", listed(tools)),
        Step::Summary => "the summary".to_owned(),
        Step::TakeIn { .. } | Step::Stop { .. } | Step::GoOn { .. } | Step::Rest => {
            "the newest input".to_owned()
        }
    }
}

fn braked(on: &str) -> String {
    match on.split_once(':') {
        Some(("agent", name)) => format!("The agent `{name}` is paused"),
        Some(("tool", name)) => format!("The tool `{name}` is paused"),
        _ => "Everything is paused".to_owned(),
    }
}
