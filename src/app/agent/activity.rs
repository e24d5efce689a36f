//! What is going on, as far as subscribers have been told; and who may begin something.

use std::collections::BTreeSet;

use serde_json::Value;
use tokio::sync::watch;

use crate::agent::head::Head;
use crate::app::agent::{AgentError, AgentEvent};

#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Activity {
    /// A request is on its way, and its run has not been told of.
    is_asked: bool,
    is_running: bool,
    /// What a person is asked: ids of requests.
    open: BTreeSet<String>,
}

impl Activity {
    /// Of a conversation that was begun before.
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

    /// Something runs, and no person is asked.
    pub(super) fn is_at_work(&self) -> bool {
        !self.is_idle() && self.open.is_empty()
    }

    pub(super) fn is_open(&self, request: &str) -> bool {
        self.open.contains(request)
    }

    /// What the event says of it; whether it says anything.
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

/// The right to begin a run. Dropped before the request is kept, it leaves the agent idle: also when nobody waits for the
/// request any more.
#[must_use = "dropped, nothing was begun"]
pub(super) struct Claim<'a> {
    activity: &'a watch::Sender<Activity>,
    is_kept: bool,
}

impl<'a> Claim<'a> {
    /// # Errors
    /// [`AgentError::Busy`] with these words, while something runs or waits for a person.
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

    /// The request is kept: events tell the rest.
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
