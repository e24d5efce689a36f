//! Blocks tool calls after their start, so that a test can act while one runs.

use std::collections::BTreeSet;
use std::time::Duration;

use tokio::sync::watch;
use turnwheel::agent::phase::OnUnknown;
use turnwheel::agent::request::Effect;
use turnwheel::tools::ToolResult;
use turnwheel::tools::code::{Approval, CallContext, Tool, ToolError};

/// Time limit of a call's start.
const PATIENCE: Duration = Duration::from_secs(30);

/// Blocked calls and started calls, by the provider's call id before `|`.
#[derive(Clone, Debug, Default)]
pub(crate) struct Gate {
    held: watch::Sender<BTreeSet<String>>,
    begun: watch::Sender<BTreeSet<String>>,
}

impl Gate {
    /// Blocks that call after its start, until it is released.
    pub(crate) fn hold(&self, call: &str) {
        self.held.send_modify(|held| {
            held.insert(call.to_owned());
        });
    }

    pub(crate) fn release(&self, call: &str) {
        self.held.send_modify(|held| {
            held.remove(call);
        });
    }

    /// Waits until that call has started.
    pub(crate) async fn begun(&self, call: &str) {
        let mut begun = self.begun.subscribe();
        let begun = begun.wait_for(|begun| begun.contains(call));
        tokio::time::timeout(PATIENCE, begun).await.expect("the call must start").unwrap();
    }

    async fn pass(&self, call: &str) {
        let call = call.split('|').next().unwrap_or(call);
        self.begun.send_modify(|begun| {
            begun.insert(call.to_owned());
        });
        self.held.subscribe().wait_for(|held| !held.contains(call)).await.unwrap();
    }
}

/// A tool whose calls can be blocked before they run.
pub(crate) struct Gatekept<T>(pub(crate) T, pub(crate) Gate);

impl<T: Tool> Tool for Gatekept<T> {
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

    async fn call(&self, args: T::Args, cx: CallContext) -> Result<ToolResult, ToolError> {
        self.1.pass(cx.tool_call_id()).await;
        self.0.call(args, cx).await
    }
}
