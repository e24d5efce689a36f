//! Turnwheel: a durable agent runtime. Each queue message starts one delivery, which continues one
//! conversation and commits its progress.

#![cfg_attr(
    not(feature = "testing"),
    expect(dead_code, unreachable_pub, reason = "`testing` exports them")
)]

mod app;
mod bench;
mod cli;
mod doctor;
mod embedded;
mod package;
mod registrations;
mod start;
#[cfg(feature = "testing")]
#[doc(hidden)]
pub mod testing;

/// Version with the commit of a release and the target.
pub(crate) const PROGRAM_VERSION: &str =
    concat!(env!("CARGO_PKG_VERSION"), " (", env!("BUILD_OF_PROGRAM"), ")");

pub use app::App;
pub use embedded::{Agent, AgentBuilder, AgentError, AgentState, Subscription};
pub use turnwheel_conversation::phase::OnUnknown;
pub use turnwheel_conversation::request::Effect;
pub use turnwheel_tools::approval_summary::ApprovalSummary;
pub use turnwheel_tools::code::{
    Approval, CallContext as ToolContext, DynTool, Tool, ToolError, Workspace,
};
pub use turnwheel_tools::{Arguments, CheckContext, ToolResult};

/// Settings of an embedded agent.
pub mod agent_settings {
    pub use turnwheel_conversation::settings::{
        CompactionSettings, Continuation, LoopKind, ProtocolMode, QueueMode, RetrySettings,
        Settings, ThinkingLevel, ToolExecution,
    };
}

/// Entries of the record of a conversation.
pub mod entries {
    pub use turnwheel_conversation::entry::*;
    pub use turnwheel_conversation::phase::CompactionReason;
    pub use turnwheel_conversation::question::Asker;
    pub use turnwheel_conversation::request::{CallRef, Decision, Request, RequestKind, Verdict};
}

/// Errors of the methods of an embedded agent.
pub mod errors {
    pub use turnwheel_json::strict::JsonError;
    pub use turnwheel_record::contract::{CommandError, FieldError, RequestIntent};
    pub use turnwheel_storage::store::StoreError;
}

/// Events of an embedded agent.
pub mod events {
    pub use crate::embedded::{AgentEvent, AgentEvents, EventStream};
    pub use turnwheel_conversation::event::{AssistantMessageEvent, TypedToolCall};
}

/// Extensions: hooks at fixed points of the work of an agent, and plugins of an agent file.
pub mod extensions {
    pub use turnwheel_extensions::{
        ApprovalRequest, BashResult, CallBlock, ClosingTurn, CommandCall, CommandOutcome,
        CommandSpec, ContextUsage, CurrentPrompt, DiscoveredResources, DiscoveryReason, Events,
        Extension, ExtensionError, FinishTurn, FinishedRun, FinishedToolCall, ForkPosition, Hook,
        HookContext, HookError, HookHttp, HookHttpRequest, HookHttpResponse, InputDecision,
        MessageSpec, ModelPayload, Observation, PendingCompaction, PendingFork, PendingLeafMove,
        PendingSwitch, PendingToolCall, Permissions, Plugin, PluginError, PluginTools, Prepare,
        PromptText, Question, ResultChanges, RunChanges, SessionDecision, SessionStartReason,
        Severity, StartingRun, SummaryOverride, ToolCallDecision, UserBash, UserMessageQueue,
    };
}

/// Identifiers, and the time stamps of messages and entries.
pub mod identifiers {
    pub use turnwheel_platform::clock::Timestamp;
    pub use turnwheel_platform::ids::{
        ArtifactId, ConversationId, ConversationKey, EffectId, EntryId, InputId, PromptId,
        RequestId, ScheduleId, TenantId, UserId,
    };
}

/// Inputs of an embedded agent.
pub mod inputs {
    pub use crate::embedded::{CycleDirection, Fork, NavigateOptions, Navigation};
    pub use turnwheel_commands::bash::BashRecord;
    pub use turnwheel_commands::insert::FinishedPromptRequest;
    pub use turnwheel_commands::message::MessageRequest;
    pub use turnwheel_commands::prompt::Mode;
    pub use turnwheel_conversation::branch::WriteLeft;
    pub use turnwheel_conversation::finished_prompt::{
        FinishedCall, FinishedFile, FinishedOutput, FinishedResult, FinishedResultKind,
        FinishedText,
    };
    pub use turnwheel_conversation::inbox::DeliverAs;
    pub use turnwheel_conversation::prompt_receipt::CallOutcome;
}

/// Messages and their content.
pub mod messages {
    pub use turnwheel_conversation::content::*;
    pub use turnwheel_conversation::message::*;
    pub use turnwheel_conversation::unknown_members::Extra;
    pub use turnwheel_conversation::usage::{Cost, RecordedUsage, Usage, UsageTotals};
    pub use turnwheel_json::raw::RawJson;
}

/// The model port. Implement [`Model`](models::Model) to connect another model service.
pub mod models {
    pub use turnwheel_model::compat::{Compat, MaxTokensField};
    pub use turnwheel_model::responses::headers::ModelHeaders;
    pub use turnwheel_model::scripted::ScriptedModel;
    pub use turnwheel_model::*;
}

/// Views that the methods of an embedded agent return, and the decision of an approval request.
pub mod views {
    pub use turnwheel_commands::decide::DecisionRequest;
    pub use turnwheel_conversation::prompt_view::*;
    pub use turnwheel_queries::approvals::ApprovalView;
    pub use turnwheel_queries::tree::{TreeNode, TreeView};
}

/// The imports of most programs with tools, extensions or an embedded agent.
pub mod prelude {
    pub use crate::events::AgentEvent;
    pub use crate::{
        Agent, AgentError, App, Approval, Effect, Tool, ToolContext, ToolError, ToolResult,
    };
    pub use turnwheel_extensions::{Extension, HookError};
}

/// Compiles the code examples of `docs/rust.md`.
#[cfg(doctest)]
#[doc = include_str!("../docs/rust.md")]
struct RustPage;

/// Compiles the code examples of `docs/extensions.md`.
#[cfg(doctest)]
#[doc = include_str!("../docs/extensions.md")]
struct ExtensionsPage;

/// Compiles the code examples of `docs/plugins.md`.
#[cfg(doctest)]
#[doc = include_str!("../docs/plugins.md")]
struct PluginsPage;

/// Compiles the code examples of `docs/commands.md`.
#[cfg(doctest)]
#[doc = include_str!("../docs/commands.md")]
struct CommandsPage;
