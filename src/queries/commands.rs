//! Command query: the commands that users can run, for clients that offer them.

use serde::Serialize;
use utoipa::ToSchema;

use crate::agents::AgentLookupError;
use crate::commands::contract::CommandError;
use crate::extensions::command::{ExtensionCommand, commands_of};
use crate::services::Services;

#[derive(Debug, Serialize, ToSchema)]
pub(crate) struct Commands {
    pub items: Vec<CommandView>,
}

#[derive(Debug, Serialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub(crate) struct CommandView {
    /// Without the slash.
    pub name: String,
    pub description: String,
    /// `command`. Later versions add kinds.
    pub kind: &'static str,
    /// Name of the extension that offers it.
    pub extension: String,
    /// Text to show after the name.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub argument_hint: Option<String>,
    /// A key combination that clients may offer.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub shortcut: Option<String>,
}

/// Lists the commands of an agent, in the order of the extensions.
///
/// # Errors
/// The agent does not exist or cannot be used: name another one.
pub(crate) fn list_commands(
    services: &Services,
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
    let items = commands_of(services.extensions_of(agent.as_deref())).map(command_view).collect();
    Ok(Commands { items })
}

fn command_view(command: ExtensionCommand) -> CommandView {
    let ExtensionCommand { extension, spec } = command;
    CommandView {
        name: spec.name,
        description: spec.description,
        kind: "command",
        extension: extension.name().to_owned(),
        argument_hint: spec.argument_hint,
        shortcut: spec.shortcut,
    }
}
