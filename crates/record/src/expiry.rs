//! Automatic decisions. Expired requests, and requests of an aborted prompt, are decided by
//! creating the same `decision-{id}` item as an approver; create-if-absent picks the winner.

use crate::documents;
use crate::services::Services;
use turnwheel_conversation::head::Head;
use turnwheel_conversation::inbox::{IdempotencyRecord, InboxBody, InboxItem};
use turnwheel_conversation::request::{Decision, Request, Verdict};
use turnwheel_platform::clock::Timestamp;
use turnwheel_platform::ids::{ConversationKey, InputId, RequestId};
use turnwheel_storage::store::conditional::write_once;
use turnwheel_storage::store::{Partition, StoreError, Write};

/// Id of the inbox item and the receipt of a request's decision: at most one exists.
pub fn decision_id(request: &RequestId) -> InputId {
    InputId::new(format!("decision-{request}"))
}

/// Decides all expired requests. Returns true if there were any: read the inbox afterwards to get
/// the decisions. Without expired requests it reads and writes nothing.
///
/// # Errors
/// The store is unavailable: deliver again later.
pub async fn decide_expired(
    services: &Services,
    head: &Head,
    now: Timestamp,
) -> Result<bool, StoreError> {
    let expired = |request: &&Request| request.expires_at.is_some_and(|time| time <= now);
    let mut is_any = false;
    for request in head.requests.iter().filter(expired) {
        is_any = true;
        let decision = automatic_decision(request, Verdict::Expired, "expiry", now);
        create_decision(services, &head.key(), decision).await?;
    }
    Ok(is_any)
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

/// Accepts the decision, unless another one exists.
///
/// # Errors
/// The store is unavailable.
pub async fn create_decision(
    services: &Services,
    key: &ConversationKey,
    decision: Decision,
) -> Result<(), StoreError> {
    let now = decision.decided_at;
    let item = InboxItem {
        input_id: decision_id(&decision.request_id),
        accepted_at: now,
        idempotency: IdempotencyRecord::default(),
        traceparent: None,
        body: InboxBody::Decision(decision),
    };
    let write = Write::Create(documents::inbox_document(&item, Some(now)));
    services.fail_points.hit("expiry.before").await;
    // Lost: another decision exists.
    let partition = Partition::Conversation(key.clone());
    write_once(&*services.store, &partition, vec![write]).await?;
    services.fail_points.hit("expiry.after").await;
    Ok(())
}
