//! Operator pauses and deferred model calls.

use serde::{Deserialize, Serialize};

use crate::agent::head::Head;
use crate::agent::phase::Phase;
use crate::clock::Timestamp;

/// A pause of the agent or tool that the next step needs. The pending work stays stored and is
/// checked again later.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Brake {
    /// The paused name as in the setting: `*`, `agent:NAME` or `tool:NAME`.
    pub on: String,
    pub since: Timestamp,
    /// Time of the first check for the end of the pause. Later checks, one in every sweep, write
    /// nothing.
    pub look_at: Timestamp,
}

/// Reason for a deferred model call.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Behind {
    /// The owner's rate limit is used up.
    Rate,
    /// Running calls may use up the rest of a budget.
    BudgetInUse,
    /// The tenant's usage ledger is unavailable.
    Books,
}

/// A deferred model call, for display. The time in the phase decides.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct PutOff {
    pub behind: Behind,
    pub until: Timestamp,
}

impl Head {
    /// Why the model call is deferred. `None`: the call is not deferred, or it waits for a retry.
    pub fn put_off(&self) -> Option<&PutOff> {
        let (Phase::Model { not_before, .. } | Phase::Summary { not_before, .. }) = &self.phase
        else {
            return None;
        };
        // A deferral until another time is over.
        self.put_off.as_ref().filter(|put_off| *not_before == Some(put_off.until))
    }
}
