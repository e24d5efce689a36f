//! The hooks of extensions by the names of their events, and sets of them.

use strum::IntoStaticStr;

use turnwheel_conversation::action::ActionOrigin;

/// The events at which an extension runs.
#[derive(Clone, Copy, Debug, PartialEq, Eq, IntoStaticStr)]
#[strum(serialize_all = "snake_case")]
pub enum Hook {
    /// [`Extension::transform_context`](super::Extension::transform_context)
    Context,
    /// [`Extension::on_payload`](super::Extension::on_payload)
    OnPayload,
    /// [`Extension::before_tool_call`](super::Extension::before_tool_call)
    ToolCall,
    /// [`Extension::finish_turn`](super::Extension::finish_turn)
    TurnEnd,
    /// [`Extension::before_compaction`](super::Extension::before_compaction)
    SessionBeforeCompact,
    /// [`Extension::after_compaction`](super::Extension::after_compaction)
    SessionCompact,
    /// [`Extension::after_tool_call`](super::Extension::after_tool_call)
    ToolResult,
    /// [`Plugin::prepare`](super::Plugin::prepare)
    Prepare,
    /// [`Extension::before_agent_start`](super::Extension::before_agent_start)
    BeforeAgentStart,
    /// [`Extension::finish_run`](super::Extension::finish_run)
    AgentEnd,
    /// [`Observation::AgentStart`](super::Observation::AgentStart)
    AgentStart,
    /// [`Observation::TurnStart`](super::Observation::TurnStart)
    TurnStart,
    /// [`Observation::ModelSelect`](super::Observation::ModelSelect)
    ModelSelect,
    /// [`Observation::SessionStart`](super::Observation::SessionStart)
    SessionStart,
    /// [`Observation::SessionShutdown`](super::Observation::SessionShutdown)
    SessionShutdown,
    /// [`Extension::before_session_switch`](super::Extension::before_session_switch)
    SessionBeforeSwitch,
    /// [`Observation::SessionSwitch`](super::Observation::SessionSwitch)
    SessionSwitch,
    /// [`Extension::before_session_fork`](super::Extension::before_session_fork)
    SessionBeforeFork,
    /// [`Observation::SessionFork`](super::Observation::SessionFork)
    SessionFork,
    /// [`Extension::before_leaf_move`](super::Extension::before_leaf_move)
    SessionBeforeTree,
    /// [`Observation::SessionTree`](super::Observation::SessionTree)
    SessionTree,
    /// [`Extension::run_command`](super::Extension::run_command)
    Command,
    /// [`Extension::transform_input`](super::Extension::transform_input)
    Input,
    /// [`Extension::replace_bash_result`](super::Extension::replace_bash_result)
    UserBash,
    /// [`Extension::discover_resources`](super::Extension::discover_resources)
    ResourcesDiscover,
}

impl Hook {
    /// Name of the event in errors, logs and metrics.
    pub fn name(self) -> &'static str {
        self.into()
    }

    /// The fate of the actions of its hooks when their commit is computed again. `None`: the event
    /// has no actions.
    pub fn action_origin(self) -> Option<ActionOrigin> {
        match self {
            Self::ToolCall | Self::BeforeAgentStart => Some(ActionOrigin::Recomputed),
            Self::TurnEnd | Self::AgentEnd => Some(ActionOrigin::WithTurnDecision),
            Self::ToolResult
            | Self::SessionBeforeCompact
            | Self::Command
            | Self::Input
            | Self::UserBash => Some(ActionOrigin::Kept),
            Self::Context
            | Self::OnPayload
            | Self::SessionCompact
            | Self::Prepare
            | Self::AgentStart
            | Self::TurnStart
            | Self::ModelSelect
            | Self::SessionStart
            | Self::SessionShutdown
            | Self::SessionBeforeSwitch
            | Self::SessionSwitch
            | Self::SessionBeforeFork
            | Self::SessionFork
            | Self::SessionBeforeTree
            | Self::SessionTree
            | Self::ResourcesDiscover => None,
        }
    }
}

/// A set of events.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Events(u32);

impl Events {
    /// All events, including those of later versions.
    pub const ALL: Self = Self(u32::MAX);

    pub fn contains(self, hook: Hook) -> bool {
        self.0 & bit(hook) != 0
    }

    #[must_use]
    pub fn with(self, hook: Hook) -> Self {
        Self(self.0 | bit(hook))
    }
}

impl<const N: usize> From<[Hook; N]> for Events {
    fn from(hooks: [Hook; N]) -> Self {
        Self(hooks.into_iter().fold(0, |bits, hook| bits | bit(hook)))
    }
}

fn bit(hook: Hook) -> u32 {
    1 << hook as u32
}
