//! Operator pauses and deferred model calls.

use serde::{Deserialize, Serialize};

use turnwheel_platform::clock::Timestamp;

/// A pause of the agent or tool that the next step needs. The pending work stays stored and is
/// checked again later.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Pause {
    /// The paused name as in the setting: `*`, `agent:NAME` or `tool:NAME`.
    #[serde(rename = "on")]
    pub target: String,
    pub since: Timestamp,
    /// Time of the first check for the end of the pause. Later checks, one in every sweep, write
    /// nothing.
    #[serde(rename = "lookAt")]
    pub recheck_at: Timestamp,
}

/// Reason for a deferred model call.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum DeferReason {
    /// The owner's rate limit is used up.
    #[serde(rename = "rate")]
    RateLimit,
    /// Running calls may use up the rest of a budget.
    BudgetInUse,
    /// The tenant's usage ledger is unavailable.
    #[serde(rename = "books")]
    LedgerUnavailable,
}

/// A deferred model call, for display. The time in the phase decides.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Deferral {
    #[serde(rename = "behind")]
    pub reason: DeferReason,
    pub until: Timestamp,
}
