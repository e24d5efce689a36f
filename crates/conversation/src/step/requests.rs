//! Approval requests: their ids, entries, events and notifications.

use serde_json::{Value, json};

use crate::entry::{EntryBody, RequestEntry};
use crate::event::{EventBody, RequestRef};
use crate::request::{Request, RequestKind};
use crate::transition::Transition;
use crate::unknown_members::Extra;
use turnwheel_json::text::{LINE_CHARS_MAX, sanitize_line, sanitize_lines};
use turnwheel_platform::ids::{PromptId, RequestId};

/// Characters of the title of a request.
const TITLE_CHARS_MAX: usize = 512;

/// A question to the owner about the running prompt, without content.
pub(super) fn new_request(transition: &Transition) -> Request {
    let run = transition.head.prompt.as_ref();
    Request {
        id: RequestId::new(""),
        kind: RequestKind::Question,
        title: String::new(),
        reason: String::new(),
        prompt_id: run.map_or_else(|| PromptId::new(""), |run| run.id.clone()),
        input_id: None,
        call: None,
        tool_call_id: None,
        tool: None,
        label: None,
        effect: None,
        arguments: None,
        binding: None,
        destination: None,
        budget: None,
        schema: None,
        asker: None,
        requested_at: transition.now,
        requested_by: run.map_or(&transition.head.user, |run| &run.user).clone(),
        expires_at: None,
        approvers: vec!["owner".to_owned()],
        is_requester_excluded: false,
        refusal: None,
    }
}

/// Gives the request its id, and stores it in the head and as an entry. Returns the number of the
/// entry.
pub(super) fn store(transition: &mut Transition, request: &mut Request) -> u64 {
    // An approver decides by these texts, and others have written parts of them.
    request.title = sanitize_line(&request.title, TITLE_CHARS_MAX);
    request.reason = sanitize_lines(&request.reason, LINE_CHARS_MAX);
    request.id = new_request_id(transition);
    transition.head.requests.push(request.clone());
    let entry = transition.append(EntryBody::Request(RequestEntry {
        request: request.clone().into(),
        extra: Extra::new(),
    }));
    entry.base.seq
}

fn new_request_id(transition: &mut Transition) -> RequestId {
    let head = &mut transition.head;
    head.requests_made += 1;
    RequestId::new(format!(
        "rq_{}_{}_{}",
        head.conversation_id, head.incarnation, head.requests_made
    ))
}

/// Emits the event and the notification about a new request.
pub(super) fn emit_approval_requested(transition: &mut Transition, request: &Request, seq: u64) {
    let reference = RequestRef {
        request_id: request.id.clone(),
        seq,
        tool_call_id: request.tool_call_id.clone(),
    };
    transition.emit_about(request, EventBody::PromptApprovalRequested(reference));
    let text = request.display_text();
    let mut data = json!({"promptId": request.running_prompt(), "inputId": request.input_id, "approvalId": request.id, "requestId": request.id, "approval": {
        "id": request.id, "kind": request.kind, "title": request.title, "reason": request.reason,
        "toolName": request.tool, "tool": request.tool, "toolCallId": request.tool_call_id, "effect": request.effect,
        "destination": request.destination,
        "decisions": request.kind.decisions(), "schema": request.schema, "requestedAt": request.requested_at.to_string(),
        "expiresAt": request.expires_at.map(|time| time.to_string()), "approvers": request.approvers,
    }});
    if let Some(approval) = data.get_mut("approval").and_then(Value::as_object_mut) {
        let label = request.label.as_ref().map(|label| ("toolLabel", json!(label)));
        let budget = request.budget.as_ref().map(|it| ("budget", it.to_json().to_value()));
        let more = label.into_iter().chain(budget);
        approval.extend(more.map(|(name, value)| (name.to_owned(), value)));
    }
    transition.enqueue_notification("prompt.approval-requested", &data, &text);
}
