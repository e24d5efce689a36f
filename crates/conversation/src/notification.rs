//! A notification: an outgoing webhook, written in the commit that causes it.

use serde::{Deserialize, Serialize};

use turnwheel_json::raw::RawJson;
use turnwheel_platform::clock::Timestamp;

/// Kind of the notification of a refused queue message. It belongs to no prompt, and perhaps to no
/// conversation.
pub const PROMPT_REJECTED: &str = "prompt.rejected";

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Notification {
    /// Key by which the receiver recognises duplicates: the same for every attempt.
    pub id: String,
    /// `prompt.approval-requested`, `prompt.completed`, `prompt.error`,
    /// `prompt.rejected`, `tool.result`, `budget.alert`.
    #[serde(rename = "type")]
    pub kind: String,
    pub at: Timestamp,
    /// Ids and facts; no prompt or response text. The sender adds links, signed with the key that
    /// is current at that time.
    pub data: RawJson,
    /// One sentence for display.
    pub text: String,
    /// Attempts so far.
    #[serde(default)]
    pub attempts: u32,
    /// Time at which the receiver accepted it, or the sender gave up.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub settled_at: Option<Timestamp>,
    #[serde(default)]
    #[serde(rename = "gaveUp")]
    pub is_given_up: bool,
}
