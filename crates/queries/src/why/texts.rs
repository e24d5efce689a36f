//! Texts of the sentences and the hints that have more than one form.

use crate::why::{WhyFacts, to_clause};
use turnwheel_conversation::budget::{BudgetExceeded, BudgetPeriod};
use turnwheel_conversation::entry::PromptState;
use turnwheel_conversation::head::Head;
use turnwheel_conversation::inbox::{InboxItem, InputQueue};
use turnwheel_conversation::request::{Request, RequestKind};
use turnwheel_conversation::suspicion::ISOLATED_DEATHS_MAX;
use turnwheel_record::contract::INBOX_ITEMS_MAX;

/// Sentence for a conversation without pending work; `last` is the state of its last prompt.
pub(super) fn idle_sentence(last: Option<PromptState>, facts: &WhyFacts) -> String {
    let since = facts.head.updated_at;
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

/// Change without which an idle conversation refuses the usual requests. `None`: it accepts them.
pub(super) fn idle_obstacle(facts: &WhyFacts) -> Option<String> {
    let of_agent = facts.agent_problem.as_ref().map(|problem| {
        format!("repair the agent: {}; until then every prompt fails", to_clause(problem))
    });
    let is_counted = |item: &&InboxItem| item.queue() != Some(InputQueue::NextTurn);
    let waiting = facts.inbox.iter().filter(is_counted).count();
    let id = &facts.head.conversation_id;
    let of_model = || {
        let problem = to_clause(facts.model_problem.as_ref()?);
        let own = facts.head.settings.model.as_ref().map_or_else(String::new, |_| {
            format!(", and PATCH /api/conversations/{id} changes the model of its settings")
        });
        Some(format!("{problem}; until then only prompts that name a `model` start{own}"))
    };
    of_agent.or_else(of_model).or_else(|| {
        (waiting >= INBOX_ITEMS_MAX as usize).then(|| {
            format!(
                "DELETE /api/conversations/{id}/inbox withdraws the held inputs: {waiting} wait, and no more are accepted"
            )
        })
    })
}

/// Effect of the command `continue`. `None`: it would be refused, or have no effect on what waits.
pub(super) fn continue_effect(facts: &WhyFacts) -> Option<&'static str> {
    // Messages for the next prompt of a user do not join this one.
    let is_joining = |item: &InboxItem| {
        matches!(item.queue(), Some(InputQueue::Steering | InputQueue::FollowUp))
    };
    let effect = if facts.inbox.iter().any(is_joining) {
        Some("starts a prompt with the held inputs")
    } else {
        facts.leaf.has_failed.then_some("retries the failed prompt")
    };
    effect.filter(|_| facts.leaf.can_continue)
}

/// Hints for a conversation in which nothing runs.
pub(super) fn idle_hints(facts: &WhyFacts) -> Vec<String> {
    if let Some(obstacle) = idle_obstacle(facts) {
        return vec![obstacle];
    }
    let id = &facts.head.conversation_id;
    let mut hints = Vec::new();
    let again = continue_effect(facts);
    hints.extend(again.map(|effect| format!("POST /api/conversations/{id}/continue {effect}")));
    if facts.incomplete.as_ref().is_some_and(|it| it.reason == "max_output_tokens") {
        hints.push("a higher `maxOutputTokens` of the agent allows longer responses".to_owned());
    }
    hints.push(format!("POST /api/conversations/{id}/prompts starts the next prompt"));
    hints.extend(facts.leaf.before_failure.as_ref().map(|entry| {
        format!(
            "if it fails in the same way, POST /api/conversations/{id}/leaf {{\"entryId\": \"{entry}\"}} continues before the failed prompt"
        )
    }));
    hints
}

/// Predicate after "The worker process", for a suspect step.
pub(super) fn deaths_predicate(head: &Head) -> String {
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

pub(super) fn decision_hints(request: &Request, facts: &WhyFacts) -> Vec<String> {
    if let Some(at) = request.expires_at.filter(|_| request.has_expired(facts.now)) {
        return vec![format!(
            "the request expired at {at}; the recovery sweep records the expiry within a minute"
        )];
    }
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

pub(super) fn approval_sentence(request: &Request, others: usize) -> String {
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
pub(super) fn error_suffix(facts: &WhyFacts) -> String {
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

pub(super) fn with_count(count: usize, one: &str, many: &str) -> String {
    if count == 1 { format!("1 {one}") } else { format!("{count} {many}") }
}

pub(super) fn quote_names(tools: &[&str]) -> String {
    let names: Vec<String> = tools.iter().map(|name| format!("`{name}`")).collect();
    if names.is_empty() { "a call".to_owned() } else { names.join(", ") }
}

pub(super) fn pause_subject(on: &str) -> String {
    match on.split_once(':') {
        Some(("agent", name)) => format!("The agent `{name}` is paused"),
        Some(("tool", name)) => format!("The tool `{name}` is paused"),
        _ => "Everything is paused".to_owned(),
    }
}
