//! A move of the leaf to another place in the tree.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use crate::context_ranges::SeqRange;
use crate::head::Head;
use crate::path_settings::PathSettings;
use crate::plugin_state::PluginStates;
use crate::settings::ThinkingLevel;
use turnwheel_platform::ids::EntryId;

/// A move of the leaf. Entries never change, so it stays valid until it is applied.
#[serde_with::skip_serializing_none]
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct LeafMove {
    /// Absent: before the first entry.
    pub leaf_id: Option<EntryId>,
    /// Settings of the new path. Absent in moves of earlier versions, which have the next two members.
    pub settings: Option<PathSettings>,
    /// Model of the next call. Absent: the current one stays.
    pub model: Option<String>,
    /// Thinking level of the new path. Absent: the current one stays.
    pub thinking_level: Option<ThinkingLevel>,
    /// State of the plugins at the new leaf.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub plugin_state: PluginStates,
    /// Numbers of the entries that the context of the new path needs.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub context: Vec<SeqRange>,
}

impl Head {
    /// Moves the leaf. Usage, budgets, requests and indeterminate writes belong to the conversation
    /// and stay as they are.
    pub fn move_leaf(&mut self, to: &LeafMove) {
        self.leaf_id.clone_from(&to.leaf_id);
        if let Some(settings) = &to.settings {
            self.record_base_settings();
            settings.set(&mut self.settings);
        } else {
            let model = to.model.clone();
            self.settings.model = model.or_else(|| self.settings.model.take());
            self.settings.thinking_level = to.thinking_level.or(self.settings.thinking_level);
        }
        self.plugin_state.clone_from(&to.plugin_state);
        self.set_context(&to.context);
        // They describe the last model call of the path left behind.
        self.frame = None;
        self.context_tokens = None;
        self.compaction_attempt_seq = None;
        self.compaction_note = None;
    }
}
