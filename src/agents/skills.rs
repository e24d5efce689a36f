//! The key `skills` of agent files: instructions that the model loads when it needs them.

use std::fmt::Write as _;
use std::path::PathBuf;
use std::sync::Arc;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::agent::content::{Block, Content};
use crate::agent::message::Message;
use crate::agent::request::Effect;
use crate::agents::fields;
use crate::agents::file_context::AgentFileContext;
use crate::agents::mistakes::{Findings, suggest_name};
use crate::agents::prompt_template::{EXPANDED_BYTES_MAX, ExpansionTooLarge};
use crate::agents::text_file::read_text_file;
use crate::agents::yaml::{Member, Yaml};
use crate::extensions::plugin::RegisteredPlugin;
use crate::extensions::prepare::{ITEMS_BYTES_MAX, Prepare};
use crate::extensions::{Plugin, PluginError, PluginTools};
use crate::tools::code::{CallContext, ServiceRegistry, Tool, ToolError};
use crate::tools::{CallableTool, ToolResult};

#[cfg(test)]
mod tests;

/// Maximum number of skills in the system prompt of an agent.
const SKILLS_MAX: usize = 200;
/// Bytes of another file of a skill that the model can load.
const REFERENCE_BYTES_MAX: u64 = 256 * 1024;
const PLUGIN_NAME: &str = "skills";
pub(super) const LOAD_SKILL: &str = "load_skill";

/// Instructions with a name and a description, in a file of the app.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Skill {
    pub(crate) name: String,
    pub(crate) description: String,
    /// Path of its file for users and the model: `skills/review/SKILL.md`.
    pub(crate) location: String,
    /// The folder whose other files belong to the skill. `None`: it has only its own file.
    pub(crate) folder: Option<PathBuf>,
    /// Names of the tools that are offered once the skill is loaded.
    pub(crate) tools: Vec<String>,
    /// True if it is not in the system prompt: only users load it.
    pub(crate) is_hidden: bool,
    pub(crate) body: String,
}

impl Skill {
    /// The text of `/skill:name arguments` in a message of a user.
    pub(crate) fn expand(&self, arguments: &str) -> Result<String, ExpansionTooLarge> {
        let Self { name, location, body, .. } = self;
        let folder = location.rsplit_once('/').map_or(".", |(folder, _)| folder);
        let mut text = format!(
            "{}{location}\">\nReferences are relative to {folder}.\n\n{body}\n</skill>",
            opening_tag(name)
        );
        if !arguments.is_empty() {
            text.push_str("\n\n");
            text.push_str(arguments);
        }
        if text.len() > EXPANDED_BYTES_MAX { Err(ExpansionTooLarge) } else { Ok(text) }
    }
}

/// The beginning of an expanded skill.
fn opening_tag(name: &str) -> String {
    format!("<skill name=\"{name}\" location=\"")
}

/// The skills of an agent, and the plugin that offers them to the model.
#[derive(Debug, Default)]
pub(super) struct AgentSkills {
    pub(super) skills: Vec<Arc<Skill>>,
    pub(super) plugin: Option<Arc<RegisteredPlugin>>,
}

/// Reads `all` or a list of names. `tools` and `plugins` are those of the agent.
pub(super) fn read_skills(
    member: &Member,
    (tools, plugins): (&[Arc<dyn CallableTool>], &[Arc<RegisteredPlugin>]),
    context: &AgentFileContext<'_>,
    findings: &mut Findings,
) -> Option<AgentSkills> {
    let skills = match &member.value.yaml {
        Yaml::Text(text) if text == "all" => context.skills.to_vec(),
        Yaml::Text(_)
        | Yaml::Null
        | Yaml::Bool(_)
        | Yaml::Number(_)
        | Yaml::List(_)
        | Yaml::Map(_) => read_names(member, context, findings),
    };
    let visible = skills.iter().filter(|skill| !skill.is_hidden);
    let visible: Vec<Arc<Skill>> = visible.cloned().collect();
    let index = render_index(&visible);
    let at = member.value.position;
    if visible.len() > SKILLS_MAX || index.len() > ITEMS_BYTES_MAX {
        let (count, bytes) = (visible.len(), index.len());
        findings.add(at, format!(
            "the agent has {count} skills, whose list has {bytes} bytes: at most {SKILLS_MAX} skills and {ITEMS_BYTES_MAX} bytes are allowed; name fewer, or shorten their descriptions"
        ));
        return None;
    }
    if skills.is_empty() {
        return None;
    }
    let skill_tools = find_skill_tools(&skills, tools, context);
    let plugin = SkillPlugin { skills: skills.clone().into(), index, tools: skill_tools };
    match RegisteredPlugin::new(plugin, ServiceRegistry::default()) {
        Ok(plugin) => {
            if let Some(reason) = find_conflict(&plugin, tools, plugins) {
                findings.add(at, reason);
            }
            Some(AgentSkills { skills, plugin: Some(Arc::new(plugin)) })
        }
        Err(mistakes) => {
            for mistake in mistakes {
                findings.add(at, mistake);
            }
            None
        }
    }
}

