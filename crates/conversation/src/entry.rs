//! The timeline: immutable entries that form a tree. `seq` orders them, `parentId` links them.

pub mod session;

use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use crate::content::Content;
pub use crate::entry::session::{
    BranchSummary, CarriedWorkspace, Compaction, Custom, CustomMessageEntry, Label, MessageEntry,
    ModelChange, SessionInfo, ThinkingLevelChange,
};
use crate::frame_entry::FrameEntry;
use crate::message::{IncompleteDetails, Message, ToolResultMessage};
use crate::request::{CallRef, Decision, Effect, Request};
use crate::tagged::tagged;
use crate::unknown_members::{Extra, WithUnknownMembers, keep_unknown_members};
use crate::usage::RecordedUsage;
use turnwheel_json::raw::RawJson;
use turnwheel_platform::clock::{Timestamp, iso};
use turnwheel_platform::ids::{ArtifactId, EffectId, EntryId, InputId, PromptId, UserId};

/// Maximum bytes of an entry as JSON, in every store. A batch with it has room for a small head.
pub const ENTRY_BYTES_MAX: usize = 1_490_000;
/// Maximum bytes of its JSON as a JSON string, which is how some stores hold it.
const ENTRY_STRING_BYTES_MAX: usize = 1_850_000;

/// Bytes of JSON as a JSON string.
pub fn string_bytes(json: &str) -> usize {
    let is_escaped = |byte: &u8| matches!(byte, b'"' | b'\\' | b'\n' | b'\r' | b'\t');
    json.len() + json.bytes().filter(is_escaped).count()
}

/// Why an entry with this JSON is too large for a store.
pub fn find_size_error(json: &str) -> Option<String> {
    let (bytes, as_string) = (json.len(), string_bytes(json));
    if bytes > ENTRY_BYTES_MAX {
        return Some(format!("an entry has {bytes} bytes, at most {ENTRY_BYTES_MAX}"));
    }
    (as_string > ENTRY_STRING_BYTES_MAX).then(|| {
        format!("an entry has {as_string} bytes as a JSON string, at most {ENTRY_STRING_BYTES_MAX}")
    })
}

#[derive(Clone, Debug, PartialEq)]
pub struct Entry {
    pub base: EntryBase,
    pub body: EntryBody,
}

/// Members of every entry. In API and export `entryId` is called `id`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct EntryBase {
    pub entry_id: EntryId,
    /// `None` for a root; several roots are allowed.
    pub parent_id: Option<EntryId>,
    /// From 1, without gaps within a conversation.
    pub seq: u64,
    #[serde(with = "iso")]
    pub timestamp: Timestamp,
    /// The prompt during which the entry was written. Absent on imported entries and between
    /// prompts.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub prompt_id: Option<PromptId>,
}

impl EntryBase {
    /// The JSON of an entry of an unknown kind, with this base.
    fn write_into(&self, raw: &RawJson) -> RawJson {
        let mut members = RawJson::from_value(self).members().unwrap_or_default();
        let is_body = |name: &str| !session::BASE_MEMBERS.contains(&name) || name == "type";
        let body = raw.members().unwrap_or_default();
        members.extend(body.into_iter().filter(|(name, _)| is_body(name)));
        RawJson::from_members(members)
    }
}

impl Entry {
    /// The entry at another position.
    #[must_use]
    pub fn with_base(self, base: EntryBase) -> Self {
        if let EntryBody::Other(raw) = &self.body {
            return Self { body: EntryBody::Other(base.write_into(raw)), base };
        }
        Self { base, ..self }
    }
}

/// The body: Pi's nine kinds, ours, and unknown ones.
#[derive(Clone, Debug, PartialEq)]
pub enum EntryBody {
    Message(MessageEntry),
    ThinkingLevelChange(ThinkingLevelChange),
    ModelChange(ModelChange),
    Compaction(Compaction),
    BranchSummary(BranchSummary),
    Custom(Custom),
    CustomMessage(CustomMessageEntry),
    Label(Label),
    SessionInfo(SessionInfo),
    Prompt(PromptEntry),
    PromptEnd(PromptEnd),
    ToolStarted(ToolStarted),
    ToolReturned(ToolReturned),
    Request(RequestEntry),
    Decision(DecisionEntry),
    Output(OutputEntry),
    Protocol(Protocol),
    LostCall(LostCall),
    FailedSummary(FailedSummary),
    Frame(FrameEntry),
    /// An unknown kind, or a known one that cannot be read, as it was stored. It is never sent to the
    /// model.
    Other(RawJson),
}

