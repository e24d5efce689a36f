//! The key `skills` of agent files: instructions that the model loads when it needs them.

use std::fmt::Write as _;
use std::path::PathBuf;
use std::sync::Arc;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::agent::content::{Block, Content};
use crate::agent::memory::UserDocuments;
use crate::agent::message::Message;
use crate::agent::user_skills::{ListedSkill, UserSkill, render_user_skills};
use crate::agents::fields;
use crate::agents::file_context::AgentFileContext;
use crate::agents::mistakes::{Findings, suggest_name};
use crate::agents::prompt_template::{EXPANDED_BYTES_MAX, ExpansionTooLarge};
use crate::agents::yaml::{Member, Node, Yaml};
use crate::extensions::plugin::RegisteredPlugin;
use crate::extensions::prepare::{ITEMS_BYTES_MAX, Prepare};
use crate::extensions::{Plugin, PluginError, PluginTools};
use crate::tools::CallableTool;
use crate::tools::code::ServiceRegistry;
use crate::tools::user_skills::{CREATE_SKILL, CreateSkill};

mod load_skill;
mod user;

#[cfg(test)]
mod tests;

use load_skill::LoadSkill;
use user::UserSkillRules;

/// Maximum number of skills in the system prompt of an agent.
const SKILLS_MAX: usize = 200;
const PLUGIN_NAME: &str = "skills";
pub(super) const LOAD_SKILL: &str = "load_skill";
/// Bytes of the sentence after the list.
const SENTENCE_ROOM: usize = 128;

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

impl From<UserSkill> for Skill {
    fn from(skill: UserSkill) -> Self {
        let UserSkill { name, description, tools, body, .. } = skill;
        let location = format!("user/{name}.skill.md");
        Self { name, description, location, folder: None, tools, is_hidden: false, body }
    }
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
    pub(super) has_user_skills: bool,
    pub(super) plugin: Option<Arc<RegisteredPlugin>>,
}

/// Reads `skills`: `all` or a list of names, and `userSkills`. `tools` and `plugins` are those of the
/// agent.
pub(super) fn read_skills(
    node: &Node,
    (tools, plugins): (&[Arc<dyn CallableTool>], &[Arc<RegisteredPlugin>]),
    context: &AgentFileContext<'_>,
    findings: &mut Findings,
) -> Option<AgentSkills> {
    let (of_app, of_user) = (node.find_member("skills"), node.find_member("userSkills"));
    let at = of_app.or(of_user)?.value.position;
    let user_key = of_user.and_then(|member| user::read_user_skills(member, findings));
    let skills = match of_app.map(|member| (member, &member.value.yaml)) {
        None => Vec::new(),
        Some((_, Yaml::Text(text))) if text == "all" => context.skills.to_vec(),
        Some((member, _)) => read_names(member, context, findings),
    };
    let visible = skills.iter().filter(|skill| !skill.is_hidden);
    let visible: Vec<Arc<Skill>> = visible.cloned().collect();
    let lines = render_lines(&visible);
    let bytes = render_index(&lines, "").len();
    if visible.len() > SKILLS_MAX || bytes > ITEMS_BYTES_MAX {
        let count = visible.len();
        findings.add(at, format!(
            "the agent has {count} skills, whose list has {bytes} bytes: at most {SKILLS_MAX} skills and {ITEMS_BYTES_MAX} bytes are allowed; name fewer, or shorten their descriptions"
        ));
        return None;
    }
    if skills.is_empty() && user_key.is_none() {
        return None;
    }
    let user = user_key.map(|key| key.into_rules(tools, &skills));
    let mut skill_tools = find_skill_tools(&skills, tools, context);
    if user.is_some() {
        add_missing(&mut skill_tools, tools);
    }
    let has_user_skills = user.is_some();
    let plugin = SkillPlugin { skills: skills.clone().into(), lines, tools: skill_tools, user };
    match RegisteredPlugin::new(plugin, ServiceRegistry::default()) {
        Ok(plugin) => {
            if let Some(reason) = find_conflict(&plugin, tools, plugins) {
                findings.add(at, reason);
            }
            Some(AgentSkills { skills, has_user_skills, plugin: Some(Arc::new(plugin)) })
        }
        Err(mistakes) => {
            for mistake in mistakes {
                findings.add(at, mistake);
            }
            None
        }
    }
}

