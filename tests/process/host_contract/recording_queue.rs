//! An in-memory queue that records its operations, for the local host.

use std::sync::Mutex;
use std::time::{Duration, Instant};

use async_trait::async_trait;
use tokio::sync::watch;
use turnwheel::testing::clock::Timestamp;
use turnwheel::testing::queue::{Queue, QueueError, QueueMessage, validate_text};

/// Longer than any step takes here: a limit, not a wait.
pub(crate) const TIMEOUT: Duration = Duration::from_mins(1);

#[derive(Debug, Default)]
pub(crate) struct QueueState {
    messages: Vec<Message>,
    next: u64,
    pub(crate) deliveries: usize,
    pub(crate) renewals: usize,
    pub(crate) deletions: usize,
    /// True if renewals fail as if another worker had received the message.
    pub(crate) is_stolen: bool,
    /// True if only polling finds new messages.
    pub(crate) is_silent: bool,
    /// Times at which `agent-turns` was polled.
    pub(crate) polled_at: Vec<Instant>,
}

#[derive(Clone, Debug)]
struct Message {
    queue: String,
    id: u64,
    receipt: u64,
    count: u32,
    text: String,
    visible_at: Instant,
}

/// Ids and receipts have the forms of Azure Storage.
fn message_id(number: u64) -> String {
    format!("00000000-0000-4000-8000-{number:012}")
}

fn receipt_text(number: u64) -> String {
    format!("AgAAAAMAAAA{number}")
}

impl QueueState {
    /// Removes the messages of a queue and returns their texts.
    pub(crate) fn take_texts(&mut self, queue: &str) -> Vec<String> {
        let (taken, others) =
            std::mem::take(&mut self.messages).into_iter().partition(|one| one.queue == queue);
        self.messages = others;
        let taken: Vec<Message> = taken;
        taken.into_iter().map(|one| one.text).collect()
    }

    pub(crate) fn texts(&self, queue: &str) -> Vec<&str> {
        self.messages.iter().filter(|one| one.queue == queue).map(|one| one.text.as_str()).collect()
    }

    /// Time until the next message is visible.
    pub(crate) fn hidden_for(&self) -> Option<Duration> {
        let now = Instant::now();
        self.messages.iter().map(|one| one.visible_at.saturating_duration_since(now)).min()
    }

    fn find(&mut self, id: &str, receipt: &str) -> Result<usize, QueueError> {
        let found = self
            .messages
            .iter()
            .position(|one| message_id(one.id) == id && receipt_text(one.receipt) == receipt);
        found.ok_or(QueueError::Gone)
    }
}

#[derive(Debug)]
pub(crate) struct RecordingQueue {
    state: Mutex<QueueState>,
    changes: watch::Sender<u64>,
}

impl Default for RecordingQueue {
    fn default() -> Self {
        Self { state: Mutex::default(), changes: watch::Sender::new(0) }
    }
}

impl RecordingQueue {
    pub(crate) fn change<T>(&self, act: impl FnOnce(&mut QueueState) -> T) -> T {
        let outcome = act(&mut self.state.lock().unwrap());
        self.changes.send_modify(|number| *number += 1);
        outcome
    }

    /// Waits until the state satisfies the condition.
    pub(crate) async fn until(&self, condition: &str, is_met: impl Fn(&QueueState) -> bool) {
        let mut changes = self.changes.subscribe();
        let waiting = changes.wait_for(|_| is_met(&self.state.lock().unwrap()));
        let waited = tokio::time::timeout(TIMEOUT, waiting).await;
        assert!(waited.is_ok(), "never: {condition}; {:?}", self.state.lock().unwrap());
    }

    pub(crate) async fn put(&self, queue: &str, text: &str) {
        self.send(queue, text.to_owned(), Duration::ZERO).await.unwrap();
    }
}

#[async_trait]
impl Queue for RecordingQueue {
    async fn send(&self, queue: &str, text: String, delay: Duration) -> Result<(), QueueError> {
        validate_text(&text)?;
        self.change(|state| {
            state.next += 1;
            let visible_at = Instant::now() + delay;
            let (id, queue) = (state.next, queue.to_owned());
            state.messages.push(Message { queue, id, receipt: 0, count: 0, text, visible_at });
        });
        Ok(())
    }

    async fn receive(
        &self,
        queue: &str,
        count_max: usize,
        hide: Duration,
    ) -> Result<Vec<QueueMessage>, QueueError> {
        let mut state = self.state.lock().unwrap();
        let now = Instant::now();
        if queue == "agent-turns" {
            state.polled_at.push(now);
        }
        let visible = state
            .messages
            .iter_mut()
            .filter(|one| one.queue == queue && one.visible_at <= now)
            .take(count_max);
        let mut received = Vec::new();
        for message in visible {
            message.count += 1;
            message.receipt += 1;
            message.visible_at = now + hide;
            received.push(QueueMessage {
                id: message_id(message.id),
                pop_receipt: receipt_text(message.receipt),
                dequeue_count: message.count,
                text: message.text.clone(),
                inserted_at: Timestamp(0),
                expires_at: Timestamp(0),
                next_visible_at: Timestamp(0),
            });
        }
        state.deliveries += received.len();
        let is_silent = state.is_silent;
        drop(state);
        if !received.is_empty() || is_silent {
            self.change(|_| ());
        }
        Ok(received)
    }

    async fn renew(
        &self,
        _queue: &str,
        id: &str,
        pop_receipt: &str,
        hide: Duration,
    ) -> Result<String, QueueError> {
        self.change(|state| {
            if state.is_stolen {
                state.renewals += 1;
                return Err(QueueError::Gone);
            }
            let index = state.find(id, pop_receipt)?;
            state.renewals += 1;
            let message = state.messages.get_mut(index).unwrap();
            message.receipt += 1;
            message.visible_at = Instant::now() + hide;
            Ok(receipt_text(message.receipt))
        })
    }

    async fn delete(&self, _queue: &str, id: &str, pop_receipt: &str) -> Result<(), QueueError> {
        self.change(|state| {
            let index = state.find(id, pop_receipt)?;
            state.messages.remove(index);
            state.deletions += 1;
            Ok(())
        })
    }

    async fn length(&self, queue: &str) -> Result<u64, QueueError> {
        Ok(self.state.lock().unwrap().texts(queue).len() as u64)
    }

    fn arrivals(&self, _queue: &str) -> Option<watch::Receiver<u64>> {
        let is_silent = self.state.lock().unwrap().is_silent;
        (!is_silent).then(|| self.changes.subscribe())
    }
}
