//! The documents of a user that model calls read, once per prompt.

use std::collections::BTreeMap;
use std::sync::Arc;

use crate::agent::memory::{Memory, UserDocuments};
use crate::ids::{ConversationKey, PromptId, TenantId, UserId};
use crate::store::{
    ConversationStore, DocumentKind, ETag, Freshness, Partition, Selection, StoreError,
};
use crate::turn::documents;

/// Bytes of cached documents over all conversations, as stored.
const CACHE_BYTES_MAX: u64 = 8 * 1024 * 1024;
/// Memory of cached documents beside their text.
const OVERHEAD_BYTES: u64 = 512;
/// Id of the document with the notes for all projects. Those of a project append `-` and its name.
const MEMORY_ID: &str = "memory";

/// The partition of a user's documents.
pub(crate) fn user_partition(tenant: &TenantId, user: &UserId) -> Partition {
    Partition::User { tenant: tenant.clone(), user: user.clone() }
}

/// Id of the document with the notes of a project. The empty name: those for all projects.
pub(crate) fn memory_id(project: &str) -> String {
    if project.is_empty() { MEMORY_ID.to_owned() } else { format!("{MEMORY_ID}-{project}") }
}

/// The project whose notes are in the document with this id.
fn project_of(id: &str) -> Option<&str> {
    let rest = id.strip_prefix(MEMORY_ID)?;
    if rest.is_empty() { Some("") } else { rest.strip_prefix('-') }
}

/// The notes of a user by project, each with the version of its document and its bytes.
pub(crate) type StoredMemories = BTreeMap<String, (Memory, ETag, usize)>;

/// Reads all notes of a user with one request.
///
/// # Errors
/// The store does not respond, or a document is corrupt.
pub(crate) async fn load_memories(
    store: &dyn ConversationStore,
    partition: &Partition,
) -> Result<StoredMemories, StoreError> {
    let all = Selection::all(DocumentKind::Scope);
    let stored = store.select(partition, &all, Freshness::Latest).await?;
    let mut memories = BTreeMap::new();
    for found in stored {
        let Some(project) = project_of(&found.document.id) else { continue };
        let bytes = found.document.body.text().len();
        let memory = documents::read(&found.document)?;
        memories.insert(project.to_owned(), (memory, found.etag, bytes));
    }
    Ok(memories)
}

/// A position in the timeline of a conversation from which its model calls see a user's documents.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct DocumentsVersion {
    pub(crate) prompt: PromptId,
    /// Number of calls of the prompt that may have changed the documents.
    pub(crate) own_changes: usize,
}

#[derive(Clone)]
struct CachedDocuments {
    version: DocumentsVersion,
    documents: Arc<UserDocuments>,
    bytes: u64,
}

#[derive(Clone)]
struct DocumentsWeighter;

impl quick_cache::Weighter<ConversationKey, CachedDocuments> for DocumentsWeighter {
    fn weight(&self, _key: &ConversationKey, cached: &CachedDocuments) -> u64 {
        cached.bytes + OVERHEAD_BYTES
    }
}

/// Bounded cache of the documents that the prompts of this worker read; a miss costs a read. Model
/// calls of one prompt see the same documents, so that their system prompt stays the same.
pub struct UserDocumentsCache {
    cache: quick_cache::sync::Cache<ConversationKey, CachedDocuments, DocumentsWeighter>,
}

impl std::fmt::Debug for UserDocumentsCache {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "UserDocumentsCache({} conversations)", self.cache.len())
    }
}

impl Default for UserDocumentsCache {
    fn default() -> Self {
        let cache =
            quick_cache::sync::Cache::with_weighter(1_000, CACHE_BYTES_MAX, DocumentsWeighter);
        Self { cache }
    }
}

impl UserDocumentsCache {
    /// The documents of the conversation's user as of this version.
    ///
    /// # Errors
    /// The store does not respond, or a document is corrupt.
    pub(crate) async fn load(
        &self,
        store: &dyn ConversationStore,
        key: &ConversationKey,
        version: DocumentsVersion,
    ) -> Result<Arc<UserDocuments>, StoreError> {
        if let Some(cached) = self.cache.get(key).filter(|cached| cached.version == version) {
            return Ok(cached.documents);
        }
        let memories = load_memories(store, &user_partition(&key.tenant, &key.user)).await?;
        let bytes = memories.values().map(|(_, _, bytes)| *bytes as u64).sum();
        let memories = memories.into_iter().map(|(name, (memory, _, _))| (name, memory)).collect();
        let documents = Arc::new(UserDocuments { memories });
        let cached = CachedDocuments { version, documents: Arc::clone(&documents), bytes };
        self.cache.insert(key.clone(), cached);
        Ok(documents)
    }
}
