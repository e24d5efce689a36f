//! Nudges through the output binding of a host invocation.
//!
//! Undelayed nudges are returned to the host in the invocation's response. The host enqueues them
//! and wakes its own listener at once. Other messages are sent directly. The host writes outputs
//! only after a 2xx response, and cannot delay them.

use std::future::Future;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use async_trait::async_trait;
use futures_util::{StreamExt as _, stream};
use tokio::sync::watch;
use tokio::time::timeout;

use crate::queue::{Queue, QueueError, QueueMessage, TURNS};
use turnwheel_platform::telemetry::cost_meter;

/// The output binding's name in every background function's `function.json`.
pub const NUDGES: &str = "nudges";

/// Maximum nudges in the response of one invocation: the host writes all of them at the same time.
const OUTPUTS_MAX: usize = 64;
/// Number of nudges of a failed invocation that are sent concurrently.
const SEND_CONCURRENCY: usize = 8;
/// Maximum time of sending all of them.
const SEND_TIME_MAX: Duration = Duration::from_secs(10);

tokio::task_local! {
    static BUFFERED_NUDGES: Arc<Mutex<BufferedNudges>>;
}

/// Nudges of one invocation, each text once, in order. They take effect when they are returned to
/// the host, or sent.
#[derive(Debug, Default)]
pub struct BufferedNudges(Vec<(String, Arc<dyn Queue>)>);

impl BufferedNudges {
    pub fn texts(&self) -> Vec<&str> {
        self.0.iter().map(|(text, _)| text.as_str()).collect()
    }

    /// Sends the nudges of a failed invocation, whose outputs the host does not write. Ends within
    /// [`SEND_TIME_MAX`], also if the queue does not respond.
    pub async fn send(self) {
        let send_all = stream::iter(self.0).for_each_concurrent(
            SEND_CONCURRENCY,
            |(text, queue)| async move {
                if let Err(error) = queue.send(TURNS, text, Duration::ZERO).await {
                    tracing::warn!(error = %error, "nudge not sent; the recovery sweep will find the work");
                }
            },
        );
        if timeout(SEND_TIME_MAX, send_all).await.is_err() {
            tracing::warn!("nudges not sent in time; the recovery sweep will find the work");
        }
    }
}

/// A queue that buffers undelayed nudges for the response, within [`buffer_nudges`].
#[derive(Debug)]
pub struct OutputBindingQueue(Arc<dyn Queue>);

impl OutputBindingQueue {
    pub fn wrap(queue: Arc<dyn Queue>) -> Arc<dyn Queue> {
        Arc::new(Self(queue))
    }
}

/// Runs the work of an invocation and buffers its undelayed nudges.
pub async fn buffer_nudges<T>(work: impl Future<Output = T>) -> (T, BufferedNudges) {
    let buffered = Arc::<Mutex<BufferedNudges>>::default();
    let outcome = BUFFERED_NUDGES.scope(Arc::clone(&buffered), work).await;
    let buffered = std::mem::take(&mut *buffered.lock().unwrap_or_else(PoisonError::into_inner));
    (outcome, buffered)
}

impl OutputBindingQueue {
    /// Buffers the text for the response of this task's invocation. Returns false outside of an
    /// invocation, or if the buffer is full.
    fn try_buffer(&self, text: &str) -> bool {
        let buffer = |buffered: &Arc<Mutex<BufferedNudges>>| {
            let BufferedNudges(nudges) =
                &mut *buffered.lock().unwrap_or_else(PoisonError::into_inner);
            let is_known = nudges.iter().any(|(known, _)| known == text);
            let has_room = nudges.len() < OUTPUTS_MAX;
            if !is_known && has_room {
                nudges.push((text.to_owned(), Arc::clone(&self.0)));
                // The host sends the request, but it is a cost of this work.
                cost_meter::count_request("queue.output", 0.0);
            }
            is_known || has_room
        };
        BUFFERED_NUDGES.try_with(buffer).unwrap_or_default()
    }
}

#[async_trait]
impl Queue for OutputBindingQueue {
    async fn send(&self, queue: &str, text: String, delay: Duration) -> Result<(), QueueError> {
        if queue == TURNS && delay.is_zero() && self.try_buffer(&text) {
            return Ok(());
        }
        self.0.send(queue, text, delay).await
    }

