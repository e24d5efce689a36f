//! Agents: each has instructions, a model and tools, and is written as one Markdown file.

use std::collections::BTreeMap;
use std::fmt;
use std::sync::{Arc, PoisonError, RwLock};

use serde::{Deserialize, Serialize};
use serde_json::Value;

use turnwheel_conversation::head::Head;
use turnwheel_conversation::settings::Settings;
use turnwheel_extensions::Extension;
use turnwheel_extensions::permissions::ExtensionSettings;
use turnwheel_extensions::plugin::RegisteredPlugin;
use turnwheel_tools::CallableTool;
use turnwheel_tools::mcp::tool::{McpToolSource, tool_name};
use turnwheel_tools::workspace::PackageFiles;

mod app_settings;
mod approval;
mod audit;
mod context_file;
mod extension_settings;
mod extensions;
mod fields;
mod file;
mod file_context;
mod front_matter;
#[cfg(test)]
mod fuzz;
mod guardrails;
mod http_endpoint;
mod http_tool;
mod load;
mod mcp_file;
mod mcp_http;
mod mcp_tool;
mod memory;
mod mistakes;
pub mod payments;
mod plugins;
mod profile;
mod prompt_template;
mod remedies;
mod resources;
mod schema;
mod sections;
mod security;
mod settings;
mod shell;
mod skills;
mod system_prompt;
#[cfg(test)]
mod tests;
mod text_file;
mod tool_list;
mod unread_files;
mod yaml;

pub use audit::Audit;
pub use context_file::ContextFile;
pub use extension_settings::declared_permissions;
pub use file_context::AgentFileContext;
pub use load::load_folder;
pub use load::{LoadedAgents, list_agent_files, load_texts};
pub use mcp_file::McpServers;
pub use mcp_file::{MCP_FILE, McpFile};
pub use memory::AgentMemory;
pub use memory::is_project_name;
#[cfg(any(test, feature = "testing"))]
pub use memory::memory_plugin;
pub use profile::AgentProfile;
#[cfg(any(test, feature = "testing"))]
pub use profile::profile_plugin;
pub use prompt_template::PromptTemplate;
pub use prompt_template::{EXPANDED_BYTES_MAX, ExpansionTooLarge};
pub use resources::{
    ResourcePath, ResourcePaths, Resources, find_broken_skill_rules, list_resource_files,
    parse_skill_text,
};
pub use schema::agent_file_schema;
pub use security::SecuritySection;
pub use skills::Skill;
#[cfg(any(test, feature = "testing"))]
pub use skills::file_skill_plugin;
#[cfg(any(test, feature = "testing"))]
pub use skills::user_skill_plugin;
pub use skills::{SkillIndex, list_skill_plugin};
pub use system_prompt::{SystemPromptParts, date_plugin, workspace_plugin};
pub use unread_files::find_unread_files;

/// Built-in and code tools by name. Agent files may list these names.
pub type ToolSet = BTreeMap<String, Arc<dyn CallableTool>>;

/// Where the turns of a prompt run (`execution`).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Execution {
    /// At workers, which messages of the queue wake.
    #[default]
    Queue,
    /// In the process at which a client waits for them.
    Here,
}

/// A loaded agent.
#[derive(Debug, Default)]
pub struct AgentDefinition {
    /// The file name without `.agent.md`.
    pub name: String,
    pub description: String,
    /// Inputs that a page may propose.
    pub examples: Vec<String>,
    /// Settings of the front matter. Settings of the conversation override them.
    pub settings: Settings,
    /// The system prompt: the file's body, and what `systemPrompt` appends.
    pub instructions: Arc<str>,
    /// True if a default text with the active tools precedes the instructions.
    pub has_default_prompt: bool,
    /// In the order of the system prompt.
    pub context_files: Vec<Arc<ContextFile>>,
    /// In the file's order; names are unique.
    pub tools: Vec<Arc<dyn CallableTool>>,
    /// MCP servers whose tools are tools of the agent.
    pub mcp: Vec<McpToolSource>,
    /// Its own extensions. They run after those of the app.
    pub extensions: Vec<Arc<dyn Extension>>,
    /// Values for extensions and plugins in Rust (`extensionSettings`).
    pub extension_settings: Arc<ExtensionSettings>,
    /// Records of tool results (`audit`).
    pub audit: Audit,
    /// The security section of the system prompt (`security`).
    pub security: SecuritySection,
    /// True if the model names conversations without a name (`title`).
    pub has_automatic_title: bool,
    pub execution: Execution,
    /// In the order in which they prepare model calls. Names of all tools are unique.
    pub plugins: Vec<Arc<RegisteredPlugin>>,
    /// `None`: it has no memory of its user.
    pub memory: Option<AgentMemory>,
    /// `None`: it has no profile of its user.
    pub profile: Option<AgentProfile>,
    /// Names are unique.
    pub skills: Vec<Arc<Skill>>,
    /// How the model loads the skills of the app.
    pub skill_index: SkillIndex,
    /// Files of the skills in the workspaces of its conversations.
    pub package_files: PackageFiles,
    /// True if it uses the skills of its user.
    pub has_user_skills: bool,
    /// JSON Schema of the final model response.
    pub response_schema: Option<Value>,
    /// Hash of the file. Each model response records it.
    pub revision: String,
    /// Key of its model calls in the provider's prompt cache; `None`: one key per conversation.
    pub session_id: Option<String>,
}

