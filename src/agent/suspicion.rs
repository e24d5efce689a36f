//! Deaths of worker processes during a step: when the step becomes suspect, is retried, or fails
//! its prompt.

use std::time::Duration;

use serde::{Deserialize, Serialize};

use crate::agent::head::Head;
use crate::clock::Timestamp;

/// Deaths without progress after which a step is suspect and runs in a separate process.
pub const SUSPECT_DEATHS: u32 = 2;
/// Deaths of a process that ran only this step, after which its prompt fails.
pub const ISOLATED_DEATHS_MAX: u32 = 3;
/// Delays before each further attempt of a suspect step; [`DELAY_MAX`] after the last one.
const DELAYS: [Duration; 3] =
    [Duration::from_secs(5), Duration::from_secs(30), Duration::from_mins(2)];
const DELAY_MAX: Duration = Duration::from_mins(10);

/// Evidence that a step kills its process. Progress resets it, together with
/// [`Head::leases_without_progress`], which counts deaths that other turns may have caused.
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
    /// The lease was not released: the process died for an unknown reason. `is_delayed`: the next
    /// attempt waits, because the step may kill the next process with all its other turns.
    Presumed { is_delayed: bool },
    /// The process that ran only this step died; its parent process runs on.
    Isolated,
}

impl Suspicion {
    pub fn is_blank(&self) -> bool {
        *self == Self::default()
    }
}

impl Head {
    /// True if the step may kill its process and must not run beside other turns.
    pub fn is_suspect(&self) -> bool {
        self.leases_without_progress >= SUSPECT_DEATHS || self.suspicion.isolated_deaths > 0
    }

    /// True if the step has killed enough isolated processes to fail its prompt.
    pub fn is_poisoned(&self) -> bool {
        self.suspicion.isolated_deaths >= ISOLATED_DEATHS_MAX
    }

    /// Resets the counts when a step or a part of it is done: earlier deaths no longer concern the
    /// current step.
    pub fn reset_suspicion(&mut self) {
        self.leases_without_progress = 0;
        self.suspicion = Suspicion::default();
    }

    pub fn count_death(&mut self, death: Death, now: Timestamp) {
        let was_alone = std::mem::take(&mut self.suspicion.is_running_alone);
        let is_delayed = death != Death::Presumed { is_delayed: false };
        let earlier = if was_alone || death == Death::Isolated {
            self.suspicion.isolated_deaths += 1;
            self.suspicion.isolated_deaths - 1
        } else {
            self.leases_without_progress = self.leases_without_progress.saturating_add(1);
            self.leases_without_progress.saturating_sub(SUSPECT_DEATHS)
        };
        let delay = DELAYS.get(earlier as usize).copied().unwrap_or(DELAY_MAX);
        let waits = is_delayed && self.is_suspect() && !self.is_poisoned();
        self.suspicion.retry_at = waits.then(|| now.plus(delay));
    }
}

#[expect(clippy::trivially_copy_pass_by_ref, reason = "serde passes a reference")]
fn is_zero(number: &u32) -> bool {
    *number == 0
}
