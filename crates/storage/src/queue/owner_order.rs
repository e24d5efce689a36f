//! Order of nudges among owners: each owner in turn, and its messages by time. Many conversations of one
//! owner do not delay the first turn of another.

use std::collections::{BTreeSet, HashMap};
use std::ops::Bound;
use std::sync::Arc;

use serde::Deserialize;

use super::visibility_queue::VisibilityKey;

/// Tenant and user, or the text of a message without them.
type Owner = Arc<str>;

/// Messages of one owner that are received and not visible again. The host receives no message while more than 96
/// run (`newBatchThreshold`), so that a higher bound would make others wait for the end of a turn.
const OWNER_RUNNING_MAX: usize = 80;

#[derive(Default)]
pub(super) struct OwnerOrder {
    owners: HashMap<Owner, OwnerMessages>,
    /// The owner that was served longest ago comes first.
    by_service: BTreeSet<(u64, Owner)>,
    /// Owners by the id of their messages.
    of_messages: HashMap<String, Owner>,
    /// Number of messages received, in the order of which owners take turns.
    served: u64,
}

struct OwnerMessages {
    keys: BTreeSet<VisibilityKey>,
    served_at: u64,
    /// Those of `keys` that were received. One that is visible again has failed and does not run.
    received: BTreeSet<VisibilityKey>,
}

impl OwnerMessages {
    /// Number of received messages that are hidden now, up to the bound.
    fn running(&self, visible: VisibilityKey) -> usize {
        let hidden = (Bound::Excluded(visible), Bound::Unbounded);
        self.received.range(hidden).take(OWNER_RUNNING_MAX).count()
    }
}

#[derive(Deserialize)]
struct OwnedNudge<'a> {
    #[serde(borrow)]
    tenant: std::borrow::Cow<'a, str>,
    #[serde(borrow)]
    user: std::borrow::Cow<'a, str>,
}

fn owner_of(text: &str) -> Owner {
    match serde_json::from_str::<OwnedNudge<'_>>(text) {
        // The length separates the names.
        Ok(nudge) => format!("{} {} {}", nudge.tenant.len(), nudge.tenant, nudge.user).into(),
        Err(_) => Owner::from(""),
    }
}

impl OwnerOrder {
    pub(super) fn add(&mut self, id: &str, text: &str, key: VisibilityKey) {
        let owner = owner_of(text);
        self.of_messages.insert(id.to_owned(), Arc::clone(&owner));
        let served_at = self.served;
        let messages = self.owners.entry(Arc::clone(&owner)).or_insert_with(|| {
            // A new owner comes after those that wait already.
            self.by_service.insert((served_at, owner));
            OwnerMessages { keys: BTreeSet::new(), served_at, received: BTreeSet::new() }
        });
        messages.keys.insert(key);
    }

    /// Moves a received message to the time at which it becomes visible again.
    pub(super) fn hide(&mut self, id: &str, from: VisibilityKey, to: VisibilityKey) {
        let Some(owner) = self.of_messages.get(id) else { return };
        let Some(messages) = self.owners.get_mut(owner) else { return };
        messages.received.remove(&from);
        messages.received.insert(to);
        messages.keys.remove(&from);
        messages.keys.insert(to);
    }

    pub(super) fn remove(&mut self, id: &str, key: VisibilityKey) {
        let Some(owner) = self.of_messages.remove(id) else { return };
        let Some(messages) = self.owners.get_mut(&owner) else { return };
        messages.received.remove(&key);
        messages.keys.remove(&key);
        if messages.keys.is_empty() {
            let served_at = messages.served_at;
            self.owners.remove(&owner);
            self.by_service.remove(&(served_at, owner));
        }
    }

    /// Up to so many messages that are visible, one of each owner in turn.
    pub(super) fn take(&mut self, visible: VisibilityKey, count_max: usize) -> Vec<VisibilityKey> {
        let mut waiting: Vec<(Owner, Vec<VisibilityKey>)> = Vec::new();
        for (_, owner) in &self.by_service {
            if waiting.len() == count_max {
                break;
            }
            let Some(messages) = self.owners.get(owner) else { continue };
            // Messages without an owner have no bound.
            let running_max = if owner.is_empty() { usize::MAX } else { OWNER_RUNNING_MAX };
            let room = running_max.saturating_sub(messages.running(visible)).min(count_max);
            let mut keys: Vec<VisibilityKey> =
                messages.keys.range(..=visible).take(room).copied().collect();
            if !keys.is_empty() {
                keys.reverse();
                waiting.push((Arc::clone(owner), keys));
            }
        }
        let mut taken = Vec::new();
        while taken.len() < count_max && !waiting.is_empty() {
            for (owner, keys) in &mut waiting {
                let Some(key) = keys.pop().filter(|_| taken.len() < count_max) else { continue };
                taken.push(key);
                self.record_service(owner);
            }
            waiting.retain(|(_, keys)| !keys.is_empty());
        }
        taken
    }

