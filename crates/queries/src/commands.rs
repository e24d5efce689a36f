//! Command query: the commands, prompt templates and skills that users can name after a slash, for
//! clients that offer them.

use serde::Serialize;
use utoipa::ToSchema;

use crate::user_skills::read_list;
use turnwheel_agent_files::{AgentLookupError, PromptTemplate, Skill};
use turnwheel_conversation::user_skills::ListedSkill;
use turnwheel_extensions::command::{ExtensionCommand, SKILL_PREFIX, commands_of};
use turnwheel_record::contract::{CommandError, Owner};
use turnwheel_record::services::Services;

#[derive(Debug, Serialize, ToSchema)]
pub struct Commands {
    pub items: Vec<CommandView>,
}

#[serde_with::skip_serializing_none]
#[derive(Debug, Serialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub struct CommandView {
    /// Without the slash.
    pub name: String,
    pub description: String,
    /// `command`, `template` or `skill`. Later versions add kinds.
    pub kind: &'static str,
    /// Name of the extension that offers the command.
    pub extension: Option<String>,
    /// The file of the template or skill. Absent: a skill of the user.
    pub location: Option<String>,
    /// Text to show after the name.
    pub argument_hint: Option<String>,
    /// A key combination that clients may offer.
    pub shortcut: Option<String>,
}

/// Lists the commands of an agent in the order of the extensions, the prompt templates, the skills of
/// the agent, and those of the user. In a text, a command precedes a template of its name.
///
/// # Errors
/// The agent does not exist or cannot be used: name another one.
pub async fn list_commands(
    services: &Services,
    owner: &Owner,
    agent: Option<&str>,
) -> Result<Commands, CommandError> {
    let agent = match services.agents.find(agent) {
        Ok(agent) => Some(agent),
        // Extensions of the app are the same for every agent.
        Err(AgentLookupError::Ambiguous { .. }) => None,
        Err(unknown @ AgentLookupError::Unknown { .. }) => {
            return Err(CommandError::invalid("?agent", unknown.to_string()));
        }
        Err(broken @ AgentLookupError::Broken(_)) => {
            return Err(CommandError::AgentUnavailable(broken.to_string()));
        }
    };
    let commands = commands_of(services.extensions_of(agent.as_deref())).map(command_view);
    let catalog = services.agents.current();
    let templates = catalog.templates.values().map(|template| template_view(template));
    let skills = agent.iter().flat_map(|agent| &agent.skills).map(|skill| skill_view(skill));
    let mut items: Vec<CommandView> = commands.chain(templates).chain(skills).collect();
    if let Some(agent) = agent.filter(|it| it.has_user_skills && !services.limits.has_shared_user) {
        let of_user = read_list(services, owner).await?.items;
        let is_taken = |name: &str| agent.skills.iter().any(|skill| skill.name == name);
        items.extend(of_user.into_iter().filter(|it| !is_taken(&it.name)).map(user_skill_view));
    }
    Ok(Commands { items })
}

fn template_view(template: &PromptTemplate) -> CommandView {
    let PromptTemplate { name, description, argument_hint, location, .. } = template.clone();
    let location = Some(location);
    CommandView {
        name,
        description,
        kind: "template",
        extension: None,
        location,
        argument_hint,
        shortcut: None,
    }
}

fn skill_view(skill: &Skill) -> CommandView {
    CommandView {
        name: format!("{SKILL_PREFIX}{}", skill.name),
        description: skill.description.clone(),
        kind: "skill",
        extension: None,
        location: Some(skill.location.clone()),
        argument_hint: None,
        shortcut: None,
    }
}

fn user_skill_view(skill: ListedSkill) -> CommandView {
    CommandView {
        name: format!("{SKILL_PREFIX}{}", skill.name),
        description: skill.description,
        kind: "skill",
        extension: None,
        location: None,
        argument_hint: None,
        shortcut: None,
    }
}

fn command_view(command: ExtensionCommand) -> CommandView {
    let ExtensionCommand { extension, spec } = command;
    CommandView {
        name: spec.name,
        description: spec.description,
        kind: "command",
        extension: Some(extension.name().to_owned()),
        location: None,
        argument_hint: spec.argument_hint,
        shortcut: spec.shortcut,
    }
}
