//! Correction of times in a head that a clock ahead has set.

use std::time::Duration;

use crate::head::Head;
use crate::phase::Phase;
use crate::suspicion::Suspicion;
use turnwheel_platform::clock::Timestamp;

/// Difference between the clocks of two machines up to which a stored time is believed.
pub const CLOCK_DIFFERENCE_MAX: Duration = Duration::from_mins(1);

impl Head {
    /// True if a clock wrote the head that was ahead of the current one.
    pub fn is_ahead_of(&self, now: Timestamp) -> bool {
        self.updated_at > now.plus(CLOCK_DIFFERENCE_MAX)
    }

    /// Ends the waits of a clock that was ahead: they would last until the clock has caught up.
    pub fn correct_clock(&mut self, now: Timestamp) {
        if !self.is_ahead_of(now) {
            return;
        }
        self.updated_at = now;
        if let Phase::Model { not_before, .. } | Phase::Summary { not_before, .. } = &mut self.phase
        {
            *not_before = not_before.map(|time| time.min(now));
        }
        let Suspicion { retry_at, .. } = &mut self.suspicion;
        *retry_at = retry_at.map(|time| time.min(now));
        if let Some(pause) = &mut self.pause {
            pause.recheck_at = pause.recheck_at.min(now);
        }
        for time in [&mut self.metering.settle_at, &mut self.metering.recheck_at] {
            *time = time.map(|time| time.min(now));
        }
        if let Some(messages) = &mut self.profile_messages {
            messages.due = messages.due.map(|time| time.min(now));
        }
    }

    /// True if the mark of a waiting message has expired and should be removed.
    pub fn has_expired_mark(&self, now: Timestamp) -> bool {
        self.waiting_message.as_ref().is_some_and(|message| message.until <= now)
    }
}
