//! The documents of a user that model calls read, once per prompt.

use std::collections::BTreeMap;
use std::sync::Arc;

use serde::de::DeserializeOwned;

use crate::documents;
use turnwheel_conversation::memory::{Memory, UserDocuments};
use turnwheel_conversation::profile::document::ProfileDocument;
use turnwheel_conversation::user_skills::{SkillList, UserSkill};
use turnwheel_platform::ids::{ConversationKey, PromptId, TenantId, UserId, is_plain_text};
use turnwheel_storage::store::{
    ConversationStore, Document, DocumentKind, ETag, Freshness, Partition, Selection, StoreError,
    StoredDocument, Write,
};

/// Bytes of cached documents over all conversations, as stored.
const CACHE_BYTES_MAX: u64 = 8 * 1024 * 1024;
/// Memory of cached documents beside their text.
const OVERHEAD_BYTES: u64 = 512;
/// Id of the document with the notes for all projects. Those of a project append `-` and its name.
const MEMORY_ID: &str = "memory";

/// Id of the document with the user's profile. It sorts among those that prompts read.
const PROFILE_ID: &str = "profile";

/// The partition of a user's documents.
pub fn user_partition(tenant: &TenantId, user: &UserId) -> Partition {
    Partition::User { tenant: tenant.clone(), user: user.clone() }
}

/// Id of the document with the notes of a project. The empty name: those for all projects.
pub fn memory_id(project: &str) -> String {
    if project.is_empty() { MEMORY_ID.to_owned() } else { format!("{MEMORY_ID}-{project}") }
}

/// The project whose notes are in the document with this id.
fn project_of(id: &str) -> Option<&str> {
    let rest = id.strip_prefix(MEMORY_ID)?;
    if rest.is_empty() { Some("") } else { rest.strip_prefix('-') }
}

/// Id of the document with the list of a user's skills. The last one that prompts read.
pub const SKILL_LIST_ID: &str = "skills";
/// Bytes of the name of a skill.
const SKILL_NAME_BYTES_MAX: usize = 64;

/// Id of the document with the skill of this name. It sorts after those that prompts read.
pub fn skill_id(name: &str) -> String {
    format!("{SKILL_LIST_ID}-{name}")
}

/// A document of a user with its version.
#[derive(Debug)]
pub struct StoredUserDocument<T> {
    pub document: T,
    pub etag: ETag,
    /// Bytes as stored.
    bytes: usize,
}

/// The documents of a user that prompts read.
#[derive(Debug, Default)]
pub struct StoredUserDocuments {
    /// By project.
    pub memories: BTreeMap<String, StoredUserDocument<Memory>>,
    pub profile: Option<StoredUserDocument<ProfileDocument>>,
    pub skills: Option<StoredUserDocument<SkillList>>,
}

/// Reads the notes, the profile and the list of skills of a user with one request.
///
/// # Errors
/// The store does not respond, or a document is corrupt.
pub async fn load_user_documents(
    store: &dyn ConversationStore,
    partition: &Partition,
) -> Result<StoredUserDocuments, StoreError> {
    let selection = Selection {
        from_id: Some(MEMORY_ID.to_owned()),
        to_id: Some(SKILL_LIST_ID.to_owned()),
        ..Selection::all(DocumentKind::Scope)
    };
    let stored = store.select(partition, &selection, Freshness::Latest).await?;
    let mut documents = StoredUserDocuments::default();
    for found in stored {
        if let Some(project) = project_of(&found.document.id) {
            documents.memories.insert(project.to_owned(), read_document(&found)?);
        } else if found.document.id == PROFILE_ID {
            documents.profile = Some(read_document(&found)?);
        } else if found.document.id == SKILL_LIST_ID {
            documents.skills = Some(read_document(&found)?);
        }
    }
    Ok(documents)
}

fn read_document<T: DeserializeOwned>(
    found: &StoredDocument,
) -> Result<StoredUserDocument<T>, StoreError> {
    let bytes = found.document.body.text().len();
    let document = documents::read(&found.document)?;
    Ok(StoredUserDocument { document, etag: found.etag.clone(), bytes })
}

/// Reads the document of a user's profile with its version. `None`: there is none.
///
/// # Errors
/// The store does not respond, or the document is corrupt.
pub async fn load_profile(
    store: &dyn ConversationStore,
    partition: &Partition,
) -> Result<Option<StoredUserDocument<ProfileDocument>>, StoreError> {
    let found = store.read(partition, PROFILE_ID, Freshness::Latest).await?;
    found.map(|found| read_document(&found)).transpose()
}

/// The write of the document of a user's profile. `expected`: the version that it replaces.
pub fn write_profile(document: &ProfileDocument, expected: Option<&ETag>) -> Write {
    let document = Document::new(PROFILE_ID, DocumentKind::Scope, document, None);
    match expected {
        Some(etag) => Write::Replace(document, Some(etag.clone())),
        None => Write::Create(document),
    }
}

/// The write that deletes this version of the document.
pub fn delete_profile(expected: ETag) -> Write {
    Write::Delete(PROFILE_ID.to_owned(), Some(expected))
}

/// Reads a skill of a user with its version. `None`: the user has none with this name.
///
/// # Errors
/// The store does not respond, or the document is corrupt.
pub async fn load_skill(
    store: &dyn ConversationStore,
    partition: &Partition,
    name: &str,
) -> Result<Option<(UserSkill, ETag)>, StoreError> {
    if !is_plain_text(name) || name.len() > SKILL_NAME_BYTES_MAX {
        return Ok(None);
    }
    let Some(found) = store.read(partition, &skill_id(name), Freshness::Latest).await? else {
        return Ok(None);
    };
    Ok(Some((documents::read(&found.document)?, found.etag)))
}

/// A position in the timeline of a conversation from which its model calls see a user's documents.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DocumentsVersion {
    pub prompt: PromptId,
    /// Number of calls of the prompt that may have changed the documents.
    pub own_changes: usize,
    /// True if all callers are one user.
    pub is_shared: bool,
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
    pub async fn load(
        &self,
        store: &dyn ConversationStore,
        key: &ConversationKey,
        version: DocumentsVersion,
    ) -> Result<Arc<UserDocuments>, StoreError> {
        if let Some(cached) = self.cache.get(key).filter(|cached| cached.version == version) {
            return Ok(cached.documents);
        }
        let stored = load_user_documents(store, &user_partition(&key.tenant, &key.user)).await?;
        let memories = stored.memories.values().map(|found| found.bytes);
        let others = stored.profile.iter().map(|found| found.bytes);
        let others = others.chain(stored.skills.iter().map(|found| found.bytes));
        let bytes = memories.chain(others).sum::<usize>();
        let bytes = bytes as u64;
        let memories = stored.memories.into_iter();
        let documents = Arc::new(UserDocuments {
            memories: memories.map(|(name, found)| (name, found.document)).collect(),
            profile: stored.profile.and_then(|found| found.document.profile),
            skills: stored.skills.map(|found| found.document).unwrap_or_default(),
            is_shared: version.is_shared,
        });
        let cached = CachedDocuments { version, documents: Arc::clone(&documents), bytes };
        self.cache.insert(key.clone(), cached);
        Ok(documents)
    }
}
