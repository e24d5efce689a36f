//! The requests that let a conversation continue, ready to be sent.

use serde_json::{Value, json};

use crate::why::cause::Cause;
use crate::why::{UnblockRequest, WhyFacts};
use turnwheel_conversation::entry::PromptState;
use turnwheel_conversation::request::{Request, RequestKind, Verdict, example_decision};
use turnwheel_json::raw::RawJson;
use turnwheel_platform::ids::ConversationId;

pub(super) fn unblock_requests(cause: &Cause<'_>, facts: &WhyFacts) -> Vec<UnblockRequest> {
    let id = &facts.head.conversation_id;
    let mut requests = match cause {
        Cause::Nothing { .. } | Cause::HeldInputs { .. } if facts.agent_problem.is_some() => {
            return Vec::new();
        }
        Cause::Nothing { last } => {
            let again = (*last == Some(PromptState::Failed))
                .then(|| post(id, "continue", json!({}), "tries the failed prompt again"));
            let next = post(id, "prompts", json!({"input": "TEXT"}), "starts the next prompt");
            let move_back = facts.before_failure.as_ref().map(|entry| {
                post(id, "leaf", json!({"entryId": entry}), "continues before the failed prompt")
            });
            return again.into_iter().chain([next]).chain(move_back).collect();
        }
        Cause::HeldInputs { .. } => {
            return vec![post(id, "continue", json!({}), "starts a prompt with the held inputs")];
        }
        Cause::Approval { request, .. } => decision_requests(id, request),
        Cause::Nudge(_)
        | Cause::Working { .. }
        | Cause::TakeOver { .. }
        | Cause::Retry { .. }
        | Cause::Suspect { .. }
        | Cause::Deferred(_)
        | Cause::Paused(_) => Vec::new(),
        Cause::WaitingMessage(_) | Cause::NewerVersion => return Vec::new(),
    };
    if facts.head.prompt.is_some() {
        requests.push(post(id, "abort", json!({}), "ends the prompt"));
    }
    requests
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
        body,
        effect: effect.to_owned(),
    }
}
