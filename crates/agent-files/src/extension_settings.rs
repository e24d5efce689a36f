//! The key `extensionSettings` of agent files: values for extensions and plugins in Rust.

use std::collections::BTreeMap;
use std::sync::Arc;

use crate::mistakes::{Findings, suggest_name};
use crate::yaml::{Member, Node, Yaml};
use turnwheel_extensions::Extension;
use turnwheel_extensions::permissions::{ExtensionSettings, Permissions};
use turnwheel_extensions::plugin::RegisteredPlugin;

/// Maximum bytes of all values as JSON.
const BYTES_MAX: usize = 16 * 1024;

/// Reads `extensionSettings` of the front matter: the settings of extensions of the app and of plugins of the agent.
pub(super) fn read_extension_settings(
    front_matter: &Node,
    extensions: &[Arc<dyn Extension>],
    plugins: &[Arc<RegisteredPlugin>],
    findings: &mut Findings,
) -> ExtensionSettings {
    let Some(member) = front_matter.find_member("extensionSettings") else {
        return ExtensionSettings::new();
    };
    let declared = declared_permissions(extensions, plugins);
    let Yaml::Map(owners) = &member.value.yaml else {
        let reason = format!(
            "`extensionSettings` maps names of extensions and plugins to their settings, and is {}",
            member.value.kind()
        );
        findings.add(member.value.position, reason);
        return ExtensionSettings::new();
    };
    let bytes = member.value.to_json().to_string().len();
    if bytes > BYTES_MAX {
        let reason =
            format!("`extensionSettings` has {bytes} bytes: at most {BYTES_MAX} are allowed");
        findings.add(member.position, reason);
    }
    let mut settings = ExtensionSettings::new();
    for owner in owners {
        let Some(permissions) = declared.get(owner.key.as_str()) else {
            let hint = suggest_name(&owner.key, declared.keys().copied());
            let reason = format!(
                "`extensionSettings` names `{}`, which is no extension or plugin in Rust of this agent: {hint}",
                owner.key
            );
            findings.add(owner.position, reason);
            continue;
        };
        settings.insert(owner.key.clone(), read_owner(owner, permissions, findings));
    }
    settings
}

/// The permissions of extensions and plugins, by name.
pub fn declared_permissions<'a>(
    extensions: &'a [Arc<dyn Extension>],
    plugins: &'a [Arc<RegisteredPlugin>],
) -> BTreeMap<&'a str, Permissions> {
    let extensions = extensions.iter().map(|it| (it.name(), it.permissions()));
    let plugins = plugins.iter().map(|it| (it.name(), it.hook().permissions()));
    extensions.chain(plugins).collect()
}

fn read_owner(
    owner: &Member,
    permissions: &Permissions,
    findings: &mut Findings,
) -> BTreeMap<String, serde_json::Value> {
    let name = &owner.key;
    let Yaml::Map(members) = &owner.value.yaml else {
        let reason = format!(
            "the settings of `{name}` are a map of names and values, not {}",
            owner.value.kind()
        );
        findings.add(owner.value.position, reason);
        return BTreeMap::new();
    };
    for member in members {
        let names = permissions.settings();
        if !names.contains(&member.key) {
            let hint = suggest_name(&member.key, names.iter().map(String::as_str));
            let reason = format!("`{name}` declares no setting `{}`: {hint}", member.key);
            findings.add(member.position, reason);
        }
    }
    members.iter().map(|member| (member.key.clone(), member.value.to_json())).collect()
}
