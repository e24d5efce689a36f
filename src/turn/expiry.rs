//! Automatic decisions. Expired requests, and requests of an aborted prompt, are decided by
//! creating the same `decision-{id}` item as an approver; create-if-absent picks the winner.

use crate::agent::head::Head;
use crate::agent::inbox::{IdempotencyRecord, InboxBody, InboxItem};
use crate::agent::request::{Decision, Request, Verdict};
use crate::clock::Timestamp;
use crate::ids::{ConversationKey, InputId, RequestId};
use crate::services::Services;
use crate::store::conditional::write_once;
use crate::store::{Partition, StoreError, Write};
use crate::turn::documents;

/// Id of the inbox item and the receipt of a request's decision: at most one exists.
pub(crate) fn decision_id(request: &RequestId) -> InputId {
    InputId::new(format!("decision-{request}"))
}

/// Decides all expired requests. Returns true if there were any: read the inbox afterwards to get
/// the decisions. Without expired requests it reads and writes nothing.
///
/// # Errors
/// The store is unavailable: deliver again later.
pub(crate) async fn decide_expired(
    services: &Services,
    head: &Head,
    now: Timestamp,
) -> Result<bool, StoreError> {
    let expired = |request: &&Request| request.expires_at.is_some_and(|time| time <= now);
    let mut is_any = false;
    for request in head.requests.iter().filter(expired) {
        is_any = true;
        let decision = automatic_decision(request, (Verdict::Expired, "expiry"), now);
        create_decision(services, &head.key(), decision).await?;
    }
    Ok(is_any)
}

/// A decision by the system, not by an approver.
pub(crate) fn automatic_decision(
    request: &Request,
    (verdict, decided_by): (Verdict, &str),
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
pub(crate) async fn create_decision(
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
