//! Leases in memory. They end with the one process; a file records the leased conversations for
//! the next process.

use std::collections::HashMap;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tokio::time::Instant;

use crate::store::embedded::leases_file::LeasesFile;
use crate::store::{LeaseRequest, TAKE_OVER_DELAY};
use turnwheel_platform::clock::Timestamp;
use turnwheel_platform::ids::{ConversationKey, WorkerId};

/// Number of leases at which expired leases that were never released are removed.
const LEASES_MAX: usize = 4096;

#[derive(Debug, Default)]
pub(super) struct Leases {
    leases: Mutex<HashMap<ConversationKey, HeldLease>>,
    file: LeasesFile,
}

/// A lease, and the moment of its last renewal. The monotonic clock ends it, too: the wall clock may
/// have been set back.
#[derive(Clone, Debug)]
struct HeldLease {
    worker: WorkerId,
    until: Timestamp,
    renewed_at: Instant,
    duration: Duration,
}

impl HeldLease {
    fn new(request: &LeaseRequest<'_>) -> Self {
        Self {
            worker: request.worker.clone(),
            until: request.until,
            renewed_at: Instant::now(),
            duration: request.now.until(request.until),
        }
    }

    fn can_be_taken_over(&self, now: Timestamp) -> bool {
        self.until.plus(TAKE_OVER_DELAY) <= now
            || self.renewed_at.elapsed() >= self.duration + TAKE_OVER_DELAY
    }
}

impl Leases {
    pub(super) fn new(file: LeasesFile) -> Self {
        Self { leases: Mutex::default(), file }
    }

    /// True if a worker had the lease when the previous process died.
    pub(super) fn had_at_crash(&self, key: &ConversationKey) -> bool {
        self.file.had_lease(key)
    }

    /// Clears the file: after a clean stop, no lease of this process counts as a crash.
    pub(super) fn clear_file(&self) {
        self.file.close();
    }

    /// Acquires or extends the lease of a worker.
    ///
    /// # Errors
    /// The end of another worker's lease: try again after it.
    pub(super) fn acquire(&self, request: &LeaseRequest<'_>) -> Result<(), Timestamp> {
        let mut leases = self.lock();
        if let Some(held) = leases.get(request.key)
            && held.worker != *request.worker
            && !held.can_be_taken_over(request.now)
        {
            return Err(held.until);
        }
        if leases.len() >= LEASES_MAX {
            leases.retain(|key, held| {
                let is_kept = !held.can_be_taken_over(request.now);
                if !is_kept {
                    self.file.remove(key);
                }
                is_kept
            });
        }
        self.file.add(request.key);
        leases.insert(request.key.clone(), HeldLease::new(request));
        Ok(())
    }

    /// Extends the lease. Returns false if the caller no longer has it; an expired lease remains
    /// the caller's until another worker acquires it.
    pub(super) fn renew(&self, request: &LeaseRequest<'_>) -> bool {
        let mut leases = self.lock();
        match leases.get_mut(request.key) {
            Some(held) if held.worker == *request.worker => {
                *held = HeldLease::new(request);
                true
            }
            Some(_) | None => false,
        }
    }

    /// Returns the worker and the end of the lease, even if it has expired without a release.
    pub(super) fn holder(&self, key: &ConversationKey) -> Option<(WorkerId, Timestamp)> {
        self.lock().get(key).map(|held| (held.worker.clone(), held.until))
    }

    pub(super) fn count(&self) -> usize {
        self.lock().len()
    }

    pub(super) fn release(&self, key: &ConversationKey, worker: &WorkerId) {
        let mut leases = self.lock();
        if leases.get(key).is_some_and(|held| held.worker == *worker) {
            leases.remove(key);
            self.file.remove(key);
        }
    }

    fn lock(&self) -> MutexGuard<'_, HashMap<ConversationKey, HeldLease>> {
        self.leases.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
