//! Permissions: the hosts, settings, tools and stored types that an extension or a plugin declares.

use std::collections::BTreeMap;
use std::sync::Arc;

use serde::Serialize;
use serde::de::DeserializeOwned;
use serde_json::Value;
use url::{Host, Url};
use utoipa::ToSchema;

use crate::{Extension, Hook, HookContext, HookError};

#[cfg(test)]
mod tests;

/// Values of `extensionSettings` of an agent file, by extension or plugin, and by name.
pub type ExtensionSettings = BTreeMap<String, BTreeMap<String, Value>>;

/// The access that an extension or a plugin declares. Its context refuses every other host and
/// setting, and, once they are declared, every other tool and stored type.
///
/// Permissions limit the access through the context. Code in the process is not sandboxed.
#[serde_with::skip_serializing_none]
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub struct Permissions {
    /// `host` or `host:port`.
    hosts: Vec<String>,
    /// Names of `extensionSettings`.
    settings: Vec<String>,
    /// Tools that it may activate. Absent: all of the agent.
    tools: Option<Vec<String>>,
    /// Actions that its hooks may have, by their names over HTTP, such as `setModel`. Absent: all.
    actions: Option<Vec<String>>,
    /// Types of the entries that it appends; of a plugin, the plugins whose state it reads. Absent:
    /// all.
    storage: Option<Vec<String>>,
}

impl Permissions {
    /// No hosts and no settings, and no limit of tools and stored types.
    pub fn new() -> Self {
        Self::default()
    }

    /// Declares hosts for [`HookContext::http`]: `api.example` for all ports, or `api.example:8443`.
    #[must_use]
    pub fn with_hosts<T: Into<String>>(self, hosts: impl IntoIterator<Item = T>) -> Self {
        Self { hosts: collect(hosts), ..self }
    }

    /// Declares names for [`HookContext::setting`].
    #[must_use]
    pub fn with_settings<T: Into<String>>(self, names: impl IntoIterator<Item = T>) -> Self {
        Self { settings: collect(names), ..self }
    }

    /// Limits the actions of its hooks: `appendEntry`, `sendMessage`, `sendUserMessage`, `setModel`,
    /// `setThinkingLevel`, `setActiveTools`, `setSessionName`, `setLabel`, `abort`, `compact`, `notify`.
    #[must_use]
    pub fn with_actions<T: Into<String>>(self, names: impl IntoIterator<Item = T>) -> Self {
        Self { actions: Some(collect(names)), ..self }
    }

    /// Limits the tools that [`HookContext::set_active_tools`] may name.
    #[must_use]
    pub fn with_tools<T: Into<String>>(self, names: impl IntoIterator<Item = T>) -> Self {
        Self { tools: Some(collect(names)), ..self }
    }

    /// Limits the types that [`HookContext::append_entry`] may have, or the plugins whose state
    /// [`Prepare::state_of`](super::Prepare::state_of) reads.
    #[must_use]
    pub fn with_storage<T: Into<String>>(self, types: impl IntoIterator<Item = T>) -> Self {
        Self { storage: Some(collect(types)), ..self }
    }

    pub(crate) fn has_hosts(&self) -> bool {
        !self.hosts.is_empty()
    }

    pub fn settings(&self) -> &[String] {
        &self.settings
    }

    pub(crate) fn allows_tool(&self, name: &str) -> bool {
        allows(self.tools.as_deref(), name)
    }

    pub(crate) fn allows_storage(&self, name: &str) -> bool {
        allows(self.storage.as_deref(), name)
    }

    pub(crate) fn allows_action(&self, name: &str) -> bool {
        allows(self.actions.as_deref(), name)
    }

    pub(super) fn allows_host(&self, url: &Url) -> bool {
        let (host, port) = (url.host_str().unwrap_or_default(), url.port_or_known_default());
        let host = host.trim_end_matches('.');
        self.hosts.iter().filter_map(|declared| parse_host(declared)).any(|declared| {
            declared.name == host && declared.port.is_none_or(|own| Some(own) == port)
        })
    }
}

/// `*` stands for all.
fn allows(declared: Option<&[String]>, name: &str) -> bool {
    declared.is_none_or(|names| names.iter().any(|own| own == name || own == "*"))
}

