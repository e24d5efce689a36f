//! Locks around writes of this process to the same ledger documents. Without them all but one
//! concurrent write would lose and read everything again. They only save work: other processes
//! write too.

use std::collections::HashMap;
use std::sync::{Arc, PoisonError, Weak};
use std::time::Duration;

use tokio::sync::{Mutex, OwnedMutexGuard};

use crate::ids::{TenantId, UserId};

/// A tenant's ledger, or one user's part of it: without limits for agents and the tenant, users
/// share no documents.
pub(super) type Books = (TenantId, Option<UserId>);

/// After this wait a writer continues without the lock, so that an unavailable store does not delay
/// the others.
const WAIT_MAX: Duration = Duration::from_millis(500);
/// At this number of locks, unused ones are dropped.
const BOOKS_MAX: usize = 1_000;

#[derive(Debug, Default)]
pub struct Writers(std::sync::Mutex<HashMap<Books, Weak<Mutex<()>>>>);

impl Writers {
    /// Waits for the lock. Other writers of this process wait until the guard is dropped.
    pub(super) async fn turn(&self, books: Books) -> Option<OwnedMutexGuard<()>> {
        tokio::time::timeout(WAIT_MAX, self.of(books).lock_owned()).await.ok()
    }

    fn of(&self, books: Books) -> Arc<Mutex<()>> {
        let mut all = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(known) = all.get(&books).and_then(Weak::upgrade) {
            return known;
        }
        if all.len() >= BOOKS_MAX {
            all.retain(|_, turn| turn.strong_count() > 0);
        }
        let new = Arc::default();
        all.insert(books, Arc::downgrade(&new));
        new
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(tenant: &str, user: Option<&str>) -> Books {
        (TenantId::new(tenant), user.map(UserId::new))
    }

    #[tokio::test(start_paused = true)]
    async fn writers_of_the_same_books_take_turns_but_wait_for_nobody_for_long() {
        let writers = Writers::default();
        let first = writers.turn(of("one", Some("ada"))).await;
        assert!(first.is_some());
        for other in [of("one", Some("bob")), of("one", None), of("other", Some("ada"))] {
            assert!(writers.turn(other).await.is_some());
        }
        let began = tokio::time::Instant::now();
        assert!(writers.turn(of("one", Some("ada"))).await.is_none());
        assert_eq!(began.elapsed(), WAIT_MAX);
        drop(first);
        assert!(writers.turn(of("one", Some("ada"))).await.is_some());
    }

    #[tokio::test]
    async fn books_that_nobody_writes_into_are_forgotten() {
        let writers = Writers::default();
        let kept = writers.turn(of("kept", None)).await;
        for number in 0..2 * BOOKS_MAX {
            assert!(writers.turn(of(&format!("t{number}"), None)).await.is_some());
        }
        let known = writers.0.lock().unwrap();
        assert!(known.len() <= BOOKS_MAX, "{}", known.len());
        assert!(known.contains_key(&of("kept", None)));
        drop(kept);
    }
}
