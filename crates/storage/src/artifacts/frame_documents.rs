//! Frame documents of a conversation: the parts of its model calls beside the messages. They have a
//! namespace of their own, so that no artifact id of a client or a tool names one, and are deleted
//! with the conversation.

use bytes::Bytes;

use super::{ArtifactError, ArtifactMetadata, ArtifactScope, Artifacts};
use turnwheel_platform::clock::Timestamp;
use turnwheel_platform::ids::{ArtifactId, EffectId};

/// Maximum bytes of a frame document: it is one line of an export.
pub const FRAME_DOCUMENT_BYTES_MAX: usize = 1_400_000;

/// Frame documents of a conversation that an export, an import or a fork has.
pub const FRAME_DOCUMENTS_MAX: usize = 1_000;

const MIME_TYPE: &str = "application/json";
const EFFECT: &str = "frame";
/// End of the namespace.
const SUFFIX: &str = ".frames";

impl ArtifactScope {
    /// Namespace of the frame documents of the same conversation.
    fn frame_documents(&self) -> Self {
        Self { key: self.key.clone(), incarnation: format!("{}{SUFFIX}", self.incarnation) }
    }

    pub(super) fn is_of_frame_documents(&self) -> bool {
        self.incarnation.ends_with(SUFFIX)
    }
}

fn document_id(sha256: &str) -> ArtifactId {
    ArtifactId::from_hash(&EffectId::new(EFFECT), sha256)
}

/// Stores a frame document of the conversation if it is absent. `sha256` is the hash of the bytes.
///
/// # Errors
/// As [`Artifacts::put`].
pub async fn put_frame_document(
    artifacts: &dyn Artifacts,
    conversation: &ArtifactScope,
    sha256: &str,
    bytes: Bytes,
    now: Timestamp,
) -> Result<(), ArtifactError> {
    let metadata = ArtifactMetadata {
        id: document_id(sha256),
        name: None,
        mime_type: MIME_TYPE.to_owned(),
        size: bytes.len() as u64,
        created_at: now,
    };
    artifacts.put(&conversation.frame_documents(), &metadata, bytes).await
}

/// Reads a frame document. `None`: the store has none with this hash.
///
/// # Errors
/// As [`Artifacts::get`].
pub async fn get_frame_document(
    artifacts: &dyn Artifacts,
    conversation: &ArtifactScope,
    sha256: &str,
) -> Result<Option<Bytes>, ArtifactError> {
    match artifacts.get(&conversation.frame_documents(), &document_id(sha256), None).await {
        Ok(bytes) => Ok(Some(bytes)),
        Err(ArtifactError::NotFound) => Ok(None),
        Err(error) => Err(error),
    }
}

/// Deletes all artifacts and frame documents of the conversation.
///
/// # Errors
/// As [`Artifacts::delete_all`]. Repeat it.
pub async fn delete_all_artifacts(
    artifacts: &dyn Artifacts,
    conversation: &ArtifactScope,
) -> Result<(), ArtifactError> {
    artifacts.delete_all(conversation).await?;
    artifacts.delete_all(&conversation.frame_documents()).await
}
