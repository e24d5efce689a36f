//! Extensions: hooks of the app at fixed points of a turn. Their results are recorded inputs of the
//! core.

use std::borrow::Cow;
use std::fmt;
use std::time::Duration;

use async_trait::async_trait;
use serde::Serialize;

use turnwheel_conversation::content::Content;
use turnwheel_conversation::entry::{CustomMessageEntry, Entry, ModelChange};
pub use turnwheel_conversation::fork::ForkPosition;
use turnwheel_conversation::message::{AssistantMessage, Message, ToolResultMessage};
use turnwheel_conversation::phase::CompactionReason;
use turnwheel_json::raw::RawJson;

pub use turnwheel_conversation::step::FinishTurn;
pub use turnwheel_model::payload::ModelPayload;
use turnwheel_platform::error_chain::error_chain;
use turnwheel_platform::ids::{ConversationId, EntryId, PromptId};

mod actions;
pub mod command;
pub mod context;
pub mod guardrails;
mod hook;
mod hook_set;
pub mod http;
pub mod http_access;
mod input;
pub mod permissions;
pub mod plugin;
pub mod prepare;
mod questions;
pub mod resources;
pub mod runner;
mod tool_hooks;
mod tree;

pub use command::{CommandCall, CommandOutcome, CommandSpec};
pub use context::{ContextUsage, HookContext};
pub use hook::{Events, HTTP_EVENTS, Hook, LOCAL_EVENTS};
pub use hook_set::HookSet;
pub use http_access::{HookHttp, HookHttpRequest, HookHttpResponse};
pub use input::{BashResult, InputDecision, PromptText, UserBash};
pub use permissions::Permissions;
pub use plugin::{Plugin, PluginError, PluginTools};
pub use prepare::{CurrentPrompt, Prepare};
pub use questions::Question;
pub use resources::{DiscoveredResources, DiscoveryReason};
pub use runner::ExtensionError;
pub use tool_hooks::{
    ApprovalRequest, CallBlock, FinishedToolCall, PendingToolCall, ResultChanges, ToolCallDecision,
};
pub use tree::PendingLeafMove;
pub use turnwheel_conversation::action::{MessageSpec, UserMessageQueue};
pub use turnwheel_conversation::event::Severity;

/// Failure of a hook. `?` converts any error into it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct HookError(String);

impl HookError {
    /// The text must hold no secrets: it is logged, and the model reads it if it blocks a call.
    pub fn new(text: impl Into<String>) -> Self {
        Self(text.into())
    }
}

impl fmt::Display for HookError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

/// Includes the causes of the error. `HookError` does not implement [`std::error::Error`]: that
/// would conflict with this conversion.
impl<E: std::error::Error> From<E> for HookError {
    fn from(error: E) -> Self {
        Self(error_chain(&error))
    }
}

/// A turn that is about to close.
#[derive(Debug)]
pub struct ClosingTurn<'a> {
    /// The model's response.
    pub response: &'a AssistantMessage,
    /// One for each call of the response, in the same order.
    pub tool_results: &'a [&'a ToolResultMessage],
    /// Number of model responses of the prompt so far, including this one.
    pub rounds: u32,
    /// Index of the turn in its agent run, from 0.
    pub turn_index: u32,
}

/// An agent run that is about to start.
#[derive(Debug)]
pub struct StartingRun<'a> {
    pub prompt_id: &'a PromptId,
    /// The message that starts it. `None`: a prompt without input.
    pub input: Option<&'a Content>,
    /// The system prompt, with the changes of earlier extensions.
    pub system_prompt: &'a str,
}

/// Changes of an extension to an agent run that starts.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct RunChanges {
    /// Messages for the model, after that of the user.
    pub messages: Vec<CustomMessageEntry>,
    /// Replaces the system prompt in all model calls of the run. At most 64 KB.
    pub system_prompt: Option<String>,
}

/// An agent run that ends.
#[derive(Debug)]
pub struct FinishedRun<'a> {
    /// The new messages of the run.
    pub messages: &'a [&'a Message],
    /// True if a failed model call is retried, in a run of its own.
    pub will_retry: bool,
}

