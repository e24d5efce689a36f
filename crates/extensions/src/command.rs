//! Commands of extensions: users run them with `/name arguments`.

use std::collections::BTreeMap;
use std::sync::Arc;

use crate::Extension;
use turnwheel_platform::ids::UserId;

#[cfg(test)]
mod tests;

const NAME_BYTES_MAX: usize = 64;
/// Maximum bytes of the output of a command. It is stored with the receipt.
pub const OUTPUT_BYTES_MAX: usize = 32 * 1024;

/// Users load a skill with `/skill:name`.
pub const SKILL_PREFIX: &str = "skill:";

/// Commands of clients of the sources. An extension's command of such a name could never run there.
const RESERVED_NAMES: [&str; 22] = [
    "changelog",
    "clone",
    "compact",
    "copy",
    "export",
    "fork",
    "hotkeys",
    "import",
    "login",
    "logout",
    "model",
    "name",
    "new",
    "quit",
    "reload",
    "resume",
    "scoped-models",
    "session",
    "settings",
    "share",
    "tree",
    "trust",
];

/// A command that an extension offers.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CommandSpec {
    /// 1 to 64 of the characters a-z 0-9 _ - : without the slash.
    pub name: String,
    pub description: String,
    /// Shown by clients after the name, for example `<title>`.
    pub argument_hint: Option<String>,
    /// A key combination that clients may offer, for example `ctrl+k`.
    pub shortcut: Option<String>,
}

impl CommandSpec {
    /// A command without hints.
    pub fn new(name: impl Into<String>, description: impl Into<String>) -> Self {
        let (name, description) = (name.into(), description.into());
        Self { name, description, argument_hint: None, shortcut: None }
    }
}

/// A command that a user runs.
#[derive(Clone, Copy, Debug)]
pub struct CommandCall<'a> {
    pub name: &'a str,
    /// The text after the name, unchanged; empty if there is none.
    pub args: &'a str,
    pub user: &'a UserId,
}

/// Result of a command.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct CommandOutcome {
    /// Text for the user, at most 32 KB. The conversation does not record it.
    pub output: Option<String>,
}

impl CommandOutcome {
    pub fn text(output: impl Into<String>) -> Self {
        Self { output: Some(output.into()) }
    }
}

/// A command with its extension.
#[derive(Clone, Debug)]
pub struct ExtensionCommand {
    pub extension: Arc<dyn Extension>,
    pub spec: CommandSpec,
}

/// The commands of the extensions in their order, without those of invalid or reserved names.
pub fn commands_of<'a>(
    extensions: impl Iterator<Item = &'a Arc<dyn Extension>>,
) -> impl Iterator<Item = ExtensionCommand> {
    let is_usable = |spec: &CommandSpec| is_valid_name(&spec.name) && !is_reserved(&spec.name);
    extensions.flat_map(move |extension| {
        let specs = extension.commands().into_iter().filter(is_usable);
        specs.map(|spec| ExtensionCommand { extension: Arc::clone(extension), spec })
    })
}

/// The command that the text names, and its arguments.
pub fn find_in_text<'a, 't>(
    extensions: impl Iterator<Item = &'a Arc<dyn Extension>>,
    text: &'t str,
) -> Option<(ExtensionCommand, &'t str)> {
    let (name, args) = parse_call(text)?;
    find_command(extensions, name).map(|command| (command, args))
}

pub fn find_command<'a>(
    extensions: impl Iterator<Item = &'a Arc<dyn Extension>>,
    name: &str,
) -> Option<ExtensionCommand> {
    commands_of(extensions).find(|command| command.spec.name == name)
}

/// The name and the arguments of a text that may name a command, a skill or a template.
pub fn parse_call(text: &str) -> Option<(&str, &str)> {
    let call = text.strip_prefix('/')?;
    Some(call.split_once(' ').unwrap_or((call, "")))
}

fn is_valid_name(name: &str) -> bool {
    let is_allowed =
        |byte: u8| byte.is_ascii_lowercase() || byte.is_ascii_digit() || b"_-:".contains(&byte);
    (1..=NAME_BYTES_MAX).contains(&name.len()) && name.bytes().all(is_allowed)
}

/// The reason why no extension can have a command of this name. `None`: it can.
pub fn find_name_mistake(name: &str) -> Option<String> {
    if !is_valid_name(name) {
        return Some(format!(
            "the command name `{name}` must be 1 to {NAME_BYTES_MAX} of the characters a-z 0-9 _ - :"
        ));
    }
    is_reserved(name).then(|| {
        format!("clients have a command `{name}` of their own: give this one another name")
    })
}

fn is_reserved(name: &str) -> bool {
    RESERVED_NAMES.contains(&name)
}

/// Returns one sentence for each invalid name and for each name that an earlier command has. Logs
/// the commands with reserved names, which are left out.
pub fn find_command_mistakes(extensions: &[Arc<dyn Extension>]) -> Vec<String> {
    let mut owners: BTreeMap<String, &str> = BTreeMap::new();
    let mut mistakes = Vec::new();
    for extension in extensions {
        let owner = extension.name();
        for CommandSpec { name, .. } in extension.commands() {
            if !is_valid_name(&name) {
                mistakes.push(format!(
                    "extension \"{owner}\": the command name `{name}` must be 1 to {NAME_BYTES_MAX} of the characters a-z 0-9 _ - :"
                ));
            } else if is_reserved(&name) {
                tracing::warn!(
                    extension = owner,
                    command = name,
                    "command left out: clients have a command of this name"
                );
            } else if let Some(first) = owners.get(&name) {
                mistakes.push(format!(
                    "two commands have the name `{name}`, of the extensions \"{first}\" and \"{owner}\": rename one"
                ));
            } else {
                owners.insert(name, owner);
            }
        }
    }
    mistakes
}
