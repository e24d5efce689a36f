//! Locks around writes of this process to the same ledger documents. Without them all but one
//! concurrent write would lose and read everything again. They only save work: other processes
//! write too.

use std::collections::HashMap;
use std::sync::{Arc, PoisonError, Weak};
use std::time::Duration;

use tokio::sync::{Mutex, OwnedMutexGuard};

use turnwheel_platform::ids::{TenantId, UserId};

/// A tenant's ledger, or one user's part of it: without limits for agents and the tenant, users
/// share no documents.
pub(crate) type LedgerKey = (TenantId, Option<UserId>);

/// After this wait a writer continues without the lock, so that an unavailable store does not delay
/// the others.
const WAIT_MAX: Duration = Duration::from_millis(500);
/// At this number of locks, unused ones are dropped.
const LOCKS_MAX: usize = 1_000;

#[derive(Debug, Default)]
pub struct LedgerLocks(std::sync::Mutex<HashMap<LedgerKey, Weak<Mutex<()>>>>);

impl LedgerLocks {
    /// Waits for the lock. Other writers of this process wait until the guard is dropped.
    pub async fn lock(&self, key: LedgerKey) -> Option<OwnedMutexGuard<()>> {
        tokio::time::timeout(WAIT_MAX, self.lock_for(key).lock_owned()).await.ok()
    }

    fn lock_for(&self, key: LedgerKey) -> Arc<Mutex<()>> {
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

#[cfg(test)]
mod tests {
    use crate::ledger::locks::*;

    fn ledger_key(tenant: &str, user: Option<&str>) -> LedgerKey {
        (TenantId::new(tenant), user.map(UserId::new))
    }

    #[tokio::test(start_paused = true)]
    async fn ledger_lock_serialises_writers_until_wait_expires() {
        let locks = LedgerLocks::default();
        let first = locks.lock(ledger_key("one", Some("ada"))).await;
        assert!(first.is_some());
        for other in [
            ledger_key("one", Some("bob")),
            ledger_key("one", None),
            ledger_key("other", Some("ada")),
        ] {
            assert!(locks.lock(other).await.is_some());
        }
        let began = tokio::time::Instant::now();
        assert!(locks.lock(ledger_key("one", Some("ada"))).await.is_none());
        assert_eq!(began.elapsed(), WAIT_MAX);
        drop(first);
        assert!(locks.lock(ledger_key("one", Some("ada"))).await.is_some());
    }

    #[tokio::test]
    async fn unused_ledger_locks_are_dropped() {
        let locks = LedgerLocks::default();
        let guard = locks.lock(ledger_key("kept", None)).await;
        for number in 0..2 * LOCKS_MAX {
            assert!(locks.lock(ledger_key(&format!("t{number}"), None)).await.is_some());
        }
        let known = locks.0.lock().unwrap();
        assert!(known.len() <= LOCKS_MAX, "{}", known.len());
        assert!(known.contains_key(&ledger_key("kept", None)));
        drop(guard);
    }
}