/// A committed fact.
#[derive(Clone, Debug, PartialEq)]
#[non_exhaustive]
pub enum Observation {
    /// An agent run has started.
    AgentStart,
    /// A turn has started. `turn_index` counts from 0 in each agent run.
    TurnStart { turn_index: u32 },
    /// The model of the conversation has changed.
    ModelSelect(ModelChange),
    /// A conversation was created.
    SessionStart { reason: SessionStartReason },
    /// The conversation was deleted.
    SessionShutdown,
    /// An embedded agent continues with this conversation, after another one.
    SessionSwitch { previous: ConversationId },
    /// The conversation was created as a fork of another one.
    SessionFork { previous: ConversationId },
    /// The leaf moved to another branch.
    SessionTree {
        old_leaf_id: Option<EntryId>,
        new_leaf_id: Option<EntryId>,
        /// Summary of the branch that the conversation left.
        summary: Option<String>,
    },
}

/// How a conversation was created.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
#[non_exhaustive]
pub enum SessionStartReason {
    /// Empty, with a first prompt or with given messages.
    New,
    /// With entries of another conversation.
    Fork,
    /// From a session file.
    Import,
}

impl Observation {
    pub fn hook(&self) -> Hook {
        match self {
            Self::AgentStart => Hook::AgentStart,
            Self::TurnStart { .. } => Hook::TurnStart,
            Self::ModelSelect(_) => Hook::ModelSelect,
            Self::SessionStart { .. } => Hook::SessionStart,
            Self::SessionShutdown => Hook::SessionShutdown,
            Self::SessionSwitch { .. } => Hook::SessionSwitch,
            Self::SessionFork { .. } => Hook::SessionFork,
            Self::SessionTree { .. } => Hook::SessionTree,
        }
    }
}

/// A switch of an embedded agent to another conversation.
#[derive(Debug)]
pub struct PendingSwitch<'a> {
    /// The conversation to continue. `None`: a new one.
    pub target: Option<&'a ConversationId>,
}

/// A fork of a conversation that is about to start.
#[derive(Debug)]
pub struct PendingFork<'a> {
    /// The entry that the request names.
    pub entry_id: &'a EntryId,
    pub position: ForkPosition,
}

/// Decision of an extension on a change of the conversation.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum SessionDecision {
    #[default]
    Continue,
    Cancel,
}

/// A compaction that is about to start.
#[derive(Debug)]
pub struct PendingCompaction<'a> {
    pub reason: CompactionReason,
    /// Instructions for the content of the summary, if the requester gave any.
    pub instructions: Option<&'a str>,
    /// Tokens of the last model request.
    pub tokens_before: u64,
    /// Messages that the summary will replace, without the previous summary.
    pub messages: &'a [Cow<'a, Message>],
    pub previous_summary: Option<&'a str>,
    /// First entry that compaction keeps. This entry and all later ones stay unchanged.
    pub first_kept_entry_id: &'a EntryId,
}

/// Decision of an extension that replaces the model's summary.
#[derive(Clone, Debug, PartialEq)]
pub enum SummaryOverride {
    /// Cancels the compaction or the move: no summary is made.
    Cancel,
    /// Uses this summary.
    Summary { summary: String, details: Option<RawJson> },
}

/// Hooks of the app at fixed points of a turn. Extensions run in order of registration.
///
/// - Each call of a hook must end within [`Extension::timeout`], by default
///   `TURNWHEEL_HOOK_TIMEOUT` (5 s by default). The hooks between a model response and its commit
///   have 30 s together. A panic, an error and a missed deadline are failures. Each is logged with
///   the extension and the event, and reported to the error listeners of the app. Each method
///   documents the consequence of its failure.
/// - A hook must not block its thread. It awaits instead.
/// - A hook runs at least once: it runs again after a take-over or a lost commit. It must not cause
///   an effect that must happen once. [`HookContext::hook_id`] identifies a repetition.
#[async_trait]
pub trait Extension: Send + Sync + fmt::Debug {
    /// Name of the extension in logs and error messages.
    fn name(&self) -> &str;

    /// The events at which the extension runs. Methods of other events are not called.
    fn events(&self) -> Events {
        Events::ALL
    }

    /// Time-out of each call of a hook, at most 30 s. `None`: `TURNWHEEL_HOOK_TIMEOUT`.
    fn timeout(&self) -> Option<Duration> {
        None
    }

    /// True if a tool call starts although [`Extension::before_tool_call`] failed. The failure is
    /// reported like every other one.
    fn is_optional(&self) -> bool {
        false
    }

    /// True if an input is refused because [`Extension::transform_input`] failed: nothing is stored,
    /// and the response is 503. Without it the next extension runs, with the input unchanged.
    fn is_input_required(&self) -> bool {
        false
    }

