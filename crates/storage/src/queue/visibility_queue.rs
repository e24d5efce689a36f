//! Messages of one queue in memory, ordered by the time they become visible. Time is an argument.

use std::collections::{BTreeMap, HashMap};
use std::time::Duration;

use super::owner_order::OwnerOrder;
use super::{NEVER, QueueError, QueueMessage};
use turnwheel_platform::clock::{Clock, Timestamp};

/// A reading of both clocks. The wall clock is for display. The monotonic clock decides, so that a
/// corrected wall clock neither hides a message for hours nor shows one that is being processed.
#[derive(Clone, Copy, Debug)]
pub(super) struct ClockReading {
    pub(super) wall: Timestamp,
    pub(super) monotonic: Duration,
}

impl ClockReading {
    pub(super) fn read(clock: &dyn Clock) -> Self {
        Self { wall: clock.now(), monotonic: clock.monotonic() }
    }

    /// Converts a time of the monotonic clock to wall time.
    fn wall_at(self, monotonic: Duration) -> Timestamp {
        self.wall
            .minus(self.monotonic.saturating_sub(monotonic))
            .plus(monotonic.saturating_sub(self.monotonic))
    }
}

#[derive(Clone)]
pub(super) struct HeldMessage {
    pub(super) id: String,
    pub(super) text: String,
    pub(super) inserted_at: Timestamp,
    pub(super) dequeue_count: u32,
    /// Absent until the message is received in this process.
    pop_receipt: Option<String>,
}

impl HeldMessage {
    pub(super) fn new(id: String, text: String, inserted_at: Timestamp) -> Self {
        Self { id, text, inserted_at, dequeue_count: 0, pop_receipt: None }
    }

    fn receive(
        &mut self,
        pop_receipt: String,
        visible_at: Duration,
        now: ClockReading,
    ) -> QueueMessage {
        self.dequeue_count = self.dequeue_count.saturating_add(1);
        self.pop_receipt = Some(pop_receipt.clone());
        QueueMessage {
            id: self.id.clone(),
            pop_receipt,
            dequeue_count: self.dequeue_count,
            text: self.text.clone(),
            inserted_at: self.inserted_at,
            expires_at: NEVER,
            next_visible_at: now.wall_at(visible_at),
        }
    }
}

/// Order of messages: the time a message becomes visible, then the order of sending.
pub(super) type VisibilityKey = (Duration, u64);

#[derive(Default)]
pub(super) struct VisibilityQueue {
    messages: BTreeMap<VisibilityKey, HeldMessage>,
    keys: HashMap<String, VisibilityKey>,
    last_number: u64,
    /// Absent: messages are received in the order of time alone.
    owners: Option<OwnerOrder>,
}

impl VisibilityQueue {
    /// A queue of nudges, whose owners take turns.
    pub(super) fn with_owners() -> Self {
        Self { owners: Some(OwnerOrder::default()), ..Self::default() }
    }

    pub(super) fn insert(&mut self, message: HeldMessage, visible_at: Duration) {
        self.last_number += 1;
        if let Some(owners) = &mut self.owners {
            owners.add(&message.id, &message.text, (visible_at, self.last_number));
        }
        self.put_at(message, (visible_at, self.last_number));
    }

    fn put_at(&mut self, message: HeldMessage, key: VisibilityKey) {
        self.keys.insert(message.id.clone(), key);
        self.messages.insert(key, message);
    }

    /// Receives at most `count_max` visible messages, longest visible first. Hides each for `hide`
    /// and increments its receive count.
    pub(super) fn receive(
        &mut self,
        now: ClockReading,
        count_max: usize,
        hide: Duration,
        mut receipt: impl FnMut() -> String,
    ) -> Vec<QueueMessage> {
        let visible = (now.monotonic, u64::MAX);
        let keys: Vec<VisibilityKey> = match &mut self.owners {
            Some(owners) => owners.take(visible, count_max),
            None => self.messages.range(..=visible).take(count_max).map(|(key, _)| *key).collect(),
        };
        let hidden_until = now.monotonic.saturating_add(hide);
        let mut all = Vec::with_capacity(keys.len());
        for key in keys {
            let Some(mut message) = self.messages.remove(&key) else { continue };
            if let Some(owners) = &mut self.owners {
                owners.hide(&message.id, key, (hidden_until, key.1));
            }
            all.push(message.receive(receipt(), hidden_until, now));
            self.put_at(message, (hidden_until, key.1));
        }
        all
    }

    /// Checks a pop receipt.
    ///
    /// # Errors
    /// [`QueueError::Gone`] if the receipt is not the newest, or the message was deleted: leave the
    /// message alone.
    pub(super) fn check_receipt(&self, id: &str, pop_receipt: &str) -> Result<(), QueueError> {
        let message = self.keys.get(id).and_then(|place| self.messages.get(place));
        match message {
            Some(message) if message.pop_receipt.as_deref() == Some(pop_receipt) => Ok(()),
            Some(_) | None => Err(QueueError::Gone),
        }
    }

    /// Hides the message until `hidden_until`, with a new receipt.
    ///
    /// # Errors
    /// See [`Self::check_receipt`].
    pub(super) fn renew(
        &mut self,
        id: &str,
        pop_receipt: &str,
        hidden_until: Duration,
        receipt: String,
    ) -> Result<(), QueueError> {
        self.check_receipt(id, pop_receipt)?;
        let key = self.keys.get(id).copied().ok_or(QueueError::Gone)?;
        let mut message = self.messages.remove(&key).ok_or(QueueError::Gone)?;
        if let Some(owners) = &mut self.owners {
            owners.hide(id, key, (hidden_until, key.1));
        }
        message.pop_receipt = Some(receipt);
        self.put_at(message, (hidden_until, key.1));
        Ok(())
    }

    pub(super) fn remove(&mut self, id: &str) {
        if let Some(key) = self.keys.remove(id) {
            self.messages.remove(&key);
            if let Some(owners) = &mut self.owners {
                owners.remove(id, key);
            }
        }
    }

    pub(super) fn len(&self) -> usize {
        self.messages.len()
    }

    /// Returns the time at which the next message after `moment` becomes visible.
    pub(super) fn first_visible_after(&self, moment: Duration) -> Option<Duration> {
        let later = (moment, u64::MAX);
        self.messages
            .range((std::ops::Bound::Excluded(later), std::ops::Bound::Unbounded))
            .next()
            .map(|(place, _)| place.0)
    }
}
