//! Turnwheel: a durable agent runtime. Each queue message starts one delivery, which continues one
//! conversation and commits its progress.

#![cfg_attr(
    not(feature = "testing"),
    expect(dead_code, unreachable_pub, unused_imports, reason = "`testing` exports them")
)]

mod agent;
mod agents;
mod app;
mod artifacts;
mod azure;
mod azurite;
mod bench;
mod certify;
mod clock;
mod commands;
mod digest;
mod doctor;
mod error_chain;
pub mod extensions;
mod fail_points;
#[cfg(test)]
mod fuzz;
mod host;
mod http;
mod ids;
mod ledger;
mod live;
mod model;
mod notifications;
mod package;
mod payments;
mod queries;
mod queue;
mod schedules;
mod server;
mod services;
mod settings;
mod shutdown;
mod store;
mod telemetry;
#[cfg(feature = "testing")]
#[doc(hidden)]
pub mod testing;
mod text_encoding;
#[cfg(test)]
#[path = "../tests/support/time_bound.rs"]
mod time_bound;
mod tools;
mod turn;
mod webhook_signature;

pub use agent::phase::OnUnknown;
pub use agent::request::Effect;
pub use app::{Agent, AgentBuilder, AgentError, AgentState, App, Subscription};
pub use tools::code::{Approval, CallContext as ToolContext, DynTool, Tool, ToolError, Workspace};
pub use tools::{Arguments, CheckContext, ToolResult};

/// Settings of an embedded agent.
pub mod agent_settings {
    pub use crate::agent::settings::{
        CompactionSettings, Continuation, LoopKind, ProtocolMode, QueueMode, RetrySettings,
        Settings, ThinkingLevel, ToolExecution,
    };
}

/// Entries of the record of a conversation.
pub mod entries {
    pub use crate::agent::entry::*;
    pub use crate::agent::phase::CompactionReason;
    pub use crate::agent::question::Asker;
    pub use crate::agent::request::{CallRef, Decision, Request, RequestKind, Verdict};
}

/// Errors of the methods of an embedded agent.
pub mod errors {
    pub use crate::agent::strict::JsonError;
    pub use crate::commands::contract::{CommandError, FieldError, RequestIntent};
    pub use crate::store::StoreError;
}

/// Events of an embedded agent.
pub mod events {
    pub use crate::agent::event::{AssistantMessageEvent, TypedToolCall};
    pub use crate::app::{AgentEvent, AgentEvents, EventStream};
}

/// Identifiers, and the time stamps of messages and entries.
pub mod identifiers {
    pub use crate::clock::Timestamp;
    pub use crate::ids::{
        ArtifactId, ConversationId, ConversationKey, EffectId, EntryId, InputId, PromptId,
        RequestId, ScheduleId, TenantId, UserId,
    };
}

/// Inputs of an embedded agent.
pub mod inputs {
    pub use crate::agent::branch::WriteLeft;
    pub use crate::agent::finished_prompt::{
        FinishedCall, FinishedFile, FinishedOutput, FinishedResult, FinishedResultKind,
        FinishedText,
    };
    pub use crate::agent::inbox::DeliverAs;
    pub use crate::agent::prompt_receipt::CallOutcome;
    pub use crate::app::{CycleDirection, Fork, NavigateOptions, Navigation};
    pub use crate::commands::bash::BashRecord;
    pub use crate::commands::insert::FinishedPromptRequest;
    pub use crate::commands::message::MessageRequest;
    pub use crate::commands::prompt::Mode;
}

/// Messages and their content.
pub mod messages {
    pub use crate::agent::content::*;
    pub use crate::agent::message::*;
    pub use crate::agent::raw::RawJson;
    pub use crate::agent::unknown_members::Extra;
    pub use crate::agent::usage::{Cost, RecordedUsage, Usage, UsageTotals};
}

/// The model port. Implement [`Model`](models::Model) to connect another model service.
pub mod models {
    pub use crate::model::compat::{Compat, MaxTokensField};
    pub use crate::model::responses::headers::ModelHeaders;
    pub use crate::model::scripted::ScriptedModel;
    pub use crate::model::*;
}

/// Views that the methods of an embedded agent return, and the decision of an approval request.
pub mod views {
    pub use crate::agent::prompt_view::*;
    pub use crate::commands::decide::DecisionRequest;
    pub use crate::queries::approvals::ApprovalView;
    pub use crate::queries::tree::{TreeNode, TreeView};
}

/// The imports of most programs with tools, extensions or an embedded agent.
pub mod prelude {
    pub use crate::events::AgentEvent;
    pub use crate::extensions::{Extension, HookError};
    pub use crate::{
        Agent, AgentError, App, Approval, Effect, Tool, ToolContext, ToolError, ToolResult,
    };
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
