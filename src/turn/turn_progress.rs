//! Progress of a delivery's turn: its end, and what has used its time.

use std::time::Duration;

use crate::clock::Clock;

/// How much of its turn a delivery has used.
pub(crate) struct TurnProgress {
    /// End of the turn, on the monotonic clock.
    ends: Duration,
    /// Number of model responses received.
    responses_received: u32,
    /// True if tools or a compaction ran. They may have used most of the turn.
    has_run_tools: bool,
}

impl TurnProgress {
    pub(crate) fn new(ends: Duration) -> Self {
        Self { ends, responses_received: 0, has_run_tools: false }
    }

    pub(crate) fn time_left(&self, clock: &dyn Clock) -> Duration {
        self.ends.saturating_sub(clock.monotonic())
    }

    pub(crate) fn record_response(&mut self) {
        self.responses_received += 1;
    }

    /// Tools or a compaction ran.
    pub(crate) fn record_tools(&mut self) {
        self.has_run_tools = true;
    }

    /// True if the delivery may make another model call. The first is allowed unless tools used the
    /// model's time. Further ones need half of the turn, and that the conversation continues inline.
    pub(crate) fn can_call_model(
        &self,
        now: Duration,
        turn_duration: Duration,
        is_inline: impl FnOnce() -> bool,
    ) -> bool {
        let is_first = self.responses_received == 0;
        if is_first && !self.has_run_tools {
            return true;
        }
        now + turn_duration / 2 < self.ends && (is_first || is_inline())
    }
}
