//! Nudges through the output binding of a host invocation.
//!
//! Undelayed nudges are returned to the host in the invocation's response. The host enqueues them
//! and wakes its own listener at once. Other messages are sent directly. The host writes outputs
//! only after a 2xx response, and cannot delay them.

use std::future::Future;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use async_trait::async_trait;
use tokio::sync::watch;

use crate::queue::{Queue, QueueError, Received, TURNS};
use crate::telemetry::meter;

/// The output binding's name in every background function's `function.json`.
pub const NUDGES: &str = "nudges";

/// Maximum nudges in the response of one invocation: the host writes all of them at the same time.
const OUTPUTS_MAX: usize = 64;

tokio::task_local! {
    static RUNG: Arc<Mutex<Rung>>;
}

/// Nudges of one invocation, each text once, in order. They take effect when they are returned to
/// the host, or sent.
#[derive(Debug, Default)]
pub struct Rung(Vec<(String, Arc<dyn Queue>)>);

impl Rung {
    pub fn texts(&self) -> Vec<&str> {
        self.0.iter().map(|(text, _)| text.as_str()).collect()
    }

    /// Sends the nudges of a failed invocation, whose outputs the host does not write.
    pub async fn send(self) {
        for (text, queue) in self.0 {
            if let Err(error) = queue.send(TURNS, text, Duration::ZERO).await {
                tracing::warn!(error = %error, "nudge not sent; the recovery sweep will find the work");
            }
        }
    }
}

/// A queue that buffers undelayed nudges for the response, within [`buffer_nudges`].
#[derive(Debug)]
pub struct Doorbell(Arc<dyn Queue>);

impl Doorbell {
    pub fn over(queue: Arc<dyn Queue>) -> Arc<dyn Queue> {
        Arc::new(Self(queue))
    }
}

/// Runs the work of an invocation and buffers its undelayed nudges.
pub async fn listen<T>(work: impl Future<Output = T>) -> (T, Rung) {
    let rung = Arc::<Mutex<Rung>>::default();
    let outcome = RUNG.scope(Arc::clone(&rung), work).await;
    let rung = std::mem::take(&mut *rung.lock().unwrap_or_else(PoisonError::into_inner));
    (outcome, rung)
}

impl Doorbell {
    /// Buffers the text for the response of this task's invocation. Returns false outside of an
    /// invocation, or if the buffer is full.
    fn keeps(&self, text: &str) -> bool {
        let keep = |rung: &Arc<Mutex<Rung>>| {
            let Rung(kept) = &mut *rung.lock().unwrap_or_else(PoisonError::into_inner);
            let is_known = kept.iter().any(|(known, _)| known == text);
            let has_room = kept.len() < OUTPUTS_MAX;
            if !is_known && has_room {
                kept.push((text.to_owned(), Arc::clone(&self.0)));
                // The host sends the request, but it is a cost of this work.
                meter::count("queue.output", 0.0);
            }
            is_known || has_room
        };
        RUNG.try_with(keep).unwrap_or_default()
    }
}

#[async_trait]
impl Queue for Doorbell {
    async fn send(&self, queue: &str, text: String, delay: Duration) -> Result<(), QueueError> {
        if queue == TURNS && delay.is_zero() && self.keeps(&text) {
            return Ok(());
        }
        self.0.send(queue, text, delay).await
    }

    async fn receive(
        &self,
        queue: &str,
        count_max: usize,
        hide: Duration,
    ) -> Result<Vec<Received>, QueueError> {
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
    use super::*;
    use crate::clock::SystemClock;
    use crate::queue::{Faults, MemoryQueue, NOTIFY};

    const NOW: Duration = Duration::ZERO;

    fn queues() -> (Arc<MemoryQueue>, Arc<dyn Queue>) {
        let memory =
            Arc::new(MemoryQueue::new(Arc::new(SystemClock::default()), 0, Faults::default()));
        let doorbell = Doorbell::over(Arc::clone(&memory) as _);
        (memory, doorbell)
    }

    #[tokio::test]
    async fn what_rings_for_now_is_kept_once_and_everything_else_is_sent() {
        let (memory, doorbell) = queues();
        let work = async {
            for text in ["a", "b", "a"] {
                doorbell.send(TURNS, text.into(), NOW).await.unwrap();
            }
            doorbell.send(TURNS, "later".into(), Duration::from_secs(9)).await.unwrap();
            doorbell.send(NOTIFY, "a notification".into(), NOW).await.unwrap();
        };
        let ((), rung) = listen(work).await;
        assert_eq!(rung.texts(), ["a", "b"]);
        assert_eq!(memory.length(TURNS).await.unwrap(), 1, "the delayed one");
        assert_eq!(memory.length(NOTIFY).await.unwrap(), 1);
        rung.send().await;
        assert_eq!(memory.length(TURNS).await.unwrap(), 3);
    }

    #[tokio::test]
    async fn who_is_no_invocation_of_the_host_sends_itself() {
        let (memory, doorbell) = queues();
        doorbell.send(TURNS, "by HTTP".into(), NOW).await.unwrap();
        assert_eq!(memory.length(TURNS).await.unwrap(), 1);
    }

    #[tokio::test]
    async fn more_than_an_answer_should_carry_is_sent() {
        let (memory, doorbell) = queues();
        let work = async {
            for number in 0..OUTPUTS_MAX + 5 {
                doorbell.send(TURNS, number.to_string(), NOW).await.unwrap();
            }
        };
        let ((), rung) = listen(work).await;
        assert_eq!(rung.texts().len(), OUTPUTS_MAX);
        assert_eq!(memory.length(TURNS).await.unwrap(), 5);
    }
}
