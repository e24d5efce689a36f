//! Bound of the turns that this process runs at once for one owner.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError};

use turnwheel_platform::ids::{ConversationKey, TenantId, UserId};

type Owner = (TenantId, UserId);

/// Running turns by owner.
#[derive(Clone, Debug, Default)]
pub(crate) struct OwnerTurns {
    running: Arc<Mutex<HashMap<Owner, u32>>>,
    /// Absent: no bound.
    max: Option<u32>,
}

/// A running turn. Dropping it makes room for another one.
#[derive(Debug)]
pub(crate) struct OwnerTurn {
    turns: OwnerTurns,
    owner: Option<Owner>,
}

impl OwnerTurns {
    pub(crate) fn new(max: Option<u32>) -> Self {
        Self { running: Arc::default(), max }
    }

    /// `None`: the owner has as many running turns as it may have.
    pub(crate) fn start(&self, key: &ConversationKey) -> Option<OwnerTurn> {
        let Some(max) = self.max else {
            return Some(OwnerTurn { turns: self.clone(), owner: None });
        };
        let owner = (key.tenant.clone(), key.user.clone());
        let mut running = self.running.lock().unwrap_or_else(PoisonError::into_inner);
        let count = running.entry(owner.clone()).or_default();
        if *count >= max {
            return None;
        }
        *count += 1;
        Some(OwnerTurn { turns: self.clone(), owner: Some(owner) })
    }
}

impl Drop for OwnerTurn {
    fn drop(&mut self) {
        let Some(owner) = self.owner.take() else { return };
        let mut running = self.turns.running.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(count) = running.get_mut(&owner) {
            *count = count.saturating_sub(1);
            if *count == 0 {
                running.remove(&owner);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use turnwheel_platform::ids::ConversationId;

    fn key(user: &str, id: &str) -> ConversationKey {
        ConversationKey {
            tenant: TenantId::new("t"),
            user: UserId::new(user),
            conversation_id: ConversationId::new(id),
        }
    }

    #[test]
    fn owner_has_at_most_so_many_running_turns() {
        let turns = OwnerTurns::new(Some(2));
        let first = turns.start(&key("ada", "1")).unwrap();
        let _second = turns.start(&key("ada", "2")).unwrap();
        assert!(turns.start(&key("ada", "3")).is_none());
        assert!(turns.start(&key("bob", "1")).is_some());
        drop(first);
        assert!(turns.start(&key("ada", "3")).is_some());
        assert_eq!(turns.running.lock().unwrap().len(), 1, "idle owners are forgotten");
        let unbounded = OwnerTurns::default();
        let all: Vec<_> = (0..99).map(|_| unbounded.start(&key("ada", "1")).unwrap()).collect();
        assert_eq!(all.len(), 99);
    }
}
