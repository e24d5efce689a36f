//! Live events for simulations: a seed selects deltas that are lost.

use std::sync::{Mutex, PoisonError};

use super::{EmbeddedLive, Live, LiveEvent, LiveReader, Snapshot};
use turnwheel_platform::ids::ConversationKey;

#[derive(Debug)]
pub struct MemoryLive {
    inner: EmbeddedLive,
    rng: Mutex<fastrand::Rng>,
    loss_percent: u8,
}

impl MemoryLive {
    /// `loss_percent` is the percentage of deltas and tool updates that are lost.
    pub fn new(seed: u64, loss_percent: u8) -> Self {
        let rng = Mutex::new(fastrand::Rng::with_seed(seed));
        Self { inner: EmbeddedLive::default(), rng, loss_percent }
    }

    fn is_lost(&self, event: &LiveEvent) -> bool {
        match event {
            LiveEvent::Delta { .. } | LiveEvent::ToolUpdate(_) => {
                let mut rng = self.rng.lock().unwrap_or_else(PoisonError::into_inner);
                rng.u8(0..100) < self.loss_percent
            }
            // Without these a reader would show void content as current.
            LiveEvent::Committed { .. }
            | LiveEvent::Deleted
            | LiveEvent::ResponseStarted(_)
            | LiveEvent::Snapshot(_)
            | LiveEvent::Reset { .. } => false,
        }
    }
}

impl Live for MemoryLive {
    fn publish(&self, key: &ConversationKey, event: LiveEvent) {
        if !self.is_lost(&event) {
            self.inner.publish(key, event);
        }
    }

    fn subscribe(&self, key: &ConversationKey) -> (Option<Snapshot>, Box<dyn LiveReader>) {
        self.inner.subscribe(key)
    }
}

#[cfg(test)]
mod tests {
    use futures_util::FutureExt as _;

    use super::super::contract::{self, committed, key, response_started, text_delta};
    use super::*;

    #[tokio::test]
    async fn memory_live_fulfils_contract() {
        contract::run_contract(&MemoryLive::new(1, 0)).await;
    }

    fn count_delivered_deltas(seed: u64) -> usize {
        let live = MemoryLive::new(seed, 30);
        let (_, mut reader) = live.subscribe(&key("c"));
        live.publish(&key("c"), response_started("m1"));
        for number in 0..200 {
            live.publish(&key("c"), text_delta("m1", &number.to_string()));
        }
        live.publish(&key("c"), committed(1));
        let mut events = std::iter::from_fn(|| reader.next_event().now_or_never());
        assert_eq!(events.next(), Some(response_started("m1")));
        let rest: Vec<_> = events.collect();
        assert_eq!(rest.last(), Some(&committed(1)));
        rest.len() - 1
    }

    #[test]
    fn seed_selects_lost_deltas() {
        let arrived = count_delivered_deltas(4);
        assert!((110..170).contains(&arrived), "{arrived} of 200 arrived");
        assert_eq!(arrived, count_delivered_deltas(4));
    }
}
