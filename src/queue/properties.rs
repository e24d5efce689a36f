//! Property tests of queues: no message is lost, no deleted message returns, receives are counted.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use proptest::prelude::*;

use super::{EmbeddedQueue, Faults, MemoryQueue, PROMPTS, Queue, QueueError, Received, TURNS};
use crate::clock::{Clock as _, ManualClock, Timestamp};
use crate::ids::SystemIds;

#[derive(Clone, Debug)]
enum Act {
    Send {
        delay: u64,
    },
    Receive {
        count_max: usize,
        hide: u64,
    },
    /// Renews with the pop receipt of any earlier receive.
    Renew {
        which: prop::sample::Index,
        hide: u64,
    },
    Delete {
        which: prop::sample::Index,
    },
    Pass {
        seconds: u64,
    },
    Restart,
}

fn act() -> impl Strategy<Value = Act> {
    let which = any::<prop::sample::Index>;
    prop_oneof![
        4 => (0..3_u64).prop_map(|delay| Act::Send { delay: delay * 4 }),
        4 => (0..4_usize, 0..10_u64).prop_map(|(count_max, hide)| Act::Receive { count_max, hide }),
        2 => (which(), 0..10_u64).prop_map(|(which, hide)| Act::Renew { which, hide }),
        3 => which().prop_map(|which| Act::Delete { which }),
        3 => (1..8_u64).prop_map(|seconds| Act::Pass { seconds }),
        1 => Just(Act::Restart),
    ]
}

/// The expected state of a message that was not deleted.
#[derive(Debug)]
struct Truth {
    visible_at: Duration,
    dequeue_count: u32,
    /// Pop receipt of the newest receive or renewal.
    receipt: Option<String>,
}

struct World<'a> {
    clock: &'a ManualClock,
    queue: &'a dyn Queue,
    name: &'a str,
    truths: HashMap<String, Truth>,
    receives: Vec<Received>,
    sent: u32,
}

impl World<'_> {
    async fn play(&mut self, act: &Act) {
        match act {
            Act::Send { delay } => {
                let delay = Duration::from_secs(*delay);
                let text = self.sent.to_string();
                self.sent += 1;
                self.queue.send(self.name, text.clone(), delay).await.unwrap();
                let visible_at = self.clock.monotonic() + delay;
                self.truths.insert(text, Truth { visible_at, dequeue_count: 0, receipt: None });
            }
            Act::Receive { count_max, hide } => self.receive(*count_max, *hide).await,
            Act::Renew { which, hide } => self.renew(which, *hide).await,
            Act::Delete { which } => self.delete(which).await,
            Act::Pass { seconds } => self.clock.advance(Duration::from_secs(*seconds)),
            Act::Restart => {}
        }
        assert_eq!(self.queue.length(self.name).await.unwrap(), self.truths.len() as u64);
    }

    async fn receive(&mut self, count_max: usize, hide: u64) {
        let now = self.clock.monotonic();
        let hide = Duration::from_secs(hide);
        let visible = self.truths.values().filter(|truth| truth.visible_at <= now).count();
        let all = self.queue.receive(self.name, count_max, hide).await.unwrap();
        assert_eq!(all.len(), visible.min(count_max), "receives exactly the visible messages");
        for message in all {
            let truth = self.truths.get_mut(&message.text).expect("a deleted message returned");
            assert!(truth.visible_at <= now, "a hidden message was delivered");
            truth.dequeue_count += 1;
            assert_eq!(message.dequeue_count, truth.dequeue_count);
            truth.visible_at = now + hide;
            truth.receipt = Some(message.pop_receipt.clone());
            self.receives.push(message);
        }
    }

    fn is_newest(&self, message: &Received) -> bool {
        let truth = self.truths.get(&message.text);
        truth.is_some_and(|truth| truth.receipt.as_ref() == Some(&message.pop_receipt))
    }

    async fn renew(&mut self, which: &prop::sample::Index, hide: u64) {
        if self.receives.is_empty() {
            return;
        }
        let message = self.receives[which.index(self.receives.len())].clone();
        let hide = Duration::from_secs(hide);
        let renewed = self.queue.renew(self.name, &message.id, &message.pop_receipt, hide).await;
        if self.is_newest(&message) {
            let truth = self.truths.get_mut(&message.text).unwrap();
            let receipt = renewed.unwrap();
            truth.visible_at = self.clock.monotonic() + hide;
            truth.receipt = Some(receipt.clone());
            self.receives.push(Received { pop_receipt: receipt, ..message });
        } else {
            assert!(matches!(renewed, Err(QueueError::Gone)));
        }
    }

    async fn delete(&mut self, which: &prop::sample::Index) {
        if self.receives.is_empty() {
            return;
        }
        let message = self.receives[which.index(self.receives.len())].clone();
        let deleted = self.queue.delete(self.name, &message.id, &message.pop_receipt).await;
        if self.is_newest(&message) {
            deleted.unwrap();
            self.truths.remove(&message.text);
        } else {
            assert!(matches!(deleted, Err(QueueError::Gone)));
        }
    }

    /// Lets all messages become visible and receives every message that was not deleted.
    async fn drain(&mut self) {
        self.clock.advance(Duration::from_mins(1));
        self.receive(usize::MAX, 60).await;
        let now = self.clock.monotonic();
        assert!(
            self.truths.values().all(|truth| truth.visible_at > now && truth.receipt.is_some())
        );
    }

    /// Models a restart: received messages are visible again, delays continue.
    fn restart(&mut self) {
        let now = self.clock.monotonic();
        for truth in self.truths.values_mut().filter(|truth| truth.dequeue_count > 0) {
            truth.receipt = None;
            truth.visible_at = now;
        }
    }
}

