//! Command that adds an artifact from a client.

use bytes::Bytes;

use crate::agent::raw::RawJson;
use crate::artifacts::{ArtifactFacts, Shelf};
use crate::ids::{ArtifactId, ConversationKey};
use crate::store::Write;
use crate::tools::sha256_hex;
use crate::turn::World;
use crate::turn::admission::idempotency::{Idempotency, earlier};
use crate::turn::admission::input::upload_effect;
use crate::turn::admission::write::{Written, receipt_document, write_surely};
use crate::turn::admission::{Answer, Refusal};
use crate::turn::views::artifact_view;
use crate::turn::views::load;

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
    world: &World,
    key: &ConversationKey,
    artifact: NewArtifact,
    idempotency: &Idempotency,
) -> Result<Answer, Refusal> {
    let (head, _) = load::head(world, key).await?;
    let input_id = idempotency.input_id(key);
    if let Some(earlier) = earlier(world, key, input_id.as_str()).await? {
        return earlier.replay(idempotency);
    }
    let facts = ArtifactFacts {
        id: ArtifactId::of(&upload_effect(&input_id), &sha256_hex(&artifact.bytes)),
        name: artifact.name,
        mime_type: artifact.mime_type,
        size: artifact.bytes.len() as u64,
        created_at: world.clock.now(),
    };
    let shelf = Shelf { key: key.clone(), incarnation: head.incarnation };
    world.artifacts.put(&shelf, &facts, artifact.bytes).await?;
    world.probe.reached("admission.artifact-kept").await;
    let answer = Answer {
        status: 201,
        body: Some(RawJson::of(&artifact_view(&facts))),
        location: Some(format!("conversations/{}/artifacts/{}", key.conversation_id, facts.id)),
        etag: None,
        is_replayed: false,
    };
    if idempotency.is_repeatable {
        let receipt = receipt_document(idempotency, key, &answer, facts.created_at);
        if let Written::Lost = write_surely(world, key, vec![Write::Create(receipt)]).await?
            && let Some(earlier) = earlier(world, key, input_id.as_str()).await?
        {
            return earlier.replay(idempotency);
        }
    }
    Ok(answer)
}
