//! Cache of frame documents: the parts of an agent's model calls beside the messages, as JSON. A
//! document is built once per process, and stored once per conversation.

use std::collections::VecDeque;
use std::fmt;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use bytes::Bytes;

use turnwheel_agent_files::AgentDefinition;
use turnwheel_conversation::settings::Settings;
use turnwheel_model::ModelRecord;
use turnwheel_platform::clock::Timestamp;
use turnwheel_platform::digest::sha256_hex;
use turnwheel_storage::artifacts::frame_documents::{FRAME_DOCUMENT_BYTES_MAX, put_frame_document};
use turnwheel_storage::artifacts::{ArtifactError, ArtifactScope, Artifacts};
use turnwheel_tools::CallableTool;

/// Documents that are cached, each of at most [`FRAME_DOCUMENT_BYTES_MAX`].
const DOCUMENTS_MAX: usize = 32;
/// Documents of conversations that this process knows to be stored.
const STORED_MAX: usize = 1_024;

/// All that a frame document is made of. Equal sources have equal documents.
#[derive(Clone, Debug)]
pub struct FrameSource {
    pub agent: Arc<AgentDefinition>,
    /// The active tools of the agent.
    pub tools: Arc<[Arc<dyn CallableTool>]>,
    /// The settings that are in force.
    pub settings: Settings,
    pub model: ModelRecord,
}

/// Borrowed form of [`FrameSource`], for searches.
#[derive(Clone, Copy, Debug)]
pub struct FrameParts<'a> {
    pub agent: &'a Arc<AgentDefinition>,
    pub tools: &'a Arc<[Arc<dyn CallableTool>]>,
    pub settings: &'a Settings,
    pub model: &'a ModelRecord,
}

impl FrameSource {
    /// Definitions never change: the same agent and the same tools have the same texts.
    fn has(&self, parts: FrameParts<'_>) -> bool {
        let mut tools = self.tools.iter().zip(parts.tools.iter());
        Arc::ptr_eq(&self.agent, parts.agent)
            && self.tools.len() == parts.tools.len()
            && tools.all(|(tool, other)| Arc::ptr_eq(tool, other))
            && self.settings == *parts.settings
            && self.model == *parts.model
    }
}

/// A frame document as JSON without white space. Members keep the order in which the model receives
/// them.
#[derive(Clone, PartialEq, Eq)]
pub struct FrameDocument {
    pub sha256: String,
    /// `None`: it is larger than a store and an export take.
    bytes: Option<Bytes>,
}

impl fmt::Debug for FrameDocument {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let size = self.bytes.as_ref().map(Bytes::len);
        write!(f, "FrameDocument({}, {size:?} bytes)", self.sha256)
    }
}

impl FrameDocument {
    fn new(text: String) -> Self {
        let sha256 = sha256_hex(text.as_bytes());
        Self { sha256, bytes: (text.len() <= FRAME_DOCUMENT_BYTES_MAX).then(|| text.into()) }
    }

    /// Empty if it is too large.
    pub fn text(&self) -> &str {
        self.bytes.as_deref().and_then(|bytes| str::from_utf8(bytes).ok()).unwrap_or_default()
    }

    /// False: it is larger than a store and an export take.
    pub fn is_storable(&self) -> bool {
        self.bytes.is_some()
    }
}

/// Bounded cache of the documents of this process, and of the conversations that have them.
pub struct FrameDocuments {
    /// The last used first.
    built: Mutex<VecDeque<(FrameSource, Arc<FrameDocument>)>>,
    /// Incarnation of the conversation, and hash of the document.
    stored: quick_cache::sync::Cache<(String, String), ()>,
}

impl Default for FrameDocuments {
    fn default() -> Self {
        Self { built: Mutex::default(), stored: quick_cache::sync::Cache::new(STORED_MAX) }
    }
}

impl fmt::Debug for FrameDocuments {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "FrameDocuments({})", self.lock_built().len())
    }
}

impl FrameDocuments {
    fn lock_built(&self) -> MutexGuard<'_, VecDeque<(FrameSource, Arc<FrameDocument>)>> {
        self.built.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn find(&self, parts: FrameParts<'_>) -> Option<Arc<FrameDocument>> {
        let mut built = self.lock_built();
        let index = built.iter().position(|(source, _)| source.has(parts))?;
        let found = built.remove(index)?;
        let document = Arc::clone(&found.1);
        built.push_front(found);
        Some(document)
    }

    /// The document of these parts. `to_text` runs if this process has none.
    pub fn find_or_build(
        &self,
        parts: FrameParts<'_>,
        to_text: impl FnOnce() -> String,
    ) -> Arc<FrameDocument> {
        if let Some(found) = self.find(parts) {
            return found;
        }
        let document = Arc::new(FrameDocument::new(to_text()));
        if !document.is_storable() {
            tracing::warn!(agent = parts.agent.name, "frame document not stored: it is too large");
        }
        let source = FrameSource {
            agent: Arc::clone(parts.agent),
            tools: Arc::clone(parts.tools),
            settings: parts.settings.clone(),
            model: parts.model.clone(),
        };
        let mut built = self.lock_built();
        built.truncate(DOCUMENTS_MAX - 1);
        built.push_front((source, Arc::clone(&document)));
        document
    }

    /// Stores the document of a conversation, unless this process has done so.
    ///
    /// # Errors
    /// The document may be absent: no entry may name it.
    pub async fn store(
        &self,
        artifacts: &dyn Artifacts,
        conversation: &ArtifactScope,
        document: &FrameDocument,
        now: Timestamp,
    ) -> Result<(), ArtifactError> {
        let key = (conversation.incarnation.clone(), document.sha256.clone());
        if self.stored.get(&key).is_some() {
            return Ok(());
        }
        let FrameDocument { sha256, bytes: Some(bytes) } = document else { return Ok(()) };
        put_frame_document(artifacts, conversation, sha256, bytes.clone(), now).await?;
        self.stored.insert(key, ());
        Ok(())
    }
}
