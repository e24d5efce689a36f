//! Start-up banner of `dev`: the address, the agents, the model and an example request.

use std::fmt::Write as _;
use std::net::SocketAddr;

use turnwheel_agent_files::{AgentDefinition, Catalog};
use turnwheel_conversation::settings::DEFAULT_MODEL;
use turnwheel_model::Model;
use turnwheel_model::scripted::example_prompt;
use turnwheel_platform::settings::ServiceSettings;
use turnwheel_platform::settings::model::Provider;

/// Agents of the examples. The user's own agents take precedence over them.
const EXAMPLE_AGENTS: [&str; 2] = ["payments-clerk", "assistant"];

/// Description of the model's origin. It is computed before the start, which consumes the settings.
pub(crate) struct ModelSource {
    is_scripted: bool,
    text: String,
}

impl ModelSource {
    pub(crate) fn from_settings(settings: &ServiceSettings) -> Self {
        match &settings.model.provider {
            Provider::Unset => Self {
                is_scripted: true,
                text: "fake model (scripted): no key, no network. For a real one set AZURE_OPENAI_ENDPOINT,\n          TURNWHEEL_MODEL, and AZURE_OPENAI_API_KEY or `az login`".to_owned(),
            },
            Provider::Scripted => Self {
                is_scripted: true,
                text: "fake model (scripted), selected by TURNWHEEL_MODEL".to_owned(),
            },
            Provider::Azure(azure) => Self { is_scripted: false, text: azure.to_string() },
        }
    }
}

/// Contents of the banner.
pub(crate) struct Banner<'a> {
    pub(crate) address: SocketAddr,
    pub(crate) catalog: &'a Catalog,
    pub(crate) model: &'a dyn Model,
    pub(crate) source: &'a ModelSource,
    /// Folder of the agent files, as written by the user.
    pub(crate) agents_dir: &'a str,
}

impl Banner<'_> {
    pub(crate) fn render(&self) -> String {
        let Self { address, agents_dir, .. } = self;
        let mut text = format!(
            "\n  Turnwheel is at http://{address}\n\n  agents: {}\n  model:  {}\n",
            self.render_agents(),
            self.render_model()
        );
        let agent = self.find_example_agent();
        if self.catalog.agents.is_empty() && self.catalog.broken.is_empty() {
            let _ = write!(
                text,
                "\n  Add an agent; it takes effect at once:\n\n    mkdir -p {dir} && echo 'You are a helpful assistant.' > {dir}/assistant.agent.md\n",
                dir = shell_quote(agents_dir)
            );
        }
        if agent.is_some() || self.catalog.broken.is_empty() {
            text += &self.render_example(agent);
        }
        let chat_agent = agent.map_or("assistant", |agent| agent.name.as_str());
        let _ = write!(
            text,
            "\n  Chat: turnwheel chat {chat_agent}\n  API:  http://{address}/api/openapi.json\n  Changed agent files take effect at once; changed settings need a restart. Ctrl-C stops; nothing is lost.\n"
        );
        text
    }

    fn render_agents(&self) -> String {
        let Catalog { agents, broken, .. } = self.catalog;
        let mut names: Vec<String> = agents
            .values()
            .map(|agent| match &agent.settings.model {
                Some(model) if !self.source.is_scripted => format!("{} ({model})", agent.name),
                Some(_) | None => agent.name.clone(),
            })
            .collect();
        let unavailable = broken.keys().filter(|name| !agents.contains_key(*name));
        names.extend(unavailable.map(|name| format!("{name} (unavailable: see above)")));
        if names.is_empty() { format!("none in {}", self.agents_dir) } else { names.join(", ") }
    }

    fn render_model(&self) -> String {
        match self.model.record(DEFAULT_MODEL) {
            Ok(record) if !self.source.is_scripted => {
                format!("{} at {}", record.id, self.source.text)
            }
            Ok(_) | Err(_) => self.source.text.clone(),
        }
    }

    /// Agent of the example request: an agent of the user, else one of the examples.
    fn find_example_agent(&self) -> Option<&AgentDefinition> {
        let is_usable = |agent: &&AgentDefinition| {
            self.model.record(agent.settings.model.as_deref().unwrap_or(DEFAULT_MODEL)).is_ok()
        };
        let agents = || self.catalog.agents.values().map(|agent| &**agent).filter(is_usable);
        let own = agents().find(|agent| !EXAMPLE_AGENTS.contains(&agent.name.as_str()));
        own.or_else(|| {
            EXAMPLE_AGENTS.iter().find_map(|name| agents().find(|agent| agent.name == *name))
        })
    }

    fn render_example(&self, agent: Option<&AgentDefinition>) -> String {
        let name = agent.map_or("assistant", |agent| agent.name.as_str());
        let body = serde_json::json!({"agent": name, "input": self.choose_input(agent)});
        let url = format!("http://{}/api", self.address);
        format!(
            "\n  Try it:\n\n    curl -s '{url}/prompts?wait=20' -H 'content-type: application/json' \\\n      -d {}\n\n  Continue: POST {url}/conversations/ID/prompts with the response's `conversationId` as ID\n",
            shell_quote(&body.to_string()),
        )
    }

    /// Input of the example request. For the fake model, it triggers the agent's first tool.
    fn choose_input(&self, agent: Option<&AgentDefinition>) -> String {
        let tools = agent.map(|agent| agent.tools.as_slice()).unwrap_or_default();
        if tools.iter().any(|tool| tool.definition().name == "send_payment") {
            return "Pay 40 to Ada".to_owned();
        }
        match tools.first().filter(|_| self.source.is_scripted) {
            Some(tool) => example_prompt(&tool.definition().name, &tool.definition().parameters),
            None => "What can you do?".to_owned(),
        }
    }
}

/// Quotes text as one word of a POSIX shell.
pub(crate) fn shell_quote(text: &str) -> String {
    let is_plain = |byte: u8| byte.is_ascii_alphanumeric() || b"/._-".contains(&byte);
    if !text.is_empty() && text.bytes().all(is_plain) {
        return text.to_owned();
    }
    format!("'{}'", text.replace('\'', r"'\''"))
}
