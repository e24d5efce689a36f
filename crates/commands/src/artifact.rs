//! Command that adds an artifact from a client.

use bytes::Bytes;

use crate::input::upload_effect_id;
use crate::pipeline::{CommandContext, Creation, Signal};
use turnwheel_platform::ids::{ArtifactId, ConversationKey};
use turnwheel_queries::artifact_view;
use turnwheel_record::certain_write::receipt_document;
use turnwheel_record::contract::{CommandError, CommandResponse};
use turnwheel_record::idempotency::Idempotency;
use turnwheel_record::load;
use turnwheel_record::services::Services;
use turnwheel_storage::artifacts::{ArtifactMetadata, ArtifactScope};
use turnwheel_storage::store::Write;
use turnwheel_tools::sha256_hex;

#[derive(Debug)]
pub struct NewArtifact {
    pub name: Option<String>,
    pub mime_type: String,
    pub bytes: Bytes,
}

/// Stores the bytes, then the receipt.
///
/// # Errors
/// Returns the [`CommandError`] to report to the client. After `Unavailable`, repeat the request
/// with the same key.
pub async fn add_artifact(
    services: &Services,
    key: &ConversationKey,
    artifact: NewArtifact,
    idempotency: &Idempotency,
) -> Result<CommandResponse, CommandError> {
    let (head, _) = load::head(services, key).await?;
    let context = CommandContext { services, key, idempotency, signal: Signal::None };
    if let Some(replayed) = context.find_response().await? {
        return Ok(replayed);
    }
    let metadata = ArtifactMetadata {
        id: ArtifactId::from_hash(
            &upload_effect_id(&context.input_id()),
            &sha256_hex(&artifact.bytes),
        ),
        name: artifact.name,
        mime_type: artifact.mime_type,
        size: artifact.bytes.len() as u64,
        created_at: services.clock.now(),
    };
    let scope = ArtifactScope { key: key.clone(), incarnation: head.incarnation };
    services.artifacts.put(&scope, &metadata, artifact.bytes).await?;
    services.fail_points.hit("admission.artifact-stored").await;
    let location = format!("conversations/{}/artifacts/{}", key.conversation_id, metadata.id);
    let response = CommandResponse::new(201, &artifact_view(&metadata)).with_location(location);
    if idempotency.is_repeatable {
        let receipt = receipt_document(idempotency, key, &response, metadata.created_at);
        if let Creation::Repeated(previous) = context.create(vec![Write::Create(receipt)]).await? {
            return previous.replay(idempotency);
        }
    }
    Ok(response)
}
