//! State of plugins. Each change is an entry on the path, and the head holds the state as of the
//! leaf.

use std::collections::BTreeMap;
use std::sync::Arc;

use serde::{Deserialize, Serialize};

use crate::entry::{Custom, Entry, EntryBody};
use turnwheel_json::raw::{BODY_DEPTH_MAX, RawJson};

/// Prefix of the names of states that hold the session of a conversation with an MCP server. No
/// plugin has such a name.
pub const MCP_PREFIX: &str = "mcp:";

/// Type of the custom entries that hold a change.
const STATE_ENTRY: &str = "turnwheel/state";
/// Maximum bytes of one plugin's state as JSON.
const STATE_BYTES_MAX: usize = 8 * 1024;
/// Maximum bytes of all plugins' state in a head.
const STATES_BYTES_MAX: usize = 24 * 1024;

/// The state of a plugin, with the version of its schema.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct PluginState {
    pub schema: u32,
    pub value: RawJson,
}

pub type PluginStates = BTreeMap<String, PluginState>;

/// A change of the state of one plugin.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct PluginStateChange {
    pub plugin: String,
    /// Absent: the plugin has no state any more.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub state: Option<PluginState>,
}

impl PluginStateChange {
    /// Why the change may not be stored beside the state of the other plugins.
    pub fn size_error(&self, states: &PluginStates) -> Option<String> {
        let bytes = self.state.as_ref().map_or(0, |state| state.value.text().len());
        let name = &self.plugin;
        if bytes > STATE_BYTES_MAX {
            return Some(format!(
                "The state of plugin \"{name}\" is {bytes} bytes; the maximum is {STATE_BYTES_MAX}"
            ));
        }
        if self.state.as_ref().is_some_and(|state| state.value.depth() > BODY_DEPTH_MAX) {
            return Some(format!(
                "The state of plugin \"{name}\" nests over {BODY_DEPTH_MAX} levels"
            ));
        }
        let others = states.iter().filter(|(plugin, _)| *plugin != name);
        let together = bytes + others.map(|(_, state)| state.value.text().len()).sum::<usize>();
        (together > STATES_BYTES_MAX).then(|| {
            format!("The state of plugin \"{name}\" brings the state of all plugins to {together} bytes; the maximum is {STATES_BYTES_MAX}")
        })
    }

    /// Applies the change. Returns its entry, or `None` if nothing changes.
    pub fn apply(&self, states: &mut PluginStates) -> Option<EntryBody> {
        if states.get(&self.plugin) == self.state.as_ref() {
            return None;
        }
        self.set(states);
        Some(EntryBody::Custom(Custom::new(STATE_ENTRY, Some(RawJson::from_value(self)))))
    }

    fn from_entry(entry: &Entry) -> Option<Self> {
        let EntryBody::Custom(Custom { custom_type, data, .. }) = &entry.body else { return None };
        data.as_ref().filter(|_| custom_type == STATE_ENTRY)?.read().ok()
    }

    pub fn set(&self, states: &mut PluginStates) {
        match &self.state {
            Some(state) => states.insert(self.plugin.clone(), state.clone()),
            None => states.remove(&self.plugin),
        };
    }
}

/// The state of each plugin at the end of a path.
pub fn plugin_state_at(path: &[Arc<Entry>]) -> PluginStates {
    let mut states = PluginStates::new();
    for change in path.iter().filter_map(|entry| PluginStateChange::from_entry(entry)) {
        change.set(&mut states);
    }
    states
}
