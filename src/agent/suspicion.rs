//! Evidence against a step during which worker processes died: when it is suspect, when it is retried, when it is given up.

use std::time::Duration;

use serde::{Deserialize, Serialize};

use crate::agent::head::Head;
use crate::clock::Timestamp;

/// Deaths without progress after which a step is suspect: from then on it runs in a process of its own.
pub const SUSPECT_DEATHS: u32 = 2;
/// Deaths of a process that ran nothing but this step, after which its prompt fails.
pub const ISOLATED_DEATHS_MAX: u32 = 3;
/// Before each further try of a suspect step; the last one repeats.
const DELAYS: [Duration; 3] =
    [Duration::from_secs(5), Duration::from_secs(30), Duration::from_mins(2)];
const DELAY_MAX: Duration = Duration::from_mins(10);

/// Reset by progress, with [`Head::claims`], which counts the deaths that others may be to blame for.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Suspicion {
    /// Deaths of a process that ran nothing but this step.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub isolated_deaths: u32,
    /// The next try is not before this time. Absent: at once.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub retry_at: Option<Timestamp>,
    /// Whether a worker runs the step now while its process runs no other turn: a death counts as an isolated one. Only
    /// programs that cannot start a process for it do so.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub is_alone: bool,
}

/// A death of a worker process during a step.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Death {
    /// The lease was not given back: the process died for any reason. `is_delayed`: the step may take the next process
    /// down with all its other turns, so its next try waits.
    Presumed { is_delayed: bool },
    /// The process that ran only this step died, and the one that started it lives.
    Isolated,
}

impl Suspicion {
    pub fn is_blank(&self) -> bool {
        *self == Self::default()
    }
}

impl Head {
    /// Whether the step may kill its process, so that it must not run beside other turns.
    pub fn is_suspect(&self) -> bool {
        self.claims >= SUSPECT_DEATHS || self.suspicion.isolated_deaths > 0
    }

    /// Whether the step is proven to kill its process.
    pub fn is_hopeless(&self) -> bool {
        self.suspicion.isolated_deaths >= ISOLATED_DEATHS_MAX
    }

    /// Another step begins, or a part of this one is done: no death of the past says anything about it.
    pub fn note_progress(&mut self) {
        self.claims = 0;
        self.suspicion = Suspicion::default();
    }

    pub fn count_death(&mut self, death: Death, now: Timestamp) {
        let was_alone = std::mem::take(&mut self.suspicion.is_alone);
        let is_delayed = death != Death::Presumed { is_delayed: false };
        let earlier = if was_alone || death == Death::Isolated {
            self.suspicion.isolated_deaths += 1;
            self.suspicion.isolated_deaths - 1
        } else {
            self.claims = self.claims.saturating_add(1);
            self.claims.saturating_sub(SUSPECT_DEATHS)
        };
        let delay = DELAYS.get(earlier as usize).copied().unwrap_or(DELAY_MAX);
        let waits = is_delayed && self.is_suspect() && !self.is_hopeless();
        self.suspicion.retry_at = waits.then(|| now.plus(delay));
    }
}

#[expect(clippy::trivially_copy_pass_by_ref, reason = "serde passes a reference")]
fn is_zero(number: &u32) -> bool {
    *number == 0
}
