//! Artifacts: immutable bytes of a conversation, written before the commit that names them.

mod blob;
#[cfg(test)]
mod contract;
mod embedded;
mod memory;

use std::fmt;
use std::ops::Range;

use async_trait::async_trait;
use bytes::Bytes;
use serde::{Deserialize, Serialize};
use url::Url;

pub use self::blob::BlobArtifacts;
pub use self::embedded::EmbeddedArtifacts;
pub use self::memory::{Faults, MemoryArtifacts};
use crate::clock::Timestamp;
use crate::ids::{ArtifactId, ConversationKey, is_plain};

/// Bytes of one artifact.
pub const ARTIFACT_BYTES_MAX: u64 = 100 * 1024 * 1024;

/// The container of a storage account that holds them all.
pub const CONTAINER: &str = "agent-artifacts";

/// One conversation's artifacts.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Shelf {
    pub key: ConversationKey,
    pub incarnation: String,
}

impl Shelf {
    /// `{tenant}/{user}/{conversation}/{incarnation}/`
    pub fn prefix(&self) -> String {
        format!(
            "{}/{}/{}/{}/",
            self.key.tenant, self.key.user, self.key.conversation_id, self.incarnation
        )
    }

    /// `{prefix}{effectId}/{sha256}`; `None` when the id is not one of an artifact.
    pub fn path(&self, id: &ArtifactId) -> Option<String> {
        let (effect, sha256) = id.parts()?;
        Some(format!("{}{effect}/{sha256}", self.prefix()))
    }
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct ArtifactFacts {
    pub id: ArtifactId,
    /// A file name or workspace path, as it was given; for people.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub name: Option<String>,
    pub mime_type: String,
    pub size: u64,
    pub created_at: Timestamp,
}

#[derive(Debug, thiserror::Error)]
pub enum ArtifactError {
    #[error("there is no such artifact")]
    NotFound,
    #[error("the artifact is too large: {0} bytes")]
    TooLarge(u64),
    /// Try again.
    #[error("the artifact store did not answer")]
    Unavailable(#[source] Box<dyn std::error::Error + Send + Sync>),
}

#[async_trait]
pub trait Artifacts: Send + Sync + fmt::Debug {
    /// Puts the bytes if they are absent; present already is success, since the id names the bytes.
    async fn put(
        &self,
        shelf: &Shelf,
        facts: &ArtifactFacts,
        bytes: Bytes,
    ) -> Result<(), ArtifactError>;

    async fn facts(&self, shelf: &Shelf, id: &ArtifactId) -> Result<ArtifactFacts, ArtifactError>;

    /// The bytes, or that part of them; a range past the end is cut.
    async fn get(
        &self,
        shelf: &Shelf,
        id: &ArtifactId,
        range: Option<Range<u64>>,
    ) -> Result<Bytes, ArtifactError>;

    /// Oldest first.
    async fn list(&self, shelf: &Shelf) -> Result<Vec<ArtifactFacts>, ArtifactError>;

    /// Everything of the conversation; nothing there is success.
    async fn delete_all(&self, shelf: &Shelf) -> Result<(), ArtifactError>;

    /// An address where whoever has it reads these bytes, and nothing else, for a few minutes; `None`: they go through us.
    async fn link(
        &self,
        _shelf: &Shelf,
        _id: &ArtifactId,
        _shown: &Shown,
    ) -> Result<Option<Url>, ArtifactError> {
        Ok(None)
    }
}

/// How a browser that follows a link takes the bytes; fixed in the link.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Shown {
    pub content_type: String,
    pub content_disposition: String,
}

/// Whether every part of the shelf may become part of a path. Ids are checked where they come in; this is the second lock.
fn is_nameable(shelf: &Shelf) -> bool {
    [
        shelf.key.tenant.as_str(),
        shelf.key.user.as_str(),
        shelf.key.conversation_id.as_str(),
        &shelf.incarnation,
    ]
    .into_iter()
    .all(is_plain)
}

/// The part of a range that there is: never past the end, empty when it begins there or ends before it begins.
fn cut(range: Option<Range<u64>>, size: u64) -> Range<u64> {
    let Some(range) = range else { return 0..size };
    let start = range.start.min(size);
    start..range.end.clamp(start, size)
}

fn oldest_first(mut all: Vec<ArtifactFacts>) -> Vec<ArtifactFacts> {
    all.sort_by(|left, right| (left.created_at, &left.id).cmp(&(right.created_at, &right.id)));
    all
}
