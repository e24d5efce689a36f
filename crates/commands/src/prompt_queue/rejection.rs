//! Refused messages of `agent-prompts`: the copy on the poison queue, and the notification to the
//! webhook, from which the sender learns of the refusal.

use std::collections::BTreeMap;
use std::time::Duration;

use serde::Serialize;
use serde_json::{Map, Value, json};

use super::deferral::split_original;
use super::{REASON_BYTES_MAX, decode_text};
use crate::conversation::validate_metadata;
use turnwheel_conversation::notification::{Notification, PROMPT_REJECTED};
use turnwheel_json::raw::RawJson;
use turnwheel_json::text::{LINE_CHARS_MAX, sanitize_line};
use turnwheel_platform::clock::Timestamp;
use turnwheel_platform::digest::sha256_hex;
use turnwheel_platform::ids::{TenantId, UserId, is_plain_text};
use turnwheel_record::contract::{CommandError, FieldError, Owner};
use turnwheel_record::documents::notice_document;
use turnwheel_record::idempotency::is_client_key;
use turnwheel_record::nudge::Nudge;
use turnwheel_record::nudge_sender::enqueue_nudge;
use turnwheel_record::services::Services;
use turnwheel_storage::queue::{MESSAGE_BYTES_MAX, NOTIFY, PROMPTS, poison_queue};
use turnwheel_storage::store::conditional::write_once;
use turnwheel_storage::store::{Partition, Write};

/// Longest id, agent name and idempotency key that a notification repeats.
const MEMBER_BYTES_MAX: usize = 255;

#[serde_with::skip_serializing_none]
#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct PoisonMessage<'a> {
    reason: &'a str,
    /// Id of the original. Absent if the message could have forged it.
    message_id: Option<&'a str>,
    /// Absent if both do not fit into one message. The next message is then the original.
    original: Option<&'a str>,
    /// Set if `original` is absent.
    original_sha256: Option<String>,
    #[serde(with = "turnwheel_platform::clock::iso")]
    received_at: Timestamp,
}

/// Notifies the webhook, and then moves the message to the poison queue. `message_id`: as of
/// [`accept_queue_message`](super::accept_queue_message).
///
/// # Errors
/// The store or the queue is unavailable: leave the message on its queue.
pub(super) async fn reject(
    services: &Services,
    text: &str,
    message_id: &str,
    reason: &str,
) -> Result<(), CommandError> {
    let json = decode_text(text).unwrap_or_default();
    let (json, message_id) = split_original(&json, message_id);
    let message_id = Some(&*message_id).filter(|id| is_client_key(id));
    notify(services, &json, text, message_id, reason).await?;
    move_to_poison_queue(services, text, message_id, reason).await
}

async fn move_to_poison_queue(
    services: &Services,
    original: &str,
    message_id: Option<&str>,
    reason: &str,
) -> Result<(), CommandError> {
    let received_at = services.clock.now();
    let mut poison = PoisonMessage {
        reason,
        message_id,
        original: Some(original),
        original_sha256: None,
        received_at,
    };
    let mut texts = vec![RawJson::from_value(&poison).text().to_owned()];
    if texts.iter().any(|text| text.len() > MESSAGE_BYTES_MAX) {
        poison.original = None;
        poison.original_sha256 = Some(sha256_hex(original.as_bytes()));
        // The original last: a delivery that ends between them is repeated, and only its reason is there twice.
        texts = vec![RawJson::from_value(&poison).text().to_owned(), original.to_owned()];
    }
    for text in texts {
        services.queue.send(&poison_queue(PROMPTS), text, Duration::ZERO).await.map_err(
            |error| CommandError::Unavailable { what: "The queue", source: Some(Box::new(error)) },
        )?;
    }
    Ok(())
}

