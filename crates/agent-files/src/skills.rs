//! The key `skills` of agent files: instructions that the model loads when it needs them.

use std::path::PathBuf;
use std::sync::Arc;

use serde::{Deserialize, Serialize};

use crate::ToolSet;
use crate::fields;
use crate::file_context::AgentFileContext;
use crate::mistakes::{Findings, suggest_name};
use crate::prompt_template::{EXPANDED_BYTES_MAX, ExpansionTooLarge};
use crate::yaml::{Member, Node, Yaml};
use turnwheel_conversation::user_skills::UserSkill;
use turnwheel_extensions::plugin::RegisteredPlugin;
use turnwheel_tools::CallableTool;
use turnwheel_tools::code::ServiceRegistry;
use turnwheel_tools::workspace::{PackageFile, PackageFiles, is_builtin};

mod files;
mod find_skills;
mod index;
mod load_skill;
mod plugin;
mod user;

#[cfg(test)]
mod tests;

pub(crate) use files::{SKILL_FILES_MAX, find_skill_files};
pub use index::SkillIndex;

use index::workspace_location;
use plugin::SkillPlugin;

/// Maximum number of skills of an agent.
const SKILLS_MAX: usize = 2_000;
const PLUGIN_NAME: &str = "skills";
pub(super) const LOAD_SKILL: &str = "load_skill";
pub(super) const FIND_SKILLS: &str = "find_skills";
const READ: &str = "read";

/// Instructions with a name and a description, in a file of the app.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Skill {
    pub name: String,
    pub description: String,
    /// Path of its file for users and the model: `skills/review/SKILL.md`.
    pub location: String,
    /// The folder whose other files belong to the skill. `None`: it has only its own file.
    pub folder: Option<PathBuf>,
    /// Its own file, `SKILL.md`, and the others of its folder, by their path in the folder.
    #[serde(default)]
    pub files: Vec<(String, PackageFile)>,
    /// Names of the tools that are offered once the skill is loaded.
    pub tools: Vec<String>,
    /// True if it is not in the system prompt: only users load it.
    pub is_hidden: bool,
    pub body: String,
}

impl From<UserSkill> for Skill {
    fn from(skill: UserSkill) -> Self {
        let UserSkill { name, description, tools, body, .. } = skill;
        let location = format!("user/{name}.skill.md");
        let files = Vec::new();
        Self { name, description, location, folder: None, files, tools, is_hidden: false, body }
    }
}

