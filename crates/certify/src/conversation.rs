//! The conversation with an agent: a YAML file beside the agent's file, else a prompt that calls
//! each of its tools.

use std::collections::BTreeSet;
use std::path::Path;

use serde::Deserialize;
use serde_json::{Map, Value};

use turnwheel_agent_files::AgentDefinition;
use turnwheel_conversation::settings::Settings;
use turnwheel_model::scripted::sample;
use turnwheel_platform::text_encoding::decode_utf8;

/// Prompts sent one after the other, each when the previous one has ended.
#[derive(Clone, Debug, PartialEq)]
pub struct Conversation {
    /// Never empty.
    pub prompts: Vec<Prompt>,
}

#[derive(Clone, Debug, PartialEq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Prompt {
    /// The user's text.
    pub prompt: String,
    /// The model's responses, in order; empty: the fake model (scripted) runs the prompt.
    #[serde(default)]
    #[serde(rename = "answers")]
    pub responses: Vec<RecordedResponse>,
    /// The approver's decision on each approval request.
    #[serde(default)]
    #[serde(rename = "decide")]
    pub decision: ApprovalDecision,
    /// Number of an earlier prompt, from 1: the leaf moves before that prompt, and this one starts
    /// there.
    #[serde(default)]
    pub replaces: Option<usize>,
}

/// A model response: text, calls, or both.
#[derive(Clone, Debug, PartialEq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct RecordedResponse {
    #[serde(default)]
    #[serde(rename = "say")]
    pub text: String,
    #[serde(default)]
    pub calls: Vec<Call>,
}

#[derive(Clone, Debug, PartialEq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Call {
    pub tool: String,
    #[serde(default)]
    pub arguments: Map<String, Value>,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum ApprovalDecision {
    #[default]
    Approve,
    Reject,
}

/// `clerk.certify.yaml`
pub fn file_name(agent: &str) -> String {
    format!("{agent}.certify.yaml")
}

impl Conversation {
    /// Returns the conversation of an agent: from the agents' folder, if it has a file for it.
    ///
    /// # Errors
    /// A sentence with the problem of the file.
    pub fn for_agent(agent: &AgentDefinition, folder: &Path) -> Result<Self, String> {
        let name = file_name(&agent.name);
        match std::fs::read(folder.join(&name)) {
            Ok(bytes) => {
                let text = decode_utf8(&bytes).map_err(|error| format!("{name}: {error}"))?;
                let read = Self::read(text).and_then(|read| read.check_tools(agent));
                read.map_err(|reason| format!("{name}: {reason}"))
            }
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => {
                Ok(Self::default_for(agent))
            }
            Err(error) => Err(format!("{name}: the file cannot be read: {error}")),
        }
    }

    /// # Errors
    /// A sentence with the problem.
    pub fn read(text: &str) -> Result<Self, String> {
        let prompts: Vec<Prompt> = serde_saphyr::from_str(text).map_err(|error| {
            let whole = error.without_snippet().render();
            let reason = whole.lines().next().unwrap_or_default();
            format!("{reason}: expected a list of `prompt: …`, each with `answers` (a list of `say` and `calls`), `decide` (approve or reject) and `replaces` (the number of an earlier prompt) if needed")
        })?;
        if prompts.is_empty() {
            return Err("it contains no prompt".to_owned());
        }
        let mut texts = BTreeSet::new();
        if let Some(duplicate) = prompts.iter().find(|prompt| !texts.insert(prompt.prompt.trim())) {
            return Err(format!(
                "`{}` occurs twice: change one of them, since answers are found by their prompt",
                duplicate.prompt
            ));
        }
        for (index, prompt) in prompts.iter().enumerate() {
            if let Some(number) = prompt.replaces
                && !(1..=index).contains(&number)
            {
                return Err(format!(
                    "`replaces: {number}` of prompt {}: name an earlier prompt by its number, from 1",
                    index + 1
                ));
            }
        }
        Ok(Self { prompts })
    }

    /// Returns the conversation if the agent has every tool that it calls.
    fn check_tools(self, agent: &AgentDefinition) -> Result<Self, String> {
        let responses = self.prompts.iter().flat_map(|prompt| &prompt.responses);
        let mut calls = responses.flat_map(|answer| &answer.calls);
        let of_plugins = agent.plugins.iter().flat_map(|plugin| plugin.tools());
        let own = agent.active_tools(&Settings::default());
        let tools = own.iter().chain(of_plugins);
        let names: Vec<&str> = tools.map(|tool| tool.definition().name.as_str()).collect();
        let Some(unknown) = calls.find(|call| !names.contains(&call.tool.as_str())) else {
            return Ok(self);
        };
        let names = if names.is_empty() { "none".to_owned() } else { names.join(", ") };
        Err(format!(
            "`{}` is not a tool of the agent `{}`; its tools: {names}",
            unknown.tool, agent.name
        ))
    }

    /// One response that calls every tool, and one that ends the prompt.
    fn default_for(agent: &AgentDefinition) -> Self {
        let tools = agent.active_tools(&Settings::default());
        let calls = tools.iter().map(|tool| {
            let definition = tool.definition();
            let arguments = sample::sample_value(&definition.parameters, "certify");
            format!("use {} with {arguments}", definition.name)
        });
        let calls: Vec<String> = calls.collect();
        let prompt = if calls.is_empty() {
            "Hello.".to_owned()
        } else {
            format!("{} then say done", calls.join(" and "))
        };
        let prompt = Prompt {
            prompt,
            responses: Vec::new(),
            decision: ApprovalDecision::default(),
            replaces: None,
        };
        Self { prompts: vec![prompt] }
    }
}