    fn record_service(&mut self, owner: &Owner) {
        self.served += 1;
        let Some(messages) = self.owners.get_mut(owner) else { return };
        self.by_service.remove(&(messages.served_at, Arc::clone(owner)));
        messages.served_at = self.served;
        self.by_service.insert((self.served, Arc::clone(owner)));
    }

    /// Number of messages of each owner, for tests.
    #[cfg(test)]
    fn counts(&self) -> Vec<(String, usize)> {
        let count =
            |(owner, messages): (&Owner, &OwnerMessages)| (owner.to_string(), messages.keys.len());
        self.owners.iter().map(count).collect()
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    fn nudge(user: &str) -> String {
        format!("{{\"tenant\":\"t\",\"user\":\"{user}\",\"conversationId\":\"c\"}}")
    }

    fn key(number: u64) -> VisibilityKey {
        (Duration::ZERO, number)
    }

    #[test]
    fn owners_take_turns_and_keep_their_own_order() {
        let mut order = OwnerOrder::default();
        for number in 0..10_000 {
            order.add(&format!("a{number}"), &nudge("ada"), key(number));
        }
        for number in 10_000..10_003 {
            order.add(&format!("b{number}"), &nudge("bob"), key(number));
        }
        order.add("other", "no nudge", key(10_003));
        let visible = (Duration::ZERO, u64::MAX);
        let taken = order.take(visible, 8);
        assert_eq!(taken.len(), 8);
        let of_ada: Vec<_> = taken.iter().filter(|(_, number)| *number < 10_000).collect();
        assert_eq!(of_ada, [&key(0), &key(1), &key(2), &key(3)]);
        assert!(taken.contains(&key(10_000)) && taken.contains(&key(10_002)));
        for taken in &taken {
            let id = match taken.1 {
                10_003 => "other".to_owned(),
                number if number < 10_000 => format!("a{number}"),
                number => format!("b{number}"),
            };
            order.remove(&id, *taken);
        }
        assert_eq!(order.counts(), [("1 t ada".to_owned(), 9_996)]);
        // A new owner is served in the next turn.
        order.add("c", &nudge("cy"), key(20_000));
        assert!(order.take(visible, 2).contains(&key(20_000)));
    }

    #[test]
    fn one_owner_leaves_room_for_others() {
        let mut order = OwnerOrder::default();
        let visible = (Duration::from_secs(1), u64::MAX);
        for number in 0..500 {
            order.add(&number.to_string(), &nudge("ada"), key(number));
        }
        let mut running = Vec::new();
        loop {
            let taken = order.take(visible, 32);
            if taken.is_empty() {
                break;
            }
            for (_, number) in taken {
                let hidden = (Duration::from_mins(1), number);
                order.hide(&number.to_string(), key(number), hidden);
                running.push((number, hidden));
            }
        }
        assert_eq!(running.len(), OWNER_RUNNING_MAX);
        order.add("b", &nudge("bob"), key(900));
        assert_eq!(order.take(visible, 32), [key(900)]);
        let (number, hidden) = running.remove(0);
        order.remove(&number.to_string(), hidden);
        assert_eq!(order.take(visible, 32).len(), 2, "one of each");
        // All fail, and are visible again.
        let later = (Duration::from_mins(2), u64::MAX);
        assert_eq!(order.take(later, 32).len(), 32);
    }

    #[test]
    fn hidden_messages_are_not_taken() {
        let mut order = OwnerOrder::default();
        order.add("later", &nudge("ada"), (Duration::from_secs(9), 1));
        order.add("now", &nudge("bob"), key(2));
        assert_eq!(order.take((Duration::ZERO, u64::MAX), 9), [key(2)]);
    }
}
