//! The tool port: definitions, calls and results. Each tool declares the effect of its calls.

pub mod approval_summary;
pub mod call_attempt;
pub mod code;
pub mod destination;
pub mod http;
pub mod knowledge;
pub mod mcp;
pub mod memory;
pub mod plugin_state;
pub mod recall;
pub mod result_limits;
pub mod schedule;
pub mod shell;
pub mod strict_schema;
pub mod user_skills;
pub mod validate;
pub mod workspace;

#[cfg(test)]
mod test_env;

use std::collections::BTreeMap;
use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use serde::de::DeserializeOwned;
use serde_json::Value;

use crate::approval_summary::ApprovalSummary;
use crate::destination::BoundDestination;
use crate::plugin_state::{CallPluginState, ToolPlugin};
use bytes::Bytes;
use tokio_util::sync::CancellationToken;
use turnwheel_conversation::content::Block;
use turnwheel_conversation::entry::Output;
use turnwheel_conversation::message::WorkspaceFile;
use turnwheel_conversation::phase::OnUnknown;
use turnwheel_conversation::request::Effect;
use turnwheel_conversation::usage::Usage;
use turnwheel_json::exact::{AmbiguousNumber, ExactJson};
use turnwheel_json::raw::RawJson;
use turnwheel_json::strict::JsonError;
use turnwheel_json::text::sanitize_line;
use turnwheel_platform::clock::{Clock, Timestamp};
pub use turnwheel_platform::digest::sha256_hex;
use turnwheel_platform::ids::{ArtifactId, ConversationKey, EffectId};
use turnwheel_storage::artifacts::{ArtifactError, ArtifactMetadata, ArtifactScope, Artifacts};

/// Longest time-out of a tool. A longer one is an error in the agent file.
pub const TIMEOUT_MAX: Duration = Duration::from_mins(4);
pub const TIMEOUT_DEFAULT: Duration = Duration::from_secs(30);

/// Declaration of a tool: name, parameters, effect and bounds.
#[derive(Clone, Debug, PartialEq)]
pub struct ToolDefinition {
    /// The name in records, events and approvals. It may contain dots.
    pub name: String,
    /// Display name; equal to `name` if the tool has none.
    pub label: String,
    pub description: String,
    /// JSON Schema of the arguments.
    pub parameters: Value,
    pub effect: Effect,
    pub on_unknown: OnUnknown,
    /// At most [`TIMEOUT_MAX`].
    pub timeout: Duration,
    /// True if the model service enforces `parameters` (AZ-20). Then
    /// [`strict_schema::find_violation`] returns `None`.
    pub is_strict: bool,
    /// Changes with the tool's behaviour. An approval is bound to one revision.
    pub revision: String,
}

impl ToolDefinition {
    /// The display name on one line; `None` if the tool has no other than its name.
    pub fn display_name(&self) -> Option<String> {
        let label = sanitize_line(&self.label, LABEL_CHARS_MAX);
        (!label.is_empty() && label != self.name).then_some(label)
    }
}

/// Maximum number of characters of a tool's display name.
pub const LABEL_CHARS_MAX: usize = 64;

/// Longest time until an approval request expires.
pub const EXPIRY_MAX: Duration = Duration::from_hours(90 * 24);

/// True for `owner`, `link` and `role:NAME`.
pub fn is_approver(text: &str) -> bool {
    let is_role = text.strip_prefix("role:").is_some_and(|role| !role.trim().is_empty());
    is_role || matches!(text, "owner" | "link")
}

/// The approval that a call needs before it starts.
#[derive(Clone, Debug, PartialEq)]
pub struct ApprovalRequirement {
    pub reason: String,
    /// `owner`, `link`, `role:NAME`; never empty.
    pub approvers: Vec<String>,
    pub is_requester_excluded: bool,
    pub expires_after: Duration,
}

/// Validated arguments of a call.
#[derive(Clone, Debug, PartialEq)]
pub struct Arguments {
    /// After coercion. Long numbers are rounded here: use [`Self::read`] for decisions.
    pub value: Value,
    /// `value` as JSON text. If coercion changed nothing, this is the model's own text, and numbers
    /// keep their digits.
    pub text: RawJson,
}

impl Arguments {
    /// Arguments that no schema has checked.
    pub fn from_text(text: RawJson) -> Self {
        Self { value: text.to_value(), text }
    }

