//! A notice: an outgoing webhook that is owed, written in the commit that makes it true.

use serde::{Deserialize, Serialize};

use crate::agent::raw::RawJson;
use crate::clock::Timestamp;

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Notice {
    /// The receiver's key against doubles: the same for every try.
    pub id: String,
    /// `prompt.approval-requested`, `prompt.completed`, `prompt.error`, `budget.alert`.
    #[serde(rename = "type")]
    pub kind: String,
    pub at: Timestamp,
    /// Ids and facts; no prompt or answer text. Links are added when it is sent, with the key in force then.
    pub data: RawJson,
    /// One sentence for a person.
    pub text: String,
    /// Tries so far.
    #[serde(default)]
    pub attempts: u32,
    /// Set when it was taken, or when nobody wanted it any more.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub settled_at: Option<Timestamp>,
    #[serde(default)]
    pub gave_up: bool,
}
