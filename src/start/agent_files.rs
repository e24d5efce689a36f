//! Agent files of an app: loaded at start-up, and reloaded by `dev` when a file changes.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use serde::{Deserialize, Serialize};
use tokio_util::sync::CancellationToken;

use crate::app::App;
use crate::start::options::ServiceOptions;
use crate::start::setting_names::find_unknown_names;
use crate::start::shell::find_shell_tools;
use crate::start::start_error::{StartError, io_error};
use turnwheel_agent_files as agents;
use turnwheel_agent_files::{
    AgentFileContext, BrokenAgent, Catalog, ContextFile, LoadedAgents, MCP_FILE, McpFile,
    McpServers, ResourcePath, ResourcePaths, Resources, SharedCatalog, Skill, ToolSet,
};
use turnwheel_azure::credential::Credentials;
use turnwheel_extensions::http_access::HookClient;
use turnwheel_extensions::plugin::RegisteredPlugin;
use turnwheel_extensions::resources::discover_resources;
use turnwheel_extensions::runner::ErrorListeners;
use turnwheel_extensions::{DiscoveryReason, Extension};
use turnwheel_platform::settings::{Lookup, ServiceSettings};
use turnwheel_tools::http::address_rules::{AddressRules, OwnPorts};
use turnwheel_tools::http::client::HttpClient;
use turnwheel_tools::http::scrape::scrape_tool;
use turnwheel_tools::recall::recall_tool;
use turnwheel_tools::workspace::builtins;
use turnwheel_tools::{find_name_conflicts, schedule};

/// Interval at which `dev` polls for changed files. A change takes effect at the second poll that
/// finds the same files: an editor may still be writing a file at the first one.
const POLL_INTERVAL: Duration = Duration::from_millis(400);

/// Location of the agent files, and the tools, settings and HTTP client that they may refer to.
pub(crate) struct AgentFiles {
    folder: PathBuf,
    /// The folder as written in the settings or `--agents`; paths in messages begin with it.
    display_path: String,
    tools: ToolSet,
    plugins: Vec<Arc<RegisteredPlugin>>,
    extensions: Vec<Arc<dyn Extension>>,
    error_listeners: ErrorListeners,
    app_settings: Lookup,
    client: HttpClient,
    own_ports: OwnPorts,
    settings: ServiceSettings,
    /// The project's folder. Paths of extensions are relative to it.
    root: PathBuf,
    /// Paths and content of the last load.
    resource_paths: ResourcePaths,
    resources: Resources,
    mcp_file: McpFile,
    /// Those of the last load.
    mcp: McpServers,
    /// Stamps taken immediately before the last load.
    loaded_stamps: FileStamps,
}

/// The agents in force of a process, in a form that a child process can load.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) struct ActiveAgents {
    texts: BTreeMap<String, String>,
    broken: BTreeMap<String, BrokenAgent>,
    /// Those of all agents.
    skills: Vec<Arc<Skill>>,
    /// Those of all agents.
    #[serde(default)]
    context_files: Vec<Arc<ContextFile>>,
}

impl From<&Catalog> for ActiveAgents {
    fn from(catalog: &Catalog) -> Self {
        let (texts, broken) = (catalog.texts.clone(), catalog.broken.clone());
        let agents = || catalog.agents.values();
        let skills = distinct(agents().flat_map(|agent| &agent.skills));
        let context_files = distinct(agents().flat_map(|agent| &agent.context_files));
        Self { texts, broken, skills, context_files }
    }
}

fn distinct<'i, T: PartialEq + 'i>(items: impl Iterator<Item = &'i Arc<T>>) -> Vec<Arc<T>> {
    let mut found: Vec<Arc<T>> = Vec::new();
    for item in items {
        if !found.contains(item) {
            found.push(Arc::clone(item));
        }
    }
    found
}

impl std::fmt::Debug for AgentFiles {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "AgentFiles({})", self.display_path)
    }
}

