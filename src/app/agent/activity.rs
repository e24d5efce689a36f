//! Run state of an agent after the published events, and the permit to begin a run.

use std::collections::BTreeSet;

use serde_json::Value;
use tokio::sync::watch;

use crate::agent::head::Head;
use crate::app::agent::{AgentError, AgentEvent};

#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Activity {
    /// True from a request to start a run until its `agent_settled` event, or until its permit is
    /// dropped.
    is_asked: bool,
    is_running: bool,
    /// Ids of the pending approval requests.
    open: BTreeSet<String>,
}

impl Activity {
    /// Run state of an existing conversation.
    pub(super) fn of(head: &Head, is_to_come: bool) -> Self {
        Self {
            is_asked: false,
            is_running: head.prompt.is_some() || is_to_come,
            open: head.requests.iter().map(|request| request.id.as_str().to_owned()).collect(),
        }
    }

    pub(super) fn is_idle(&self) -> bool {
        !self.is_asked && !self.is_running
    }

    /// True if a prompt runs and no approval is pending.
    pub(super) fn is_at_work(&self) -> bool {
        !self.is_idle() && self.open.is_empty()
    }

    pub(super) fn is_open(&self, request: &str) -> bool {
        self.open.contains(request)
    }

    /// Applies an event. Returns true if the event is relevant for the run state.
    pub(super) fn take_in(&mut self, event: &AgentEvent) -> bool {
        match event {
            AgentEvent::AgentStart => self.is_running = true,
            AgentEvent::AgentSettled => *self = Self::default(),
            AgentEvent::Other { name, data } => {
                let id = data.pointer("/approval/id").and_then(Value::as_str);
                let request = id.unwrap_or_default();
                match name.as_str() {
                    "prompt.approval-requested" => {
                        self.open.insert(request.to_owned());
                    }
                    "prompt.approval-settled" => {
                        self.open.remove(request);
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
pub(super) struct Claim<'a> {
    activity: &'a watch::Sender<Activity>,
    is_kept: bool,
}

impl<'a> Claim<'a> {
    /// Acquires the permit and marks a run as requested.
    ///
    /// # Errors
    /// Returns [`AgentError::Busy`] with the text `busy` while a prompt runs or waits for an
    /// approval: wait.
    pub(super) fn take(
        activity: &'a watch::Sender<Activity>,
        busy: &'static str,
    ) -> Result<Self, AgentError> {
        let is_mine = activity.send_if_modified(|activity| {
            let is_idle = activity.is_idle();
            activity.is_asked |= is_idle;
            is_idle
        });
        if is_mine { Ok(Self { activity, is_kept: false }) } else { Err(AgentError::Busy(busy)) }
    }

    /// Keeps the run requested after its request has been stored. Events then update the run state.
    pub(super) fn keep(mut self) {
        self.is_kept = true;
    }
}

impl Drop for Claim<'_> {
    fn drop(&mut self) {
        if !self.is_kept {
            self.activity.send_modify(|activity| activity.is_asked = false);
        }
    }
}
