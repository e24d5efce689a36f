//! Reservation of an idempotency key whose request names a conversation id in its body. The receipt
//! is stored under that conversation id, where a retry with another id, or none, would miss it. So
//! the key is also reserved where a request without an id looks.

use serde_json::json;

use crate::pipeline::{CommandContext, Creation, Signal};
use turnwheel_conversation::head::Head;
use turnwheel_conversation::unknown_members::Extra;
use turnwheel_platform::ids::ConversationKey;
use turnwheel_record::certain_write::{receipt_document, write_until_certain};
use turnwheel_record::contract::{CommandError, CommandResponse, Owner};
use turnwheel_record::idempotency::Idempotency;
use turnwheel_record::services::Services;
use turnwheel_storage::store::Write;

/// Member of a head with the location of its reserved key.
const HEAD_MEMBER: &str = "heldKey";

/// Key of the conversation id that the idempotency key derives.
fn reservation_key(owner: &Owner, idempotency: &Idempotency) -> ConversationKey {
    owner.conversation_key(&idempotency.conversation_id(owner))
}

/// Reserves the key for this body.
///
/// # Errors
/// Returns [`CommandError::KeyReused`] if the key is reserved for another body: send a new key.
async fn reserve(
    services: &Services,
    owner: &Owner,
    idempotency: &Idempotency,
) -> Result<(), CommandError> {
    let key = reservation_key(owner, idempotency);
    let placeholder =
        CommandResponse { status: 0, body: None, location: None, etag: None, is_replayed: false };
    let receipt = receipt_document(idempotency, &key, &placeholder, services.clock.now());
    services.fail_points.hit("admission.reserve-key").await;
    let context = CommandContext { services, key: &key, idempotency, signal: Signal::None };
    match context.create(vec![Write::Create(receipt)]).await? {
        Creation::Repeated(previous) => previous.replay(idempotency).map(|_| ()),
        Creation::Stored | Creation::Blocked => Ok(()),
    }
}

/// Runs a request that names a conversation id in its body, while its key is reserved.
pub(crate) async fn run_reserved<T>(
    services: &Services,
    owner: &Owner,
    idempotency: &Idempotency,
    request: impl Future<Output = Result<T, CommandError>>,
) -> Result<T, CommandError> {
    reserve(services, owner, idempotency).await?;
    let outcome = request.await;
    if let Err(error) = &outcome {
        release_if_rejected(services, owner, idempotency, error).await;
    }
    outcome
}

/// Adds the location of the reserved key to the head, so that the purge releases it.
pub(crate) fn add_to_head(head: &mut Head, owner: &Owner, idempotency: &Idempotency) {
    let key = reservation_key(owner, idempotency);
    let id = idempotency.input_id(&key);
    let location = json!({"conversationId": key.conversation_id, "id": id});
    head.extra.insert(HEAD_MEMBER.to_owned(), location);
}

/// Releases the key of a rejected request. If that fails, the key still accepts the same request.
async fn release_if_rejected(
    services: &Services,
    owner: &Owner,
    idempotency: &Idempotency,
    rejection: &CommandError,
) {
    let is_transient = matches!(
        rejection,
        CommandError::Unavailable { .. }
            | CommandError::Conflict { retry_after: Some(_), .. }
            | CommandError::KeyReused
    );
    if !is_transient {
        release_unused(services, owner, idempotency).await;
    }
}

/// Releases the key of a request that has created nothing.
pub(crate) async fn release_unused(services: &Services, owner: &Owner, idempotency: &Idempotency) {
    let key = reservation_key(owner, idempotency);
    let id = idempotency.input_id(&key);
    let writes = vec![Write::Delete(id.as_str().to_owned(), None)];
    if let Err(error) = write_until_certain(services, &key, writes).await {
        tracing::debug!(error = %error, "key reservation release failed");
    }
}

/// Releases the key of a conversation that is being purged.
pub(crate) async fn release(services: &Services, head: &Head) -> Result<(), CommandError> {
    let member = |name: &str| head.extra.get(HEAD_MEMBER)?.get(name)?.as_str();
    let (Some(conversation_id), Some(id)) = (member("conversationId"), member("id")) else {
        return Ok(());
    };
    let key = Owner::from_key(&head.key()).conversation_key(conversation_id);
    write_until_certain(services, &key, vec![Write::Delete(id.to_owned(), None)]).await.map(|_| ())
}

/// Additional members of a head that its tombstone keeps.
pub(crate) fn tombstone_members(head: &Head) -> Extra {
    let mut members = Extra::new();
    if let Some(location) = head.extra.get(HEAD_MEMBER) {
        members.insert(HEAD_MEMBER.to_owned(), location.clone());
    }
    members
}
