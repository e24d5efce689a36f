//! Run state of an agent after the published events, and the permit to begin a run.

use std::collections::BTreeSet;

use tokio::sync::watch;

use crate::embedded::AgentError;
use turnwheel_conversation::head::Head;
use turnwheel_platform::ids::RequestId;
use turnwheel_queries::event_stream::{EventPayload, StreamEvent};

#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct RunState {
    /// True from a request to start a run until its `agent_settled` event, or until its permit is
    /// dropped.
    is_requested: bool,
    is_running: bool,
    /// Ids of the pending approval requests.
    open_approvals: BTreeSet<RequestId>,
}

impl RunState {
    /// Run state of an existing conversation.
    pub(super) fn from_head(head: &Head, has_queued_prompt: bool) -> Self {
        Self {
            is_requested: false,
            is_running: head.prompt.is_some() || has_queued_prompt,
            open_approvals: head.step_requests().map(|request| request.id.clone()).collect(),
        }
    }

    pub(super) fn is_idle(&self) -> bool {
        !self.is_requested && !self.is_running
    }

    /// True if a prompt runs and no approval is pending.
    pub(super) fn is_active(&self) -> bool {
        !self.is_idle() && self.open_approvals.is_empty()
    }

    pub(super) fn is_approval_open(&self, request: &RequestId) -> bool {
        self.open_approvals.contains(request)
    }

    /// Applies an event. Returns true if the event is relevant for the run state.
    pub(super) fn apply(&mut self, event: &StreamEvent) -> bool {
        match &event.payload {
            EventPayload::AgentStart => self.is_running = true,
            EventPayload::AgentSettled => *self = Self::default(),
            EventPayload::ApprovalRequested { .. } if event.prompt_id.is_none() => return false,
            EventPayload::ApprovalRequested { request_id, .. } => {
                self.open_approvals.insert(request_id.clone());
            }
            EventPayload::ApprovalSettled { request_id, .. } => {
                self.open_approvals.remove(request_id);
            }
            EventPayload::AgentEnd { .. }
            | EventPayload::TurnStart
            | EventPayload::TurnEnd { .. }
            | EventPayload::MessageStart { .. }
            | EventPayload::MessageUpdate { .. }
            | EventPayload::MessageReset { .. }
            | EventPayload::MessageEnd { .. }
            | EventPayload::ToolExecutionStart { .. }
            | EventPayload::ToolExecutionUpdate(_)
            | EventPayload::ToolExecutionEnd { .. }
            | EventPayload::Other { .. } => return false,
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