    /// Reads the arguments as a type, with each digit: see [`RawJson::read_exact`].
    ///
    /// # Errors
    /// The arguments do not match the type, or a float of it would round a number: refuse the call.
    pub fn read<T: DeserializeOwned>(&self) -> Result<T, JsonError> {
        self.text.read_exact()
    }

    /// The text of another value of these arguments. Parts of it that are equal keep their text, also
    /// where they have moved.
    ///
    /// # Errors
    /// A number could be several of these arguments: refuse the change.
    pub fn changed_text(&self, changed: &Value) -> Result<RawJson, AmbiguousNumber> {
        let Some(written) = ExactJson::parse(self.text.text()) else {
            return Ok(RawJson::from_value(changed));
        };
        Ok(RawJson::from_value(&written.with_changes(&self.value, changed)?))
    }
}

/// Result of a call.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct ToolResult {
    /// Text and images, for the model.
    pub content: Vec<Block>,
    /// For programs and users; the model does not read it.
    pub details: Option<RawJson>,
    /// Set if the tool returned JSON or `structuredContent`.
    pub structured: Option<RawJson>,
    /// Cost of the call itself, such as its own model calls and fees. It counts against budgets.
    pub usage: Option<Usage>,
    pub is_error: bool,
    /// True if the prompt can end without another model response. The prompt ends if this is true
    /// for every result of the batch.
    pub terminate: bool,
    /// Files and widgets for the user.
    pub outputs: Vec<Output>,
    /// Workspace paths that this call changed; `None` marks a removed file.
    pub workspace: BTreeMap<String, Option<WorkspaceFile>>,
}

impl ToolResult {
    pub fn text(text: impl Into<String>) -> Self {
        Self { content: vec![Block::text(text)], ..Self::default() }
    }

    pub fn error(text: impl Into<String>) -> Self {
        Self { is_error: true, ..Self::text(text) }
    }

    /// A result whose JSON text is for the model and whose value is for programs.
    pub fn json(value: &Value) -> Self {
        Self { structured: Some(RawJson::from_value(value)), ..Self::text(value.to_string()) }
    }
}

/// Outcome of a call.
#[derive(Clone, Debug, PartialEq)]
pub enum ToolOutcome {
    Returned(ToolResult),
    /// The tool returned an error and the call had no effect. The model reads the text.
    Failed(String),
    /// The request was sent and its response was lost. A `write` may have had its effect.
    Unknown {
        reason: String,
    },
}

/// Identity, bounds and ports of one call.
#[derive(Clone)]
pub struct ToolContext {
    /// Equal for every attempt. A tool uses it as its idempotency key.
    pub effect_id: EffectId,
    /// From 1.
    pub attempt: u32,
    pub tool_call_id: String,
    pub artifact_scope: ArtifactScope,
    pub artifacts: Arc<dyn Artifacts>,
    pub clock: Arc<dyn Clock>,
    /// Files of the workspace before the call.
    pub workspace: Arc<BTreeMap<String, WorkspaceFile>>,
    /// Read-only files beside them.
    pub package_files: workspace::PackageFiles,
    /// End of the attempt. Its future is dropped at this time.
    pub deadline: Timestamp,
    /// Cancelled if the prompt is aborted. A `write` call then has two seconds to finish with a
    /// known outcome; other calls are dropped at once.
    pub abort: CancellationToken,
    /// Receives each partial result as progress.
    pub on_progress: Arc<dyn Fn(&ToolResult) + Send + Sync>,
    pub traceparent: Option<String>,
    pub knowledge: knowledge::KnowledgePorts,
    /// `None` if the tool belongs to no plugin, and to no MCP server with a session for each
    /// conversation.
    pub plugin_state: Option<CallPluginState>,
}

impl fmt::Debug for ToolContext {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ToolContext")
            .field("effect_id", &self.effect_id)
            .field("attempt", &self.attempt)
            .finish_non_exhaustive()
    }
}

