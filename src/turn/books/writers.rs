//! Who writes into the books of one tenant from this process takes turns: at the same time all but one would lose, and read
//! everything again. Nothing depends on it: other processes write too.

use std::collections::HashMap;
use std::sync::{Arc, PoisonError, Weak};
use std::time::Duration;

use tokio::sync::{Mutex, OwnedMutexGuard};

use crate::ids::TenantId;

/// Who has waited so long goes ahead: a store that does not answer one of them shall not hold up the others.
const WAIT_MAX: Duration = Duration::from_millis(500);
/// Tenants whose books nobody writes into are forgotten when there are so many.
const TENANTS_MAX: usize = 1_000;

#[derive(Debug, Default)]
pub struct Writers(std::sync::Mutex<HashMap<TenantId, Weak<Mutex<()>>>>);

impl Writers {
    /// Until it is dropped, others of this process wait.
    pub(super) async fn turn(&self, tenant: &TenantId) -> Option<OwnedMutexGuard<()>> {
        tokio::time::timeout(WAIT_MAX, self.of(tenant).lock_owned()).await.ok()
    }

    fn of(&self, tenant: &TenantId) -> Arc<Mutex<()>> {
        let mut all = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(known) = all.get(tenant).and_then(Weak::upgrade) {
            return known;
        }
        if all.len() >= TENANTS_MAX {
            all.retain(|_, turn| turn.strong_count() > 0);
        }
        let new = Arc::default();
        all.insert(tenant.clone(), Arc::downgrade(&new));
        new
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn writers_of_one_tenant_take_turns_but_wait_for_nobody_for_long() {
        let writers = Writers::default();
        let (one, other) = (TenantId::new("one"), TenantId::new("other"));
        let first = writers.turn(&one).await;
        assert!(first.is_some());
        assert!(writers.turn(&other).await.is_some(), "another tenant's books are others");
        let began = tokio::time::Instant::now();
        assert!(writers.turn(&one).await.is_none());
        assert_eq!(began.elapsed(), WAIT_MAX);
        drop(first);
        assert!(writers.turn(&one).await.is_some());
    }

    #[tokio::test]
    async fn tenants_that_are_at_rest_are_forgotten() {
        let writers = Writers::default();
        let kept = writers.turn(&TenantId::new("kept")).await;
        for number in 0..2 * TENANTS_MAX {
            assert!(writers.turn(&TenantId::new(format!("t{number}"))).await.is_some());
        }
        let known = writers.0.lock().unwrap();
        assert!(known.len() <= TENANTS_MAX, "{}", known.len());
        assert!(known.contains_key(&TenantId::new("kept")));
        drop(kept);
    }
}
