//! The hooks of extensions by the names of their events, and sets of them.

use turnwheel_conversation::action::ActionOrigin;

/// Declares the events at which an extension runs, with the method or the fact of each and the origin of
/// the actions of its hooks. An event without an origin has no actions.
macro_rules! hooks {
    (
        http { $($http:tt)* }
        local { $($local:tt)* }
        other { $($other:tt)* }
    ) => {
        hooks! { @all $($http)* $($local)* $($other)* }

        /// Events that are sent to HTTP extensions. A new one needs its method in `HttpExtension`.
        pub const HTTP_EVENTS: &[Hook] = hooks! { @list $($http)* };

        /// Events that would send the whole history before every model call. Extensions in Rust have
        /// them.
        pub const LOCAL_EVENTS: &[Hook] = hooks! { @list $($local)* };
    };
    (@all $($name:literal => $hook:ident($($item:ident)::+ $(, $origin:ident)?),)*) => {
        /// The events at which an extension runs.
        #[derive(Clone, Copy, Debug, PartialEq, Eq)]
        pub enum Hook {
            $(
                #[doc = concat!("[`", stringify!($($item)::+), "`](super::", stringify!($($item)::+), ")")]
                $hook,
            )*
        }

        impl Hook {
            /// Name of the event in errors, logs and metrics.
            pub fn name(self) -> &'static str {
                match self {
                    $(Self::$hook => $name,)*
                }
            }

            /// Origin of the actions of its hooks, which decides if they stay when their commit is
            /// computed again. `None`: the event has no actions.
            pub fn action_origin(self) -> Option<ActionOrigin> {
                match self {
                    $(Self::$hook => hooks! { @origin $($origin)? },)*
                }
            }
        }
    };
    (@list $($name:literal => $hook:ident($($about:tt)*),)*) => { &[$(Hook::$hook,)*] };
    (@origin) => { None };
    (@origin $origin:ident) => { Some(ActionOrigin::$origin) };
}

hooks! {
    http {
        "session_start" => SessionStart(Observation::SessionStart),
        "session_shutdown" => SessionShutdown(Observation::SessionShutdown),
        "input" => Input(Extension::transform_input, Kept),
        "before_agent_start" => BeforeAgentStart(Extension::before_agent_start, Recomputed),
        "agent_start" => AgentStart(Observation::AgentStart),
        "turn_start" => TurnStart(Observation::TurnStart),
        "model_select" => ModelSelect(Observation::ModelSelect),
        "agent_end" => AgentEnd(Extension::finish_run, WithTurnDecision),
        "tool_call" => ToolCall(Extension::before_tool_call, Recomputed),
        "tool_result" => ToolResult(Extension::after_tool_call, Kept),
        "turn_end" => TurnEnd(Extension::finish_turn, WithTurnDecision),
        "session_before_compact" => SessionBeforeCompact(Extension::before_compaction, Kept),
        "session_compact" => SessionCompact(Extension::after_compaction),
        "session_before_tree" => SessionBeforeTree(Extension::before_leaf_move),
        "session_tree" => SessionTree(Observation::SessionTree),
        "session_before_fork" => SessionBeforeFork(Extension::before_session_fork),
        "session_fork" => SessionFork(Observation::SessionFork),
        "command" => Command(Extension::run_command, Kept),
        "user_bash" => UserBash(Extension::replace_bash_result, Kept),
    }
    local {
        "context" => Context(Extension::transform_context),
        "on_payload" => OnPayload(Extension::on_payload),
    }
    other {
        "prepare" => Prepare(Plugin::prepare),
        "session_before_switch" => SessionBeforeSwitch(Extension::before_session_switch),
        "session_switch" => SessionSwitch(Observation::SessionSwitch),
        "resources_discover" => ResourcesDiscover(Extension::discover_resources),
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
