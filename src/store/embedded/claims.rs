//! Who may act on a conversation, in memory: there is one process, and its claims die with it. A file remembers for the next
//! process who had one.

use std::collections::HashMap;
use std::sync::{Mutex, MutexGuard, PoisonError};

use crate::clock::Timestamp;
use crate::ids::{ConversationKey, WorkerId};
use crate::store::embedded::leases_file::LeasesFile;
use crate::store::{ClaimRequest, TAKE_OVER_AFTER};

/// Above this many, those that ended and were never given back are forgotten.
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

    /// Whether somebody had it when the process before this one died.
    pub(super) fn had(&self, key: &ConversationKey) -> bool {
        self.file.had(key)
    }

    /// No lease of this process is evidence from now on.
    pub(super) fn forget(&self) {
        self.file.close();
    }

    /// # Errors
    /// Somebody else has it, until then.
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

    /// Whether it is still the caller's: one that ended is, until another takes it.
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

    /// Also one that has ended and was never given back.
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
