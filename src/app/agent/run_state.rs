//! Run state of an agent after the published events, and the permit to begin a run.

use std::collections::BTreeSet;

use serde_json::Value;
use tokio::sync::watch;

use crate::agent::head::Head;
use crate::app::agent::{AgentError, AgentEvent};

#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct RunState {
    /// True from a request to start a run until its `agent_settled` event, or until its permit is
    /// dropped.
    is_requested: bool,
    is_running: bool,
    /// Ids of the pending approval requests.
    open_approvals: BTreeSet<String>,
}

impl RunState {
    /// Run state of an existing conversation.
    pub(super) fn from_head(head: &Head, has_queued_prompt: bool) -> Self {
        Self {
            is_requested: false,
            is_running: head.prompt.is_some() || has_queued_prompt,
            open_approvals: head
                .requests
                .iter()
                .map(|request| request.id.as_str().to_owned())
                .collect(),
        }
    }

    pub(super) fn is_idle(&self) -> bool {
        !self.is_requested && !self.is_running
    }

    /// True if a prompt runs and no approval is pending.
    pub(super) fn is_active(&self) -> bool {
        !self.is_idle() && self.open_approvals.is_empty()
    }

    pub(super) fn is_approval_open(&self, request: &str) -> bool {
        self.open_approvals.contains(request)
    }

    /// Applies an event. Returns true if the event is relevant for the run state.
    pub(super) fn apply(&mut self, event: &AgentEvent) -> bool {
        match event {
            AgentEvent::AgentStart => self.is_running = true,
            AgentEvent::AgentSettled => *self = Self::default(),
            AgentEvent::Other { name, data } => {
                let id = data.pointer("/approval/id").and_then(Value::as_str);
                let request = id.unwrap_or_default();
                match name.as_str() {
                    "prompt.approval-requested" => {
                        self.open_approvals.insert(request.to_owned());
                    }
                    "prompt.approval-settled" => {
                        self.open_approvals.remove(request);
                    }
                    _ => return false,
                }
            }
            AgentEvent::AgentEnd { .. }
            | AgentEvent::TurnStart
            | AgentEvent::TurnEnd { .. }
            | AgentEvent::MessageStart { .. }
            | AgentEvent::MessageUpdate { .. }
            | AgentEvent::MessageReset { .. }
            | AgentEvent::MessageEnd { .. }
            | AgentEvent::ToolExecutionStart { .. }
            | AgentEvent::ToolExecutionUpdate { .. }
            | AgentEvent::ToolExecutionEnd { .. } => return false,
        }
        true
    }
}

/// Permit to begin a run. Dropping it before [`RunPermit::commit`] makes the agent idle again, for
/// example after the caller has dropped its future.
#[must_use = "dropping the permit makes the agent idle again"]
pub(super) struct RunPermit<'a> {
    run_state: &'a watch::Sender<RunState>,
    is_committed: bool,
}

impl<'a> RunPermit<'a> {
    /// Acquires the permit and marks a run as requested.
    ///
    /// # Errors
    /// Returns [`AgentError::Busy`] with the text `busy` while a prompt runs or waits for an
    /// approval: wait.
    pub(super) fn acquire(
        run_state: &'a watch::Sender<RunState>,
        busy: &'static str,
    ) -> Result<Self, AgentError> {
        let is_acquired = run_state.send_if_modified(|run_state| {
            let is_idle = run_state.is_idle();
            run_state.is_requested |= is_idle;
            is_idle
        });
        if is_acquired {
            Ok(Self { run_state, is_committed: false })
        } else {
            Err(AgentError::Busy(busy))
        }
    }

    /// Keeps the run requested after its request has been stored. Events then update the run state.
    pub(super) fn commit(mut self) {
        self.is_committed = true;
    }
}

impl Drop for RunPermit<'_> {
    fn drop(&mut self) {
        if !self.is_committed {
            self.run_state.send_modify(|run_state| run_state.is_requested = false);
        }
    }
}
