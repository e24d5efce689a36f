//! Messages in the shapes of the source projects. An unknown role loads, round-trips and is never
//! sent to the model.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use crate::content::{Block, Content};
use crate::tagged::{HasKind as _, tagged};
use crate::unknown_members::{Extra, keep_unknown_members};
use crate::usage::{self, RecordedUsage, Usage};
use turnwheel_json::raw::RawJson;
use turnwheel_json::strict::null_is_default;
use turnwheel_platform::clock::Timestamp;
use turnwheel_platform::ids::ArtifactId;

#[derive(Clone, Debug, PartialEq)]
pub enum Message {
    User(UserMessage),
    Assistant(AssistantMessage),
    ToolResult(ToolResultMessage),
    BashExecution(BashExecutionMessage),
    Custom(CustomMessage),
    BranchSummary(BranchSummaryMessage),
    CompactionSummary(CompactionSummaryMessage),
    Other(RawJson),
}

tagged!(Message by "role" {
    "user" => User(UserMessage),
    "assistant" => Assistant(AssistantMessage),
    "toolResult" => ToolResult(ToolResultMessage),
    "bashExecution" => BashExecution(BashExecutionMessage),
    "custom" => Custom(CustomMessage),
    "branchSummary" => BranchSummary(BranchSummaryMessage),
    "compactionSummary" => CompactionSummary(CompactionSummaryMessage),
});

keep_unknown_members!(["role"] UserMessage, AssistantMessage, ToolResultMessage, BashExecutionMessage, CustomMessage, BranchSummaryMessage, CompactionSummaryMessage);

impl Message {
    pub fn as_assistant(&self) -> Option<&AssistantMessage> {
        if let Self::Assistant(response) = self { Some(response) } else { None }
    }

    /// The role as stored; empty for a message without one.
    pub fn role(&self) -> String {
        self.kind().into_owned()
    }
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", remote = "Self")]
pub struct UserMessage {
    pub content: Content,
    pub timestamp: Timestamp,
    #[serde(flatten, skip_deserializing)]
    pub extra: Extra,
}

/// Why the model stopped generating.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub enum StopReason {
    Stop,
    /// Truncated by the output limit. Its tool calls do not run.
    Length,
    ToolUse,
    Error,
    Aborted,
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", remote = "Self")]
pub struct AssistantMessage {
    /// Text, thinking and tool calls, in the order in which they were produced.
    pub content: Vec<Block>,
    pub api: String,
    pub provider: String,
    /// The model's id, not the deployment's name.
    pub model: String,
    #[serde(default, deserialize_with = "null_is_default")]
    pub usage: RecordedUsage,
    pub stop_reason: StopReason,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub error_message: Option<String>,
    pub timestamp: Timestamp,
    #[serde(flatten, skip_deserializing)]
    pub extra: Extra,
}

impl AssistantMessage {
    /// A message that no provider's model wrote; it costs nothing.
    pub fn new_synthetic(author: &str, content: Vec<Block>, stop_reason: StopReason) -> Self {
        Self {
            content,
            api: author.to_owned(),
            provider: author.to_owned(),
            model: author.to_owned(),
            usage: RecordedUsage::default(),
            stop_reason,
            error_message: None,
            timestamp: Timestamp(0),
            extra: Extra::new(),
        }
    }

    /// False for texts of the service, such as that of an aborted turn. They cost nothing.
    pub fn is_from_model(&self) -> bool {
        self.provider != "turnwheel"
    }

    /// The tool calls in source order.
    pub fn tool_calls(&self) -> impl Iterator<Item = &crate::content::ToolCall> {
        self.content.iter().filter_map(|block| match block {
            Block::ToolCall(call) => Some(call),
            Block::Text(_)
            | Block::Thinking(_)
            | Block::Image(_)
            | Block::File(_)
            | Block::Other(_) => None,
        })
    }

    /// Why the response is incomplete. `None`: it is complete, or failed.
    pub fn incomplete_details(&self) -> Option<IncompleteDetails> {
        let (reason, message) = match (self.stop_reason, &self.error_message) {
            // Of complete and cut responses, the model client sets an error message only for the content filter
            // and for an unknown reason of the service.
            (StopReason::Length, Some(message)) => ("content_filter", message.as_str()),
            (StopReason::Length, None) => (
                "max_output_tokens",
                "The response reached the limit of output tokens: raise `maxOutputTokens`, or request a shorter output.",
            ),
            (StopReason::Stop, Some(message)) => ("unknown", message.as_str()),
            (StopReason::Stop, None)
            | (StopReason::ToolUse | StopReason::Error | StopReason::Aborted, _) => {
                return None;
            }
        };
        Some(IncompleteDetails { reason: reason.to_owned(), message: message.to_owned() })
    }

    /// True if the response has neither text nor tool calls, images or files.
    pub fn is_empty(&self) -> bool {
        self.content.iter().all(|block| match block {
            Block::Text(text) => text.text.trim().is_empty(),
            Block::Thinking(_) | Block::Other(_) => true,
            Block::ToolCall(_) | Block::Image(_) | Block::File(_) => false,
        })
    }

