//! Lease of a conversation as its worker knows it: its end, and its renewal outside the head.

use std::time::Duration;

use crate::services::Services;
use turnwheel_conversation::head::{Head, Lease};
use turnwheel_platform::clock::{Clock, Timestamp};
use turnwheel_platform::ids::{ConversationKey, WorkerId};
use turnwheel_storage::store::LeaseRequest;

/// Time until a lease expires without renewal.
pub const LEASE_DURATION: Duration = Duration::from_mins(1);
/// A worker that has not renewed its lease by this long before the end cancels its effects.
pub const STOP_MARGIN: Duration = Duration::from_secs(10);
/// Required rest of a lease before an effect starts.
pub const SEND_MARGIN: Duration = Duration::from_secs(20);

#[derive(Debug)]
pub struct LeaseState {
    /// Unique to this delivery: two deliveries in one process are two workers to each other.
    pub worker: WorkerId,
    pub epoch: u64,
    /// True if the lease is kept outside the head and already ours.
    pub is_outside_head: bool,
    /// Ends of the lease on the wall and monotonic clocks, as other workers see it. The earlier one
    /// counts.
    pub until: Timestamp,
    pub until_monotonic: Duration,
}

impl LeaseState {
    /// Time until the worker has to stop: the earlier of the wall clock's and the monotonic clock's
    /// end.
    pub fn time_left(&self, clock: &dyn Clock) -> Duration {
        let wall = clock.now().until(self.until);
        let monotonic = self.until_monotonic.saturating_sub(clock.monotonic());
        wall.min(monotonic).saturating_sub(STOP_MARGIN)
    }

    /// True if it must be renewed before an effect starts.
    pub fn is_too_short(&self, clock: &dyn Clock) -> bool {
        let is_short = self.time_left(clock) + STOP_MARGIN < SEND_MARGIN;
        // Longer than any lease: the wall clock was set back.
        let is_impossible = clock.now().until(self.until) > LEASE_DURATION;
        is_short || is_impossible
    }

    /// Applies a renewal that began at that monotonic time.
    pub fn extend(&mut self, until: Timestamp, began: Duration) {
        (self.until, self.until_monotonic) = (until, began + LEASE_DURATION);
    }

    /// True if other workers see the lease: the head names this worker, or the store keeps it.
    pub fn is_visible(&self, head: &Head) -> bool {
        self.is_outside_head || head.lease.as_ref().is_some_and(|it| it.worker == self.worker)
    }

    /// The lease to write into the head while this delivery continues.
    pub fn to_stored(&self, until: Timestamp) -> Lease {
        Lease { worker: self.worker.clone(), epoch: self.epoch, until }
    }

    /// Renews the lease that the store keeps outside the head. Returns true if it is still ours.
    pub async fn renew_outside_head(&mut self, services: &Services, key: &ConversationKey) -> bool {
        let (now, monotonic) = (services.clock.now(), services.clock.monotonic());
        let until = now.plus(LEASE_DURATION);
        let request = LeaseRequest { key, worker: &self.worker, now, until, expired: None };
        let is_ours = services.store.renew_lease(request).await.is_ok();
        if is_ours {
            self.extend(until, monotonic);
        }
        is_ours
    }
}
