//! Command that adds an artifact from a client.

use bytes::Bytes;

use crate::agent::raw::RawJson;
use crate::artifacts::{ArtifactMetadata, ArtifactScope};
use crate::commands::certain_write::{BatchOutcome, receipt_document, write_until_certain};
use crate::commands::idempotency::{Idempotency, find_previous_request};
use crate::commands::input::upload_effect_id;
use crate::commands::{CommandError, CommandResponse};
use crate::ids::{ArtifactId, ConversationKey};
use crate::queries::artifact_view;
use crate::queries::load;
use crate::services::Services;
use crate::store::Write;
use crate::tools::sha256_hex;

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
    let input_id = idempotency.input_id(key);
    if let Some(earlier) = find_previous_request(services, key, input_id.as_str()).await? {
        return earlier.replay(idempotency);
    }
    let metadata = ArtifactMetadata {
        id: ArtifactId::from_hash(&upload_effect_id(&input_id), &sha256_hex(&artifact.bytes)),
        name: artifact.name,
        mime_type: artifact.mime_type,
        size: artifact.bytes.len() as u64,
        created_at: services.clock.now(),
    };
    let scope = ArtifactScope { key: key.clone(), incarnation: head.incarnation };
    services.artifacts.put(&scope, &metadata, artifact.bytes).await?;
    services.fail_points.hit("admission.artifact-kept").await;
    let response = CommandResponse {
        status: 201,
        body: Some(RawJson::from_value(&artifact_view(&metadata))),
        location: Some(format!("conversations/{}/artifacts/{}", key.conversation_id, metadata.id)),
        etag: None,
        is_replayed: false,
    };
    if idempotency.is_repeatable {
        let receipt = receipt_document(idempotency, key, &response, metadata.created_at);
        if let BatchOutcome::Lost =
            write_until_certain(services, key, vec![Write::Create(receipt)]).await?
            && let Some(earlier) = find_previous_request(services, key, input_id.as_str()).await?
        {
            return earlier.replay(idempotency);
        }
    }
    Ok(response)
}
