//! Cache of the context files of workspaces, as parts of system prompts.

use std::sync::Arc;

use turnwheel_platform::ids::{ArtifactId, ConversationKey};

/// Conversations whose text is cached.
const CACHED_MAX: usize = 256;

/// A text with the artifact that it was made from.
#[derive(Debug, Clone)]
pub struct CachedText {
    pub incarnation: String,
    pub artifact: ArtifactId,
    pub text: Arc<str>,
}

/// Bounded cache of the texts of this worker's conversations; a miss costs a read of an artifact.
pub struct WorkspaceContextCache(pub quick_cache::sync::Cache<ConversationKey, CachedText>);

impl std::fmt::Debug for WorkspaceContextCache {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "WorkspaceContextCache({} conversations)", self.0.len())
    }
}

impl Default for WorkspaceContextCache {
    fn default() -> Self {
        Self(quick_cache::sync::Cache::new(CACHED_MAX))
    }
}
