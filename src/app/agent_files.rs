//! Agent files of an app: loaded at start-up, and reloaded by `dev` when a file changes.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::time::{Duration, SystemTime};

use serde::{Deserialize, Serialize};
use tokio_util::sync::CancellationToken;

use crate::agents::{self, Agents, BrokenAgent, Catalog, Loaded, ToolSet};
use crate::app::App;
use crate::app::named::names_of_nothing;
use crate::app::service::{ServiceOptions, StartError, io};
use crate::azure::credential::Credentials;
use crate::settings::{Lookup, Settings};
use crate::tools::http::addresses::AddressRules;
use crate::tools::http::client::HttpClient;
use crate::tools::workspace::builtins;
use crate::tools::{name_conflicts, schedule};

/// Interval at which `dev` polls for changed files. A change takes effect at the second poll that
/// finds the same files: an editor may still be writing a file at the first one.
const POLL_EVERY: Duration = Duration::from_millis(400);

/// Location of the agent files, and the tools, settings and HTTP client that they may refer to.
pub(super) struct AgentFiles {
    folder: PathBuf,
    /// The folder as written in the settings or `--agents`; paths in messages begin with it.
    shown: String,
    tools: ToolSet,
    app_settings: Lookup,
    client: HttpClient,
    settings: Settings,
    /// Stamps taken immediately before the last load.
    read_at: Stamps,
}

/// The agents in force of a process, in a form that a child process can load.
#[derive(Debug, Serialize, Deserialize)]
pub(super) struct AgentsInForce {
    texts: BTreeMap<String, String>,
    broken: BTreeMap<String, BrokenAgent>,
}

impl From<&Catalog> for AgentsInForce {
    fn from(catalog: &Catalog) -> Self {
        Self { texts: catalog.texts.clone(), broken: catalog.broken.clone() }
    }
}

impl std::fmt::Debug for AgentFiles {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "AgentFiles({})", self.shown)
    }
}

impl AgentFiles {
    /// # Errors
    /// Returns the error to print before exit: conflicting tool names, an invalid setting, or a
    /// failed TLS set-up.
    pub(super) fn new(
        app: &App,
        settings: &Settings,
        options: &ServiceOptions,
        credentials: &Credentials,
    ) -> Result<Self, StartError> {
        let conflicts = name_conflicts(&app.tools);
        if !conflicts.is_empty() {
            return Err(StartError::Settings(conflicts));
        }
        let named = options.agents.as_ref().unwrap_or(&settings.agents_dir);
        let rules = AddressRules::parse(&settings.http_tools_allow.join(","))
            .map_err(StartError::Settings)?;
        let rules = if settings.is_in_azure { rules } else { rules.with_loopback() };
        let client = HttpClient::new(rules).map_err(io("set up TLS"))?;
        let built_in = builtins().into_iter().chain(schedule::builtin());
        let tools = built_in.chain(app.tools.iter().cloned());
        Ok(Self {
            folder: options.root.join(named),
            shown: named.display().to_string(),
            tools: tools.map(|tool| (tool.definition().name.clone(), tool)).collect(),
            app_settings: settings.app_settings(),
            client: client.with_identity(credentials.tokens(&settings.identity)),
            settings: settings.clone(),
            read_at: None,
        })
    }

    fn read(&mut self) -> Loaded {
        self.read_at = stamps(self);
        let shown = self.shown.trim_end_matches('/');
        let lookup = &*self.app_settings;
        let mut loaded = agents::load(&self.folder, shown, &self.tools, lookup, &self.client);
        loaded.catalog.default_agent.clone_from(&self.settings.default_agent);
        loaded
    }

    /// Loads the agents for a service. An agent with an invalid file is unavailable, and its errors
    /// are logged.
    ///
    /// # Errors
    /// A setting names an agent or tool that does not exist: correct the setting.
    pub(super) fn load(&mut self) -> Result<Loaded, StartError> {
        let loaded = self.checked()?;
        if let Some(note) = &loaded.note {
            tracing::warn!("{note}");
        }
        for broken in loaded.catalog.broken.values() {
            log_mistakes(broken, "agent unavailable");
        }
        if loaded.catalog.broken.is_empty() {
            // These mistakes concern the folder itself.
            for mistake in &loaded.mistakes {
                tracing::error!(error = %mistake, "agent files unavailable");
            }
        }
        Ok(loaded)
    }

