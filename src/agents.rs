//! Agents: instructions, a model and tools, each written as one Markdown file.

use std::collections::BTreeMap;
use std::fmt;
use std::sync::{Arc, PoisonError, RwLock};

use serde::{Deserialize, Serialize};
use serde_json::Value;

use crate::agent::settings::Settings;
use crate::tools::RunTool;

mod approval;
mod fields;
mod file;
#[cfg(test)]
mod fuzz;
mod http_tool;
mod load;
mod mistakes;
mod settings;
mod strays;
#[cfg(test)]
mod tests;
mod yaml;

pub use load::{Loaded, file_names, load, load_texts};
pub use mistakes::Mistake;
pub use strays::strays;

/// Built-in and code tools by name: what agent files may list.
pub type ToolSet = BTreeMap<String, Arc<dyn RunTool>>;

/// One agent, ready to work.
#[derive(Debug)]
pub struct Agent {
    /// The file's name before `.agent.md`.
    pub name: String,
    pub description: String,
    /// The front matter's settings; the conversation's win over them.
    pub settings: Settings,
    /// The system prompt: the file's body.
    pub instructions: String,
    /// In the file's order; names are unique.
    pub tools: Vec<Arc<dyn RunTool>>,
    /// JSON Schema that the last answer fits.
    pub response_schema: Option<Value>,
    /// Hash of the file; each answer records it.
    pub revision: String,
    /// Groups its calls for the provider's prompt cache; `None`: each conversation is a group.
    pub session_id: Option<String>,
}

impl Agent {
    pub fn tool(&self, name: &str) -> Option<&Arc<dyn RunTool>> {
        self.tools.iter().find(|tool| tool.definition().name == name)
    }

    /// Names in `activeTools` that no tool has: they are ignored (TO-11).
    pub fn unknown_tools(&self, settings: &Settings) -> Vec<String> {
        let active = settings.active_tools.iter().flatten();
        active.filter(|name| self.tool(name).is_none()).cloned().collect()
    }
}

/// An agent file that cannot be used, and why. Its agent is unavailable, or works by an earlier revision of the file.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct BrokenAgent {
    pub name: String,
    /// `agents/clerk.agent.md:7: …`
    pub problem: String,
}

/// All agents of the app.
#[derive(Debug, Default)]
pub struct Catalog {
    pub agents: BTreeMap<String, Arc<Agent>>,
    /// Also of agents of which an earlier revision is in force.
    pub broken: BTreeMap<String, BrokenAgent>,
    /// The agent files in force; empty for agents that come from no file.
    pub texts: BTreeMap<String, String>,
    /// `TURNWHEEL_DEFAULT_AGENT`.
    pub default_agent: Option<String>,
}

/// The catalog as it is now. One that takes its place counts from the next look on, also for who is in the middle of a turn.
#[derive(Clone, Debug, Default)]
pub struct Agents(Arc<RwLock<Arc<Catalog>>>);

impl From<Catalog> for Agents {
    fn from(catalog: Catalog) -> Self {
        Self(Arc::new(RwLock::new(Arc::new(catalog))))
    }
}

impl Agents {
    pub fn now(&self) -> Arc<Catalog> {
        Arc::clone(&self.0.read().unwrap_or_else(PoisonError::into_inner))
    }

    pub fn replace(&self, catalog: Catalog) {
        *self.0.write().unwrap_or_else(PoisonError::into_inner) = Arc::new(catalog);
    }

    /// As [`Catalog::find`].
    ///
    /// # Errors
    /// Tell the client: the text names what there is.
    pub fn find(&self, name: Option<&str>) -> Result<Arc<Agent>, NoAgent> {
        self.now().find(name).cloned()
    }
}

/// Why no agent answers to a name.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum NoAgent {
    Unknown {
        name: String,
        names: Vec<String>,
    },
    Broken(BrokenAgent),
    /// None was named and several are there.
    Ambiguous {
        names: Vec<String>,
    },
}

impl fmt::Display for NoAgent {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Unknown { name, names } => {
                write!(f, "there is no agent `{name}`; there are: {}", listed(names))
            }
            Self::Broken(broken) => {
                write!(f, "the agent `{}` is unavailable: {}", broken.name, broken.problem)
            }
            Self::Ambiguous { names } => {
                write!(
                    f,
                    "name an agent, or set TURNWHEEL_DEFAULT_AGENT; there are: {}",
                    listed(names)
                )
            }
        }
    }
}

fn listed(names: &[String]) -> String {
    if names.is_empty() { "none".to_owned() } else { names.join(", ") }
}

impl Catalog {
    /// The agent of that name; without one the default, else the only one.
    ///
    /// # Errors
    /// Tell the client: the text names what there is.
    pub fn find(&self, name: Option<&str>) -> Result<&Arc<Agent>, NoAgent> {
        let Some(name) = name.or(self.default_agent.as_deref()) else {
            let mut all = self.agents.values();
            return match (all.next(), all.next()) {
                (Some(only), None) => Ok(only),
                _ => Err(NoAgent::Ambiguous { names: self.names() }),
            };
        };
        if let Some(agent) = self.agents.get(name) {
            return Ok(agent);
        }
        match self.broken.get(name) {
            Some(broken) => Err(NoAgent::Broken(broken.clone())),
            None => Err(NoAgent::Unknown { name: name.to_owned(), names: self.names() }),
        }
    }

    /// This catalog, with the revisions that `earlier` has in force of agents whose files are broken now.
    #[must_use]
    pub fn or_in_force(mut self, earlier: &Self) -> Self {
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
