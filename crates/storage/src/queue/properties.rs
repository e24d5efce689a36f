//! Property tests of queues: no message is lost, no deleted message returns, receives are counted.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use proptest::prelude::*;

use super::{
    EmbeddedQueue, MemoryQueue, PROMPTS, Queue, QueueError, QueueFaults, QueueMessage, TURNS,
};
use turnwheel_platform::clock::{Clock as _, ManualClock, Timestamp};
use turnwheel_platform::ids::SystemIds;

#[derive(Clone, Debug)]
enum QueueOperation {
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

fn operation_strategy() -> impl Strategy<Value = QueueOperation> {
    let which = any::<prop::sample::Index>;
    prop_oneof![
        4 => (0..3_u64).prop_map(|delay| QueueOperation::Send { delay: delay * 4 }),
        4 => (0..4_usize, 0..10_u64).prop_map(|(count_max, hide)| QueueOperation::Receive { count_max, hide }),
        2 => (which(), 0..10_u64).prop_map(|(which, hide)| QueueOperation::Renew { which, hide }),
        3 => which().prop_map(|which| QueueOperation::Delete { which }),
        3 => (1..8_u64).prop_map(|seconds| QueueOperation::Pass { seconds }),
        1 => Just(QueueOperation::Restart),
    ]
}

/// The expected state of a message that was not deleted.
#[derive(Debug)]
struct ExpectedMessage {
    visible_at: Duration,
    dequeue_count: u32,
    /// Pop receipt of the newest receive or renewal.
    receipt: Option<String>,
}

struct QueueModel<'a> {
    clock: &'a ManualClock,
    queue: &'a dyn Queue,
    name: &'a str,
    expected: HashMap<String, ExpectedMessage>,
    receives: Vec<QueueMessage>,
    sent: u32,
}

impl QueueModel<'_> {
    async fn run_operation(&mut self, act: &QueueOperation) {
        match act {
            QueueOperation::Send { delay } => {
                let delay = Duration::from_secs(*delay);
                let text = self.sent.to_string();
                self.sent += 1;
                self.queue.send(self.name, text.clone(), delay).await.unwrap();
                let visible_at = self.clock.monotonic() + delay;
                self.expected
                    .insert(text, ExpectedMessage { visible_at, dequeue_count: 0, receipt: None });
            }
            QueueOperation::Receive { count_max, hide } => self.receive(*count_max, *hide).await,
            QueueOperation::Renew { which, hide } => self.renew(which, *hide).await,
            QueueOperation::Delete { which } => self.delete(which).await,
            QueueOperation::Pass { seconds } => self.clock.advance(Duration::from_secs(*seconds)),
            QueueOperation::Restart => {}
        }
        assert_eq!(self.queue.length(self.name).await.unwrap(), self.expected.len() as u64);
    }

    async fn receive(&mut self, count_max: usize, hide: u64) {
        let now = self.clock.monotonic();
        let hide = Duration::from_secs(hide);
        let visible = self.expected.values().filter(|truth| truth.visible_at <= now).count();
        let all = self.queue.receive(self.name, count_max, hide).await.unwrap();
        assert_eq!(all.len(), visible.min(count_max), "receives exactly the visible messages");
        for message in all {
            let truth = self.expected.get_mut(&message.text).expect("a deleted message returned");
            assert!(truth.visible_at <= now, "a hidden message was delivered");
            truth.dequeue_count += 1;
            assert_eq!(message.dequeue_count, truth.dequeue_count);
            truth.visible_at = now + hide;
            truth.receipt = Some(message.pop_receipt.clone());
            self.receives.push(message);
        }
    }

    fn is_newest(&self, message: &QueueMessage) -> bool {
        let truth = self.expected.get(&message.text);
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
            let truth = self.expected.get_mut(&message.text).unwrap();
            let receipt = renewed.unwrap();
            truth.visible_at = self.clock.monotonic() + hide;
            truth.receipt = Some(receipt.clone());
            self.receives.push(QueueMessage { pop_receipt: receipt, ..message });
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
            self.expected.remove(&message.text);
        } else {
            assert!(matches!(deleted, Err(QueueError::Gone)));
        }
    }

    /// Lets all messages become visible and receives every message that was not deleted.
    async fn receive_all(&mut self) {
        self.clock.advance(Duration::from_mins(1));
        self.receive(usize::MAX, 60).await;
        let now = self.clock.monotonic();
        assert!(
            self.expected.values().all(|truth| truth.visible_at > now && truth.receipt.is_some())
        );
    }

    /// Models a restart: received messages are visible again, delays continue.
    fn restart(&mut self) {
        let now = self.clock.monotonic();
        for truth in self.expected.values_mut().filter(|truth| truth.dequeue_count > 0) {
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

fn new_model<'a>(clock: &'a ManualClock, queue: &'a dyn Queue, name: &'a str) -> QueueModel<'a> {
    QueueModel { clock, queue, name, expected: HashMap::new(), receives: Vec::new(), sent: 0 }
}

fn clock() -> Arc<ManualClock> {
    Arc::new(ManualClock::new(Timestamp(1_000_000)))
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, max_shrink_iters: 200, ..ProptestConfig::with_cases(200) })]

    #[test]
    fn memory_queue_matches_model(acts in prop::collection::vec(operation_strategy(), 0..60)) {
        run(async {
            let clock = clock();
            let queue = MemoryQueue::new(Arc::<ManualClock>::clone(&clock), 1, QueueFaults::default());
            let mut model = new_model(&clock, &queue, TURNS);
            for act in &acts {
                model.run_operation(act).await;
            }
            model.receive_all().await;
        });
    }
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, max_shrink_iters: 200, ..ProptestConfig::with_cases(24) })]

    #[test]
    fn embedded_nudge_queue_matches_model(acts in prop::collection::vec(operation_strategy(), 0..60)) {
        run(async {
            let folder = tempfile::tempdir().unwrap();
            let clock = clock();
            let queue = embedded(&folder.path().join("queue.sqlite"), &clock).await;
            let mut model = new_model(&clock, &queue, TURNS);
            for act in &acts {
                model.run_operation(act).await;
            }
            model.receive_all().await;
        });
    }

    #[test]
    fn embedded_prompt_queue_matches_model_across_restarts(acts in prop::collection::vec(operation_strategy(), 0..60)) {
        run(async {
            let folder = tempfile::tempdir().unwrap();
            let file = folder.path().join("queue.sqlite");
            let clock = clock();
            let (mut truths, mut receives, mut sent) = (HashMap::new(), Vec::new(), 0);
            for life in acts.split_inclusive(|act| matches!(act, QueueOperation::Restart)) {
                let queue = embedded(&file, &clock).await;
                let mut model =
                    QueueModel { clock: &clock, queue: &queue, name: PROMPTS, expected: truths, receives, sent };
                for act in life {
                    model.run_operation(act).await;
                }
                model.restart();
                QueueModel { expected: truths, receives, sent, .. } = model;
            }
            let queue = embedded(&file, &clock).await;
            QueueModel { clock: &clock, queue: &queue, name: PROMPTS, expected: truths, receives, sent }
                .receive_all()
                .await;
        });
    }
}
