//! Facts that the head records beside its phase: messages that wait on their queue, and prompts that
//! extensions start in a row.

use serde::{Deserialize, Serialize};

use turnwheel_platform::clock::Timestamp;

/// A message that waits on its queue until its cause is repaired, such as an extension that is down.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct WaitingMessage {
    pub since: Timestamp,
    /// Why it was not accepted, in one sentence.
    pub reason: String,
    /// Time from which it no longer counts as waiting, unless another attempt fails.
    pub until: Timestamp,
}

/// Prompts that extensions start one after the other, without an input of a person.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct ExtensionChain {
    /// Number of prompts started.
    #[serde(default)]
    pub prompts: u32,
    /// Name of the extension that sent the newest input.
    pub by: String,
}