impl Skill {
    /// The text of `/skill:name arguments` in a message of a user, for an agent with this form of the
    /// index.
    ///
    /// # Errors
    /// The text with its arguments is too large for a message.
    pub fn expand(&self, arguments: &str, form: SkillIndex) -> Result<String, ExpansionTooLarge> {
        let Self { name, body, .. } = self;
        let location = match form {
            SkillIndex::Files if !self.files.is_empty() => workspace_location(name),
            SkillIndex::Files | SkillIndex::List => self.location.clone(),
        };
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
    pub(super) form: SkillIndex,
    /// Files of the skills in the workspace.
    pub(super) files: PackageFiles,
    pub(super) plugin: Option<Arc<RegisteredPlugin>>,
}

/// Reads `skills`: `all` or a list of names, and `userSkills`. `tools` and `plugins` are those of the
/// agent.
pub(super) fn read_skills(
    node: &Node,
    tools: &[Arc<dyn CallableTool>],
    plugins: &[Arc<RegisteredPlugin>],
    context: &AgentFileContext<'_>,
    findings: &mut Findings,
) -> Option<AgentSkills> {
    let (of_app, of_user) = (node.find_member("skills"), node.find_member("userSkills"));
    if let (Some(index), None) = (node.find_member("skillsIndex"), of_app) {
        findings.add(index.position, "`skillsIndex` is for the skills of the app: add `skills`");
    }
    let at = of_app.or(of_user)?.value.position;
    let user_key = of_user.and_then(|member| user::read_user_skills(member, findings));
    let skills = match of_app.map(|member| (member, &member.value.yaml)) {
        None => Vec::new(),
        Some((_, Yaml::Text(text))) if text == "all" => context.skills.to_vec(),
        Some((member, _)) => read_names(member, context, findings),
    };
    let (form, files) = read_index(node, tools, &skills, findings);
    if skills.len() > SKILLS_MAX {
        let count = skills.len();
        findings.add(
            at,
            format!("the agent has {count} skills: at most {SKILLS_MAX} are allowed; name fewer"),
        );
        return None;
    }
    if skills.is_empty() && user_key.is_none() {
        return None;
    }
    let user = user_key.map(|key| key.into_rules(tools, &skills));
    let mut skill_tools = find_skill_tools(&skills, tools, context.tools);
    if user.is_some() {
        add_missing(&mut skill_tools, tools);
    }
    let has_user_skills = user.is_some();
    let plugin = SkillPlugin::new(&skills, form, skill_tools, user);
    let plugin = register(plugin, tools, plugins);
    let plugin = plugin.map_err(|mistakes| {
        for mistake in mistakes {
            findings.add(at, mistake);
        }
    });
    Some(AgentSkills { skills, has_user_skills, form, files, plugin: Some(plugin.ok()?) })
}

/// # Errors
/// Why the plugin cannot be used beside the tools and other plugins of the agent.
fn register(
    plugin: SkillPlugin,
    tools: &[Arc<dyn CallableTool>],
    plugins: &[Arc<RegisteredPlugin>],
) -> Result<Arc<RegisteredPlugin>, Vec<String>> {
    let own_tools = plugin.own_tools();
    let plugin = RegisteredPlugin::new(plugin, ServiceRegistry::default())?;
    match find_conflict(&plugin, &own_tools, tools, plugins) {
        None => Ok(Arc::new(plugin)),
        Some(reason) => Err(vec![reason]),
    }
}

/// The plugin of an embedded agent with these skills, which name tools of the agent.
///
/// # Errors
/// Why the plugin cannot be used beside the tools and other plugins of the agent.
pub fn list_skill_plugin(
    skills: &[Arc<Skill>],
    tools: &[Arc<dyn CallableTool>],
    plugins: &[Arc<RegisteredPlugin>],
) -> Result<Arc<RegisteredPlugin>, Vec<String>> {
    let skill_tools = find_skill_tools(skills, tools, &ToolSet::default());
    register(SkillPlugin::new(skills, SkillIndex::List, skill_tools, None), tools, plugins)
}

/// Reads `skillsIndex`: `list` or `files`, which needs the built-in tool `read`. Returns the files for
/// the workspace as well.
fn read_index(
    node: &Node,
    tools: &[Arc<dyn CallableTool>],
    skills: &[Arc<Skill>],
    findings: &mut Findings,
) -> (SkillIndex, PackageFiles) {
    const VALUES: [(&str, SkillIndex); 2] =
        [("list", SkillIndex::List), ("files", SkillIndex::Files)];
    let Some(member) = node.find_member("skillsIndex") else { return Default::default() };
    let form = fields::read_choice(member, &VALUES, findings).unwrap_or_default();
    if form == SkillIndex::List {
        return Default::default();
    }
    let position = member.value.position;
    if !tools.iter().any(|tool| is_builtin(tool, READ)) {
        let reason = "`skillsIndex: files` needs the built-in tool `read`: add it to `tools`";
        findings.add(position, reason);
    }
    match files::package_files(skills) {
        Ok(files) => (form, files),
        Err(name) => {
            let reason = format!(
                "the skill `{name}` has no name for a folder: use a-z, 0-9 and -, or `skillsIndex: list`"
            );
            findings.add(position, reason);
            Default::default()
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
#[cfg(any(test, feature = "testing"))]
#[expect(clippy::unwrap_used, reason = "a test fails by panicking, in its helpers too")]
pub fn user_skill_plugin(
    skills: &[Arc<Skill>],
    skill_tools: &[Arc<dyn CallableTool>],
    agent_tools: &[Arc<dyn CallableTool>],
) -> Arc<RegisteredPlugin> {
    let rules = user::UserSkillsKey::default().into_rules(agent_tools, skills);
    let mut tools = skill_tools.to_vec();
    add_missing(&mut tools, agent_tools);
    let plugin = SkillPlugin::new(skills, SkillIndex::List, tools, Some(rules));
    Arc::new(RegisteredPlugin::new(plugin, ServiceRegistry::default()).unwrap())
}

/// The plugin of an agent with skills of the app whose files are in the workspace, and the files.
#[cfg(any(test, feature = "testing"))]
#[expect(clippy::unwrap_used, reason = "a test fails by panicking, in its helpers too")]
pub fn file_skill_plugin(
    skills: &[Arc<Skill>],
    skill_tools: &[Arc<dyn CallableTool>],
) -> (Arc<RegisteredPlugin>, PackageFiles) {
    let plugin = SkillPlugin::new(skills, SkillIndex::Files, skill_tools.to_vec(), None);
    let plugin = RegisteredPlugin::new(plugin, ServiceRegistry::default()).unwrap();
    (Arc::new(plugin), files::package_files(skills).unwrap())
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
    of_app: &ToolSet,
) -> Vec<Arc<dyn CallableTool>> {
    let mut found: Vec<Arc<dyn CallableTool>> = Vec::new();
    for skill in skills {
        for name in &skill.tools {
            let own = tools.iter().find(|tool| tool.definition().name == *name);
            match own.or_else(|| of_app.get(name)) {
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
    own_tools: &[&str],
    tools: &[Arc<dyn CallableTool>],
    plugins: &[Arc<RegisteredPlugin>],
) -> Option<String> {
    let mut of_agent = tools.iter().map(|tool| tool.definition().name.as_str());
    if let Some(name) = of_agent.find(|name| own_tools.contains(name)) {
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
