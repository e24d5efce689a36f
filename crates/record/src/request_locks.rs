//! Locks of requests by their idempotency key: a repetition waits for the first request of this
//! process, so that hooks run once, and then finds its response.

use std::collections::HashMap;
use std::sync::{Arc, PoisonError, Weak};

use tokio::sync::{Mutex, OwnedMutexGuard};

use turnwheel_platform::ids::{ConversationKey, InputId};

/// At this number of locks, unused ones are dropped.
const LOCKS_MAX: usize = 1_000;

type RequestKey = (ConversationKey, InputId);

#[derive(Debug, Default)]
pub struct RequestLocks(std::sync::Mutex<HashMap<RequestKey, Weak<Mutex<()>>>>);

impl RequestLocks {
    /// Waits until no other request of this process has the key. The hooks of a request, for which
    /// it may wait, are bounded.
    pub async fn lock(&self, key: &ConversationKey, input_id: InputId) -> OwnedMutexGuard<()> {
        self.lock_for((key.clone(), input_id)).lock_owned().await
    }

    fn lock_for(&self, key: RequestKey) -> Arc<Mutex<()>> {
        let mut locks = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(known) = locks.get(&key).and_then(Weak::upgrade) {
            return known;
        }
        if locks.len() >= LOCKS_MAX {
            locks.retain(|_, lock| lock.strong_count() > 0);
        }
        let new = Arc::default();
        locks.insert(key, Arc::downgrade(&new));
        new
    }
}
