//! Automatic decisions. Expired requests, and requests of an aborted prompt, are decided by the same
//! `decision-{id}` item as an approver's. A worker commits its own; an approver's changes the head
//! first, so that the commit is lost.

use turnwheel_conversation::head::Head;
use turnwheel_conversation::inbox::{IdempotencyRecord, InboxBody, InboxItem};
use turnwheel_conversation::request::{Decision, Request, Verdict};
use turnwheel_platform::clock::Timestamp;
use turnwheel_platform::ids::{InputId, RequestId};

/// Id of the inbox item and the receipt of a request's decision: at most one exists.
pub fn decision_id(request: &RequestId) -> InputId {
    InputId::new(format!("decision-{request}"))
}

/// Decisions of all expired requests.
pub fn expired_decisions(head: &Head, now: Timestamp) -> impl Iterator<Item = InboxItem> {
    head.requests.iter().filter(move |request| request.has_expired(now)).map(move |request| {
        decision_item(automatic_decision(request, Verdict::Expired, "expiry", now))
    })
}

/// A decision by the system, not by an approver.
pub fn automatic_decision(
    request: &Request,
    verdict: Verdict,
    decided_by: &str,
    now: Timestamp,
) -> Decision {
    Decision {
        request_id: request.id.clone(),
        verdict,
        reason: None,
        value: None,
        decided_by: decided_by.to_owned(),
        decided_at: now,
    }
}

/// The decision as an inbox item.
pub fn decision_item(decision: Decision) -> InboxItem {
    InboxItem {
        input_id: decision_id(&decision.request_id),
        accepted_at: decision.decided_at,
        idempotency: IdempotencyRecord::default(),
        traceparent: None,
        body: InboxBody::Decision(decision),
    }
}
