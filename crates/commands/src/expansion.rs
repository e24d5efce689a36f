//! Expansion of inputs that name a skill or a prompt template.

use crate::request_hooks::{RequestHooks, replace_content};
use turnwheel_agent_files::{EXPANDED_BYTES_MAX, ExpansionTooLarge, Skill};
use turnwheel_conversation::content::Content;
use turnwheel_extensions::command::{self, SKILL_PREFIX};
use turnwheel_record::contract::CommandError;
use turnwheel_record::user_documents::{load_skill, user_partition};

/// Replaces an input that names a skill or a template. Another input stays as it is.
pub(super) async fn expand_input(
    content: Content,
    hooks: &RequestHooks<'_>,
    original: &mut Option<Content>,
) -> Result<Content, CommandError> {
    let expanded = hooks.expand_text(&content).await?;
    let Some(text) = expanded else { return Ok(content) };
    let changed = replace_content(content.clone(), text, None);
    original.get_or_insert(content);
    Ok(changed)
}

impl RequestHooks<'_> {
    /// The text of the skill or the template that the input names, with its arguments. `None`: it
    /// names none.
    ///
    /// # Errors
    /// The text is too large, or the store does not respond.
    async fn expand_text(&self, input: &Content) -> Result<Option<String>, CommandError> {
        let catalog = self.services.agents.current();
        let skills = self.agent.as_deref().map(|agent| &agent.skills[..]).unwrap_or_default();
        if skills.is_empty() && catalog.templates.is_empty() && !self.has_user_skills() {
            // The text is not copied.
            return Ok(None);
        }
        let text = input.joined_text();
        let Some((name, args)) = command::parse_call(&text) else { return Ok(None) };
        let form = self.agent.as_deref().map(|agent| agent.skill_index).unwrap_or_default();
        let expand = |skill: &Skill| skill.expand(args.trim(), form);
        let expanded = match name.strip_prefix(SKILL_PREFIX) {
            Some(name) => match skills.iter().find(|skill| skill.name == name) {
                Some(skill) => Some(expand(skill)),
                None => self.load_user_skill(name).await?.as_ref().map(expand),
            },
            None => catalog.templates.get(name).map(|template| template.expand(args)),
        };
        expanded.transpose().map_err(|ExpansionTooLarge| {
            let detail = format!(
                "the expanded input is larger than {EXPANDED_BYTES_MAX} bytes: shorten the arguments, or send `expand: false`"
            );
            CommandError::invalid("/input", detail)
        })
    }

    fn has_user_skills(&self) -> bool {
        let is_shared = self.services.limits.has_shared_user;
        !is_shared && self.agent.as_deref().is_some_and(|agent| agent.has_user_skills)
    }

    /// The user's own skill of this name.
    async fn load_user_skill(&self, name: &str) -> Result<Option<Skill>, CommandError> {
        if !self.has_user_skills() {
            return Ok(None);
        }
        let partition = user_partition(&self.head.tenant, &self.head.user);
        let found = load_skill(&*self.services.store, &partition, name).await?;
        Ok(found.map(|(skill, _)| Skill::from(skill)))
    }
}
