//! Bodies of the nine kinds of entry that session files of Pi have. Members that this version does
//! not know are kept.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use crate::content::Content;
use crate::message::{CustomMessage, Message, WorkspaceFile};
use crate::request::CallRef;
use crate::settings::ThinkingLevel;
use crate::unknown_members::{Extra, keep_unknown_members};
use crate::usage::RecordedUsage;
use turnwheel_json::raw::RawJson;
use turnwheel_platform::clock::Timestamp;
use turnwheel_platform::ids::EntryId;

/// Members of every entry. A body is read from the JSON of the whole entry.
pub(crate) const BASE_MEMBERS: [&str; 6] =
    ["type", "entryId", "parentId", "seq", "timestamp", "promptId"];

keep_unknown_members!(BASE_MEMBERS; MessageEntry, ThinkingLevelChange, ModelChange, Compaction, BranchSummary, Custom, CustomMessageEntry, Label, SessionInfo);

#[serde_with::skip_serializing_none]
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", remote = "Self")]
pub struct MessageEntry {
    pub message: Message,
    /// On model responses: the revision of the agent file in force.
    pub revision: Option<String>,
    /// On tool results: the call. The provider's call id may repeat, this reference does not.
    pub call: Option<CallRef>,
    /// On model responses: the time at which the request was sent. The entry's own time is when the
    /// response was complete.
    pub started_at: Option<Timestamp>,
    /// On failed model responses: true if a retry followed, which makes this response void.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub is_retried: bool,
    /// On model responses: `seq` of the entry of the frame in force. Absent on failed responses, and
    /// in entries of earlier versions whose frame was that of the agent alone.
    pub frame: Option<u64>,
    #[serde(flatten, skip_deserializing)]
    pub extra: Extra,
}

impl MessageEntry {
    /// A message that is neither a model response nor a tool result.
    pub fn new(message: Message) -> Self {
        Self {
            message,
            revision: None,
            call: None,
            started_at: None,
            is_retried: false,
            frame: None,
            extra: Extra::new(),
        }
    }
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", remote = "Self")]
pub struct ThinkingLevelChange {
    pub thinking_level: String,
    #[serde(flatten, skip_deserializing)]
    pub extra: Extra,
}

impl ThinkingLevelChange {
    pub fn new(level: ThinkingLevel) -> Self {
        let thinking_level = RawJson::from_value(&level).read().unwrap_or_default();
        Self { thinking_level, extra: Extra::new() }
    }
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", remote = "Self")]
pub struct ModelChange {
    pub provider: String,
    pub model_id: String,
    #[serde(flatten, skip_deserializing)]
    pub extra: Extra,
}

impl ModelChange {
    pub fn new(provider: impl Into<String>, model_id: impl Into<String>) -> Self {
        Self { provider: provider.into(), model_id: model_id.into(), extra: Extra::new() }
    }
}

#[serde_with::skip_serializing_none]
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", remote = "Self")]
pub struct Compaction {
    pub summary: String,
    pub first_kept_entry_id: EntryId,
    pub tokens_before: u64,
    pub details: Option<RawJson>,
    /// True if an extension wrote the summary.
    pub from_hook: Option<bool>,
    /// Usage of the summary.
    pub usage: Option<RecordedUsage>,
    /// Number of model calls. Absent in entries of earlier versions, and if no model was called.
    pub calls: Option<u32>,
    /// The workspace, so that no entry before the first kept one has to be read. Absent in entries of
    /// earlier versions, and if it is too large.
    pub workspace: Option<CarriedWorkspace>,
    #[serde(flatten, skip_deserializing)]
    pub extra: Extra,
}

/// The files that a tool call right after an entry can read.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct CarriedWorkspace {
    /// The entry, which is on the path before the compaction and not before its first kept entry.
    pub at: EntryId,
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub files: BTreeMap<String, WorkspaceFile>,
}

#[serde_with::skip_serializing_none]
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", remote = "Self")]
pub struct BranchSummary {
    /// Leaf of the abandoned branch.
    pub from_id: EntryId,
    pub summary: String,
    pub details: Option<RawJson>,
    /// True if an extension wrote the summary.
    pub from_hook: Option<bool>,
    /// Usage of the summary, as written. Absent if no model was called.
    pub usage: Option<RawJson>,
    /// Number of model calls. Absent if no model was called.
    pub calls: Option<u32>,
    #[serde(flatten, skip_deserializing)]
    pub extra: Extra,
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", remote = "Self")]
pub struct Custom {
    pub custom_type: String,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub data: Option<RawJson>,
    #[serde(flatten, skip_deserializing)]
    pub extra: Extra,
}

impl Custom {
    pub fn new(custom_type: impl Into<String>, data: Option<RawJson>) -> Self {
        Self { custom_type: custom_type.into(), data, extra: Extra::new() }
    }
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", remote = "Self")]
pub struct CustomMessageEntry {
    pub custom_type: String,
    pub content: Content,
    pub display: bool,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub details: Option<RawJson>,
    #[serde(flatten, skip_deserializing)]
    pub extra: Extra,
}

impl CustomMessageEntry {
    /// A message that clients show, without details.
    pub fn new(custom_type: impl Into<String>, content: impl Into<Content>) -> Self {
        let (custom_type, content) = (custom_type.into(), content.into());
        Self { custom_type, content, display: true, details: None, extra: Extra::new() }
    }

    /// The message of this entry, which has the entry's `timestamp`.
    pub fn to_message(&self, timestamp: Timestamp) -> CustomMessage {
        CustomMessage {
            custom_type: self.custom_type.clone(),
            content: self.content.clone(),
            display: self.display,
            details: self.details.clone(),
            timestamp,
            extra: Extra::new(),
        }
    }
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", remote = "Self")]
pub struct Label {
    pub target_id: EntryId,
    /// Absent or empty removes the label.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub label: Option<String>,
    #[serde(flatten, skip_deserializing)]
    pub extra: Extra,
}

impl Label {
    pub fn new(target_id: EntryId, label: Option<String>) -> Self {
        Self { target_id, label, extra: Extra::new() }
    }
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", remote = "Self")]
pub struct SessionInfo {
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub name: Option<String>,
    #[serde(flatten, skip_deserializing)]
    pub extra: Extra,
}

impl SessionInfo {
    pub fn new(name: Option<String>) -> Self {
        Self { name, extra: Extra::new() }
    }
}
