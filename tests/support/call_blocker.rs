//! Blocks tool calls after their start, so that a test can act while one runs.

use std::collections::BTreeSet;
use std::time::Duration;

use tokio::sync::watch;
use turnwheel::{Approval, Effect, OnUnknown, Tool, ToolContext, ToolError, ToolResult};

/// Time limit of a call's start.
const START_TIMEOUT: Duration = Duration::from_mins(2);

/// Blocked calls and started calls, by the provider's call id before `|`.
#[derive(Clone, Debug, Default)]
pub(crate) struct CallBlocker {
    blocked: watch::Sender<BTreeSet<String>>,
    started: watch::Sender<BTreeSet<String>>,
}

impl CallBlocker {
    /// Blocks that call after its start, until it is released.
    pub(crate) fn block(&self, call: &str) {
        self.blocked.send_modify(|blocked| {
            blocked.insert(call.to_owned());
        });
    }

    pub(crate) fn release(&self, call: &str) {
        self.blocked.send_modify(|blocked| {
            blocked.remove(call);
        });
    }

    /// Waits until that call has started.
    pub(crate) async fn started(&self, call: &str) {
        let mut started = self.started.subscribe();
        let started = started.wait_for(|started| started.contains(call));
        tokio::time::timeout(START_TIMEOUT, started).await.expect("the call must start").unwrap();
    }

    async fn wait_until_released(&self, call: &str) {
        let call = call.split('|').next().unwrap_or(call);
        self.started.send_modify(|started| {
            started.insert(call.to_owned());
        });
        self.blocked.subscribe().wait_for(|blocked| !blocked.contains(call)).await.unwrap();
    }
}

/// A tool whose calls can be blocked before they run.
pub(crate) struct BlockableTool<T>(pub(crate) T, pub(crate) CallBlocker);

impl<T: Tool> Tool for BlockableTool<T> {
    type Args = T::Args;

    fn name(&self) -> &str {
        self.0.name()
    }

    fn description(&self) -> &str {
        self.0.description()
    }

    fn effect(&self) -> Effect {
        self.0.effect()
    }

    fn label(&self) -> &str {
        self.0.label()
    }

    fn on_unknown(&self) -> OnUnknown {
        self.0.on_unknown()
    }

    fn timeout(&self) -> Duration {
        self.0.timeout()
    }

    fn revision(&self) -> &'static str {
        self.0.revision()
    }

    fn approval(&self, args: &T::Args) -> Option<Approval> {
        self.0.approval(args)
    }

    async fn call(&self, args: T::Args, cx: ToolContext) -> Result<ToolResult, ToolError> {
        self.1.wait_until_released(cx.tool_call_id()).await;
        self.0.call(args, cx).await
    }
}
