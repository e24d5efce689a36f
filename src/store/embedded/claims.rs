//! Leases in memory. They end with the one process; a file records the leased conversations for
//! the next process.

use std::collections::HashMap;
use std::sync::{Mutex, MutexGuard, PoisonError};

use crate::clock::Timestamp;
use crate::ids::{ConversationKey, WorkerId};
use crate::store::embedded::leases_file::LeasesFile;
use crate::store::{ClaimRequest, TAKE_OVER_AFTER};

/// Number of leases at which expired leases that were never released are removed.
const CLAIMS_KEPT: usize = 4096;

#[derive(Debug, Default)]
pub(super) struct Claims {
    held: Mutex<HashMap<ConversationKey, (WorkerId, Timestamp)>>,
    file: LeasesFile,
}

impl Claims {
    pub(super) fn over(file: LeasesFile) -> Self {
        Self { held: Mutex::default(), file }
    }

    /// True if a worker had the lease when the previous process died.
    pub(super) fn had(&self, key: &ConversationKey) -> bool {
        self.file.had(key)
    }

    /// Clears the file: after a clean stop, no lease of this process counts as a crash.
    pub(super) fn forget(&self) {
        self.file.close();
    }

    /// Acquires or extends the lease of a worker.
    ///
    /// # Errors
    /// The end of another worker's lease: try again after it.
    pub(super) fn take(&self, request: &ClaimRequest<'_>) -> Result<(), Timestamp> {
        let mut held = self.lock();
        if let Some((worker, until)) = held.get(request.key)
            && worker != request.worker
            && !has_ended(*until, request.now)
        {
            return Err(*until);
        }
        if held.len() >= CLAIMS_KEPT {
            held.retain(|key, (_, until)| {
                let is_kept = !has_ended(*until, request.now);
                if !is_kept {
                    self.file.remove(key);
                }
                is_kept
            });
        }
        self.file.add(request.key);
        held.insert(request.key.clone(), (request.worker.clone(), request.until));
        Ok(())
    }

    /// Extends the lease. Returns false if the caller no longer has it; an expired lease remains
    /// the caller's until another worker acquires it.
    pub(super) fn renew(&self, request: &ClaimRequest<'_>) -> bool {
        let mut held = self.lock();
        match held.get_mut(request.key) {
            Some((worker, until)) if worker == request.worker => {
                *until = request.until;
                true
            }
            Some(_) | None => false,
        }
    }

    /// Returns the worker and the end of the lease, even if it has expired without a release.
    pub(super) fn holder(&self, key: &ConversationKey) -> Option<(WorkerId, Timestamp)> {
        self.lock().get(key).cloned()
    }

    pub(super) fn count(&self) -> usize {
        self.lock().len()
    }

    pub(super) fn release(&self, key: &ConversationKey, worker: &WorkerId) {
        let mut held = self.lock();
        if held.get(key).is_some_and(|(holder, _)| holder == worker) {
            held.remove(key);
            self.file.remove(key);
        }
    }

    fn lock(&self) -> MutexGuard<'_, HashMap<ConversationKey, (WorkerId, Timestamp)>> {
        self.held.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

fn has_ended(until: Timestamp, now: Timestamp) -> bool {
    until.plus(TAKE_OVER_AFTER) <= now
}