fn read_names(
    member: &Member,
    context: &AgentFileContext<'_>,
    findings: &mut Findings,
) -> Vec<Arc<Skill>> {
    let mut skills: Vec<Arc<Skill>> = Vec::new();
    for (name, item) in fields::read_texts(member, "`all` or a list of names of skills", findings) {
        let Some(skill) = context.skills.iter().find(|skill| skill.name == name) else {
            let hint = suggest_name(name, context.skills.iter().map(|skill| skill.name.as_str()));
            findings.add(item.position, format!("there is no skill `{name}`: {hint}"));
            continue;
        };
        if skills.iter().any(|other| other.name == name) {
            findings.add(item.position, format!("the skill `{name}` is listed twice"));
        } else {
            skills.push(Arc::clone(skill));
        }
    }
    skills
}

/// The tools that the skills name: those of the agent first, then those of the app.
fn find_skill_tools(
    skills: &[Arc<Skill>],
    tools: &[Arc<dyn CallableTool>],
    context: &AgentFileContext<'_>,
) -> Vec<Arc<dyn CallableTool>> {
    let mut found: Vec<Arc<dyn CallableTool>> = Vec::new();
    for skill in skills {
        for name in &skill.tools {
            let own = tools.iter().find(|tool| tool.definition().name == *name);
            match own.or_else(|| context.tools.get(name)) {
                Some(_) if found.iter().any(|tool| tool.definition().name == *name) => {}
                Some(tool) => found.push(Arc::clone(tool)),
                None => tracing::warn!(
                    skill = skill.name,
                    tool = name,
                    "skill names a tool that neither the agent nor the app has"
                ),
            }
        }
    }
    found
}

/// Why the plugin of the skills cannot be used beside the tools and other plugins of the agent.
fn find_conflict(
    plugin: &RegisteredPlugin,
    tools: &[Arc<dyn CallableTool>],
    plugins: &[Arc<RegisteredPlugin>],
) -> Option<String> {
    if tools.iter().any(|tool| tool.definition().name == LOAD_SKILL) {
        return Some(format!(
            "`skills` adds a tool `{LOAD_SKILL}`, and `tools` has another one: rename that one"
        ));
    }
    for other in plugins {
        let name = other.name();
        if name == PLUGIN_NAME {
            return Some(format!("`skills` adds a plugin `{PLUGIN_NAME}`: rename the other one"));
        }
        let names = other.tools().iter().map(|tool| &tool.definition().name);
        for shared in names {
            if plugin.tools().iter().any(|tool| tool.definition().name == *shared) {
                return Some(format!(
                    "a skill and the plugin `{name}` have the same tool `{shared}`: names are unique in an agent"
                ));
            }
        }
    }
    None
}

/// The part of the system prompt that lists the skills. Empty without any.
fn render_index(skills: &[Arc<Skill>]) -> String {
    if skills.is_empty() {
        return String::new();
    }
    let mut text = "Available skills:\n".to_owned();
    for skill in skills {
        // A description is one line of the list.
        let description = skill.description.split_whitespace().collect::<Vec<_>>().join(" ");
        let _infallible = writeln!(text, "- {}: {description}", skill.name);
    }
    let _infallible = write!(text, "\nUse {LOAD_SKILL}(name) to access full instructions.");
    text
}

/// Lists the skills in the system prompt, and offers `load_skill` and the tools of loaded skills.
#[derive(Debug)]
struct SkillPlugin {
    skills: Arc<[Arc<Skill>]>,
    index: String,
    tools: Vec<Arc<dyn CallableTool>>,
}

/// State of the plugin: names of the loaded skills that have tools.
#[derive(Debug, Default, JsonSchema, Serialize, Deserialize)]
struct LoadedSkills {
    loaded: Vec<String>,
}

