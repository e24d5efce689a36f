//! Reservation of an idempotency key whose request names a conversation id in its body. The receipt
//! is stored under that conversation id, where a retry with another id, or none, would miss it. So
//! the key is also reserved where a request without an id looks.

use serde_json::json;

use crate::agent::head::Head;
use crate::agent::raw::Extra;
use crate::ids::ConversationKey;
use crate::store::Write;
use crate::turn::World;
use crate::turn::admission::idempotency::{Idempotency, earlier};
use crate::turn::admission::write::{Written, receipt_document, write_surely};
use crate::turn::admission::{Answer, Owner, Refusal};

/// Member of a head with the location of its reserved key.
const MEMBER: &str = "heldKey";

/// Key of the conversation id that the idempotency key derives.
fn place(owner: &Owner, idempotency: &Idempotency) -> ConversationKey {
    owner.key(&idempotency.conversation_id(owner))
}

/// Reserves the key for this body.
///
/// # Errors
/// Returns [`CommandError::KeyReused`] if the key is reserved for another body: send a new key.
pub(crate) async fn hold(
    world: &World,
    owner: &Owner,
    idempotency: &Idempotency,
) -> Result<(), Refusal> {
    let key = place(owner, idempotency);
    let nothing = Answer { status: 0, body: None, location: None, etag: None, is_replayed: false };
    let receipt = receipt_document(idempotency, &key, &nothing, world.clock.now());
    let id = receipt.id.clone();
    world.probe.reached("admission.hold-key").await;
    if let Written::Won(_) = write_surely(world, &key, vec![Write::Create(receipt)]).await? {
        return Ok(());
    }
    match earlier(world, &key, &id).await? {
        Some(earlier) => earlier.replay(idempotency).map(|_| ()),
        None => Ok(()),
    }
}

/// Adds the location of the reserved key to the head, so that the purge releases it.
pub(crate) fn note(head: &mut Head, owner: &Owner, idempotency: &Idempotency) {
    let place = place(owner, idempotency);
    let id = idempotency.input_id(&place);
    let held = json!({"conversationId": place.conversation_id, "id": id});
    head.extra.insert(MEMBER.to_owned(), held);
}

/// Releases the key of a rejected request. If that fails, the key still accepts the same request.
pub(crate) async fn forget_refused(
    world: &World,
    owner: &Owner,
    idempotency: &Idempotency,
    refusal: &Refusal,
) {
    let is_passing = matches!(
        refusal,
        Refusal::Unavailable { .. }
            | Refusal::Conflict { retry_after: Some(_), .. }
            | Refusal::KeyReused
    );
    if is_passing {
        return;
    }
    let key = place(owner, idempotency);
    let id = idempotency.input_id(&key);
    let writes = vec![Write::Delete(id.as_str().to_owned(), None)];
    if let Err(error) = write_surely(world, &key, writes).await {
        tracing::debug!(error = %error, "key reservation release failed");
    }
}

/// Releases the key of a conversation that is being purged.
pub(crate) async fn forget(world: &World, head: &Head) -> Result<(), Refusal> {
    let member = |name: &str| head.extra.get(MEMBER)?.get(name)?.as_str();
    let (Some(place), Some(id)) = (member("conversationId"), member("id")) else { return Ok(()) };
    let key = Owner::of(&head.key()).key(place);
    write_surely(world, &key, vec![Write::Delete(id.to_owned(), None)]).await.map(|_| ())
}

/// Additional members of a head that its tombstone keeps.
pub(crate) fn kept(head: &Head) -> Extra {
    let mut kept = Extra::new();
    if let Some(held) = head.extra.get(MEMBER) {
        kept.insert(MEMBER.to_owned(), held.clone());
    }
    kept
}