fn collect<T: Into<String>>(names: impl IntoIterator<Item = T>) -> Vec<String> {
    names.into_iter().map(Into::into).collect()
}

struct DeclaredHost {
    name: String,
    port: Option<u16>,
}

/// `None`: this is not a host with an optional port.
fn parse_host(text: &str) -> Option<DeclaredHost> {
    let has_port = text.rsplit_once(':').filter(|(before, _)| {
        !before.contains(':') || (before.starts_with('[') && before.ends_with(']'))
    });
    let (name, port) = match has_port {
        Some((name, port)) => (name, Some(port.parse().ok()?)),
        None => (text, None),
    };
    let name = Host::parse(name).ok()?.to_string();
    Some(DeclaredHost { name: name.trim_end_matches('.').to_owned(), port })
}

/// Returns one sentence for each declared host that is none.
pub(crate) fn find_permission_mistakes(owner: &str, permissions: &Permissions) -> Vec<String> {
    let wrong = permissions.hosts.iter().filter(|host| parse_host(host).is_none());
    let sentence = |host: &String| {
        format!("{owner}: the permission for the host `{host}` must be `host` or `host:port`")
    };
    wrong.map(sentence).collect()
}

impl HookContext {
    /// The value of a setting in `extensionSettings` of the agent file. `None`: the file has none.
    ///
    /// # Errors
    /// The extension does not declare the setting, or the value is not a `T`.
    pub fn setting<T: DeserializeOwned>(&self, name: &str) -> Result<Option<T>, HookError> {
        let permissions = self.extension().permissions();
        if !permissions.settings.iter().any(|declared| declared == name) {
            return Err(self.refusal(&format!("setting `{name}`"), "with_settings"));
        }
        let own = self.site().access.extension_settings.as_deref();
        let own =
            own.and_then(|all| all.get(self.extension().name())).and_then(|own| own.get(name));
        let value = own.map(|value| serde_json::from_value(value.clone())).transpose();
        value.map_err(|_quotes_value| {
            let owner = self.extension().name();
            HookError::new(format!(
                "the setting `{name}` of the agent file does not have the type that \"{owner}\" reads"
            ))
        })
    }

    /// The error of an access that is not declared. `method`: that of [`Permissions`].
    pub(super) fn refusal(&self, access: &str, method: &str) -> HookError {
        let kind = if self.hook() == Hook::Prepare { "plugin" } else { "extension" };
        let name = self.extension().name();
        HookError::new(format!(
            "the {kind} \"{name}\" has no permission for the {access}: declare it in `permissions` with `Permissions::{method}`"
        ))
    }
}

/// Returns one sentence for each mistake in names and permissions of the extensions of an app, which
/// has plugins with these names.
pub fn find_extension_mistakes(extensions: &[Arc<dyn Extension>], plugins: &[&str]) -> Vec<String> {
    let mut mistakes = Vec::new();
    for (index, extension) in extensions.iter().enumerate() {
        let name = extension.name();
        if extensions.iter().take(index).any(|earlier| earlier.name() == name) {
            mistakes.push(format!("two extensions are called `{name}`: rename one"));
        }
        if plugins.contains(&name) {
            mistakes.push(shared_name(name));
        }
        let owner = format!("extension \"{name}\"");
        mistakes.extend(find_permission_mistakes(&owner, &extension.permissions()));
    }
    mistakes
}

/// Permissions and settings name their owner, so an extension and a plugin cannot share a name.
pub fn shared_name(name: &str) -> String {
    format!("an extension and a plugin are both called `{name}`: rename one")
}

/// Returns one sentence for each setting that its extension or plugin does not declare.
pub fn find_setting_mistakes(
    settings: &ExtensionSettings,
    declared: &BTreeMap<&str, Permissions>,
) -> Vec<String> {
    let mut mistakes = Vec::new();
    for (owner, values) in settings {
        let Some(permissions) = declared.get(owner.as_str()) else {
            mistakes.push(format!(
                "the settings of `{owner}` belong to no extension or plugin of this agent"
            ));
            continue;
        };
        for name in values.keys().filter(|name| !permissions.settings.contains(name)) {
            mistakes.push(format!(
                "`{owner}` does not declare the setting `{name}`: declare it in `permissions` with `Permissions::with_settings`"
            ));
        }
    }
    mistakes
}
