//! The events of HTTP extensions. A new event needs its row here and its method in `HttpExtension`.

use crate::Hook;

/// Events that are sent to HTTP extensions.
pub const HTTP_EVENTS: [Hook; 19] = [
    Hook::SessionStart,
    Hook::SessionShutdown,
    Hook::Input,
    Hook::BeforeAgentStart,
    Hook::AgentStart,
    Hook::TurnStart,
    Hook::ModelSelect,
    Hook::AgentEnd,
    Hook::ToolCall,
    Hook::ToolResult,
    Hook::TurnEnd,
    Hook::SessionBeforeCompact,
    Hook::SessionCompact,
    Hook::SessionBeforeTree,
    Hook::SessionTree,
    Hook::SessionBeforeFork,
    Hook::SessionFork,
    Hook::Command,
    Hook::UserBash,
];

/// Events that would send the whole history before every model call. Extensions in Rust have them.
pub const LOCAL_EVENTS: [Hook; 2] = [Hook::Context, Hook::OnPayload];
