//! Parts of the system prompt of an embedded agent, and its skills.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use crate::embedded::AgentBuilder;
use turnwheel_agent_files::{
    ContextFile, ResourcePath, ResourcePaths, Resources, Skill, date_plugin,
};
use turnwheel_conversation::schedule::zone::Zone;

impl AgentBuilder {
    /// Begins the system prompt with a default text, the active tools and guidelines for them, unless
    /// [`AgentBuilder::system_prompt`] sets another text.
    #[must_use]
    pub fn default_system_prompt(mut self) -> Self {
        self.has_default_prompt = true;
        self
    }

    /// Adds a text after the system prompt. Several texts are separated by blank lines.
    #[must_use]
    pub fn append_system_prompt(mut self, text: impl AsRef<str>) -> Self {
        let append = &mut self.prompt_parts.append;
        if !append.is_empty() {
            append.push_str("\n\n");
        }
        append.push_str(text.as_ref().trim());
        self
    }

    /// Adds a text below `# Project Context`, with the path as its heading.
    #[must_use]
    pub fn context_file(mut self, path: impl Into<String>, text: impl AsRef<str>) -> Self {
        let file = ContextFile { location: path.into(), text: text.as_ref().trim().to_owned() };
        self.prompt_parts.context_files.push(Arc::new(file));
        self
    }

    /// Adds the date of the start of each prompt and the working directory `/`. `time_zone` is an IANA
    /// time zone, for example `Europe/Berlin`.
    #[must_use]
    pub fn date(mut self, time_zone: impl AsRef<str>) -> Self {
        match Zone::from_name(time_zone.as_ref()) {
            Ok(zone) => self.prompt_parts.plugin = Some(date_plugin(zone)),
            Err(reason) => self.registrations.mistakes.push(reason),
        }
        self
    }

    /// Adds the skills of a folder: each `NAME/SKILL.md` and `NAME.skill.md`. The first of a name
    /// counts. Skills name tools of the agent.
    #[must_use]
    pub fn skills(mut self, folder: impl Into<PathBuf>) -> Self {
        self.skills.push(folder.into());
        self
    }

    /// Loads the skills. Adds a mistake for each file that cannot be used.
    pub(super) fn load_skills(&mut self) -> Vec<Arc<Skill>> {
        let path = |folder: &PathBuf| ResourcePath::new(Path::new(""), folder, true);
        let skills = self.skills.iter().map(path).collect();
        let paths = ResourcePaths { skills, ..ResourcePaths::default() };
        let Resources { skills, mistakes, warnings, .. } =
            Resources::load(&paths, &Resources::default());
        for warning in warnings {
            tracing::warn!("{warning}");
        }
        self.registrations.mistakes.extend(mistakes.iter().map(ToString::to_string));
        self.registrations.mistakes.extend(self.prompt_parts.find_mistake());
        skills
    }
}
