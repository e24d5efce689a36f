//! Progress of a delivery's turn: its end, and what has used its time.

use std::time::Duration;

use tokio_util::sync::CancellationToken;

use turnwheel_platform::clock::Clock;

/// Time of all hooks between a model response and its commit. The response is lost and paid again
/// if the worker dies meanwhile.
const HOOKS_PER_RESPONSE_MAX: Duration = Duration::from_secs(30);

/// How much of its turn a delivery has used.
#[derive(Debug)]
pub struct TurnProgress {
    /// End of the turn, on the monotonic clock.
    ends: Duration,
    /// Number of model responses received.
    responses_received: u32,
    /// True if tools or a compaction ran. They may have used most of the turn.
    has_run_tools: bool,
    /// Time, on the monotonic clock, until which hooks may delay the commit of a model response.
    hooks_end: Option<Duration>,
    /// Cancelled as soon as the client is gone for which this process took the turn itself. `None`: a
    /// message of the queue brought it.
    client: Option<CancellationToken>,
}

impl TurnProgress {
    pub fn new(ends: Duration) -> Self {
        Self { ends, responses_received: 0, has_run_tools: false, hooks_end: None, client: None }
    }

    pub(crate) fn set_client(&mut self, client: Option<CancellationToken>) {
        self.client = client;
    }

    /// True if this process took the turn itself, for a client that waits here.
    pub(crate) fn is_for_client(&self) -> bool {
        self.client.is_some()
    }

    /// True if the client has left for which this process took the turn. No effect begins then: an
    /// instance without requests may be removed.
    pub(crate) fn is_client_gone(&self) -> bool {
        self.client.as_ref().is_some_and(CancellationToken::is_cancelled)
    }

    pub fn time_left(&self, clock: &dyn Clock) -> Duration {
        self.ends.saturating_sub(clock.monotonic())
    }

    /// A model response was received and is not committed yet.
    pub fn record_response(&mut self, now: Duration) {
        self.responses_received += 1;
        self.hooks_end = Some(now + HOOKS_PER_RESPONSE_MAX);
    }

    /// The response was committed.
    pub fn record_commit(&mut self) {
        self.hooks_end = None;
    }

    /// The hooks run again, because another writer came before the commit: they have their time anew.
    pub(crate) fn repeat_hooks(&mut self, now: Duration) {
        if let Some(end) = &mut self.hooks_end {
            *end = (now + HOOKS_PER_RESPONSE_MAX).min(self.ends).max(*end);
        }
    }

    /// Time left for hooks until the commit. `None`: no response waits for it.
    pub(crate) fn hook_time_left(&self, clock: &dyn Clock) -> Option<Duration> {
        self.hooks_end.map(|end| end.saturating_sub(clock.monotonic()))
    }

    /// Tools or a compaction ran.
    pub(crate) fn record_tools(&mut self) {
        self.has_run_tools = true;
    }

    /// True if the delivery may make another model call. The first is allowed unless tools used the
    /// model's time. Further ones need half of the turn, and that the conversation continues inline.
    /// None is made for a client that is gone.
    pub(crate) fn can_call_model(
        &self,
        now: Duration,
        turn_duration: Duration,
        is_inline: impl FnOnce() -> bool,
    ) -> bool {
        if self.is_client_gone() {
            return false;
        }
        let is_first = self.responses_received == 0;
        if is_first && !self.has_run_tools {
            return true;
        }
        now + turn_duration / 2 < self.ends && (is_first || is_inline())
    }
}