    /// True if the hooks call other systems, by default if [`Extension::permissions`] has hosts.
    /// `certify` leaves such an extension out, unless it calls real tools.
    fn is_remote(&self) -> bool {
        self.permissions().has_hosts()
    }

    /// The hosts, settings, tools and stored types that the extension uses. Its contexts refuse
    /// hosts and settings that it does not declare. `GET /api/agents` lists them for review.
    fn permissions(&self) -> Permissions {
        Permissions::new()
    }

    /// Version of the extension, which the frame documents of conversations record. `None`: only that
    /// of the program.
    fn version(&self) -> Option<String> {
        None
    }

    /// Names further prompt templates and skills. It runs when the app starts and, in `dev`, when a
    /// file has changed. It must not block for long: the start waits for it. After a failure the
    /// extension adds nothing.
    ///
    /// The paths are read where the app runs: files outside of the folders `prompts` and `skills`
    /// are not part of a package.
    ///
    /// # Errors
    /// The extension cannot name its paths now.
    fn discover_resources(
        &self,
        _reason: DiscoveryReason,
    ) -> Result<DiscoveredResources, HookError> {
        Ok(DiscoveredResources::default())
    }

    /// Runs before an agent run starts: for a prompt that does not continue a run as a follow-up. Each
    /// extension sees the system prompt of the earlier ones. Without a change the run has the
    /// agent's own. After a failure the next extension runs.
    ///
    /// It does not run for a continued prompt or a retry.
    async fn before_agent_start(
        &self,
        _cx: &HookContext,
        _run: &StartingRun<'_>,
    ) -> Result<RunChanges, HookError> {
        Ok(RunChanges::default())
    }

    /// Runs before the commit that ends an agent run, also if it ends because the prompt fails or is
    /// aborted. It does not run if the prompt is given up after repeated crashes. A failure changes
    /// nothing.
    async fn finish_run(&self, _cx: &HookContext, _run: &FinishedRun<'_>) -> Result<(), HookError> {
        Ok(())
    }

    /// Runs before an embedded agent leaves its conversation, in the conversation that it leaves. The
    /// first cancellation wins, and later extensions do not run. After a failure the next extension
    /// runs.
    async fn before_session_switch(
        &self,
        _cx: &HookContext,
        _switch: &PendingSwitch<'_>,
    ) -> Result<SessionDecision, HookError> {
        Ok(SessionDecision::Continue)
    }

    /// Runs before a conversation is forked, in the conversation that is copied. The first
    /// cancellation wins, and later extensions do not run. Then nothing is created. After a failure
    /// the next extension runs.
    async fn before_session_fork(
        &self,
        _cx: &HookContext,
        _fork: &PendingFork<'_>,
    ) -> Result<SessionDecision, HookError> {
        Ok(SessionDecision::Continue)
    }

    /// Runs after the commit of a fact; for a turn that a model call opens, before the call.
    /// [`HookContext::hook`] has the event. It does not run if the worker dies right after that
    /// commit: an extension that needs every fact must read the stored entries and events. A failure
    /// changes nothing.
    async fn observe(&self, _cx: &HookContext, _fact: &Observation) -> Result<(), HookError> {
        Ok(())
    }