tagged!(EntryBody by "type" {
    "message" => Message(MessageEntry),
    "thinking_level_change" => ThinkingLevelChange(ThinkingLevelChange),
    "model_change" => ModelChange(ModelChange),
    "compaction" => Compaction(Compaction),
    "branch_summary" => BranchSummary(BranchSummary),
    "custom" => Custom(Custom),
    "custom_message" => CustomMessage(CustomMessageEntry),
    "label" => Label(Label),
    "session_info" => SessionInfo(SessionInfo),
    "prompt" => Prompt(PromptEntry),
    "prompt_end" => PromptEnd(PromptEnd),
    "tool_started" => ToolStarted(ToolStarted),
    "tool_returned" => ToolReturned(ToolReturned),
    "request" => Request(RequestEntry),
    "decision" => Decision(DecisionEntry),
    "output" => Output(OutputEntry),
    "protocol" => Protocol(Protocol),
    "lost_call" => LostCall(LostCall),
    "failed_summary" => FailedSummary(FailedSummary),
    "frame" => Frame(FrameEntry),
});

impl EntryBody {
    pub fn model_change(&self) -> Option<&ModelChange> {
        if let Self::ModelChange(change) = self { Some(change) } else { None }
    }

    pub fn message(&self) -> Option<&Message> {
        if let Self::Message(entry) = self { Some(&entry.message) } else { None }
    }

    pub fn compaction(&self) -> Option<&Compaction> {
        if let Self::Compaction(compaction) = self { Some(compaction) } else { None }
    }

    /// The tool result, on the path or buffered until its turn in source order.
    #[expect(clippy::wildcard_enum_match_arm, reason = "most kinds of entry are no result")]
    pub fn tool_result(&self) -> Option<&ToolResultMessage> {
        match self {
            Self::Message(MessageEntry { message: Message::ToolResult(result), .. })
            | Self::ToolReturned(ToolReturned { message: result, .. }) => Some(result),
            _ => None,
        }
    }
}

impl Serialize for Entry {
    fn serialize<S: serde::Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        #[derive(Serialize)]
        struct Whole<'a> {
            #[serde(flatten)]
            base: &'a EntryBase,
            #[serde(flatten)]
            body: &'a EntryBody,
        }
        if let EntryBody::Other(raw) = &self.body {
            return raw.serialize(serializer);
        }
        Whole { base: &self.base, body: &self.body }.serialize(serializer)
    }
}

impl<'de> Deserialize<'de> for Entry {
    fn deserialize<D: serde::Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let raw = RawJson::deserialize(deserializer)?;
        let base = raw.read().map_err(serde::de::Error::custom)?;
        // One odd member loses only its entry: a conversation that cannot be read loses all of them.
        let body = EntryBody::from_raw(raw.clone()).unwrap_or(EntryBody::Other(raw));
        Ok(Self { base, body })
    }
}

keep_unknown_members!(session::BASE_MEMBERS; PromptEntry, PromptEnd, ToolStarted, ToolReturned, RequestEntry, DecisionEntry, OutputEntry, LostCall, FailedSummary, Protocol);

/// Origin of a prompt.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub enum Source {
    User,
    Queue,
    Schedule,
    Plugin,
}

impl Source {
    /// The name in JSON.
    pub fn name(self) -> &'static str {
        match self {
            Self::User => "user",
            Self::Queue => "queue",
            Self::Schedule => "schedule",
            Self::Plugin => "plugin",
        }
    }
}

/// Start of a prompt. The message that follows is its input, if any.
#[serde_with::skip_serializing_none]
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", remote = "Self")]
pub struct PromptEntry {
    pub input_id: InputId,
    /// The user who started it.
    pub user: UserId,
    pub model: String,
    pub visible: bool,
    pub source: Source,
    /// True if it started without input. The first user message in it is then a steer.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    #[serde(rename = "isWordless")]
    pub has_no_input: bool,
    /// The input as sent, if an extension changed it.
    pub original: Option<Content>,
    /// The start of a prompt that ran outside the service. Only an inserted prompt has it.
    pub started_at: Option<Timestamp>,
    #[serde(flatten, skip_deserializing)]
    pub extra: Extra,
}

/// State of a prompt.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "snake_case")]
pub enum PromptState {
    Running,
    WaitingForApproval,
    Completed,
    Failed,
    Aborted,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "snake_case")]
pub enum PromptStop {
    End,
    MaxRounds,
    Budget,
    Aborted,
    Error,
}

impl PromptStop {
    /// The name in JSON.
    pub fn name(self) -> &'static str {
        match self {
            Self::End => "end",
            Self::MaxRounds => "max_rounds",
            Self::Budget => "budget",
            Self::Aborted => "aborted",
            Self::Error => "error",
        }
    }
}