impl AgentDefinition {
    /// True if its model calls read documents of the user. `is_shared`: all callers are one user.
    pub fn reads_user_documents(&self, is_shared: bool) -> bool {
        let has_memory = self.memory.as_ref().is_some_and(|it| it.allows_shared_user || !is_shared);
        has_memory || (self.has_user_skills && !is_shared) || self.learns_profile(is_shared)
    }

    /// True if it has a profile of its user. `is_shared`: all callers are one user.
    pub fn learns_profile(&self, is_shared: bool) -> bool {
        self.profile.as_ref().is_some_and(|it| it.allows_shared_user || !is_shared)
    }

    /// True if `recall` may search the messages of the user. `is_shared`: all callers are one user.
    pub fn may_recall(&self, is_shared: bool) -> bool {
        !is_shared || self.memory.as_ref().is_some_and(|memory| memory.allows_shared_user)
    }

    pub fn find_tool(&self, name: &str) -> Option<&Arc<dyn CallableTool>> {
        self.tools.iter().find(|tool| tool.definition().name == name)
    }

    /// Its tools, and those of its MCP servers by the definitions that this process knows.
    pub fn all_tools(&self) -> Vec<Arc<dyn CallableTool>> {
        self.active_tools(&Settings::default())
    }

    /// The tools that the effective settings leave active, in the agent's order. Unknown names in
    /// the settings are ignored.
    pub fn active_tools(&self, settings: &Settings) -> Vec<Arc<dyn CallableTool>> {
        let is_active = |tool: &Arc<dyn CallableTool>| {
            let name = &tool.definition().name;
            settings.active_tools.as_ref().is_none_or(|active| active.contains(name))
        };
        let mut tools: Vec<Arc<dyn CallableTool>> =
            self.tools.iter().filter(|tool| is_active(tool)).cloned().collect();
        // The first entry of a server that selects a tool sets its rules.
        for tool in self.mcp.iter().flat_map(McpToolSource::tools).filter(is_active) {
            if !tools.iter().any(|other| other.definition().name == tool.definition().name) {
                tools.push(tool);
            }
        }
        tools
    }

    /// The first entry of the MCP server whose tools have names like this one.
    pub fn find_mcp_source(&self, name: &str) -> Option<&McpToolSource> {
        self.mcp.iter().find(|source| name.starts_with(&tool_name(&source.server.name, "")))
    }

    /// Returns the names in `activeTools` that no tool has. They are ignored (TO-11).
    pub fn unknown_tools(&self, settings: &Settings) -> Vec<String> {
        let active = settings.active_tools.iter().flatten();
        let is_unknown =
            |name: &&String| self.find_tool(name).is_none() && self.find_mcp_source(name).is_none();
        active.filter(is_unknown).cloned().collect()
    }

    /// Logs the names in `activeTools` that no tool has.
    pub fn log_unknown_tools(&self, settings: &Settings) {
        let unknown = self.unknown_tools(settings);
        if !unknown.is_empty() {
            let (agent, tools) = (&self.name, unknown.join(", "));
            tracing::warn!(
                gen_ai.agent.name = agent,
                tools,
                "unknown tools in `activeTools` ignored: the agent {agent} has no {tools}"
            );
        }
    }
}

/// The agent of a conversation, with the settings and the tools that are in force.
#[derive(Debug)]
pub struct ResolvedAgent {
    pub agent: Result<Arc<AgentDefinition>, AgentLookupError>,
    /// The conversation's settings override the agent's.
    pub settings: Settings,
    /// The active tools, in the agent's order. Empty without an agent.
    pub tools: Arc<[Arc<dyn CallableTool>]>,
}

