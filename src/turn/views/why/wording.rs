//! The sentences: what is waited for, since when, and what would let it go on. Times stand in them as they are stored, so that
//! two who ask read the same.

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
            format!("No work is pending: it has had no prompt since it began at {since}.")
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
                "Nothing runs; {} held for the next prompt since {since}.",
                counted(*inputs, "input has been", "inputs have been")
            )
        }
        Cause::Nudge(step) => format!("{} since {since}: no worker has come yet.", owed(step)),
        Cause::Busy { step, .. } if facts.head.is_suspect() => format!(
            "A worker {} since {since}, in isolation. {}.",
            doing(step),
            deaths(&facts.head)
        ),
        Cause::Busy { step, .. } => format!("A worker {} since {since}.", doing(step)),
        Cause::TakeOver { step, .. } if facts.is_unserved => format!(
            "Its worker's process is gone, and no service runs on this data folder: {} is pending since {since}.",
            pending(step)
        ),
        Cause::TakeOver { step, stopped } => format!(
            "The worker that had it stopped in the middle and held it until {stopped}: {}, another one has to take over.",
            undone(step)
        ),
        Cause::Retry { attempt, at, is_summary } => {
            let what = if *is_summary { "The summary" } else { "The model call" };
            format!("{what} failed at {since}{}; attempt {attempt} is due at {at}.", because(facts))
        }
        Cause::Suspect { step, at } => format!(
            "{}: {}; it is retried in isolation at {at}.",
            deaths(&facts.head),
            undone(step)
        ),
        Cause::Asked { request, others } => asked(request, *others),
        Cause::PutOff(put_off) => deferred(put_off, &since),
        Cause::Paused(brake) => {
            format!(
                "{} by {SETTING}: it has waited since {since}, and what is owed is kept.",
                braked(&brake.on)
            )
        }
        Cause::NewerVersion => {
            format!(
                "It has waited for a newer version of Turnwheel since {since}: what it owes is unknown to this one."
            )
        }
        Cause::Conversation(id) => {
            format!("A call has waited for the conversation {id} since {since}.")
        }
        Cause::Callback => format!("A call has waited for an answer from outside since {since}."),
    };
    if cause.is_overdue(facts) { format!("{text} That is overdue.") } else { text }
}

/// A model call that is deferred.
fn deferred(put_off: &PutOff, since: &impl Display) -> String {
    let until = put_off.until;
    match put_off.behind {
        Behind::Rate => format!(
            "Its owner's model calls have come faster than TURNWHEEL_RATE_LIMITS lets them since {since}; the next is made at {until}."
        ),
        Behind::BudgetInUse => format!(
            "Since {since} model calls under way may use up what is left of a budget; it looks again at {until}."
        ),
        Behind::Books => format!(
            "The tenant's books have not answered since {since}, and without them no model call is made; it looks again at {until}."
        ),
    }
}

/// What would let it go on, the likeliest first.
pub(super) fn unblock(cause: &Cause<'_>, facts: &Facts) -> Vec<String> {
    let id = &facts.head.conversation_id;
    let abort = format!("POST /api/conversations/{id}/abort ends the prompt");
    let mut ways = match cause {
        Cause::Nothing { .. } | Cause::Held { .. } => {
            return vec![match &facts.agent_problem {
                Some(problem) => format!("put right that {problem}; until then every prompt fails"),
                None => format!("POST /api/conversations/{id}/prompts begins the next prompt"),
            }];
        }
        Cause::Nudge(_) | Cause::TakeOver { .. } => {
            let mut ways =
                vec!["the sweep rings for it each minute: nothing has to be done".to_owned()];
            if cause.is_overdue(facts) {
                ways = vec![
                    "`turnwheel rebuild-queue` rings for it now".to_owned(),
                    "`turnwheel doctor` says whether queue and store answer: look whether the service and its `sweep` run".to_owned(),
                ];
            }
            ways
        }
        Cause::Busy { until, .. } => vec![
            format!(
                "the worker comes to its end, or stops renewing its claim and another takes over after {until}"
            ),
            abort.clone(),
        ],
        Cause::Retry { at, .. } | Cause::Suspect { at, .. } => {
            vec![format!("it goes on by itself at {at}"), abort.clone()]
        }
        Cause::Asked { request, .. } => decide(request, facts),
        Cause::PutOff(put_off) => {
            vec![format!("it goes on by itself at {}", put_off.until), abort.clone()]
        }
        Cause::Paused(brake) => vec![
            format!("take `{}` out of {SETTING}: it goes on within a minute and a half", brake.on),
            abort.clone(),
        ],
        Cause::NewerVersion => {
            return vec!["bring the newer version back: it goes on where it stands".to_owned()];
        }
        Cause::Conversation(other) => {
            vec![
                format!("GET /api/conversations/{other}/why says what that one waits for"),
                abort.clone(),
            ]
        }
        Cause::Callback => vec!["the answer comes".to_owned(), abort.clone()],
    };
    if facts.is_unserved && !cause.waits_for().is_person() {
        ways.insert(
            0,
            "start `turnwheel dev` with this data folder: it continues by itself".to_owned(),
        );
    }
    // Without a prompt there is nothing to stop.
    if facts.head.prompt.is_none() {
        ways.retain(|way| *way != abort);
    }
    ways
}

