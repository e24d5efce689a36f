//! Approval requests: their ids, entries, events and notifications.

use serde_json::json;

use crate::agent::event::{EventBody, RequestRef};
use crate::agent::request::Request;
use crate::agent::transition::Transition;
use crate::ids::RequestId;

/// A new id.
pub(super) fn new_request_id(transition: &mut Transition) -> RequestId {
    let head = &mut transition.head;
    head.requests_made += 1;
    RequestId::new(format!(
        "rq_{}_{}_{}",
        head.conversation_id, head.incarnation, head.requests_made
    ))
}

/// Emits the event and the notification about a new request.
pub(super) fn emit_approval_requested(transition: &mut Transition, request: &Request, seq: u64) {
    transition.emit(EventBody::PromptApprovalRequested(RequestRef {
        request_id: request.id.clone(),
        seq,
        tool_call_id: request.tool_call_id.clone(),
    }));
    let text = format!("{} {}", request.title, request.reason);
    let data = json!({"promptId": request.prompt_id, "approvalId": request.id, "requestId": request.id, "approval": {
        "id": request.id, "kind": request.kind, "title": request.title, "reason": request.reason,
        "toolName": request.tool, "tool": request.tool, "toolCallId": request.tool_call_id, "effect": request.effect,
        "decisions": request.kind.decisions(), "requestedAt": request.requested_at.to_string(),
        "expiresAt": request.expires_at.map(|time| time.to_string()), "approvers": request.approvers,
    }});
    transition.enqueue_notification("prompt.approval-requested", &data, text);
}