impl AgentFiles {
    /// # Errors
    /// Returns the error to print before exit: conflicting tool names, an invalid setting, or a
    /// failed TLS set-up.
    pub(crate) fn new(
        app: &App,
        settings: &ServiceSettings,
        options: &ServiceOptions,
        credentials: &Credentials,
    ) -> Result<Self, StartError> {
        let registered = &app.registrations;
        let conflicts = find_name_conflicts(&registered.tools);
        if !conflicts.is_empty() {
            return Err(StartError::Settings(conflicts));
        }
        let folder = options.agents.as_ref().unwrap_or(&settings.agents_dir);
        let rules = AddressRules::parse(&settings.http_tools_allow.join(","))
            .map_err(StartError::Settings)?;
        let rules = if settings.is_in_azure { rules } else { rules.with_loopback() };
        let own_ports = OwnPorts::default();
        let rules = rules.with_own_ports(own_ports.clone());
        let client = HttpClient::new(rules).map_err(io_error("set up TLS"))?;
        let built_in = builtins()
            .into_iter()
            .chain(schedule::schedule_tool())
            .chain(recall_tool())
            .chain(scrape_tool(client.clone()))
            .chain(find_shell_tools(settings, credentials)?);
        let tools = built_in.chain(registered.tools.iter().cloned());
        let folder_path = options.root.join(folder);
        Ok(Self {
            own_ports,
            mcp_file: McpFile {
                path: folder_path.with_file_name(MCP_FILE),
                stdio: settings.mcp_stdio.clone(),
                may_start_programs: options.is_dev,
            },
            folder: folder_path,
            display_path: folder.display().to_string(),
            tools: tools.map(|tool| (tool.definition().name.clone(), tool)).collect(),
            plugins: registered.plugins.clone(),
            extensions: registered.extensions.clone(),
            error_listeners: registered.error_listeners.clone(),
            app_settings: settings.app_settings(),
            client: client.with_identity(credentials.token_source(&settings.identity)),
            settings: settings.clone(),
            root: options.root.clone(),
            resource_paths: ResourcePaths::default(),
            resources: Resources::default(),
            mcp: McpServers::default(),
            loaded_stamps: None,
        })
    }

    /// Ports of this process, which no tool may reach.
    pub(crate) fn own_ports(&self) -> &OwnPorts {
        &self.own_ports
    }

    /// The client of hooks: it reaches the addresses that HTTP tools reach.
    pub(crate) fn hook_client(&self) -> HookClient {
        HookClient::from(self.client.clone())
    }