    async fn receive(
        &self,
        queue: &str,
        count_max: usize,
        hide: Duration,
    ) -> Result<Vec<QueueMessage>, QueueError> {
        self.0.receive(queue, count_max, hide).await
    }

    async fn renew(
        &self,
        queue: &str,
        id: &str,
        pop_receipt: &str,
        hide: Duration,
    ) -> Result<String, QueueError> {
        self.0.renew(queue, id, pop_receipt, hide).await
    }

    async fn delete(&self, queue: &str, id: &str, pop_receipt: &str) -> Result<(), QueueError> {
        self.0.delete(queue, id, pop_receipt).await
    }

    async fn length(&self, queue: &str) -> Result<u64, QueueError> {
        self.0.length(queue).await
    }

    fn arrivals(&self, queue: &str) -> Option<watch::Receiver<u64>> {
        self.0.arrivals(queue)
    }
}

#[cfg(test)]
mod tests {
    use tokio::time::Instant;

    use super::*;
    use crate::queue::{HangingQueue, MemoryQueue, NOTIFY, QueueFaults};
    use turnwheel_platform::clock::SystemClock;

    const NOW: Duration = Duration::ZERO;

    fn queues() -> (Arc<MemoryQueue>, Arc<dyn Queue>) {
        let memory =
            Arc::new(MemoryQueue::new(Arc::new(SystemClock::default()), 0, QueueFaults::default()));
        let output_binding = OutputBindingQueue::wrap(Arc::clone(&memory) as _);
        (memory, output_binding)
    }

    #[tokio::test]
    async fn undelayed_nudges_are_buffered_once() {
        let (memory, output_binding) = queues();
        let work = async {
            for text in ["a", "b", "a"] {
                output_binding.send(TURNS, text.into(), NOW).await.unwrap();
            }
            output_binding.send(TURNS, "later".into(), Duration::from_secs(9)).await.unwrap();
            output_binding.send(NOTIFY, "a notification".into(), NOW).await.unwrap();
        };
        let ((), buffered) = buffer_nudges(work).await;
        assert_eq!(buffered.texts(), ["a", "b"]);
        assert_eq!(memory.length(TURNS).await.unwrap(), 1, "the delayed one");
        assert_eq!(memory.length(NOTIFY).await.unwrap(), 1);
        buffered.send().await;
        assert_eq!(memory.length(TURNS).await.unwrap(), 3);
    }

    #[tokio::test(start_paused = true)]
    async fn hanging_queue_ends_sending_in_time() {
        let hanging = Arc::new(HangingQueue::default());
        let output_binding = OutputBindingQueue::wrap(Arc::clone(&hanging) as _);
        let work = async {
            for number in 0..OUTPUTS_MAX {
                output_binding.send(TURNS, number.to_string(), NOW).await.unwrap();
            }
        };
        let ((), buffered) = buffer_nudges(work).await;
        assert_eq!(buffered.texts().len(), OUTPUTS_MAX);
        let began = Instant::now();
        let mut sending = Box::pin(buffered.send());
        assert!(futures_util::poll!(&mut sending).is_pending());
        assert_eq!(hanging.sends_in_flight(), SEND_CONCURRENCY);
        timeout(Duration::from_mins(1), sending).await.expect("it ends");
        assert_eq!((began.elapsed(), hanging.sends_in_flight()), (SEND_TIME_MAX, 0));
    }

    #[tokio::test]
    async fn nudge_is_sent_outside_of_invocation() {
        let (memory, output_binding) = queues();
        output_binding.send(TURNS, "by HTTP".into(), NOW).await.unwrap();
        assert_eq!(memory.length(TURNS).await.unwrap(), 1);
    }

    #[tokio::test]
    async fn nudges_are_sent_when_buffer_is_full() {
        let (memory, output_binding) = queues();
        let work = async {
            for number in 0..OUTPUTS_MAX + 5 {
                output_binding.send(TURNS, number.to_string(), NOW).await.unwrap();
            }
        };
        let ((), buffered) = buffer_nudges(work).await;
        assert_eq!(buffered.texts().len(), OUTPUTS_MAX);
        assert_eq!(memory.length(TURNS).await.unwrap(), 5);
    }
}