#[serde_with::skip_serializing_none]
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", remote = "Self")]
pub struct PromptEnd {
    pub state: PromptState,
    pub stop_reason: PromptStop,
    pub error: Option<WithUnknownMembers<PromptError>>,
    /// Set if the last response is incomplete.
    pub incomplete: Option<WithUnknownMembers<IncompleteDetails>>,
    #[serde(flatten, skip_deserializing)]
    pub extra: Extra,
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct PromptError {
    /// `model`, `plugin`, `schema`, `poisoned`, `nothing_to_continue`: for programs.
    #[serde(rename = "type")]
    pub kind: String,
    pub message: String,
}

/// The intent to run a call, written before the call is sent.
#[serde_with::skip_serializing_none]
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", remote = "Self")]
pub struct ToolStarted {
    pub call: CallRef,
    pub effect_id: EffectId,
    pub tool_name: String,
    /// From 1.
    pub attempt: u32,
    /// Absent in entries of earlier versions.
    pub effect: Option<Effect>,
    /// Arguments that an extension set. Absent: those of the model's call.
    pub arguments: Option<RawJson>,
    #[serde(flatten, skip_deserializing)]
    pub extra: Extra,
}

/// The buffered result of a call that ended before an earlier call of the same response. Its
/// message is appended once all earlier results are on the path. It is never sent to the model.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", remote = "Self")]
pub struct ToolReturned {
    pub call: CallRef,
    pub message: ToolResultMessage,
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub outputs: Vec<Output>,
    #[serde(flatten, skip_deserializing)]
    pub extra: Extra,
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", remote = "Self")]
pub struct RequestEntry {
    pub request: WithUnknownMembers<Request>,
    #[serde(flatten, skip_deserializing)]
    pub extra: Extra,
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", remote = "Self")]
pub struct DecisionEntry {
    pub decision: WithUnknownMembers<Decision>,
    #[serde(flatten, skip_deserializing)]
    pub extra: Extra,
}

/// Output for the user besides the model's text. It follows the result of the tool that produced
/// it.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", remote = "Self")]
pub struct OutputEntry {
    pub output: Output,
    /// The call that produced it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub call: Option<CallRef>,
    #[serde(flatten, skip_deserializing)]
    pub extra: Extra,
}

#[derive(Clone, Debug, PartialEq)]
pub enum Output {
    File(FileOutput),
    Widget(WidgetOutput),
    /// Display-only kinds of later versions.
    Other(RawJson),
}

tagged!(Output by "type" {
    "file" => File(FileOutput),
    "widget" => Widget(WidgetOutput),
});

#[derive(Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", remote = "Self")]
pub struct FileOutput {
    pub artifact_id: ArtifactId,
    pub path: String,
    pub mime_type: String,
    pub size: u64,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub description: Option<String>,
    #[serde(flatten, skip_deserializing)]
    pub extra: Extra,
}

#[derive(Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", remote = "Self")]
pub struct WidgetOutput {
    pub widget: String,
    pub data: RawJson,
    /// Text for clients that do not know the widget.
    pub fallback: String,
    #[serde(flatten, skip_deserializing)]
    pub extra: Extra,
}

keep_unknown_members!(["type"] FileOutput, WidgetOutput);

impl std::fmt::Debug for FileOutput {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "FileOutput({})", self.artifact_id)
    }
}

impl std::fmt::Debug for WidgetOutput {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("WidgetOutput(…)")
    }
}

/// A model call whose response was lost with its worker. Its cost is unknown and counted at the
/// estimate of its reservation.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", remote = "Self")]
pub struct LostCall {
    pub estimate: RecordedUsage,
    #[serde(flatten, skip_deserializing)]
    pub extra: Extra,
}

/// A failed summary attempt, with its usage.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", remote = "Self")]
pub struct FailedSummary {
    pub calls: u32,
    pub usage: RecordedUsage,
    #[serde(flatten, skip_deserializing)]
    pub extra: Extra,
}

/// A record of protocol mode: think, call, result, respond.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", remote = "Self")]
pub struct Protocol {
    pub kind: String,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub data: Option<RawJson>,
    #[serde(flatten, skip_deserializing)]
    pub extra: Extra,
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    #[test]
    fn odd_member_loses_only_its_entry() {
        let message = json!({
            "role": "assistant", "content": [{"type": "text", "text": "hi"}], "api": "a", "provider": "p", "model": "m",
            "stopReason": "stop", "timestamp": 0, "usage": {"input": 1},
        });
        let stored = |message: &Value| {
            json!({
                "entryId": "0a1b2c3d-1", "parentId": null, "seq": 1, "timestamp": "2026-01-05T09:00:00.000Z",
                "type": "message", "message": message,
            })
        };
        let read = |value: &Value| serde_json::from_str::<Entry>(&value.to_string());
        assert!(read(&stored(&message)).unwrap().body.message().is_some());
        for (pointer, odd) in [
            ("/stopReason", json!("brand_new")),
            ("/stopReason", json!(5)),
            ("/usage/input", json!("x")),
            ("/content/0/text", json!(5)),
            ("/timestamp", json!("x")),
        ] {
            let mut message = message.clone();
            *message.pointer_mut(pointer).unwrap() = odd;
            let entry = read(&stored(&message)).unwrap();
            assert!(matches!(entry.body, EntryBody::Other(_)), "{pointer}");
            assert_eq!(serde_json::to_value(&entry).unwrap(), stored(&message), "kept as it was");
            assert_eq!(entry.base.seq, 1);
        }
        let mut torn = stored(&message);
        torn.as_object_mut().unwrap().remove("seq");
        assert!(read(&torn).is_err());
    }
}
