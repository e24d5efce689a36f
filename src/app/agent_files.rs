//! The agent files of an app: read at start-up, and read again by `dev` when one of them changes.

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

/// How often `dev` looks for changed files. A change takes effect at the second look that finds the same files, so that
/// a file that an editor is still writing is not read.
const POLL_EVERY: Duration = Duration::from_millis(400);

/// Where the agent files are, and all that they may refer to.
pub(super) struct AgentFiles {
    folder: PathBuf,
    /// The folder as the settings or `--agents` name it: the beginning of every path in messages.
    shown: String,
    tools: ToolSet,
    app_settings: Lookup,
    client: HttpClient,
    settings: Settings,
    /// Of the files, just before they were read last.
    read_at: Stamps,
}

/// The agents of a process, as another process can load them.
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
    /// A setting is wrong, or TLS cannot be set up.
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

    /// For a service: an agent whose file is wrong is unavailable, and the log says why.
    ///
    /// # Errors
    /// A setting names an agent or tool that does not exist.
    pub(super) fn load(&mut self) -> Result<Loaded, StartError> {
        let loaded = self.checked()?;
        if let Some(note) = &loaded.note {
            tracing::warn!("{note}");
        }
        for broken in loaded.catalog.broken.values() {
            log_mistakes(broken, "agent unavailable");
        }
        if loaded.catalog.broken.is_empty() {
            // Of the folder itself.
            for mistake in &loaded.mistakes {
                tracing::error!(error = %mistake, "agent files unavailable");
            }
        }
        Ok(loaded)
    }

    /// For commands that need every agent: any mistake is an error.
    ///
    /// # Errors
    /// Every mistake, as `agents/clerk.agent.md:7: reason`.
    pub(super) fn load_all(&mut self) -> Result<Loaded, StartError> {
        let loaded = self.checked()?;
        if loaded.mistakes.is_empty() {
            return Ok(loaded);
        }
        Err(StartError::Agents(loaded.mistakes.iter().map(ToString::to_string).collect()))
    }

    /// For an isolated turn: the agents that its parent has in force, whatever the folder holds by now.
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

    /// Puts changed files into force until `stop`. Settings are not read again.
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
            // A panic is logged where it happens; the agents stay as they are.
            let Ok(back) = polled.await else { return };
            watched = back;
        }
    }
}

/// Time and size of each agent file; `None`: the folder cannot be read.
type Stamps = Option<BTreeMap<String, (SystemTime, u64)>>;

/// Agent files that were read, and what was there at the last look.
struct Watched {
    files: AgentFiles,
    last_seen: Stamps,
}

impl Watched {
    fn new(files: AgentFiles) -> Self {
        Self { last_seen: files.read_at.clone(), files }
    }

    /// Reads the files when they have changed and were the same at the look before. Whether it did.
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
