//! The entry that holds the system prompt of an agent run, if extensions changed it.

use serde::{Deserialize, Serialize};

use crate::entry::{Custom, EntryBody};
use turnwheel_json::raw::RawJson;

/// Type of the custom entry.
const ENTRY_TYPE: &str = "turnwheel/system_prompt";

#[derive(Serialize, Deserialize)]
struct RunPrompt {
    text: String,
}

pub fn to_entry(text: &str) -> EntryBody {
    let data = RawJson::from_value(&RunPrompt { text: text.to_owned() });
    EntryBody::Custom(Custom::new(ENTRY_TYPE, Some(data)))
}

/// The system prompt in the entry. `None`: it holds none.
pub fn from_entry(body: &EntryBody) -> Option<String> {
    let EntryBody::Custom(Custom { custom_type, data: Some(data), .. }) = body else { return None };
    let prompt = (custom_type == ENTRY_TYPE).then(|| data.read::<RunPrompt>().ok()).flatten()?;
    Some(prompt.text)
}
