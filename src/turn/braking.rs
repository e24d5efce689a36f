//! Brakes: what is paused is kept and not started. Whoever looks first puts a mark into the head; after that a look writes
//! nothing, until the brake is taken off.

use std::time::Duration;

use crate::agent::brake::Brake;
use crate::agent::phase::Phase;
use crate::agent::step::Input;
use crate::clock::Timestamp;
use crate::turn::hold::Hold;
use crate::turn::tried::Tried;

/// When the first look comes; the sweep's follow, one each minute.
const LOOK_AFTER: Duration = Duration::from_mins(1);

impl Hold<'_> {
    /// Adds the brake that keeps back the model call which the inputs lead to.
    pub(super) fn brake_agent(&self, tried: &mut Tried) {
        if self.world.brakes.is_off() {
            return;
        }
        let head = &tried.draft().head;
        // What waits for a person is not kept back by anything else.
        let is_model =
            matches!(head.phase, Phase::Model { .. } | Phase::Summary { .. }) && !head.is_paused();
        if let Some(on) = self.world.brakes.of_agent(&self.head.agent).filter(|_| is_model) {
            tried.add(self.braked(on));
        }
    }

    /// The brake that keeps back a call of that tool.
    pub(super) fn brake_of_call(&self, tool: &str) -> Option<&str> {
        let brakes = &self.world.brakes;
        brakes.of_agent(&self.head.agent).or_else(|| brakes.of_tool(tool))
    }

    /// The mark of a brake: one that was on before goes on.
    pub(super) fn braked(&self, on: &str) -> Input {
        let now = self.world.clock.now();
        let before = self.head.brake.as_ref().filter(|before| before.on == on);
        let since = before.map_or(now, |before| before.since);
        Input::Braked(Brake { on: on.to_owned(), since, look_at: now.plus(LOOK_AFTER) })
    }

    /// Whether the brake that the head is marked with is still on, so that this look changes nothing.
    pub(super) fn is_kept_back(&self, now: Timestamp) -> bool {
        let is_settling = self.head.books.settle_at.is_some_and(|at| at <= now);
        self.head.brake.is_some() && !self.is_let_go() && !is_settling
    }

    /// Whether that brake was taken off: nobody waits for the time in its mark.
    pub(super) fn is_let_go(&self) -> bool {
        self.head.brake.as_ref().is_some_and(|brake| !self.world.brakes.has(&brake.on))
    }
}
