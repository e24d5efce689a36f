//! A recent prompt in the head, with its place in the record.

use serde::{Deserialize, Serialize};

use crate::entry::{PromptState, PromptStop};
use turnwheel_platform::ids::PromptId;

/// Characters of the beginning of an input in the head.
pub(crate) const PREVIEW_CHARS_MAX: usize = 120;

#[serde_with::skip_serializing_none]
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct PromptSpan {
    pub id: PromptId,
    pub state: PromptState,
    pub stop_reason: Option<PromptStop>,
    pub from_seq: u64,
    /// `seq` of its `prompt_end` entry. Absent while it runs.
    pub to_seq: Option<u64>,
    /// True if it ran outside the service, and a client inserted it.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub is_inserted: bool,
    /// Beginning of the input, as one line. Only the newest prompt has it, and only if it has an input.
    pub preview: Option<String>,
}