    /// True if the response failed. It is not sent to the model, and its calls do not run.
    pub fn is_failed(&self) -> bool {
        matches!(self.stop_reason, StopReason::Error | StopReason::Aborted)
    }
}

#[serde_with::skip_serializing_none]
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", remote = "Self")]
pub struct ToolResultMessage {
    pub tool_call_id: String,
    pub tool_name: String,
    /// Text and images.
    pub content: Vec<Block>,
    /// For programs and display; never sent to the model.
    pub details: Option<RawJson>,
    /// The tool's result as JSON, if it returned JSON: `output` in the prompt's view.
    pub structured_content: Option<RawJson>,
    /// Usage that the tool reported. It counts toward the prompt's usage.
    #[serde(default, deserialize_with = "usage::if_usable")]
    pub usage: Option<Box<RecordedUsage>>,
    pub is_error: bool,
    /// True if the tool requests the end of the run without another model response. The run ends if
    /// all results of the batch request it.
    #[serde(
        default,
        skip_serializing_if = "std::ops::Not::not",
        deserialize_with = "null_is_default"
    )]
    pub terminate: bool,
    /// The approver's rejection; present only if the call did not run because of one.
    pub rejected: Option<Rejection>,
    pub timestamp: Timestamp,
    /// Workspace files that this call changed: path → artifact, or `null` for a removed one.
    #[serde(
        default,
        skip_serializing_if = "BTreeMap::is_empty",
        deserialize_with = "null_is_default"
    )]
    pub workspace: BTreeMap<String, Option<WorkspaceFile>>,
    #[serde(flatten, skip_deserializing)]
    pub extra: Extra,
}

/// An approver's rejection of a tool call.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct Rejection {
    /// A user's id, or `link`.
    pub by: String,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reason: Option<String>,
}

impl Rejection {
    /// The text of the result, for the model and for clients (AP-05): the reason, or the general
    /// text. The refusal of an extension precedes the reason.
    pub fn result_text(&self, refusal: Option<&str>) -> String {
        match (refusal, self.reason.as_deref()) {
            (Some(refusal), Some(reason)) => format!("{refusal}: {reason}"),
            (Some(text), None) | (None, Some(text)) => text.to_owned(),
            (None, None) => REJECTED.to_owned(),
        }
    }
}

const REJECTED: &str = "Rejected by user";

impl ToolResultMessage {
    /// Usage that the tool reported, or zero.
    pub fn usage(&self) -> Usage {
        self.usage.as_deref().map(|usage| **usage).unwrap_or_default()
    }
}

/// Location of a workspace file's bytes.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct WorkspaceFile {
    pub artifact_id: ArtifactId,
    pub size: u64,
}

#[serde_with::skip_serializing_none]
#[derive(Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", remote = "Self")]
pub struct BashExecutionMessage {
    pub command: String,
    pub output: String,
    pub exit_code: Option<i64>,
    pub cancelled: bool,
    pub truncated: bool,
    pub full_output_path: Option<String>,
    pub exclude_from_context: Option<bool>,
    pub timestamp: Timestamp,
    #[serde(flatten, skip_deserializing)]
    pub extra: Extra,
}

impl std::fmt::Debug for BashExecutionMessage {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("BashExecutionMessage(…)")
    }
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", remote = "Self")]
pub struct CustomMessage {
    pub custom_type: String,
    pub content: Content,
    pub display: bool,
    /// Never sent to the model.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub details: Option<RawJson>,
    pub timestamp: Timestamp,
    #[serde(flatten, skip_deserializing)]
    pub extra: Extra,
}

#[derive(Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", remote = "Self")]
pub struct BranchSummaryMessage {
    pub summary: String,
    pub from_id: String,
    pub timestamp: Timestamp,
    #[serde(flatten, skip_deserializing)]
    pub extra: Extra,
}

impl std::fmt::Debug for BranchSummaryMessage {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("BranchSummaryMessage(…)")
    }
}

#[derive(Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", remote = "Self")]
pub struct CompactionSummaryMessage {
    pub summary: String,
    pub tokens_before: u64,
    pub timestamp: Timestamp,
    #[serde(flatten, skip_deserializing)]
    pub extra: Extra,
}

impl std::fmt::Debug for CompactionSummaryMessage {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("CompactionSummaryMessage(…)")
    }
}

/// Why the last response of a prompt is incomplete.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct IncompleteDetails {
    /// `max_output_tokens`, `content_filter`, `empty` or `unknown`: for programs.
    pub reason: String,
    pub message: String,
}

impl IncompleteDetails {
    /// The details of a response that has neither text nor tool calls.
    pub fn empty() -> Self {
        Self {
            reason: "empty".to_owned(),
            message: "The model ended with neither text nor tool calls: send the request in other words, or use another \
                      model."
                .to_owned(),
        }
    }
}