impl LoadedSkills {
    /// Adds a skill. Returns true if it has tools and was not loaded.
    fn add(&mut self, skill: &Skill) -> bool {
        let is_new = !skill.tools.is_empty() && !self.loaded.contains(&skill.name);
        if is_new {
            self.loaded.push(skill.name.clone());
        }
        is_new
    }
}

impl Plugin for SkillPlugin {
    type State = LoadedSkills;

    fn name(&self) -> &'static str {
        PLUGIN_NAME
    }

    fn tools(&self, tools: &mut PluginTools) {
        tools.tool(LoadSkill { skills: Arc::clone(&self.skills) });
        self.tools.iter().for_each(|tool| tools.existing_tool(Arc::clone(tool)));
    }

    async fn prepare(&self, cx: &mut Prepare<'_, LoadedSkills>) -> Result<(), PluginError> {
        if !self.index.is_empty() {
            cx.context(&self.index);
            cx.activate(LOAD_SKILL)?;
        }
        let mut loaded = LoadedSkills {
            loaded: cx.state().map(|state| state.loaded.clone()).unwrap_or_default(),
        };
        let mut is_changed = false;
        for skill in self.skills.iter().filter(|skill| !skill.tools.is_empty()) {
            let tag = opening_tag(&skill.name);
            let is_sent = |message: &&Message| begins_with(message, &tag);
            if cx.prompt().messages.iter().any(is_sent) {
                is_changed |= loaded.add(skill);
            }
        }
        let is_loaded = |skill: &&Arc<Skill>| loaded.loaded.contains(&skill.name);
        let names = self.skills.iter().filter(is_loaded).flat_map(|skill| &skill.tools);
        for name in names {
            // A skill may name a tool that does not exist: the start has logged it.
            if self.tools.iter().any(|tool| tool.definition().name == *name) {
                cx.activate(name)?;
            }
        }
        if is_changed {
            cx.set_state(loaded)?;
        }
        Ok(())
    }
}

/// True for a message of a user that begins with the text.
fn begins_with(message: &Message, text: &str) -> bool {
    let Message::User(message) = message else { return false };
    match &message.content {
        Content::Text(content) => content.starts_with(text),
        Content::Blocks(blocks) => {
            matches!(blocks.first(), Some(Block::Text(first)) if first.text.starts_with(text))
        }
    }
}

/// Returns the instructions of a skill, or another file of its folder.
struct LoadSkill {
    skills: Arc<[Arc<Skill>]>,
}

#[derive(Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
struct LoadSkillArgs {
    /// Name of the skill
    name: String,
    /// Path of a file that the skill refers to, relative to the folder of the skill. Without it,
    /// the result is the instructions of the skill.
    file: Option<String>,
}

impl Tool for LoadSkill {
    type Args = LoadSkillArgs;

    fn name(&self) -> &'static str {
        LOAD_SKILL
    }

    fn description(&self) -> &'static str {
        "Load full instructions for a skill"
    }

    fn effect(&self) -> Effect {
        Effect::Read
    }

    fn writes_state(&self) -> bool {
        self.skills.iter().any(|skill| !skill.tools.is_empty())
    }

    async fn call(&self, args: LoadSkillArgs, cx: CallContext) -> Result<ToolResult, ToolError> {
        let mut visible = self.skills.iter().filter(|skill| !skill.is_hidden);
        let Some(skill) = visible.find(|skill| skill.name == args.name) else {
            return Ok(ToolResult::error("Skill not found"));
        };
        if let Some(file) = args.file {
            return read_reference(skill, file).await.map(ToolResult::text);
        }
        let mut loaded: LoadedSkills = cx.state()?.unwrap_or_default();
        if loaded.add(skill) {
            cx.set_state(&loaded)?;
        }
        Ok(ToolResult::text(skill.body.clone()))
    }
}

async fn read_reference(skill: &Skill, file: String) -> Result<String, ToolError> {
    let Some(folder) = skill.folder.clone() else {
        return Err(ToolError::failed(format!("The skill `{}` has no other files.", skill.name)));
    };
    let is_inside =
        |path: &str| !path.starts_with('/') && !path.split('/').any(|part| part == "..");
    if !is_inside(&file) {
        return Err(ToolError::failed("A file of a skill has a relative path without `..`."));
    }
    let read = tokio::task::spawn_blocking(move || {
        read_text_file(&folder, file.as_ref(), REFERENCE_BYTES_MAX)
    });
    let text = read.await.map_err(|error| ToolError::failed(error.to_string()))?;
    text.map_err(|reason| ToolError::failed(format!("The file cannot be loaded: {reason}.")))
}
