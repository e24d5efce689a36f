//! Settings that belong to a path: model, thinking level and active tools. What was never set on a
//! path is as at the beginning of the conversation.

use std::sync::Arc;

use serde::{Deserialize, Serialize};
use serde_json::json;

use crate::entry::{Custom, Entry, EntryBody};
use crate::settings::{Settings, ThinkingLevel, model_id_error};
use turnwheel_json::raw::RawJson;

/// Type of the custom entries that record a change of the active tools.
const TOOLS_ENTRY: &str = "turnwheel/activeTools";

/// These settings as a conversation gives them. Absent: those of the agent.
#[serde_with::skip_serializing_none]
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct PathSettings {
    pub model: Option<String>,
    pub thinking_level: Option<ThinkingLevel>,
    pub active_tools: Option<Vec<String>>,
}

impl PathSettings {
    pub fn of(settings: &Settings) -> Self {
        Self {
            model: settings.model.clone().filter(|model| model_id_error(model).is_none()),
            thinking_level: settings.thinking_level,
            active_tools: settings.active_tools.clone(),
        }
    }

    pub fn set(&self, settings: &mut Settings) {
        let Self { model, thinking_level, active_tools } = self.clone();
        (settings.model, settings.thinking_level, settings.active_tools) =
            (model, thinking_level, active_tools);
    }
}

/// The entry of a change of the active tools. `None`: those of the agent.
pub fn active_tools_entry(names: Option<&[String]>) -> EntryBody {
    let data = RawJson::from_value(&json!({ "tools": names }));
    EntryBody::Custom(Custom::new(TOOLS_ENTRY, Some(data)))
}

/// True for an entry of [`active_tools_entry`].
pub fn sets_active_tools(body: &EntryBody) -> bool {
    matches!(body, EntryBody::Custom(custom) if custom.custom_type == TOOLS_ENTRY)
}

/// The active tools that were set last on the path, or the `base`. `None`: all tools.
pub fn last_active_tools(path: &[Arc<Entry>], base: Option<Vec<String>>) -> Option<Vec<String>> {
    #[derive(Deserialize)]
    struct ActiveTools {
        tools: Option<Vec<String>>,
    }
    let last = path.iter().rev().find_map(|entry| {
        let EntryBody::Custom(Custom { custom_type, data, .. }) = &entry.body else { return None };
        let data = data.as_ref().filter(|_| custom_type == TOOLS_ENTRY)?;
        data.read::<ActiveTools>().ok().map(|set| set.tools)
    });
    last.unwrap_or(base)
}
