//! The requests that let a conversation continue, ready to be sent.

use serde_json::{Value, json};

use crate::why::cause::Cause;
use crate::why::texts::{continue_effect, idle_obstacle};
use crate::why::{UnblockRequest, WhyFacts};
use turnwheel_conversation::request::{Request, RequestKind, Verdict, example_decision};
use turnwheel_json::raw::RawJson;
use turnwheel_platform::ids::ConversationId;
use turnwheel_record::contract::Decider;

pub(super) fn unblock_requests(cause: &Cause<'_>, facts: &WhyFacts) -> Vec<UnblockRequest> {
    let id = &facts.head.conversation_id;
    if cause.is_blocked() || (cause.is_idle() && idle_obstacle(facts).is_some()) {
        return Vec::new();
    }
    if cause.is_idle() {
        let again = continue_effect(facts).map(|effect| post(id, "continue", json!({}), effect));
        let next = post(id, "prompts", json!({"input": "TEXT"}), "starts the next prompt");
        let move_back = facts.leaf.before_failure.as_ref().map(|entry| {
            post(id, "leaf", json!({"entryId": entry}), "continues before the failed prompt")
        });
        return again.into_iter().chain([next]).chain(move_back).collect();
    }
    let request = cause.request.filter(|request| can_owner_decide(request, facts));
    let mut requests = request.map(|request| decision_requests(id, request)).unwrap_or_default();
    if facts.head.prompt.is_some() {
        requests.push(post(id, "abort", json!({}), "ends the prompt"));
    }
    requests
}

/// True if the owner of the conversation can decide the request, as it can send all others.
fn can_owner_decide(request: &Request, facts: &WhyFacts) -> bool {
    let key = facts.head.key();
    let (tenant, user) = (key.tenant.clone(), key.user.clone());
    let owner = Decider::User { tenant, user, roles: Vec::new() };
    owner.can_decide(&key, request) && !request.has_expired(facts.now)
}

fn decision_requests(id: &ConversationId, request: &Request) -> Vec<UnblockRequest> {
    let budget = request.budget.as_ref().filter(|_| request.kind == RequestKind::Budget);
    let budget = budget.map(|budget| budget.to_json().to_value());
    let schema = request.schema.as_ref().map(RawJson::to_value);
    let decisions = request.kind.decisions().iter();
    decisions
        .map(|verdict| {
            let body = example_decision(verdict.name(), budget.as_ref(), schema.as_ref());
            post(id, &format!("approvals/{}", request.id), body, effect_of(*verdict))
        })
        .collect()
}

fn effect_of(verdict: Verdict) -> &'static str {
    match verdict {
        Verdict::Approve => "approves it",
        Verdict::Reject => "rejects it",
        Verdict::Happened => "records that the call had its effect",
        Verdict::DidNotHappen => "records that the call had no effect",
        Verdict::Again => "sends the call again",
        Verdict::Answer => "answers it",
        // No client sends these.
        Verdict::Expired | Verdict::Aborted => "ends it",
    }
}

fn post(id: &ConversationId, route: &str, body: Value, effect: &str) -> UnblockRequest {
    UnblockRequest {
        method: "POST".to_owned(),
        path: format!("/api/conversations/{id}/{route}"),
        command: command(id, route, &body),
        body,
        effect: effect.to_owned(),
    }
}

/// The command that sends a request.
fn command(id: &ConversationId, route: &str, body: &Value) -> Option<String> {
    let text = |name: &str| body.get(name).and_then(Value::as_str);
    match route {
        "continue" | "abort" => Some(format!("turnwheel {route} {id}")),
        "prompts" => Some(format!("turnwheel send --conversation {id} TEXT")),
        // Moves with the next input, in one commit.
        "leaf" => {
            Some(format!("turnwheel send --conversation {id} --at {} TEXT", text("entryId")?))
        }
        _ => {
            let request = route.strip_prefix("approvals/")?;
            let verb = match text("decision")? {
                decision @ ("approve" | "reject") => format!("{decision} {request}"),
                decision => format!("decide {request} {decision}"),
            };
            let value = body.get("value").map(|value| quote_word(&value.to_string()));
            let value = value.map(|value| format!(" --value {value}")).unwrap_or_default();
            Some(format!("turnwheel {verb}{value}"))
        }
    }
}

/// Quotes a text as one word of a POSIX shell.
fn quote_word(text: &str) -> String {
    if text.chars().all(|c| c.is_ascii_alphanumeric() || "._-".contains(c)) {
        return text.to_owned();
    }
    format!("'{}'", text.replace('\'', r"'\''"))
}
