//! Command that adds an artifact from a client.

use bytes::Bytes;

use crate::artifacts::{ArtifactMetadata, ArtifactScope};
use crate::commands::certain_write::receipt_document;
use crate::commands::contract::{CommandError, CommandResponse};
use crate::commands::idempotency::Idempotency;
use crate::commands::input::upload_effect_id;
use crate::commands::pipeline::{CommandContext, Creation, Signal};
use crate::ids::{ArtifactId, ConversationKey};
use crate::queries::{artifact_view, load};
use crate::services::Services;
use crate::store::Write;
use crate::tools::sha256_hex;

#[derive(Debug)]
pub(crate) struct NewArtifact {
    pub name: Option<String>,
    pub mime_type: String,
    pub bytes: Bytes,
}

/// Stores the bytes, then the receipt.
///
/// # Errors
/// Returns the [`CommandError`] to report to the client. After `Unavailable`, repeat the request
/// with the same key.
pub(crate) async fn add_artifact(
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
    services.fail_points.hit("admission.artifact-kept").await;
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
