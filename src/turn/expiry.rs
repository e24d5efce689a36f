//! A request that nobody decided in time is decided by the clock, and that of a stopped prompt by the stop, in the same way
//! as by a person: the create is the arbiter.

use crate::agent::head::Head;
use crate::agent::inbox::{Admission, InboxBody, InboxItem};
use crate::agent::request::{Decision, Request, Verdict};
use crate::clock::Timestamp;
use crate::ids::{ConversationKey, InputId, RequestId};
use crate::store::{Partition, StoreError, Write};
use crate::turn::{World, record};

/// The inbox item and receipt of a request's decision: there can be only one.
pub fn decision_id(request: &RequestId) -> InputId {
    InputId::new(format!("decision-{request}"))
}

/// Decides what has expired; whether anything had: then the inbox, read after this, holds the decisions. Costs nothing as
/// long as nothing has.
///
/// # Errors
/// As the store's.
pub(super) async fn decide_expired(
    world: &World,
    head: &Head,
    now: Timestamp,
) -> Result<bool, StoreError> {
    let expired = |request: &&Request| request.expires_at.is_some_and(|time| time <= now);
    let mut is_any = false;
    for request in head.requests.iter().filter(expired) {
        is_any = true;
        let decision = decision(request, (Verdict::Expired, "expiry"), now);
        decide(world, &head.key(), decision).await?;
    }
    Ok(is_any)
}

/// A decision in nobody's name.
pub(super) fn decision(
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

/// Accepts it, unless somebody was quicker.
pub(super) async fn decide(
    world: &World,
    key: &ConversationKey,
    decision: Decision,
) -> Result<(), StoreError> {
    let now = decision.decided_at;
    let item = InboxItem {
        input_id: decision_id(&decision.request_id),
        accepted_at: now,
        admission: Admission::default(),
        traceparent: None,
        body: InboxBody::Decision(decision),
    };
    let write = Write::Create(record::inbox_document(&item, Some(now)));
    world.probe.reached("expiry.before").await;
    match world.store.write(&Partition::Conversation(key.clone()), vec![write]).await {
        // Somebody was quicker, or this was said before.
        Ok(_) | Err(StoreError::Conflict) => {}
        Err(error) => return Err(error),
    }
    world.probe.reached("expiry.after").await;
    Ok(())
}
