//! The plugin of skills: it lists them in the system prompt, and offers the tools of loaded skills.

use std::collections::HashMap;
use std::sync::Arc;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::skills::files::skill_at;
use crate::skills::find_skills::FindSkills;
use crate::skills::index::{AppLines, SkillIndex, render_index, unlisted_sentence, user_room};
use crate::skills::load_skill::LoadSkill;
use crate::skills::user::UserSkillRules;
use crate::skills::{FIND_SKILLS, LOAD_SKILL, PLUGIN_NAME, READ, Skill, opening_tag};
use turnwheel_conversation::content::{Block, Content};
use turnwheel_conversation::memory::UserDocuments;
use turnwheel_conversation::message::Message;
use turnwheel_conversation::user_skills::{ListedSkill, UserSkillLines};
use turnwheel_extensions::prepare::Prepare;
use turnwheel_extensions::{Plugin, PluginError, PluginTools};
use turnwheel_tools::CallableTool;
use turnwheel_tools::user_skills::{CREATE_SKILL, CreateSkill};

/// Lists the skills in the system prompt, and offers `load_skill` and the tools of loaded skills.
#[derive(Debug)]
pub(super) struct SkillPlugin {
    skills: Arc<[Arc<Skill>]>,
    /// The list of the visible ones.
    lines: AppLines,
    /// The index with paths. `None`: the model loads skills by `load_skill` only.
    file_lines: Option<AppLines>,
    tools: Vec<Arc<dyn CallableTool>>,
    /// `None`: the agent has no skills of its users.
    user: Option<UserSkillRules>,
}

impl SkillPlugin {
    pub(super) fn new(
        skills: &[Arc<Skill>],
        form: SkillIndex,
        tools: Vec<Arc<dyn CallableTool>>,
        user: Option<UserSkillRules>,
    ) -> Self {
        let file_lines =
            (form == SkillIndex::Files).then(|| AppLines::new(skills, SkillIndex::Files));
        let lines = AppLines::new(skills, SkillIndex::List);
        Self { skills: skills.into(), lines, file_lines, tools, user }
    }

    /// Names of the tools that it declares beside those that skills name.
    pub(super) fn own_tools(&self) -> Vec<&'static str> {
        let find = self.may_have_unlisted().then_some(FIND_SKILLS);
        [LOAD_SKILL, CREATE_SKILL].into_iter().chain(find).collect()
    }

    /// True if a system prompt may leave out a skill.
    fn may_have_unlisted(&self) -> bool {
        let of_files = self.file_lines.as_ref().map_or(0, |lines| lines.unlisted);
        self.user.is_some() || self.lines.unlisted > 0 || of_files > 0
    }

    /// Adds the list to the system prompt, and activates the tools that it names.
    fn add_index(
        &self,
        cx: &mut Prepare<'_, LoadedSkills>,
        of_user: Option<&[&ListedSkill]>,
    ) -> Result<(), PluginError> {
        // Without `read` the model cannot open the files of the index.
        let (form, of_app) = match &self.file_lines {
            Some(lines) if cx.is_active(READ) => (SkillIndex::Files, lines),
            Some(_) | None => (SkillIndex::List, &self.lines),
        };
        let room = user_room(of_app, form);
        let of_user = of_user.unwrap_or_default();
        let of_user = UserSkillLines::new(of_user, room, unlisted_sentence);
        let index = render_index(&of_app.text, &of_user, of_app.unlisted, form);
        let has_list = form == SkillIndex::List && !index.is_empty();
        if has_list || !of_user.is_empty() {
            cx.activate(LOAD_SKILL)?;
        }
        if of_app.unlisted + of_user.unlisted > 0 {
            cx.activate(FIND_SKILLS)?;
        }
        if !index.is_empty() {
            cx.context(index);
        }
        Ok(())
    }

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
    user: &UserSkillRules,
    skills: &[&ListedSkill],
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
pub(super) struct LoadedSkills {
    pub(super) loaded: Vec<String>,
    /// Skills of the user.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub(super) of_user: Vec<String>,
}

/// Adds a skill to the loaded ones. Returns true if it has tools and was not loaded.
pub(super) fn add_loaded(loaded: &mut Vec<String>, name: &str, tools: &[String]) -> bool {
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
        let has_user_skills = user.is_some();
        tools.tool(LoadSkill { skills: Arc::clone(&skills), has_user_skills });
        if let Some(user) = user.filter(|user| user.can_create) {
            tools.tool(CreateSkill(user.rules.clone()));
        }
        if self.may_have_unlisted() {
            let has_files = self.file_lines.is_some();
            tools.tool(FindSkills { skills, has_user_skills, has_files });
        }
        self.tools.iter().for_each(|tool| tools.existing_tool(Arc::clone(tool)));
    }

    async fn prepare(&self, cx: &mut Prepare<'_, LoadedSkills>) -> Result<(), PluginError> {
        let of_user = self.skills_of_user(cx.user_documents());
        self.add_index(cx, of_user.as_ref().map(|(_, skills)| &skills[..]))?;
        if of_user.as_ref().is_some_and(|(user, _)| user.can_create) {
            cx.activate(CREATE_SKILL)?;
        }
        let mut loaded = cx.state().cloned().unwrap_or_default();
        let mut is_changed = false;
        let is_read = read_skills(cx, &self.skills, self.file_lines.is_some());
        for skill in &*self.skills {
            if is_sent(cx, &skill.name) || is_read.contains(&skill.name.as_str()) {
                is_changed |= add_loaded(&mut loaded.loaded, &skill.name, &skill.tools);
            }
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
            activate_for_user(cx, user, skills, &loaded)?;
        }
        if is_changed {
            cx.set_state(loaded)?;
        }
        Ok(())
    }
}

/// Names of the visible skills whose file the prompt has read. `has_files`: the files are in the
/// workspace.
fn read_skills<'s>(
    cx: &Prepare<'_, LoadedSkills>,
    skills: &'s [Arc<Skill>],
    has_files: bool,
) -> Vec<&'s str> {
    let mut found = Vec::new();
    // The ids of calls may repeat: the newest call of an id counts.
    let mut called: HashMap<&str, &str> = HashMap::new();
    for message in cx.prompt().messages.iter().filter(|_| has_files) {
        if let Some(response) = message.as_assistant() {
            for call in response.tool_calls().filter(|call| call.name == READ) {
                let skill =
                    call.arguments.string_member("path").and_then(|path| skill_at(&path, skills));
                let name = skill.filter(|skill| !skill.is_hidden).map(|skill| skill.name.as_str());
                called.extend(name.map(|name| (call.id.as_str(), name)));
            }
        } else if let Message::ToolResult(result) = message
            && result.tool_name == READ
            && !result.is_error
        {
            found.extend(called.remove(result.tool_call_id.as_str()));
        }
    }
    found
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