impl ResolvedAgent {
    pub fn new(agents: &SharedCatalog, head: &Head) -> Self {
        let agent = agents.find(Some(&head.agent));
        let settings = match &agent {
            Ok(agent) => head.settings.with_fallback(&agent.settings),
            Err(_) => head.settings.clone(),
        };
        let tools = agent.as_ref().map(|agent| agent.active_tools(&settings)).unwrap_or_default();
        Self { agent, settings, tools: tools.into() }
    }
}

/// An agent file with errors. Its agent is unavailable or uses an earlier revision of the file.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct BrokenAgent {
    pub name: String,
    /// One line per mistake: `agents/clerk.agent.md:7: …`
    pub problem: String,
}

/// All agents of the app.
#[derive(Debug, Default)]
pub struct Catalog {
    pub agents: BTreeMap<String, Arc<AgentDefinition>>,
    /// By name, including agents that use an earlier revision.
    pub broken: BTreeMap<String, BrokenAgent>,
    /// Texts of the agent files in use, by name. Agents without a file have no text.
    pub texts: BTreeMap<String, String>,
    /// Prompt templates of all agents, by name.
    pub templates: BTreeMap<String, Arc<PromptTemplate>>,
    /// `TURNWHEEL_DEFAULT_AGENT`.
    pub default_agent: Option<String>,
}

/// Shared handle to the current catalog. After `replace`, every read returns the new catalog, even
/// in the middle of a turn.
#[derive(Clone, Debug, Default)]
pub struct SharedCatalog(Arc<RwLock<Arc<Catalog>>>);

impl From<Catalog> for SharedCatalog {
    fn from(catalog: Catalog) -> Self {
        Self(Arc::new(RwLock::new(Arc::new(catalog))))
    }
}

impl SharedCatalog {
    pub fn current(&self) -> Arc<Catalog> {
        Arc::clone(&self.0.read().unwrap_or_else(PoisonError::into_inner))
    }

    pub fn replace(&self, catalog: Catalog) {
        *self.0.write().unwrap_or_else(PoisonError::into_inner) = Arc::new(catalog);
    }

    /// Finds an agent as [`Catalog::find`] does.
    ///
    /// # Errors
    /// Return the text to the client: it lists the available agents.
    pub fn find(&self, name: Option<&str>) -> Result<Arc<AgentDefinition>, AgentLookupError> {
        self.current().find(name).cloned()
    }
}

/// Reason why no agent is found.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum AgentLookupError {
    Unknown {
        name: String,
        names: Vec<String>,
    },
    Broken(BrokenAgent),
    /// The request names no agent, and there is not exactly one.
    Ambiguous {
        names: Vec<String>,
    },
}

impl fmt::Display for AgentLookupError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Unknown { name, names } => {
                write!(f, "there is no agent `{name}`; there are: {}", join_names(names))
            }
            Self::Broken(broken) => {
                write!(f, "the agent `{}` is unavailable: {}", broken.name, broken.problem)
            }
            Self::Ambiguous { names } => {
                write!(
                    f,
                    "name an agent, or set TURNWHEEL_DEFAULT_AGENT; there are: {}",
                    join_names(names)
                )
            }
        }
    }
}

fn join_names(names: &[String]) -> String {
    if names.is_empty() { "none".to_owned() } else { names.join(", ") }
}

impl Catalog {
    /// Returns the agent of that name. Without a name, returns the default agent or the only agent.
    ///
    /// # Errors
    /// Return the text to the client: it lists the available agents.
    pub fn find(&self, name: Option<&str>) -> Result<&Arc<AgentDefinition>, AgentLookupError> {
        let Some(name) = name.or(self.default_agent.as_deref()) else {
            let mut all = self.agents.values();
            return match (all.next(), all.next()) {
                (Some(only), None) => Ok(only),
                _ => Err(AgentLookupError::Ambiguous { names: self.names() }),
            };
        };
        if let Some(agent) = self.agents.get(name) {
            return Ok(agent);
        }
        match self.broken.get(name) {
            Some(broken) => Err(AgentLookupError::Broken(broken.clone())),
            None => Err(AgentLookupError::Unknown { name: name.to_owned(), names: self.names() }),
        }
    }

    /// Returns this catalog with the revisions of `earlier` for agents whose files have errors.
    #[must_use]
    pub fn with_revisions_from(mut self, earlier: &Self) -> Self {
        for name in self.broken.keys() {
            if let Some(agent) = earlier.agents.get(name) {
                self.agents.insert(name.clone(), Arc::clone(agent));
                let text = earlier.texts.get(name);
                self.texts.extend(text.map(|text| (name.clone(), text.clone())));
            }
        }
        self
    }

    fn names(&self) -> Vec<String> {
        self.agents.keys().cloned().collect()
    }
}