/// Adds the tools that are not among `found`. A skill of the user may name each tool of the agent.
fn add_missing(found: &mut Vec<Arc<dyn CallableTool>>, tools: &[Arc<dyn CallableTool>]) {
    for tool in tools {
        if !found.iter().any(|known| known.definition().name == tool.definition().name) {
            found.push(Arc::clone(tool));
        }
    }
}

/// The plugin of an agent with skills of the app, and skills of its users.
#[cfg(test)]
pub(crate) fn user_skill_plugin(
    skills: &[Arc<Skill>],
    skill_tools: &[Arc<dyn CallableTool>],
    agent_tools: &[Arc<dyn CallableTool>],
) -> Arc<RegisteredPlugin> {
    let rules = user::UserSkillsKey::default().into_rules(agent_tools, skills);
    let mut tools = skill_tools.to_vec();
    add_missing(&mut tools, agent_tools);
    let lines = render_lines(skills);
    let plugin = SkillPlugin { skills: skills.into(), lines, tools, user: Some(rules) };
    Arc::new(RegisteredPlugin::new(plugin, ServiceRegistry::default()).unwrap())
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
    let added = [LOAD_SKILL, CREATE_SKILL];
    let of_agent = tools.iter().map(|tool| tool.definition().name.as_str());
    if let Some(name) = of_agent.into_iter().find(|name| added.contains(name)) {
        return Some(format!(
            "`skills` adds a tool `{name}`, and `tools` has another one: rename that one"
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

/// The lines of the skills of the app. Empty without any.
fn render_lines(skills: &[Arc<Skill>]) -> String {
    if skills.is_empty() {
        return String::new();
    }
    let mut text = "Available skills:\n".to_owned();
    for skill in skills {
        // A description is one line of the list.
        let description = skill.description.split_whitespace().collect::<Vec<_>>().join(" ");
        let _infallible = writeln!(text, "- {}: {description}", skill.name);
    }
    text
}

/// The part of the system prompt that lists the skills of the app and of the user. Empty without any.
fn render_index(of_app: &str, of_user: &str) -> String {
    let mut text = [of_app, of_user].into_iter().filter(|lines| !lines.is_empty()).fold(
        String::new(),
        |mut text, lines| {
            if !text.is_empty() {
                text.push('\n');
            }
            text.push_str(lines);
            text
        },
    );
    if !text.is_empty() {
        let _infallible = write!(text, "\nUse {LOAD_SKILL}(name) to access full instructions.");
    }
    text
}

/// Lists the skills in the system prompt, and offers `load_skill` and the tools of loaded skills.
#[derive(Debug)]
struct SkillPlugin {
    skills: Arc<[Arc<Skill>]>,
    /// The list of the visible ones.
    lines: String,
    tools: Vec<Arc<dyn CallableTool>>,
    /// `None`: the agent has no skills of its users.
    user: Option<UserSkillRules>,
}

impl SkillPlugin {
    /// The rules for skills of the user, and the user's skills that no skill of the app hides. `None`:
    /// the agent has none, or all callers are one user.
    fn skills_of_user<'a>(
        &'a self,
        documents: Option<&'a UserDocuments>,
    ) -> Option<(&'a UserSkillRules, Vec<&'a ListedSkill>)> {
        let (user, documents) = (self.user.as_ref()?, documents.filter(|it| !it.is_shared)?);
        let all = documents.skills.items.iter();
        Some((user, all.filter(|skill| !user.rules.taken.contains(&skill.name)).collect()))
    }
}

/// Activates the tools of the loaded skills of the user: only those that the agent has itself.
fn activate_for_user(
    cx: &mut Prepare<'_, LoadedSkills>,
    (user, skills): (&UserSkillRules, &[&ListedSkill]),
    loaded: &LoadedSkills,
) -> Result<(), PluginError> {
    let is_loaded = |skill: &&&ListedSkill| loaded.of_user.contains(&skill.name);
    let names = skills.iter().filter(is_loaded).flat_map(|skill| &skill.tools);
    for name in names.filter(|name| user.rules.tools.contains(name)) {
        cx.activate(name)?;
    }
    Ok(())
}

/// State of the plugin: names of the loaded skills that have tools.
#[derive(Clone, Debug, Default, JsonSchema, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
struct LoadedSkills {
    loaded: Vec<String>,
    /// Skills of the user.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    of_user: Vec<String>,
}

/// Adds a skill to the loaded ones. Returns true if it has tools and was not loaded.
fn add_loaded(loaded: &mut Vec<String>, name: &str, tools: &[String]) -> bool {
    let is_new = !tools.is_empty() && !loaded.iter().any(|known| known == name);
    if is_new {
        loaded.push(name.to_owned());
    }
    is_new
}

impl Plugin for SkillPlugin {
    type State = LoadedSkills;

    fn name(&self) -> &'static str {
        PLUGIN_NAME
    }

    fn tools(&self, tools: &mut PluginTools) {
        let (skills, user) = (Arc::clone(&self.skills), self.user.as_ref());
        tools.tool(LoadSkill { skills, has_user_skills: user.is_some() });
        if let Some(user) = user.filter(|user| user.can_create) {
            tools.tool(CreateSkill(user.rules.clone()));
        }
        self.tools.iter().for_each(|tool| tools.existing_tool(Arc::clone(tool)));
    }

    async fn prepare(&self, cx: &mut Prepare<'_, LoadedSkills>) -> Result<(), PluginError> {
        let of_user = self.skills_of_user(cx.user_documents());
        let room =
            ITEMS_BYTES_MAX.saturating_sub(render_index(&self.lines, "").len() + SENTENCE_ROOM);
        let lines = of_user.as_ref().map(|(_, skills)| render_user_skills(skills, room));
        let index = render_index(&self.lines, &lines.unwrap_or_default());
        if !index.is_empty() {
            cx.context(index);
            cx.activate(LOAD_SKILL)?;
        }
        if of_user.as_ref().is_some_and(|(user, _)| user.can_create) {
            cx.activate(CREATE_SKILL)?;
        }
        let mut loaded = cx.state().cloned().unwrap_or_default();
        let mut is_changed = false;
        for skill in self.skills.iter().filter(|skill| is_sent(cx, &skill.name)) {
            is_changed |= add_loaded(&mut loaded.loaded, &skill.name, &skill.tools);
        }
        let skills = of_user.as_ref().map(|(_, skills)| &skills[..]).unwrap_or_default();
        for skill in skills.iter().filter(|skill| is_sent(cx, &skill.name)) {
            is_changed |= add_loaded(&mut loaded.of_user, &skill.name, &skill.tools);
        }
        let is_loaded = |skill: &&Arc<Skill>| loaded.loaded.contains(&skill.name);
        let names = self.skills.iter().filter(is_loaded).flat_map(|skill| &skill.tools);
        for name in names {
            // A skill may name a tool that does not exist: the start has logged it.
            if self.tools.iter().any(|tool| tool.definition().name == *name) {
                cx.activate(name)?;
            }
        }
        if let Some((user, skills)) = &of_user {
            activate_for_user(cx, (user, skills), &loaded)?;
        }
        if is_changed {
            cx.set_state(loaded)?;
        }
        Ok(())
    }
}

/// True if a message of the prompt loads the skill.
fn is_sent(cx: &Prepare<'_, LoadedSkills>, name: &str) -> bool {
    let tag = opening_tag(name);
    cx.prompt().messages.iter().any(|message| begins_with(message, &tag))
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
