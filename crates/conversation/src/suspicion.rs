//! Deaths of worker processes during a step: when the step becomes suspect, is retried, or fails
//! its prompt.

use std::time::Duration;

use serde::{Deserialize, Serialize};

use turnwheel_platform::clock::Timestamp;

/// Deaths without progress after which a step is suspect and runs in a separate process.
pub const SUSPECT_DEATHS: u32 = 2;
/// Deaths without progress from which a step waits before its next attempt, on a store with one
/// process. Below it the step runs again at once, each time with fewer others beside it, and alone
/// after the fourth death.
pub const LOCAL_DELAY_DEATHS: u32 = 5;
/// Deaths of a process that ran only this step, after which its prompt fails.
pub const ISOLATED_DEATHS_MAX: u32 = 3;
/// Delays before each further attempt of a suspect step; [`DELAY_MAX`] after the last one.
pub(super) const DELAYS: [Duration; 3] =
    [Duration::from_secs(5), Duration::from_secs(30), Duration::from_mins(2)];
pub(super) const DELAY_MAX: Duration = Duration::from_mins(10);

/// Evidence that a step kills its process. Progress resets it, together with
/// `Head::leases_without_progress`, which counts deaths that other turns may have caused.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Suspicion {
    /// Deaths of a process that ran only this step.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub isolated_deaths: u32,
    /// Earliest time of the next attempt. Absent: immediately.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub retry_at: Option<Timestamp>,
    /// True if a worker runs the step now and its process runs no other turn. A death then counts
    /// as an isolated one. Only programs that cannot start a separate process do so.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    #[serde(rename = "isAlone")]
    pub is_running_alone: bool,
}

/// A death of a worker process during a step.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Death {
    /// The lease was not released: the process died for an unknown reason. From `delay_deaths`
    /// deaths on the next attempt waits, because the step may kill the next process with all its
    /// other turns.
    Presumed { delay_deaths: u32 },
    /// The process that ran only this step died; its parent process runs on.
    Isolated,
}

impl Suspicion {
    pub fn is_blank(&self) -> bool {
        *self == Self::default()
    }
}

#[expect(clippy::trivially_copy_pass_by_ref, reason = "serde passes a reference")]
fn is_zero(number: &u32) -> bool {
    *number == 0
}
