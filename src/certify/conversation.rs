//! What is said to an agent: a YAML file beside the agent's own, or, without one, a prompt that calls each of its tools.

use std::collections::BTreeSet;
use std::path::Path;

use serde::Deserialize;
use serde_json::{Map, Value};

use crate::agents::Agent;
use crate::model::scripted::sample;

/// Prompts that are sent one after the other, each when the one before has ended.
#[derive(Clone, Debug, PartialEq)]
pub struct Conversation {
    /// Never empty.
    pub prompts: Vec<Prompt>,
}

#[derive(Clone, Debug, PartialEq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Prompt {
    /// What the person says.
    pub prompt: String,
    /// What the model answers, in order; empty: the scripted demo model plays the prompt.
    #[serde(default)]
    pub answers: Vec<Said>,
    /// What a person decides who is asked for an approval.
    #[serde(default)]
    pub decide: Decide,
}

/// An answer: words, calls, or both.
#[derive(Clone, Debug, PartialEq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Said {
    #[serde(default)]
    pub say: String,
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
pub enum Decide {
    #[default]
    Approve,
    Reject,
}

/// `clerk.certify.yaml`
pub fn file_name(agent: &str) -> String {
    format!("{agent}.certify.yaml")
}

impl Conversation {
    /// That of an agent: from the folder of agents, if there is one for it.
    ///
    /// # Errors
    /// The sentence that says what is wrong with the file.
    pub fn of(agent: &Agent, folder: &Path) -> Result<Self, String> {
        let name = file_name(&agent.name);
        match std::fs::read_to_string(folder.join(&name)) {
            Ok(text) => {
                let read = Self::read(&text).and_then(|read| read.calls_only(agent));
                read.map_err(|why| format!("{name}: {why}"))
            }
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => Ok(Self::usual(agent)),
            Err(error) => Err(format!("{name}: the file cannot be read: {error}")),
        }
    }

    /// # Errors
    /// The sentence that says what is wrong.
    pub fn read(text: &str) -> Result<Self, String> {
        let prompts: Vec<Prompt> = serde_saphyr::from_str(text).map_err(|error| {
            let whole = error.without_snippet().render();
            let reason = whole.lines().next().unwrap_or_default();
            format!("{reason}: expected a list of `prompt: …`, each with `answers` (a list of `say` and `calls`) and `decide` (approve or reject) if you like")
        })?;
        if prompts.is_empty() {
            return Err("there is no prompt in it".to_owned());
        }
        let mut texts = BTreeSet::new();
        if let Some(twice) = prompts.iter().find(|prompt| !texts.insert(prompt.prompt.trim())) {
            return Err(format!(
                "`{}` is said twice: word one of them differently, since answers are found by the prompt",
                twice.prompt
            ));
        }
        Ok(Self { prompts })
    }

    /// Itself, if the agent has every tool that is called.
    fn calls_only(self, agent: &Agent) -> Result<Self, String> {
        let answers = self.prompts.iter().flat_map(|prompt| &prompt.answers);
        let mut calls = answers.flat_map(|answer| &answer.calls);
        let Some(unknown) = calls.find(|call| agent.tool(&call.tool).is_none()) else {
            return Ok(self);
        };
        let names: Vec<&str> =
            agent.tools.iter().map(|tool| tool.definition().name.as_str()).collect();
        let names = if names.is_empty() { "none".to_owned() } else { names.join(", ") };
        Err(format!(
            "`{}` is no tool of the agent `{}`; there are: {names}",
            unknown.tool, agent.name
        ))
    }

    /// One answer that calls every tool, and one that says that all is done.
    fn usual(agent: &Agent) -> Self {
        let calls = agent.tools.iter().map(|tool| {
            let definition = tool.definition();
            let arguments = sample::of(&definition.parameters, "certify");
            format!("use {} with {arguments}", definition.name)
        });
        let calls: Vec<String> = calls.collect();
        let prompt = if calls.is_empty() {
            "Hello.".to_owned()
        } else {
            format!("{} then say done", calls.join(" and "))
        };
        let prompt = Prompt { prompt, answers: Vec::new(), decide: Decide::default() };
        Self { prompts: vec![prompt] }
    }
}
