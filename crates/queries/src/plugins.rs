//! View of the stored state of plugins.

use serde::Serialize;
use utoipa::ToSchema;

use turnwheel_conversation::head::Head;
use turnwheel_conversation::plugin_state::MCP_PREFIX;
use turnwheel_json::raw::RawJson;

/// The stored state of one plugin.
#[derive(Clone, Debug, Serialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub struct PluginView {
    pub name: String,
    /// Version of the state.
    pub schema: u32,
    #[schema(value_type = serde_json::Value)]
    pub state: RawJson,
}

/// The plugins that have a state, by name.
pub fn list_plugins(head: &Head) -> Vec<PluginView> {
    let states = head.plugin_state.iter().filter(|(name, _)| !name.starts_with(MCP_PREFIX));
    let view = |(name, stored): (&String, &turnwheel_conversation::plugin_state::PluginState)| {
        PluginView { name: name.clone(), schema: stored.schema, state: stored.value.clone() }
    };
    states.map(view).collect()
}
