//! Live events for simulations: a seed selects deltas that are lost.

use std::sync::{Mutex, PoisonError};

use super::{EmbeddedLive, Live, LiveEvent, LiveReader, Snapshot};
use crate::ids::ConversationKey;

#[derive(Debug)]
pub struct MemoryLive {
    inner: EmbeddedLive,
    dice: Mutex<fastrand::Rng>,
    lose: u8,
}

impl MemoryLive {
    /// `loss_percent` is the percentage of deltas and tool updates that are lost.
    pub fn new(seed: u64, lose: u8) -> Self {
        let dice = Mutex::new(fastrand::Rng::with_seed(seed));
        Self { inner: EmbeddedLive::default(), dice, lose }
    }

    fn is_lost(&self, event: &LiveEvent) -> bool {
        match event {
            LiveEvent::Delta { .. } | LiveEvent::ToolUpdate(_) => {
                let mut dice = self.dice.lock().unwrap_or_else(PoisonError::into_inner);
                dice.u8(0..100) < self.lose
            }
            // Without these a reader would show void content as current.
            LiveEvent::Committed { .. }
            | LiveEvent::Gone
            | LiveEvent::AnswerStarted(_)
            | LiveEvent::SoFar(_)
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

    use super::super::contract::{self, key, start, text};
    use super::*;

    #[tokio::test]
    async fn it_keeps_the_contract() {
        contract::contract(&MemoryLive::new(1, 0)).await;
    }

    fn deltas_that_arrive(seed: u64) -> usize {
        let live = MemoryLive::new(seed, 30);
        let (_, mut reader) = live.subscribe(&key("c"));
        live.publish(&key("c"), start("m1"));
        for number in 0..200 {
            live.publish(&key("c"), text("m1", &number.to_string()));
        }
        live.publish(&key("c"), LiveEvent::Committed { event_seq: 1, busy_with: None });
        let mut events = std::iter::from_fn(|| reader.next().now_or_never());
        assert_eq!(events.next(), Some(start("m1")));
        let rest: Vec<_> = events.collect();
        assert_eq!(rest.last(), Some(&LiveEvent::Committed { event_seq: 1, busy_with: None }));
        rest.len() - 1
    }

    #[test]
    fn some_deltas_are_lost_and_the_seed_says_which() {
        let arrived = deltas_that_arrive(4);
        assert!((110..170).contains(&arrived), "{arrived} of 200 arrived");
        assert_eq!(arrived, deltas_that_arrive(4));
    }
}