fn run<T>(future: impl Future<Output = T>) -> T {
    tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap().block_on(future)
}

async fn embedded(file: &std::path::Path, clock: &Arc<ManualClock>) -> EmbeddedQueue {
    let clock = Arc::<ManualClock>::clone(clock);
    EmbeddedQueue::open(file, &[PROMPTS], clock, Arc::new(SystemIds)).await.unwrap()
}

fn world<'a>(clock: &'a ManualClock, queue: &'a dyn Queue, name: &'a str) -> World<'a> {
    World { clock, queue, name, truths: HashMap::new(), receives: Vec::new(), sent: 0 }
}

fn clock() -> Arc<ManualClock> {
    Arc::new(ManualClock::new(Timestamp(1_000_000)))
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, max_shrink_iters: 200, ..ProptestConfig::with_cases(200) })]

    #[test]
    fn the_simulated_queue_without_faults(acts in prop::collection::vec(act(), 0..60)) {
        run(async {
            let clock = clock();
            let queue = MemoryQueue::new(Arc::<ManualClock>::clone(&clock), 1, Faults::default());
            let mut world = world(&clock, &queue, TURNS);
            for act in &acts {
                world.play(act).await;
            }
            world.drain().await;
        });
    }
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, max_shrink_iters: 200, ..ProptestConfig::with_cases(24) })]

    #[test]
    fn the_doorbells_of_dev(acts in prop::collection::vec(act(), 0..60)) {
        run(async {
            let folder = tempfile::tempdir().unwrap();
            let clock = clock();
            let queue = embedded(&folder.path().join("queue.sqlite"), &clock).await;
            let mut world = world(&clock, &queue, TURNS);
            for act in &acts {
                world.play(act).await;
            }
            world.drain().await;
        });
    }

    #[test]
    fn the_prompts_of_dev_across_restarts(acts in prop::collection::vec(act(), 0..60)) {
        run(async {
            let folder = tempfile::tempdir().unwrap();
            let file = folder.path().join("queue.sqlite");
            let clock = clock();
            let (mut truths, mut receives, mut sent) = (HashMap::new(), Vec::new(), 0);
            for life in acts.split_inclusive(|act| matches!(act, Act::Restart)) {
                let queue = embedded(&file, &clock).await;
                let mut world =
                    World { clock: &clock, queue: &queue, name: PROMPTS, truths, receives, sent };
                for act in life {
                    world.play(act).await;
                }
                world.restart();
                World { truths, receives, sent, .. } = world;
            }
            let queue = embedded(&file, &clock).await;
            World { clock: &clock, queue: &queue, name: PROMPTS, truths, receives, sent }
                .drain()
                .await;
        });
    }
}