/// Stores the notification of the refusal. Its id derives from the message, so that a repeated
/// delivery adds none. The conversation of the message may not exist: its partition holds the
/// notification alone, until it is sent.
async fn notify(
    services: &Services,
    json: &str,
    text: &str,
    message_id: Option<&str>,
    reason: &str,
) -> Result<(), CommandError> {
    if services.notification_sender.is_none() {
        return Ok(());
    }
    let members: Map<String, Value> = serde_json::from_str(json).unwrap_or_default();
    let mut digest = sha256_hex(format!("{}\n{text}", message_id.unwrap_or_default()).as_bytes());
    digest.truncate(24);
    let owner = Owner {
        tenant: TenantId::new(plain_member(&members, "tenantId").unwrap_or("default")),
        user: UserId::new(plain_member(&members, "userId").unwrap_or("default")),
    };
    let conversation = plain_member(&members, "conversationId");
    let own_partition = format!("rejected_{digest}");
    let key = owner.conversation_key(conversation.unwrap_or(&own_partition));
    let notification = Notification {
        id: format!("nt_rejected_{digest}"),
        kind: PROMPT_REJECTED.to_owned(),
        at: services.clock.now(),
        data: RawJson::from_value(&notification_data(&owner, &members, message_id, reason)),
        text: sanitize_line(
            &format!("A message of the queue {PROMPTS} was refused: {reason}"),
            LINE_CHARS_MAX,
        ),
        attempts: 0,
        settled_at: None,
        is_given_up: false,
    };
    let write = Write::Create(notice_document(&notification, Some(services.clock.now())));
    let partition = Partition::Conversation(key.clone());
    // Lost: an earlier delivery of the message has stored it.
    write_once(&*services.store, &partition, vec![write]).await?;
    enqueue_nudge(services, NOTIFY, &Nudge::for_conversation(key, None), Duration::ZERO).await;
    Ok(())
}

/// The members by which a sender recognises its message. The input is not repeated.
fn notification_data(
    owner: &Owner,
    members: &Map<String, Value>,
    message_id: Option<&str>,
    reason: &str,
) -> Value {
    let text = |name: &str| {
        let value = members.get(name).and_then(Value::as_str);
        value.filter(|text| text.len() <= MEMBER_BYTES_MAX)
    };
    let metadata: Option<BTreeMap<String, String>> = members
        .get("metadata")
        .and_then(|metadata| serde_json::from_value(metadata.clone()).ok())
        .filter(|metadata| validate_metadata(metadata).is_empty());
    let optional = [
        ("conversationId", plain_member(members, "conversationId").map(Value::from)),
        ("agent", text("agent").map(Value::from)),
        ("messageId", message_id.map(Value::from)),
        ("idempotencyKey", text("idempotencyKey").map(Value::from)),
        ("metadata", metadata.filter(|metadata| !metadata.is_empty()).map(|it| json!(it))),
    ];
    let known = optional.into_iter().filter_map(|(name, value)| Some((name.to_owned(), value?)));
    let required = [
        ("tenantId".to_owned(), json!(owner.tenant)),
        ("userId".to_owned(), json!(owner.user)),
        ("reason".to_owned(), json!(reason)),
    ];
    known.chain(required).collect::<Map<String, Value>>().into()
}

/// A member that can be part of a key.
fn plain_member<'a>(members: &'a Map<String, Value>, name: &str) -> Option<&'a str> {
    let text = members.get(name)?.as_str()?;
    (text.len() <= 128 && is_plain_text(text)).then_some(text)
}

/// The reason with the place of each error in the message.
pub(super) fn describe_rejection(error: &CommandError) -> String {
    let mut reason = if let CommandError::Invalid(errors) = error {
        let errors: Vec<String> = errors.iter().map(describe_field_error).collect();
        errors.join("; ")
    } else if matches!(error, CommandError::KeyReused) {
        let detail = "the key was already used for a message with other content: a new message has a new key";
        describe_field_error(&FieldError::new("/idempotencyKey", detail))
    } else {
        error.to_string()
    };
    if reason.len() > REASON_BYTES_MAX {
        reason.truncate(reason.floor_char_boundary(REASON_BYTES_MAX));
        reason.push('…');
    }
    reason
}

fn describe_field_error(error: &FieldError) -> String {
    if error.pointer.is_empty() {
        return error.detail.clone();
    }
    format!("{} (at {})", error.detail, error.pointer)
}
