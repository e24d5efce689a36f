//! A prompt that ran outside the service, with its outputs, as a client inserts it.

use serde::{Deserialize, Deserializer, Serialize};

use crate::content::{Content, redacted};
use crate::entry::{Source, WidgetOutput};
use crate::inbox::{CommandInput, InboxBody, InboxItem};
use crate::tagged::tagged;
use crate::unknown_members::{Extra, keep_unknown_members};
use turnwheel_json::raw::RawJson;
use turnwheel_json::strict::JsonError;
use turnwheel_platform::clock::Timestamp;
use turnwheel_platform::ids::{ArtifactId, PromptId, UserId};

/// Name of the inbox command that inserts a prompt.
const INSERT_COMMAND: &str = "insertPrompt";

/// Arguments of the command.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct FinishedPrompt {
    pub prompt_id: PromptId,
    pub user: UserId,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub input: Option<Content>,
    pub output: Vec<FinishedOutput>,
    pub source: Source,
    pub started_at: Timestamp,
}

/// One output, in the shape in which prompts show it.
#[derive(Clone, Debug, PartialEq)]
pub enum FinishedOutput {
    Text(FinishedText),
    Tool(FinishedCall),
    File(FinishedFile),
    Widget(WidgetOutput),
    /// An unknown kind. Requests with one are refused.
    Other(RawJson),
}

tagged!(FinishedOutput by "type" {
    "text" => Text(FinishedText),
    "tool" => Tool(FinishedCall),
    "file" => File(FinishedFile),
    "widget" => Widget(WidgetOutput),
});

/// Text of the model.
#[derive(Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", remote = "Self")]
pub struct FinishedText {
    pub content: String,
    #[serde(flatten, skip_deserializing)]
    pub extra: Extra,
}

/// A tool call with its result.
#[derive(Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", remote = "Self")]
pub struct FinishedCall {
    /// Absent: the service chooses one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub tool_call_id: Option<String>,
    /// Name of the tool.
    pub function: String,
    /// The arguments: an object.
    pub input: RawJson,
    pub result: FinishedResult,
    #[serde(flatten, skip_deserializing)]
    pub extra: Extra,
}

#[serde_with::skip_serializing_none]
#[derive(Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct FinishedResult {
    #[serde(rename = "type")]
    pub kind: FinishedResultKind,
    /// The tool's result, with `success`.
    pub output: Option<RawJson>,
    /// The reason, with `error`.
    pub error: Option<RawJson>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub enum FinishedResultKind {
    Success,
    Error,
}

/// A file of the conversation. The service takes absent members from the artifact.
#[serde_with::skip_serializing_none]
#[derive(Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", remote = "Self")]
pub struct FinishedFile {
    pub artifact_id: ArtifactId,
    pub path: Option<String>,
    pub mime_type: Option<String>,
    pub size: Option<u64>,
    pub description: Option<String>,
    #[serde(flatten, skip_deserializing)]
    pub extra: Extra,
}

keep_unknown_members!(["type"] FinishedText, FinishedCall, FinishedFile);

redacted!(FinishedText, FinishedCall, FinishedResult, FinishedFile);

impl FinishedPrompt {
    pub fn to_inbox_body(&self) -> InboxBody {
        InboxBody::Command(CommandInput::new(INSERT_COMMAND, Some(RawJson::from_value(self))))
    }

    /// Reads the arguments of the command. `None`: another command, or arguments of a newer
    /// version, which the item keeps for a newer worker.
    pub(super) fn from_command(name: &str, args: Option<&RawJson>) -> Option<Box<Self>> {
        let prompt: Box<Self> = args.filter(|_| name == INSERT_COMMAND)?.read().ok()?;
        let is_known = |output: &FinishedOutput| !matches!(output, FinishedOutput::Other(_));
        prompt.output.iter().all(is_known).then_some(prompt)
    }

    /// Returns `None` if the item is another one.
    pub fn from_item(item: &InboxItem) -> Option<&Self> {
        let InboxBody::Command(command) = &item.body else { return None };
        command.finished_prompt()
    }
}

/// Reads the outputs of a request. An error has the pointer of the invalid member.
///
/// # Errors
/// A member is invalid.
pub fn read_outputs<'de, D: Deserializer<'de>>(
    deserializer: D,
) -> Result<Vec<FinishedOutput>, D::Error> {
    use serde::de::Error as _;
    let outputs = Vec::<RawJson>::deserialize(deserializer)?;
    let outputs = outputs.into_iter().enumerate().map(|(position, output)| {
        FinishedOutput::check(&output)
            .map_err(|error| error.with_parent_pointer(&format!("/{position}")))?;
        FinishedOutput::from_raw(output).map_err(|error| JsonError {
            pointer: format!("/{position}"),
            detail: error.to_string(),
        })
    });
    outputs.collect::<Result<_, _>>().map_err(D::Error::custom)
}