    /// Loads the agents for commands that need all of them.
    ///
    /// # Errors
    /// Returns every mistake as `agents/clerk.agent.md:7: reason`: correct the files.
    pub(super) fn load_all(&mut self) -> Result<Loaded, StartError> {
        let loaded = self.checked()?;
        if loaded.mistakes.is_empty() {
            return Ok(loaded);
        }
        Err(StartError::Agents(loaded.mistakes.iter().map(ToString::to_string).collect()))
    }

    /// Loads the agents in force of the parent for an isolated turn. The files on disk may have
    /// changed since the parent read them.
    pub(super) fn load_in_force(&self, in_force: AgentsInForce) -> Loaded {
        let (shown, lookup) = (self.shown.trim_end_matches('/'), &*self.app_settings);
        let texts = &in_force.texts;
        let mut loaded = agents::load_texts(texts, shown, &self.tools, lookup, &self.client);
        loaded.catalog.default_agent.clone_from(&self.settings.default_agent);
        for broken in loaded.catalog.broken.values() {
            log_mistakes(broken, "agent unavailable");
        }
        loaded.catalog.broken.extend(in_force.broken);
        loaded
    }

    fn checked(&mut self) -> Result<Loaded, StartError> {
        let loaded = self.read();
        let unknown = names_of_nothing(&self.settings, &loaded.catalog);
        if unknown.is_empty() { Ok(loaded) } else { Err(StartError::Settings(unknown)) }
    }

    /// Polls the files and applies changes until `stop` is cancelled. Settings are not reloaded.
    pub(super) async fn watch(self, agents: Agents, stop: CancellationToken) {
        let mut watched = Watched::new(self);
        loop {
            tokio::select! {
                () = stop.cancelled() => return,
                () = tokio::time::sleep(POLL_EVERY) => {}
            }
            let agents = agents.clone();
            let polled = tokio::task::spawn_blocking(move || {
                watched.poll(&agents);
                watched
            });
            // The panic hook logs a panic; the agents in force stay unchanged.
            let Ok(back) = polled.await else { return };
            watched = back;
        }
    }
}

/// Modification time and size of each agent file. `None` if the folder cannot be read.
type Stamps = Option<BTreeMap<String, (SystemTime, u64)>>;

/// Loaded agent files and their stamps at the last poll.
struct Watched {
    files: AgentFiles,
    last_seen: Stamps,
}

impl Watched {
    fn new(files: AgentFiles) -> Self {
        Self { last_seen: files.read_at.clone(), files }
    }

    /// Reloads the files if they have changed since the last load and are equal to the previous
    /// poll. Returns true if it read them.
    fn poll(&mut self, agents: &Agents) -> bool {
        let now = stamps(&self.files);
        let is_quiet = now == self.last_seen;
        self.last_seen.clone_from(&now);
        if !is_quiet || now == self.files.read_at {
            return false;
        }
        let loaded = self.files.read();
        let before = agents.now();
        if loaded.catalog.broken.is_empty() && !loaded.mistakes.is_empty() {
            for mistake in &loaded.mistakes {
                tracing::error!(error = %mistake, "agent files not reloaded");
            }
            return true;
        }
        let after = loaded.catalog.or_in_force(&before);
        log_changes(&before, &after);
        agents.replace(after);
        true
    }
}

fn stamps(files: &AgentFiles) -> Stamps {
    let names = agents::file_names(&files.folder).ok()?;
    let stamp = |name: String| {
        let found = std::fs::metadata(files.folder.join(&name));
        let stamp = found.and_then(|found| Ok((found.modified()?, found.len())));
        (name, stamp.unwrap_or((SystemTime::UNIX_EPOCH, 0)))
    };
    Some(names.into_iter().map(stamp).collect())
}

fn log_mistakes(broken: &BrokenAgent, event: &'static str) {
    for error in broken.problem.lines() {
        tracing::error!(agent = %broken.name, error, "{event}");
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
