//! Held keys: an idempotency key that came with a conversation's id in the body. The receipt lies in the conversation that
//! the body names, where a request with the same key and another id, or none, would not find it; so the key is also held
//! where a request without an id looks.

use serde_json::json;

use crate::agent::head::Head;
use crate::agent::raw::Extra;
use crate::ids::ConversationKey;
use crate::store::Write;
use crate::turn::World;
use crate::turn::admission::idempotency::{Idempotency, earlier};
use crate::turn::admission::write::{Written, receipt_document, write_surely};
use crate::turn::admission::{Answer, Owner, Refusal};

/// Member of a head: where the key it was created with is held.
const MEMBER: &str = "heldKey";

/// The conversation that the key would have named by itself.
fn place(owner: &Owner, idempotency: &Idempotency) -> ConversationKey {
    owner.key(&idempotency.conversation_id(owner))
}

/// Holds the key for this body.
///
/// # Errors
/// [`Refusal::KeyReused`]: it is held for another.
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

/// Notes in the head where its key is held, so that it goes when the conversation goes.
pub(crate) fn note(head: &mut Head, owner: &Owner, idempotency: &Idempotency) {
    let place = place(owner, idempotency);
    let id = idempotency.input_id(&place);
    let held = json!({"conversationId": place.conversation_id, "id": id});
    head.extra.insert(MEMBER.to_owned(), held);
}

/// Refused requests keep no key. Where it cannot be forgotten, it is only good for the same request.
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
        tracing::debug!(error = %error, "a refused key is still held");
    }
}

/// The key of a conversation that is purged.
pub(crate) async fn forget(world: &World, head: &Head) -> Result<(), Refusal> {
    let member = |name: &str| head.extra.get(MEMBER)?.get(name)?.as_str();
    let (Some(place), Some(id)) = (member("conversationId"), member("id")) else { return Ok(()) };
    let key = Owner::of(&head.key()).key(place);
    write_surely(world, &key, vec![Write::Delete(id.to_owned(), None)]).await.map(|_| ())
}

/// What a tombstone keeps of a head's further members.
pub(crate) fn kept(head: &Head) -> Extra {
    let mut kept = Extra::new();
    if let Some(held) = head.extra.get(MEMBER) {
        kept.insert(MEMBER.to_owned(), held.clone());
    }
    kept
}
