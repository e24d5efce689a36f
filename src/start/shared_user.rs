//! Apps whose callers are all one user, and the parts of their agents that are off.

use std::sync::Arc;

use turnwheel_agent_files::{AgentDefinition, Catalog};
use turnwheel_platform::settings::ServiceSettings;
use turnwheel_platform::settings::links::Auth;
use turnwheel_tools::recall::RECALL;

/// True if all callers are one user.
pub(crate) fn has_shared_user(settings: &ServiceSettings) -> bool {
    settings.auth.unwrap_or(Auth::Keys) == Auth::Keys
}

/// A clause about the agents whose memory, profile, recall or user skills are off because all callers
/// are one user. `None` if there are none.
pub(crate) fn shared_user_note(settings: &ServiceSettings, catalog: &Catalog) -> Option<String> {
    if !has_shared_user(settings) {
        return None;
    }
    let is_off = |agent: &&Arc<AgentDefinition>| {
        let has_recall = agent.find_tool(RECALL).is_some() && !agent.may_recall(true);
        let has_memory = agent.memory.as_ref().is_some_and(|it| !it.allows_shared_user);
        let has_profile = agent.profile.is_some() && !agent.learns_profile(true);
        agent.has_user_skills || has_recall || has_memory || has_profile
    };
    let names: Vec<&str> =
        catalog.agents.values().filter(is_off).map(|agent| agent.name.as_str()).collect();
    (!names.is_empty()).then(|| {
        format!(
            "{}: memory, profile, `recall` and skills of users are off, because with TURNWHEEL_AUTH=keys all callers are one user; set another mode (`dev` has one), or `shared: true` in `memory` to share notes and messages, and in `profile` to share the profile",
            names.join(", ")
        )
    })
}