    /// Changes the messages of every model request. Stored entries stay unchanged. A failure fails
    /// the model call: no request is sent without this hook.
    async fn transform_context<'a>(
        &self,
        _cx: &HookContext,
        messages: Vec<Cow<'a, Message>>,
    ) -> Result<Vec<Cow<'a, Message>>, HookError> {
        Ok(messages)
    }

    /// Changes the body of every model request, including those of compaction, just before it is
    /// sent. A failure fails the model call before it is sent.
    async fn on_payload(
        &self,
        _cx: &HookContext,
        _payload: &mut ModelPayload<'_>,
    ) -> Result<(), HookError> {
        Ok(())
    }

    /// Runs before a call starts. The first block wins, and later extensions do not run. A failure
    /// blocks the call, unless [`Extension::is_optional`]. If the hooks of a model response together
    /// used their time, the call is checked again in the next turn.
    ///
    /// All approvals that extensions and the tool require are one request. After the approval, which
    /// can be days later, the hooks run again: a block applies, and an extension that requires an
    /// approval again has it.
    ///
    /// The hook may ask an approver a question, such as [`HookContext::confirm`]. Questions precede
    /// the approval. Several extensions ask one after the other, in their order. After each answer
    /// the hooks of the call run again. The answers stay recorded until the call has its result.
    async fn before_tool_call(
        &self,
        _cx: &HookContext,
        _call: &PendingToolCall<'_>,
    ) -> Result<ToolCallDecision, HookError> {
        Ok(ToolCallDecision::Allow)
    }

    /// Runs when a call has returned its result or failed. Each extension sees the changes of the
    /// earlier ones. The changed result has the limits of a tool's result. After a failure the model
    /// reads a note, and the next extension runs.
    ///
    /// The hook does not run for a call that did not start: blocked, rejected, skipped, of an unknown
    /// tool or with invalid arguments. It does not run for an unknown outcome either. If the prompt
    /// is aborted, or the worker stops while the hook waits, the result stays as the tool returned
    /// it. A call of a `read` or `idempotent` tool may be repeated then, and the hook with it.
    async fn after_tool_call(
        &self,
        _cx: &HookContext,
        _call: &FinishedToolCall<'_>,
    ) -> Result<ResultChanges, HookError> {
        Ok(ResultChanges::default())
    }

    /// Runs when a turn is about to close: the response has no tool calls, or all its calls have
    /// results. The first decision wins, and later extensions do not run. Without a decision the
    /// prompt continues as it would without this hook. The hook does not run after a failed or
    /// aborted response, nor if the prompt is aborted or given up.
    ///
    /// It runs before the commit that closes the turn. It runs again if a changed inbox requires a
    /// new commit. After a failure the next extension runs.
    async fn finish_turn(
        &self,
        _cx: &HookContext,
        _turn: &ClosingTurn<'_>,
    ) -> Result<Option<FinishTurn>, HookError> {
        Ok(None)
    }

    /// Runs before each attempt of a compaction. The first cancellation ends the compaction, and
    /// later extensions do not run. Otherwise the last summary replaces the model's. After a failure
    /// the next extension runs; without a decision the model writes the summary. While a prompt runs,
    /// the hook may ask a question, such as [`HookContext::confirm`].
    async fn before_compaction(
        &self,
        _cx: &HookContext,
        _compaction: &PendingCompaction<'_>,
    ) -> Result<Option<SummaryOverride>, HookError> {
        Ok(None)
    }

    /// Runs after the commit of the `compaction` entry. It does not run if the worker dies right
    /// after that commit: an extension that needs every compaction must read the stored entries. A
    /// failure changes nothing.
    async fn after_compaction(&self, _cx: &HookContext, _entry: &Entry) -> Result<(), HookError> {
        Ok(())
    }

    /// Runs before the leaf moves to another branch. The first cancellation ends the move, and later
    /// extensions do not run. Otherwise the last summary replaces that of the request or the model,
    /// if the request wants one. After a failure the next extension runs. The hook runs again if a
    /// concurrent change requires a new commit.
    async fn before_leaf_move(
        &self,
        _cx: &HookContext,
        _pending: &PendingLeafMove<'_>,
    ) -> Result<Option<SummaryOverride>, HookError> {
        Ok(None)
    }

    /// The commands that users run with `/name arguments`. Two equal names fail the start.
    fn commands(&self) -> Vec<CommandSpec> {
        Vec::new()
    }

    /// Runs one of [`Extension::commands`] at once, also while a prompt runs. The response reports
    /// a failure, and drops the actions of the command.
    ///
    /// A repeated request with the same key runs it again only if the process died before the
    /// response was stored.
    async fn run_command(
        &self,
        _cx: &HookContext,
        call: &CommandCall<'_>,
    ) -> Result<CommandOutcome, HookError> {
        Err(HookError::new(format!("the command `{}` is not implemented", call.name)))
    }

    /// Runs before an input is stored: a prompt, steer or follow-up of a user, a queue or a
    /// schedule, or the new input of a queued one. Each extension sees the changes of the earlier
    /// ones. After a failure the next extension runs, with the input unchanged, unless
    /// [`Extension::is_input_required`]. It does not run for custom messages.
    async fn transform_input(
        &self,
        _cx: &HookContext,
        _input: &PromptText,
    ) -> Result<InputDecision, HookError> {
        Ok(InputDecision::Continue)
    }

    /// Runs before the result of a shell command that a client ran is stored. The first replacement
    /// wins, and later extensions do not run. After a failure the next extension runs.
    async fn replace_bash_result(
        &self,
        _cx: &HookContext,
        _bash: &UserBash,
    ) -> Result<Option<BashResult>, HookError> {
        Ok(None)
    }
}