impl ToolContext {
    /// Saves bytes as an artifact under this call's effect id. Equal bytes are one artifact.
    ///
    /// # Errors
    /// The artifact is not saved. Retry or report as for [`Artifacts::put`].
    pub async fn save_artifact(
        &self,
        name: &str,
        mime_type: &str,
        bytes: Bytes,
    ) -> Result<ArtifactMetadata, ArtifactError> {
        let facts = ArtifactMetadata {
            id: ArtifactId::from_hash(&self.effect_id, &sha256_hex(&bytes)),
            name: Some(name.to_owned()),
            mime_type: mime_type.to_owned(),
            size: bytes.len() as u64,
            created_at: self.clock.now(),
        };
        self.artifacts.put(&self.artifact_scope, &facts, bytes).await?;
        Ok(facts)
    }
}

/// A call whose arguments are checked, and the ports that the check may read.
#[derive(Debug)]
pub struct CheckContext<'a> {
    /// The effect id of the call, equal for every attempt.
    pub effect_id: &'a EffectId,
    /// Attempts so far.
    pub attempts: u32,
    pub now: Timestamp,
    pub conversation: &'a ConversationKey,
    /// `None` if the host keeps no memory of users.
    pub memory: Option<&'a dyn memory::UserMemoryStore>,
    /// `None` if users have no skills of their own.
    pub user_skills: Option<&'a dyn user_skills::UserSkillStore>,
}

/// Returns one error message for each tool that has the name of an earlier tool.
pub fn find_name_conflicts(tools: &[Arc<dyn CallableTool>]) -> Vec<String> {
    let earlier = |index: usize, name: &str| {
        tools.iter().take(index).find(|tool| tool.definition().name == name)
    };
    let conflicts = tools.iter().enumerate().filter_map(|(index, tool)| {
        let name = tool.definition().name.as_str();
        let (first, second) = (earlier(index, name)?.type_name(), tool.type_name());
        Some(format!("two tools are called `{name}`: `{first}` and `{second}`. Rename one of them"))
    });
    conflicts.collect()
}

/// Port of a callable tool. Implementations hold no state of a call.
#[async_trait]
pub trait CallableTool: Send + Sync + fmt::Debug {
    fn definition(&self) -> &ToolDefinition;

    /// Name of the implementing type, for error messages about duplicate tool names.
    fn type_name(&self) -> &'static str {
        std::any::type_name::<Self>()
    }

    /// Checks what the schema cannot express, before an approval is requested. It has no effect. An
    /// error ends the call; the model reads the text. A tool that wraps another forwards it.
    async fn check_arguments(
        &self,
        _arguments: &Arguments,
        _context: &CheckContext<'_>,
    ) -> Result<(), String> {
        Ok(())
    }

    /// Returns the approval that this call needs, or `None` if it needs none.
    fn required_approval(&self, arguments: &Arguments) -> Option<ApprovalRequirement>;

    /// The rule of [`Self::required_approval`] as JSON, for the record: `null` without one, `"code"` if
    /// the tool's code decides. It has no value of a setting. A tool that wraps another forwards it.
    fn approval_rule(&self) -> Value {
        Value::String("code".to_owned())
    }

    /// The calls that need an approval, for readers of the agent.
    fn approval_summary(&self) -> ApprovalSummary {
        ApprovalSummary::Code
    }

    /// The place to which calls are sent. An approval covers no other one. A tool that wraps another
    /// forwards it.
    fn destination(&self) -> BoundDestination {
        BoundDestination::app()
    }

    /// True if its calls change workspace files. Such calls of one model response run sequentially,
    /// each on the files that the previous call left.
    fn changes_workspace(&self) -> bool {
        false
    }

    /// The plugin that declares the tool.
    fn plugin(&self) -> Option<&ToolPlugin> {
        None
    }

    /// The MCP server that defines the tool.
    fn mcp_server(&self) -> Option<&Arc<mcp::McpServer>> {
        None
    }

    /// Name of the session of the conversation that its calls use. Tools with the same name share it.
    fn conversation_session(&self) -> Option<&str> {
        let server = self.mcp_server()?;
        server.has_conversation_sessions().then_some(server.name.as_str())
    }

    /// True if the tool itself logs its failed attempts with their causes.
    fn has_own_failure_log(&self) -> bool {
        false
    }

    /// Performs the call. The caller drops the future at the deadline and shortly after an abort.
    /// The caller also catches a panic, which counts as a lost response of a `write`.
    async fn call(&self, arguments: Arguments, context: ToolContext) -> ToolOutcome;
}
