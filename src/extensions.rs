//! Extensions: code of the app that runs at fixed points of a turn. Results are recorded inputs of the core.

use std::borrow::Cow;
use std::fmt;

use async_trait::async_trait;
use serde_json::Value;

use crate::agent::compaction::Reason;
use crate::agent::entry::Entry;
use crate::agent::message::{AssistantMessage, Message, ToolResultMessage};
use crate::agent::raw::RawJson;
pub use crate::agent::step::FinishTurn;
use crate::ids::{ConversationKey, EntryId};
use crate::tools::Arguments;
use crate::tools::code::text_with_causes;

/// The points at which an extension runs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Hook {
    TransformContext,
    OnPayload,
    BeforeToolCall,
    FinishTurn,
    BeforeCompaction,
    AfterCompaction,
}

impl Hook {
    /// The method's name.
    pub fn name(self) -> &'static str {
        match self {
            Self::TransformContext => "transform_context",
            Self::OnPayload => "on_payload",
            Self::BeforeToolCall => "before_tool_call",
            Self::FinishTurn => "finish_turn",
            Self::BeforeCompaction => "before_compaction",
            Self::AfterCompaction => "after_compaction",
        }
    }
}

/// Why a hook failed. Any error becomes one by `?`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct HookError(String);

impl HookError {
    /// The text is logged, and reaches the model when it blocks a call: it holds no secrets.
    pub fn new(text: impl Into<String>) -> Self {
        Self(text.into())
    }
}

impl fmt::Display for HookError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

/// With its causes. It is itself no [`std::error::Error`], or this conversion could not exist.
impl<E: std::error::Error> From<E> for HookError {
    fn from(error: E) -> Self {
        Self(text_with_causes(&error))
    }
}

/// A call that is about to run.
#[derive(Debug)]
pub struct CallAhead<'a> {
    pub conversation: &'a ConversationKey,
    pub tool_call_id: &'a str,
    pub tool_name: &'a str,
    pub arguments: &'a Arguments,
}

/// A call that must not run.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Block {
    /// What the model reads; absent: "Tool execution was blocked".
    pub reason: Option<String>,
    /// Asks for an end of the prompt without another answer, which comes when all results of the batch ask.
    pub terminate: bool,
}

/// A turn that is about to close.
#[derive(Debug)]
pub struct ClosingTurn<'a> {
    pub conversation: &'a ConversationKey,
    /// The model's response.
    pub response: &'a AssistantMessage,
    /// One for each call of the response, in the same order.
    pub tool_results: &'a [&'a ToolResultMessage],
    /// Model responses of the prompt so far, with this one.
    pub rounds: u32,
}

/// A conversation that is about to be summed up.
#[derive(Debug)]
pub struct CompactionAhead<'a> {
    pub conversation: &'a ConversationKey,
    pub reason: Reason,
    /// What the summary should dwell on, when somebody asked for it.
    pub instructions: Option<&'a str>,
    /// What the model was sent last.
    pub tokens_before: u64,
    /// What the summary will stand for; the one before it is not among them.
    pub messages: &'a [Cow<'a, Message>],
    pub previous_summary: Option<&'a str>,
    /// From here on everything stays as it is.
    pub first_kept_entry_id: &'a EntryId,
}

/// What an extension wants instead of the model's summary.
#[derive(Clone, Debug, PartialEq)]
pub enum Instead {
    /// No summary.
    Cancel,
    /// This one.
    Summary { summary: String, details: Option<RawJson> },
}

/// Code of the app that runs at fixed points of a turn, in order of registration.
///
/// - Each call ends within `TURNWHEEL_HOOK_TIMEOUT` (5 s by default). A panic, an error and a missed deadline are failures:
///   each is logged with the extension and the hook. What a failure leads to stands at each method.
/// - A hook must not block its thread: await instead.
/// - A hook runs at least once: after a take-over or a lost commit it runs again. It causes no effect that must happen once.
#[async_trait]
pub trait Extension: Send + Sync + fmt::Debug {
    /// For logs and messages.
    fn name(&self) -> &str;

    /// Changes the messages of every model request. The record stays as it is. A failure fails the model call: it is never
    /// made without this hook.
    async fn transform_context<'a>(
        &self,
        messages: Vec<Cow<'a, Message>>,
    ) -> Result<Vec<Cow<'a, Message>>, HookError> {
        Ok(messages)
    }

    /// Changes the body of every model request just before it is sent, also of a compaction's. A failure fails the model
    /// call unsent.
    async fn on_payload(&self, payload: Value) -> Result<Value, HookError> {
        Ok(payload)
    }

    /// Runs before a call starts; the first block wins and later extensions do not run. A failure blocks the call.
    async fn before_tool_call(&self, _call: &CallAhead<'_>) -> Result<Option<Block>, HookError> {
        Ok(None)
    }

    /// Runs when a turn is about to close: the response has no tool calls, or all its calls have their results. The first
    /// extension that returns a decision wins and later extensions do not run; without a decision the prompt goes on as it
    /// would without this hook. It does not run after a failed or aborted response, nor where the prompt is stopped or given up.
    ///
    /// It runs before the commit that closes the turn, and once more where the commit is prepared anew because the queue has
    /// changed. After a failure the next extension runs.
    async fn finish_turn(&self, _turn: &ClosingTurn<'_>) -> Result<Option<FinishTurn>, HookError> {
        Ok(None)
    }

    /// Runs before each try of a compaction; the first extension that returns something replaces the model's summary. After a
    /// failure the next extension runs, and in the end the model.
    async fn before_compaction(
        &self,
        _ahead: &CompactionAhead<'_>,
    ) -> Result<Option<Instead>, HookError> {
        Ok(None)
    }

    /// Runs after the `compaction` entry was committed. A worker that dies in between never runs it: read the record for
    /// what must not be missed. A failure changes nothing.
    async fn after_compaction(
        &self,
        _conversation: &ConversationKey,
        _entry: &Entry,
    ) -> Result<(), HookError> {
        Ok(())
    }
}