    fn context<'s>(
        &'s self,
        skills: &'s [Arc<Skill>],
        context_files: &'s [Arc<ContextFile>],
    ) -> AgentFileContext<'s> {
        AgentFileContext {
            tools: &self.tools,
            plugins: &self.plugins,
            extensions: &self.extensions,
            skills,
            context_files,
            mcp: &self.mcp,
            app_settings: &*self.app_settings,
            client: &self.client,
        }
    }

    fn read(&mut self, reason: DiscoveryReason) -> LoadedAgents {
        self.resource_paths = self.find_resource_paths(reason);
        self.loaded_stamps = read_stamps(self);
        self.resources = Resources::load(&self.resource_paths, &self.resources);
        let (mcp, mcp_mistakes) = self.mcp_file.load(&self.context(&[], &[]), &self.mcp);
        self.mcp = mcp;
        let Resources { templates, skills, context_files, mistakes, warnings } = &self.resources;
        for warning in warnings {
            tracing::warn!("{warning}");
        }
        let display_path = self.display_path.trim_end_matches('/');
        let context = self.context(skills, context_files);
        let mut loaded = agents::load_folder(&self.folder, display_path, &context);
        loaded.resource_mistakes.clone_from(mistakes);
        loaded.resource_mistakes.extend(mcp_mistakes);
        loaded.mcp = self.mcp.clone();
        loaded.catalog.templates.clone_from(templates);
        loaded.catalog.default_agent.clone_from(&self.settings.default_agent);
        loaded
    }

    /// The folders `prompts`, `skills` and `context` beside that of the agents, then the paths of
    /// extensions.
    fn find_resource_paths(&self, reason: DiscoveryReason) -> ResourcePaths {
        let beside = |name: &str| {
            let display = Path::new(&self.display_path).with_file_name(name);
            ResourcePath::new(&self.root, &display, false)
        };
        let mut paths = ResourcePaths {
            templates: vec![beside("prompts")],
            skills: vec![beside("skills")],
            context_files: vec![beside("context")],
        };
        let named = |path: PathBuf| ResourcePath::new(&self.root, &path, true);
        for extension in &self.extensions {
            let found = discover_resources(&**extension, reason, &self.error_listeners);
            paths.templates.extend(found.prompt_paths.into_iter().map(named));
            paths.skills.extend(found.skill_paths.into_iter().map(named));
        }
        paths
    }

    /// Loads the agents for a service. An agent with an invalid file is unavailable, and its errors
    /// are logged.
    ///
    /// # Errors
    /// A setting names an agent or tool that does not exist: correct the setting.
    pub(crate) fn load(&mut self) -> Result<LoadedAgents, StartError> {
        let loaded = self.load_checked()?;
        if let Some(note) = &loaded.note {
            tracing::warn!("{note}");
        }
        for broken in loaded.catalog.broken.values() {
            self.log_unavailable(broken);
        }
        log_resource_mistakes(&loaded);
        for mistake in agents::find_unread_files(&self.folder) {
            tracing::warn!(error = %mistake, "file in the agents folder is not read");
        }
        for name in self.mcp.find_unknown(&self.mcp_file.stdio) {
            tracing::warn!(
                mcp.server = name,
                "TURNWHEEL_MCP_STDIO names a server that mcp.json does not list"
            );
        }
        if loaded.catalog.broken.is_empty() {
            // These mistakes concern the folder itself.
            for mistake in &loaded.mistakes {
                tracing::error!(error = %mistake, "agent files unavailable");
            }
        }
        Ok(loaded)
    }

    /// On a developer's machine an agent may lack a service that only the deployed app has.
    fn log_unavailable(&self, broken: &BrokenAgent) {
        if self.settings.is_in_azure {
            log_mistakes(broken, "agent unavailable");
            return;
        }
        for error in broken.problem.lines() {
            tracing::warn!(agent = %broken.name, error, "agent unavailable");
        }
    }

    /// Loads the agents for commands that need all of them.
    ///
    /// # Errors
    /// Returns every mistake as `agents/clerk.agent.md:7: reason`: correct the files.
    pub(crate) fn load_all(&mut self) -> Result<LoadedAgents, StartError> {
        let loaded = self.load_checked()?;
        let mistakes = loaded.resource_mistakes.iter().chain(&loaded.mistakes);
        let mistakes: Vec<String> = mistakes.map(ToString::to_string).collect();
        if mistakes.is_empty() { Ok(loaded) } else { Err(StartError::Agents(mistakes)) }
    }

    /// Loads the agents for `package`. A missing app setting is no mistake there: it belongs to the
    /// app in Azure.
    ///
    /// # Errors
    /// Returns every other mistake, as [`AgentFiles::load_all`] does.
    pub(crate) fn load_for_package(&mut self) -> Result<LoadedAgents, StartError> {
        let loaded = self.load_checked()?;
        let mistakes = loaded.resource_mistakes.iter().chain(&loaded.mistakes);
        let mistakes = mistakes.filter(|mistake| mistake.missing_setting.is_none());
        let mistakes: Vec<String> = mistakes.map(ToString::to_string).collect();
        if mistakes.is_empty() { Ok(loaded) } else { Err(StartError::Agents(mistakes)) }
    }

    /// Loads the agents in force of the parent for an isolated turn. The files on disk may have
    /// changed since the parent read them.
    pub(crate) fn load_active(&mut self, active: ActiveAgents) -> LoadedAgents {
        // The parent has decided about programs.
        self.mcp_file.may_start_programs = !self.settings.is_in_azure;
        self.mcp = self.mcp_file.load(&self.context(&[], &[]), &self.mcp).0;
        let display_path = self.display_path.trim_end_matches('/');
        let texts = &active.texts;
        let mut loaded = agents::load_texts(
            texts,
            display_path,
            &self.context(&active.skills, &active.context_files),
        );
        loaded.catalog.default_agent.clone_from(&self.settings.default_agent);
        for broken in loaded.catalog.broken.values() {
            log_mistakes(broken, "agent unavailable");
        }
        loaded.catalog.broken.extend(active.broken);
        loaded
    }

    fn load_checked(&mut self) -> Result<LoadedAgents, StartError> {
        let loaded = self.read(DiscoveryReason::Startup);
        let unknown = find_unknown_names(&self.settings, &loaded.catalog);
        if unknown.is_empty() { Ok(loaded) } else { Err(StartError::Settings(unknown)) }
    }

    /// Polls the files and applies changes until `stop` is cancelled. Settings are not reloaded.
    pub(crate) async fn watch(self, agents: SharedCatalog, stop: CancellationToken) {
        let mut watcher = AgentFileWatcher::new(self);
        loop {
            tokio::select! {
                () = stop.cancelled() => return,
                () = tokio::time::sleep(POLL_INTERVAL) => {}
            }
            let agents = agents.clone();
            let task = tokio::task::spawn_blocking(move || {
                watcher.poll(&agents);
                watcher
            });
            // The panic hook logs a panic; the agents in force stay unchanged.
            let Ok(returned) = task.await else { return };
            watcher = returned;
        }
    }
}

