//! View of the stored state of plugins.

use serde::Serialize;
use utoipa::ToSchema;

use crate::agent::head::Head;
use crate::agent::plugin_state::MCP_PREFIX;
use crate::agent::raw::RawJson;

/// The stored state of one plugin.
#[derive(Clone, Debug, Serialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub(crate) struct PluginView {
    pub name: String,
    /// Version of the state.
    pub schema: u32,
    #[schema(value_type = serde_json::Value)]
    pub state: RawJson,
}

/// The plugins that have a state, by name.
pub(crate) fn list_plugins(head: &Head) -> Vec<PluginView> {
    let states = head.plugin_state.iter().filter(|(name, _)| !name.starts_with(MCP_PREFIX));
    let view = |(name, stored): (&String, &crate::agent::plugin_state::PluginState)| PluginView {
        name: name.clone(),
        schema: stored.schema,
        state: stored.value.clone(),
    };
    states.map(view).collect()
}
