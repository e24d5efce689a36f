//! Durable events. They store types, ids and references by `seq`; the reader resolves the
//! references to entries.

use serde::{Deserialize, Serialize};

use crate::content::ToolCall;
use crate::phase::CompactionReason;
use crate::request::CallRef;
use crate::tagged::tagged;
use turnwheel_json::raw::RawJson;
use turnwheel_platform::clock::Timestamp;
use turnwheel_platform::ids::{EntryId, InputId, PromptId, RequestId};

/// One durable event. Only commits assign numbers, which are consecutive.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Event {
    pub n: u64,
    pub at: Timestamp,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub prompt_id: Option<PromptId>,
    pub turn: u64,
    pub body: EventBody,
}

/// Declares the kinds of events with their names. Stored kinds have data; live kinds are never
/// stored.
macro_rules! event_kinds {
    (
        stored { $($(#[$doc:meta])* $name:literal => $variant:ident($data:ty),)* }
        live { $($live_name:literal => $live:ident,)* }
    ) => {
        /// The kind and data of a stored event. In JSON `type` has the name of the kind.
        #[derive(Clone, Debug, PartialEq)]
        pub enum EventBody {
            $($(#[$doc])* $variant($data),)*
            /// An unknown kind, as it was stored.
            Other(RawJson),
        }

        tagged!(EventBody by "type" { $($name => $variant($data),)* });

        impl EventBody {
            pub fn kind(&self) -> EventKind {
                match self {
                    $(Self::$variant(_) => EventKind::$variant,)*
                    Self::Other(raw) => {
                        EventKind::Unknown(raw.string_member("type").unwrap_or_default())
                    }
                }
            }
        }

        /// The kind of an event, stored or live.
        #[derive(Clone, Debug, PartialEq, Eq)]
        pub enum EventKind {
            $($variant,)*
            $($live,)*
            /// The name of a kind of a later version; empty if the event has none.
            Unknown(String),
        }

        impl EventKind {
            /// The name, as in the `event:` line of a stream.
            pub fn name(&self) -> &str {
                match self {
                    $(Self::$variant => $name,)*
                    $(Self::$live => $live_name,)*
                    Self::Unknown(name) => name,
                }
            }
        }
    };
}

// The names are those of the source projects.
event_kinds! {
    stored {
        "agent_start" => AgentStart(Empty),
        /// References the messages that are new in this run.
        "agent_end" => AgentEnd(AgentEnd),
        "agent_settled" => AgentSettled(Empty),
        "turn_start" => TurnStart(Empty),
        "turn_end" => TurnEnd(TurnEnd),
        "message_start" => MessageStart(MessageRef),
        "message_end" => MessageEnd(MessageRef),
        /// Everything streamed of this message is void.
        "message_reset" => MessageReset(MessageReset),
        "tool_execution_start" => ToolExecutionStart(ToolExecutionStart),
        "tool_execution_end" => ToolExecutionEnd(ToolExecutionEnd),
        /// Tools differ from those that the model or an approver has seen before.
        "tool_definition_changed" => ToolDefinitionChanged(ToolDefinitionChange),
        /// Start of a compaction, automatic or requested.
        "auto_compaction_start" => AutoCompactionStart(CompactionStart),
        "auto_compaction_end" => AutoCompactionEnd(CompactionEnd),
        "summarization_retry_scheduled" => SummarizationRetryScheduled(SummarizationRetry),
        "summarization_retry_finished" => SummarizationRetryFinished(Empty),
        "auto_retry_start" => AutoRetryStart(AutoRetryStart),
        "auto_retry_end" => AutoRetryEnd(AutoRetryEnd),
        "prompt.created" => PromptCreated(Empty),
        "prompt.output" => PromptOutput(OutputRef),
        "prompt.output-updated" => PromptOutputUpdated(OutputRef),
        "prompt.approval-requested" => PromptApprovalRequested(RequestRef),
        "prompt.approval-settled" => PromptApprovalSettled(RequestRef),
        "prompt.completed" => PromptCompleted(Empty),
        "prompt.error" => PromptError(Empty),
        /// Start of a summary of the branch that a move of the leaf leaves.
        "branch_summary_start" => BranchSummaryStart(Empty),
        "branch_summary_end" => BranchSummaryEnd(BranchSummaryEnd),
        /// The leaf moved to another branch.
        "session_tree" => SessionTree(SessionTreeChange),
        /// The conversation has another name.
        "session_info_changed" => SessionInfoChanged(SessionInfoChanged),
        /// A command that waited for an answer has ended.
        "command_end" => CommandEnd(CommandEnd),
        /// A steer or follow-up waits in the inbox.
        "input_queued" => InputQueued(InputRef),
        /// A queued input has other content or another mode.
        "input_changed" => InputChanged(InputRef),
        /// A queued input was removed.
        "input_cleared" => InputCleared(InputRef),
        /// A message of an extension for the user.
        "notify" => Notify(ExtensionNotification),
    }
    live {
        "message_update" => MessageUpdate,
        "message_snapshot" => MessageSnapshot,
        "tool_execution_update" => ToolExecutionUpdate,
    }
}

impl EventBody {
    /// The name of the kind.
    pub fn name(&self) -> String {
        self.kind().name().to_owned()
    }
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Empty {}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct AgentEnd {
    /// `seq` of the first entry of this run. Its new messages are the message entries from here …
    pub from_seq: u64,
    /// … to here, both included.
    pub to_seq: u64,
    /// True if the agent restarts by itself, because a model call is retried.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub will_retry: bool,
}

/// A model call failed and will be retried.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct AutoRetryStart {
    /// From 1: the first retry is the second attempt.
    pub attempt: u32,
    pub max_attempts: u32,
    pub delay_ms: u64,
    /// `seq` of the failed response, which has the error's text.
    pub message: u64,
}

/// Result of the retries.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct AutoRetryEnd {
    pub success: bool,
    /// Number of retries made.
    pub attempt: u32,
    /// Why retries ended. Absent on success.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub final_error: Option<String>,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct TurnEnd {
    /// `seq` of the response.
    pub message: u64,
    /// `seq` of each result, in source order.
    pub tool_results: Vec<u64>,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct MessageRef {
    /// The entry's id, and the message id in its deltas.
    pub message_id: EntryId,
    pub seq: u64,
    /// The input that the message was. Absent: another message, or one of an earlier version.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub input_id: Option<InputId>,
}

/// A queued input. The inbox has its content.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct InputRef {
    pub input_id: InputId,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct MessageReset {
    pub message_id: EntryId,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct ToolExecutionStart {
    pub tool_call_id: String,
    pub tool_name: String,
    /// Display name of the tool. Absent: its name, or the call was never checked.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub label: Option<String>,
    /// The call, whose response has the arguments.
    pub call: CallRef,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct ToolExecutionEnd {
    pub tool_call_id: String,
    pub tool_name: String,
    pub is_error: bool,
    /// `seq` of the result.
    pub result: u64,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct ToolDefinitionChange {
    /// Names; never empty.
    pub tools: Vec<String>,
    /// The approved call that needs another approval. Absent: the model receives the new definitions.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub tool_call_id: Option<String>,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct CompactionStart {
    pub reason: CompactionReason,
}

#[serde_with::skip_serializing_none]
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct CompactionEnd {
    /// `seq` of the `compaction` entry. Absent without one.
    pub entry: Option<u64>,
    pub aborted: bool,
    /// True if the model call that exceeded the context window is repeated.
    pub will_retry: bool,
    pub error_message: Option<String>,
}

/// A summary failed and will be retried.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct SummarizationRetry {
    /// From 1: the first retry is the second attempt.
    pub attempt: u32,
    pub max_attempts: u32,
    pub delay_ms: u64,
    pub error_message: String,
}

/// The end of a summary of a branch. If the leaf moved, `session_tree` precedes it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct BranchSummaryEnd {
    pub aborted: bool,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub error_message: Option<String>,
}

/// The end of a command that waited for an answer. Its receipt has the result.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct CommandEnd {
    pub input_id: InputId,
}

#[serde_with::skip_serializing_none]
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct SessionTreeChange {
    /// Absent: the conversation had no leaf.
    pub old_leaf_id: Option<EntryId>,
    /// Absent: the conversation has no leaf.
    pub new_leaf_id: Option<EntryId>,
    /// `seq` of the `branch_summary` entry. Absent without one.
    pub summary: Option<u64>,
}

#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct SessionInfoChanged {
    /// `None`: the conversation has no name now.
    #[serde(default)]
    pub name: Option<String>,
}

/// Reference to an item of `Prompt.output`.
#[serde_with::skip_serializing_none]
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct OutputRef {
    /// `seq` of the entry that added or changed it.
    pub seq: u64,
    /// Index of the block in that entry's message. Absent for side outputs.
    pub block: Option<usize>,
    /// Set if the item is the output of a tool.
    pub call: Option<CallRef>,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct RequestRef {
    pub request_id: RequestId,
    /// `seq` of the `request` entry, or of the `decision` entry once settled.
    pub seq: u64,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub tool_call_id: Option<String>,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct ExtensionNotification {
    /// Name of the extension.
    pub extension: String,
    pub text: String,
    pub severity: Severity,
}

/// Severity of an [`ExtensionNotification`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub enum Severity {
    Info,
    Warning,
    Error,
}

/// One delta of a model response in progress: the source projects' twelve kinds without `start`,
/// `done` and `error`, which are the message's own start and end.
#[derive(Clone, PartialEq, Serialize)]
#[serde(tag = "type", rename_all = "snake_case", rename_all_fields = "camelCase")]
pub enum AssistantMessageEvent {
    TextStart {
        content_index: usize,
    },
    TextDelta {
        content_index: usize,
        delta: String,
    },
    TextEnd {
        content_index: usize,
        content: String,
    },
    ThinkingStart {
        content_index: usize,
    },
    ThinkingDelta {
        content_index: usize,
        delta: String,
    },
    ThinkingEnd {
        content_index: usize,
        content: String,
    },
    #[serde(rename = "toolcall_start")]
    ToolcallStart {
        content_index: usize,
        id: String,
        tool_name: String,
    },
    #[serde(rename = "toolcall_delta")]
    ToolcallDelta {
        content_index: usize,
        delta: String,
    },
    #[serde(rename = "toolcall_end")]
    ToolcallEnd {
        content_index: usize,
        tool_call: TypedToolCall,
    },
}

impl<'de> Deserialize<'de> for AssistantMessageEvent {
    /// serde's own tagging would lose the notation of numbers.
    fn deserialize<D: serde::Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        #[derive(Deserialize)]
        #[serde(rename_all = "camelCase")]
        struct Members {
            #[serde(rename = "type")]
            kind: String,
            content_index: usize,
            delta: Option<String>,
            content: Option<String>,
            id: Option<String>,
            tool_name: Option<String>,
            tool_call: Option<ToolCall>,
        }
        let Members { kind, content_index, delta, content, id, tool_name, tool_call } =
            Members::deserialize(deserializer)?;
        let read = || {
            Some(match kind.as_str() {
                "text_start" => Self::TextStart { content_index },
                "text_delta" => Self::TextDelta { content_index, delta: delta? },
                "text_end" => Self::TextEnd { content_index, content: content? },
                "thinking_start" => Self::ThinkingStart { content_index },
                "thinking_delta" => Self::ThinkingDelta { content_index, delta: delta? },
                "thinking_end" => Self::ThinkingEnd { content_index, content: content? },
                "toolcall_start" => {
                    Self::ToolcallStart { content_index, id: id?, tool_name: tool_name? }
                }
                "toolcall_delta" => Self::ToolcallDelta { content_index, delta: delta? },
                "toolcall_end" => {
                    let tool_call = TypedToolCall { call: tool_call? };
                    Self::ToolcallEnd { content_index, tool_call }
                }
                _ => return None,
            })
        };
        read().ok_or_else(|| serde::de::Error::custom("not an event of an assistant message"))
    }
}

impl std::fmt::Debug for AssistantMessageEvent {
    /// Never prints content.
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("AssistantMessageEvent(…)")
    }
}

/// A tool call with its `type`, as in a message's blocks.
#[derive(Clone, Debug, PartialEq, Serialize)]
#[serde(tag = "type", rename = "toolCall")]
pub struct TypedToolCall {
    #[serde(flatten)]
    pub call: ToolCall,
}