/// Modification time and size of each file. `None` if the folder of the agents cannot be read.
type FileStamps = Option<BTreeMap<PathBuf, (SystemTime, u64)>>;

/// Loaded agent files and their stamps at the last poll.
struct AgentFileWatcher {
    files: AgentFiles,
    last_stamps: FileStamps,
}

impl AgentFileWatcher {
    fn new(files: AgentFiles) -> Self {
        Self { last_stamps: files.loaded_stamps.clone(), files }
    }

    /// Reloads the files if they have changed since the last load and are equal to the previous
    /// poll. Returns true if it read them.
    fn poll(&mut self, agents: &SharedCatalog) -> bool {
        let now = read_stamps(&self.files);
        let is_unchanged = now == self.last_stamps;
        self.last_stamps.clone_from(&now);
        if !is_unchanged || now == self.files.loaded_stamps {
            return false;
        }
        let loaded = self.files.read(DiscoveryReason::Reload);
        let before = agents.current();
        log_resource_mistakes(&loaded);
        if loaded.catalog.broken.is_empty() && !loaded.mistakes.is_empty() {
            for mistake in &loaded.mistakes {
                tracing::error!(error = %mistake, "agent files not reloaded");
            }
            return true;
        }
        let after = loaded.catalog.with_revisions_from(&before);
        log_changes(&before, &after);
        agents.replace(after);
        true
    }
}

fn read_stamps(files: &AgentFiles) -> FileStamps {
    let names = agents::list_agent_files(&files.folder).ok()?;
    let stamp = |path: PathBuf| {
        let metadata = std::fs::metadata(&path);
        let stamp = metadata.and_then(|metadata| Ok((metadata.modified()?, metadata.len())));
        (path, stamp.unwrap_or((SystemTime::UNIX_EPOCH, 0)))
    };
    let agent_files = names.into_iter().map(|name| files.folder.join(name));
    let resource_files = agents::list_resource_files(&files.resource_paths);
    let mcp_file = [files.mcp_file.path.clone()];
    Some(agent_files.chain(resource_files).chain(mcp_file).map(stamp).collect())
}

fn log_mistakes(broken: &BrokenAgent, event: &'static str) {
    for error in broken.problem.lines() {
        tracing::error!(agent = %broken.name, error, "{event}");
    }
}

fn log_resource_mistakes(loaded: &LoadedAgents) {
    for mistake in &loaded.resource_mistakes {
        tracing::error!(error = %mistake, "template, skill, context file or MCP server not loaded");
    }
}

fn log_changes(before: &Catalog, after: &Catalog) {
    for (name, agent) in &after.agents {
        if after.broken.contains_key(name) {
            continue;
        }
        let revision = agent.revision.as_str();
        match before.agents.get(name) {
            None => tracing::info!(agent = %name, revision, "agent added"),
            Some(old) if old.revision != agent.revision || before.broken.contains_key(name) => {
                tracing::info!(agent = %name, revision, "agent reloaded");
            }
            Some(_) => {}
        }
    }
    for (name, broken) in &after.broken {
        if before.broken.get(name) == Some(broken) {
            continue;
        }
        if after.agents.contains_key(name) {
            log_mistakes(broken, "agent file not reloaded; the previous revision stays in force");
        } else {
            log_mistakes(broken, "agent unavailable");
        }
    }
    for name in before
        .agents
        .keys()
        .chain(before.broken.keys().filter(|name| !before.agents.contains_key(*name)))
    {
        if !after.agents.contains_key(name) && !after.broken.contains_key(name) {
            tracing::info!(agent = %name, "agent removed");
        }
    }
}

#[cfg(test)]
mod tests;
