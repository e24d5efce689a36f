//! Frame documents: what the model calls of an agent are sent beside the messages, as JSON without
//! secrets. The contributions of plugins and the messages are in the entries.

use std::collections::VecDeque;
use std::fmt;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use bytes::Bytes;
use reqwest::Url;
use serde_json::{Value, json};

use crate::services::Services;
use turnwheel_agent_files::{AgentDefinition, ContextFile};
use turnwheel_conversation::settings::Settings;
use turnwheel_extensions::Extension;
use turnwheel_model::{ModelRecord, TIERS};
use turnwheel_platform::clock::millis;
use turnwheel_platform::digest::sha256_hex;
use turnwheel_storage::artifacts::frame_documents::{FRAME_DOCUMENT_BYTES_MAX, put_frame_document};
use turnwheel_storage::artifacts::{ArtifactError, ArtifactScope};
use turnwheel_tools::CallableTool;

/// Version of the members of a frame document.
const VERSION: u32 = 1;
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
    fn is(&self, parts: FrameParts<'_>) -> bool {
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
    bytes: Bytes,
}

impl fmt::Debug for FrameDocument {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "FrameDocument({}, {} bytes)", self.sha256, self.bytes.len())
    }
}

impl FrameDocument {
    fn build(services: &Services, parts: FrameParts<'_>) -> Self {
        let text = to_json(services, parts).to_string();
        Self { sha256: sha256_hex(text.as_bytes()), bytes: text.into() }
    }

    pub fn text(&self) -> &str {
        str::from_utf8(&self.bytes).unwrap_or_default()
    }

    /// False: it is larger than a store and an export take.
    pub fn is_storable(&self) -> bool {
        self.bytes.len() <= FRAME_DOCUMENT_BYTES_MAX
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

    /// The document of these parts. It is built and hashed once.
    pub fn find_or_build(&self, services: &Services, parts: FrameParts<'_>) -> Arc<FrameDocument> {
        let mut built = self.lock_built();
        let index = built.iter().position(|(source, _)| source.is(parts));
        if let Some(found) = index.and_then(|index| built.remove(index)) {
            let document = Arc::clone(&found.1);
            built.push_front(found);
            return document;
        }
        let document = Arc::new(FrameDocument::build(services, parts));
        if !document.is_storable() {
            tracing::warn!(agent = parts.agent.name, "frame document not stored: it is too large");
        }
        let source = FrameSource {
            agent: Arc::clone(parts.agent),
            tools: Arc::clone(parts.tools),
            settings: parts.settings.clone(),
            model: parts.model.clone(),
        };
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
        services: &Services,
        conversation: &ArtifactScope,
        document: &FrameDocument,
    ) -> Result<(), ArtifactError> {
        let key = (conversation.incarnation.clone(), document.sha256.clone());
        if self.stored.get(&key).is_some() {
            return Ok(());
        }
        let FrameDocument { sha256, bytes } = document;
        let (artifacts, now) = (&*services.artifacts, services.clock.now());
        put_frame_document(artifacts, conversation, sha256, bytes.clone(), now).await?;
        self.stored.insert(key, ());
        Ok(())
    }
}

fn to_json(services: &Services, parts: FrameParts<'_>) -> Value {
    let FrameParts { agent, tools, settings, model } = parts;
    let own = tools.iter().map(|tool| tool_json(&**tool, None));
    let of_plugins = agent.plugins.iter().flat_map(|plugin| {
        plugin.tools().iter().map(|tool| tool_json(&**tool, Some(plugin.name())))
    });
    let tiers = TIERS.map(|tier| (tier, services.model.record(tier).ok().map(|record| record.id)));
    let extensions = services.extensions_of(Some(agent)).map(|it| extension_json(&**it));
    let plugins = agent.plugins.iter().map(|plugin| extension_json(&*plugin.hook()));
    json!({
        "version": VERSION,
        "build": services.build,
        "agent": { "name": agent.name, "revision": agent.revision },
        "systemPrompt": &*agent.system_prompt(tools),
        "contextFiles": agent.context_files.iter().map(|it| file_json(it)).collect::<Vec<_>>(),
        "security": agent.security.text(settings.loop_kind.unwrap_or_default()),
        "tools": own.chain(of_plugins).collect::<Vec<_>>(),
        "responseSchema": agent.response_schema,
        "model": model_json(model),
        "models": tiers.into_iter().collect::<std::collections::BTreeMap<_, _>>(),
        "settings": settings,
        "limits": {
            "maxRounds": settings.rounds_max(),
            "hardRoundsMax": settings.hard_rounds_limit(),
            "maxOutputTokens": model.output_token_limit(settings.max_output_tokens),
            "turnMs": millis(services.limits.turn_duration),
            "hookTimeoutMs": millis(services.limits.hook_timeout),
        },
        "extensions": extensions.collect::<Vec<_>>(),
        "plugins": plugins.collect::<Vec<_>>(),
    })
}

/// `plugin`: the plugin that may activate the tool. `None`: it is an active tool of the agent.
fn tool_json(tool: &dyn CallableTool, plugin: Option<&str>) -> Value {
    let (definition, destination) = (tool.definition(), tool.destination());
    json!({
        "name": definition.name,
        "label": definition.label,
        "description": definition.description,
        "parameters": definition.parameters,
        "strict": definition.is_strict,
        "effect": definition.effect,
        "onUnknown": definition.on_unknown,
        "timeoutMs": millis(definition.timeout),
        "revision": definition.revision,
        "approval": tool.approval_rule(),
        "destination": destination.shown,
        "destinationHash": destination.hash,
        "plugin": plugin,
    })
}

/// The text is part of the system prompt.
fn file_json(file: &ContextFile) -> Value {
    json!({ "location": file.location, "sha256": sha256_hex(file.text.as_bytes()) })
}

fn extension_json(extension: &dyn Extension) -> Value {
    json!({
        "name": extension.name(),
        "version": extension.version(),
        "remote": extension.is_remote(),
        "permissions": extension.permissions(),
    })
}

/// The record of the model. Its URL has neither credentials nor a query.
fn model_json(model: &ModelRecord) -> Value {
    let url = Url::parse(&model.base_url).ok().map(|mut url| {
        url.set_query(None);
        url.set_fragment(None);
        // Both fail only for URLs that cannot have credentials.
        let _no_user = url.set_username("");
        let _no_password = url.set_password(None);
        url.to_string()
    });
    json!(ModelRecord { base_url: url.unwrap_or_default(), ..model.clone() })
}