/// The evidence against a suspect step.
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
        (claims, 0) => format!("The worker process died {} while it ran this step", times(claims)),
        (0, _) => format!("The worker process died {alone}"),
        (claims, _) => format!(
            "The worker process died {} while it ran this step beside others and {alone}",
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
        ways.push(format!("there is room in the budget again: it looks at {at}"));
    }
    if let Some(at) = request.expires_at {
        ways.push(format!("it expires at {at}"));
    }
    ways
}

fn asked(request: &Request, others: usize) -> String {
    let tool = request.tool.as_deref().unwrap_or("a call");
    let at = request.requested_at;
    let text = match request.kind {
        RequestKind::Tool => {
            format!("It waits for a person, who was asked at {at} whether `{tool}` may run")
        }
        RequestKind::Outcome => {
            format!(
                "It waits for a person, who was asked at {at} what became of `{tool}`, whose answer was lost"
            )
        }
        RequestKind::Question => {
            format!("It waits for a person, who was asked something by an extension at {at}")
        }
        RequestKind::Budget => {
            let used_up = request.budget.as_ref().map(Shortage::reason);
            let used_up = used_up.unwrap_or_else(|| "A budget is used up.".to_owned());
            let used_up = used_up.trim_end_matches('.').to_owned();
            format!(
                "{used_up}, and it waits for a person, who was asked at {at} whether it may cost more"
            )
        }
    };
    if others == 0 {
        return format!("{text}.");
    }
    format!("{text}, and about {}.", counted(others, "other call", "other calls"))
}

fn end(state: PromptState) -> &'static str {
    match state {
        // The head calls no ended prompt so.
        PromptState::Running | PromptState::WaitingForApproval => "ended",
        PromptState::Completed => "was completed",
        PromptState::Failed => "failed",
        PromptState::Aborted => "was aborted",
    }
}

/// The error, after "failed at …".
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

/// The beginning of "… since T".
fn owed(step: &Step) -> String {
    match step {
        Step::TakeIn { inputs, .. } => {
            format!("{} accepted", counted(*inputs, "input has been", "inputs have been"))
        }
        Step::Stop { .. } => "A stop has been asked for".to_owned(),
        Step::GoOn { .. } => "What it waited for has been there".to_owned(),
        Step::Answer { attempt: 1 } => "An answer of the model has been owed".to_owned(),
        Step::Answer { attempt } => {
            format!("Try {attempt} of an answer of the model has been owed")
        }
        Step::Calls(tools) => format!("The result of {} has been owed", listed(tools)),
        Step::Summary => "A summary of the conversation has been owed".to_owned(),
        Step::Rest => "A look has been owed".to_owned(),
    }
}

/// After "A worker".
fn doing(step: &Step) -> String {
    match step {
        Step::Answer { attempt: 1 } => "has been asking the model".to_owned(),
        Step::Answer { attempt } => format!("has been asking the model, try {attempt},"),
        Step::Calls(tools) => format!("has been running {}", listed(tools)),
        Step::Summary => "has been summing the conversation up".to_owned(),
        Step::TakeIn { .. } | Step::Stop { .. } | Step::GoOn { .. } | Step::Rest => {
            "has been taking in what came".to_owned()
        }
    }
}

fn undone(step: &Step) -> String {
    format!("{} is owed", pending(step))
}

/// What a worker had to do.
fn pending(step: &Step) -> String {
    match step {
        Step::Answer { .. } => "the model's answer".to_owned(),
        Step::Calls(tools) => format!("the result of {}", listed(tools)),
        Step::Summary => "a summary".to_owned(),
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
