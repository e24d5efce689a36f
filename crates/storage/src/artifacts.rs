//! Artifact store port: immutable bytes of a conversation, written before the commit that names
//! them.

mod blob;
#[cfg(test)]
mod contract;
mod embedded;
pub mod frame_documents;
mod memory;

use std::fmt;
use std::ops::Range;

use async_trait::async_trait;
use bytes::Bytes;
use serde::{Deserialize, Serialize};
use url::Url;

pub use self::blob::BlobArtifacts;
pub use self::embedded::EmbeddedArtifacts;
#[cfg(any(test, feature = "testing"))]
pub use self::memory::ArtifactFaults;
pub use self::memory::MemoryArtifacts;
use turnwheel_platform::clock::Timestamp;
use turnwheel_platform::error_chain::as_text;
use turnwheel_platform::ids::{ArtifactId, ConversationKey, is_plain_text};

/// Bytes of one artifact.
pub(crate) const ARTIFACT_BYTES_MAX: u64 = 100 * 1024 * 1024;

/// Blob container of a storage account for all artifacts.
pub const CONTAINER: &str = "agent-artifacts";

/// Namespace of the artifacts of one incarnation of a conversation.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct ArtifactScope {
    pub key: ConversationKey,
    pub incarnation: String,
}

impl ArtifactScope {
    /// Returns `{tenant}/{user}/{conversation}/{incarnation}/`.
    pub fn prefix(&self) -> String {
        format!(
            "{}/{}/{}/{}/",
            self.key.tenant, self.key.user, self.key.conversation_id, self.incarnation
        )
    }

    /// Returns `{prefix}{effectId}/{sha256}`; `None` if the id is not an artifact id.
    pub fn path(&self, id: &ArtifactId) -> Option<String> {
        let (effect, sha256) = id.parts()?;
        Some(format!("{}{effect}/{sha256}", self.prefix()))
    }
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct ArtifactMetadata {
    pub id: ArtifactId,
    /// File name or workspace path, as given; for display.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub name: Option<String>,
    pub mime_type: String,
    pub size: u64,
    pub created_at: Timestamp,
}

/// Its JSON has the causes as text.
#[derive(Debug, thiserror::Error, Serialize, Deserialize)]
pub enum ArtifactError {
    #[error("artifact not found")]
    NotFound,
    #[error("artifact too large: {0} bytes")]
    TooLarge(u64),
    /// Temporary failure: retry.
    #[error("the artifact store is unavailable")]
    Unavailable(
        #[source]
        #[serde(with = "as_text")]
        Box<dyn std::error::Error + Send + Sync>,
    ),
}

#[async_trait]
pub trait Artifacts: Send + Sync + fmt::Debug {
    /// Stores the bytes if they are absent. An existing artifact is success, because the id
    /// contains the hash of the bytes.
    async fn put(
        &self,
        scope: &ArtifactScope,
        metadata: &ArtifactMetadata,
        bytes: Bytes,
    ) -> Result<(), ArtifactError>;

    async fn metadata(
        &self,
        scope: &ArtifactScope,
        id: &ArtifactId,
    ) -> Result<ArtifactMetadata, ArtifactError>;

    /// Returns the bytes, or a range of them; a range past the end is clamped.
    async fn get(
        &self,
        scope: &ArtifactScope,
        id: &ArtifactId,
        range: Option<Range<u64>>,
    ) -> Result<Bytes, ArtifactError>;

    /// Lists the artifacts, oldest first.
    async fn list(&self, scope: &ArtifactScope) -> Result<Vec<ArtifactMetadata>, ArtifactError>;

    /// Deletes all artifacts of the scope. An empty scope is success.
    async fn delete_all(&self, scope: &ArtifactScope) -> Result<(), ArtifactError>;

    /// Returns a URL that gives its holder read access to these bytes only, for a few minutes.
    /// `None`: clients read them through the API.
    async fn link(
        &self,
        _scope: &ArtifactScope,
        _id: &ArtifactId,
        _headers: &ContentHeaders,
    ) -> Result<Option<Url>, ArtifactError> {
        Ok(None)
    }
}

/// Response headers of a link, fixed in its signature.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ContentHeaders {
    pub content_type: String,
    pub content_disposition: String,
}

/// True if every part of the scope may be part of a path. Ids are validated on input; this is a
/// second check.
fn has_plain_names(scope: &ArtifactScope) -> bool {
    [
        scope.key.tenant.as_str(),
        scope.key.user.as_str(),
        scope.key.conversation_id.as_str(),
        &scope.incarnation,
    ]
    .into_iter()
    .all(is_plain_text)
}

/// Clamps a range to the size. It is empty if it starts past the end or ends before its start.
fn clamp_range(range: Option<Range<u64>>, size: u64) -> Range<u64> {
    let Some(range) = range else { return 0..size };
    let start = range.start.min(size);
    start..range.end.clamp(start, size)
}

fn sort_oldest_first(mut all: Vec<ArtifactMetadata>) -> Vec<ArtifactMetadata> {
    all.sort_by(|left, right| (left.created_at, &left.id).cmp(&(right.created_at, &right.id)));
    all
}
