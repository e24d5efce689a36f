//! Tools: what an agent can do to the world, each with its declared effect.

pub mod cap;
pub mod code;
pub mod http;
pub mod run;
pub mod schedule;
pub mod strict;
pub mod validate;
pub mod workspace;

#[cfg(test)]
mod testing;

use std::collections::BTreeMap;
use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use serde_json::Value;

use crate::agent::content::Block;
use crate::agent::entry::Output;
use crate::agent::message::WorkspaceFile;
use crate::agent::phase::OnUnknown;
use crate::agent::raw::RawJson;
use crate::agent::request::Effect;
use crate::agent::usage::Usage;
use crate::artifacts::{ArtifactError, ArtifactFacts, Artifacts, Shelf};
use crate::clock::{Clock, Timestamp};
use crate::ids::{ArtifactId, EffectId};
use bytes::Bytes;
use sha2::Digest as _;
use tokio_util::sync::CancellationToken;

/// A time-out above it is a mistake in the agent file.
pub const TIMEOUT_MAX: Duration = Duration::from_mins(4);
pub const TIMEOUT_DEFAULT: Duration = Duration::from_secs(30);

/// What a tool says of itself.
#[derive(Clone, Debug, PartialEq)]
pub struct ToolDefinition {
    /// As records, events and approvals have it; dots are legal.
    pub name: String,
    /// For people; the name when nothing better is known.
    pub label: String,
    pub description: String,
    /// JSON Schema of the arguments.
    pub parameters: Value,
    pub effect: Effect,
    pub on_unknown: OnUnknown,
    /// At most [`TIMEOUT_MAX`].
    pub timeout: Duration,
    /// Whether the service holds the model to `parameters` (AZ-20): [`strict::objection`] has none.
    pub strict: bool,
    /// Changes when what the tool does changes: an approval is bound to it.
    pub revision: String,
}

/// What a person is asked before a call.
#[derive(Clone, Debug, PartialEq)]
pub struct Ask {
    pub reason: String,
    /// `owner`, `link`, `role:NAME`; never empty.
    pub approvers: Vec<String>,
    pub not_requester: bool,
    pub expires_after: Duration,
}

/// Arguments as validation left them.
#[derive(Clone, Debug, PartialEq)]
pub struct Arguments {
    /// After coercion.
    pub value: Value,
    /// The same as JSON; the model's own text when coercion changed nothing, so numbers are as it wrote them.
    pub text: RawJson,
}

/// What a call gave.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct ToolResult {
    /// Text and images, for the model.
    pub content: Vec<Block>,
    /// For programs and people only.
    pub details: Option<RawJson>,
    /// Set when the tool answered JSON, or gave `structuredContent`.
    pub structured: Option<RawJson>,
    /// What the call cost beside the conversation's model: its own model calls, fees. It counts against budgets.
    pub usage: Option<Usage>,
    pub is_error: bool,
    /// Asks for an end of the prompt without another answer of the model. It comes when all results of the batch ask.
    pub terminate: bool,
    /// Files and widgets for the person.
    pub outputs: Vec<Output>,
    /// Workspace paths this call changed.
    pub workspace: BTreeMap<String, Option<WorkspaceFile>>,
}

impl ToolResult {
    pub fn text(text: impl Into<String>) -> Self {
        Self { content: vec![Block::text(text)], ..Self::default() }
    }

    pub fn error(text: impl Into<String>) -> Self {
        Self { is_error: true, ..Self::text(text) }
    }

    /// The model reads the JSON text, programs the value.
    pub fn json(value: &Value) -> Self {
        Self { structured: Some(RawJson::of(value)), ..Self::text(value.to_string()) }
    }
}

/// How a call ended.
#[derive(Clone, Debug, PartialEq)]
pub enum ToolOutcome {
    Returned(ToolResult),
    /// The tool raised an error: it did not happen, and the model reads why.
    Failed(String),
    /// It was sent and its answer was lost. For a `write` nobody knows whether it happened.
    Unknown {
        reason: String,
    },
}

/// What a call may use.
#[derive(Clone)]
pub struct ToolContext {
    /// The same for every attempt: what a tool fences with.
    pub effect_id: EffectId,
    /// From 1.
    pub attempt: u32,
    pub tool_call_id: String,
    pub shelf: Shelf,
    pub artifacts: Arc<dyn Artifacts>,
    pub clock: Arc<dyn Clock>,
    /// Files of the workspace before the call.
    pub workspace: Arc<BTreeMap<String, WorkspaceFile>>,
    /// The attempt is over at this time; its future is dropped then.
    pub deadline: Timestamp,
    /// Cancelled when the prompt is stopped. A call of a write has a moment left then, to come to an end that it knows of;
    /// others are dropped at once.
    pub stop: CancellationToken,
    /// Told of progress: a partial result.
    pub progress: Arc<dyn Fn(&ToolResult) + Send + Sync>,
    pub traceparent: Option<String>,
    /// `None` where nobody keeps schedules.
    pub schedules: Option<Arc<dyn schedule::Schedules>>,
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
    /// Puts bytes under this call's effect id; the same bytes again are the same artifact.
    ///
    /// # Errors
    /// As [`Artifacts::put`].
    pub async fn keep(
        &self,
        name: &str,
        mime_type: &str,
        bytes: Bytes,
    ) -> Result<ArtifactFacts, ArtifactError> {
        let facts = ArtifactFacts {
            id: ArtifactId::of(&self.effect_id, &sha256_hex(&bytes)),
            name: Some(name.to_owned()),
            mime_type: mime_type.to_owned(),
            size: bytes.len() as u64,
            created_at: self.clock.now(),
        };
        self.artifacts.put(&self.shelf, &facts, bytes).await?;
        Ok(facts)
    }
}

/// A sentence for each tool that has the name of an earlier one.
pub fn name_conflicts(tools: &[Arc<dyn RunTool>]) -> Vec<String> {
    let earlier = |place: usize, name: &str| {
        tools.iter().take(place).find(|tool| tool.definition().name == name)
    };
    let conflicts = tools.iter().enumerate().filter_map(|(place, tool)| {
        let name = tool.definition().name.as_str();
        let (first, second) = (earlier(place, name)?.type_name(), tool.type_name());
        Some(format!("two tools are called `{name}`: `{first}` and `{second}`. Rename one of them"))
    });
    conflicts.collect()
}

/// Lower-case hex, 64 digits.
pub fn sha256_hex(bytes: &[u8]) -> String {
    use std::fmt::Write as _;
    sha2::Sha256::digest(bytes).iter().fold(String::with_capacity(64), |mut hex, byte| {
        let _ = write!(hex, "{byte:02x}");
        hex
    })
}

/// Something that can be called. Implementations hold no state of a call.
#[async_trait]
pub trait RunTool: Send + Sync + fmt::Debug {
    fn definition(&self) -> &ToolDefinition;

    /// The type that implements it: names the tool in a mistake about its name.
    fn type_name(&self) -> &'static str {
        std::any::type_name::<Self>()
    }

    /// Whether a person must agree to this call.
    fn ask(&self, arguments: &Arguments) -> Option<Ask>;

    /// Whether its calls change files of the workspace: in one answer they run one after the other, each on what the one
    /// before left.
    fn changes_workspace(&self) -> bool {
        false
    }

    /// Whether it logs its failed attempts by itself, with their causes.
    fn logs_failures(&self) -> bool {
        false
    }

    /// Dropped at the deadline, and some time after a stop. A panic is caught by the caller and counts as a lost answer for
    /// a write.
    async fn call(&self, arguments: Arguments, context: ToolContext) -> ToolOutcome;
}
