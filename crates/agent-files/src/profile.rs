//! The key `profile` of agent files, and the plugin that adds a user's profile to the system prompt.

use std::sync::Arc;

use crate::fields;
use crate::mistakes::Findings;
use crate::yaml::{Member, Node, Yaml};
use turnwheel_extensions::plugin::RegisteredPlugin;
use turnwheel_extensions::prepare::Prepare;
use turnwheel_extensions::{Plugin, PluginError};
use turnwheel_tools::code::ServiceRegistry;

const PLUGIN_NAME: &str = "profile";
const KEYS: [&str; 1] = ["shared"];

/// The profile of an agent's user.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct AgentProfile {
    /// True if it is on although all callers are one user.
    pub allows_shared_user: bool,
}

/// Reads the key `profile`, and adds its plugin to those of the agent.
pub(super) fn add_profile(
    front_matter: &Node,
    plugins: &mut Vec<Arc<RegisteredPlugin>>,
    findings: &mut Findings,
) -> Option<AgentProfile> {
    let member = front_matter.find_member("profile")?;
    let (profile, plugin) = read_profile(member, plugins, findings)?;
    plugins.push(plugin);
    Some(profile)
}

/// Reads `true` or a map. `plugins` are those of the agent.
fn read_profile(
    member: &Member,
    plugins: &[Arc<RegisteredPlugin>],
    findings: &mut Findings,
) -> Option<(AgentProfile, Arc<RegisteredPlugin>)> {
    let mut allows_shared_user = false;
    match &member.value.yaml {
        Yaml::Bool(is_on) => is_on.then_some(())?,
        Yaml::Map(_) => {
            for field in fields::read_members(&member.value, "`profile`", &KEYS, findings) {
                if field.key == "shared" {
                    allows_shared_user = fields::read_bool(field, findings).unwrap_or_default();
                }
            }
        }
        Yaml::Null | Yaml::Number(_) | Yaml::Text(_) | Yaml::List(_) => {
            findings.add(member.value.position, "`profile` is true, or a map of shared");
            return None;
        }
    }
    if plugins.iter().any(|plugin| plugin.name() == PLUGIN_NAME) {
        let reason = format!("`profile` adds a plugin `{PLUGIN_NAME}`: rename the other one");
        findings.add(member.value.position, reason);
        return None;
    }
    match RegisteredPlugin::new(ProfilePlugin, ServiceRegistry::default()) {
        Ok(plugin) => Some((AgentProfile { allows_shared_user }, Arc::new(plugin))),
        Err(mistakes) => {
            for mistake in mistakes {
                findings.add(member.value.position, mistake);
            }
            None
        }
    }
}

/// The plugin of a profile.
#[cfg(any(test, feature = "testing"))]
#[expect(clippy::unwrap_used, reason = "a test fails by panicking, in its helpers too")]
pub fn profile_plugin() -> Arc<RegisteredPlugin> {
    Arc::new(RegisteredPlugin::new(ProfilePlugin, ServiceRegistry::default()).unwrap())
}

/// Adds the profile of the user to the system prompt.
#[derive(Debug)]
struct ProfilePlugin;

impl Plugin for ProfilePlugin {
    type State = ();

    fn name(&self) -> &'static str {
        PLUGIN_NAME
    }

    async fn prepare(&self, cx: &mut Prepare<'_, ()>) -> Result<(), PluginError> {
        let profile = cx.user_documents().and_then(|documents| documents.profile.as_ref());
        if let Some(profile) = profile {
            cx.context(profile.render());
        }
        Ok(())
    }
}
