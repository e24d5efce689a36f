//! Operator pauses: paused work is kept and not started. The first worker marks the head; later
//! deliveries write nothing until the pause is lifted.

use std::time::Duration;

use crate::agent::brake::Brake;
use crate::agent::phase::Phase;
use crate::agent::step::Input;
use crate::clock::Timestamp;
use crate::turn::hold::Hold;
use crate::turn::tried::Tried;

/// Delay of the first check; the sweep repeats it once a minute.
const LOOK_AFTER: Duration = Duration::from_mins(1);

impl Hold<'_> {
    /// Adds the pause that defers the model call which the inputs lead to.
    pub(super) fn brake_agent(&self, tried: &mut Tried) {
        if self.world.brakes.is_off() {
            return;
        }
        let head = &tried.draft().head;
        // Work that waits for an approver is not paused as well.
        let is_model =
            matches!(head.phase, Phase::Model { .. } | Phase::Summary { .. }) && !head.is_paused();
        if let Some(on) = self.world.brakes.of_agent(&self.head.agent).filter(|_| is_model) {
            tried.add(self.braked(on));
        }
    }

    /// The pause that applies to a call of that tool.
    pub(super) fn brake_of_call(&self, tool: &str) -> Option<&str> {
        let brakes = &self.world.brakes;
        brakes.of_agent(&self.head.agent).or_else(|| brakes.of_tool(tool))
    }

    /// The pause mark for the head. A pause that was active before keeps its start.
    pub(super) fn braked(&self, on: &str) -> Input {
        let now = self.world.clock.now();
        let before = self.head.brake.as_ref().filter(|before| before.on == on);
        let since = before.map_or(now, |before| before.since);
        Input::Braked(Brake { on: on.to_owned(), since, look_at: now.plus(LOOK_AFTER) })
    }

    /// True if the pause in the head is still active, so that this delivery changes nothing.
    pub(super) fn is_kept_back(&self, now: Timestamp) -> bool {
        let is_settling = self.head.books.settle_at.is_some_and(|at| at <= now);
        self.head.brake.is_some() && !self.is_let_go() && !is_settling
    }

    /// True if the pause in the head was lifted: work continues without waiting for the recheck
    /// time.
    pub(super) fn is_let_go(&self) -> bool {
        self.head.brake.as_ref().is_some_and(|brake| !self.world.brakes.has(&brake.on))
    }
}
