//! A queue that never responds, for tests.

use std::future::pending;
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use tokio::sync::watch;

use crate::queue::{Queue, QueueError, QueueMessage};

#[derive(Debug, Default)]
pub struct HangingQueue {
    /// Each send has a clone until its caller gives it up.
    sends: Arc<()>,
}

impl HangingQueue {
    pub fn sends_in_flight(&self) -> usize {
        Arc::strong_count(&self.sends) - 1
    }
}

#[async_trait]
impl Queue for HangingQueue {
    async fn send(&self, _queue: &str, _text: String, _delay: Duration) -> Result<(), QueueError> {
        let _send = Arc::clone(&self.sends);
        pending().await
    }

    async fn receive(
        &self,
        _queue: &str,
        _count_max: usize,
        _hide: Duration,
    ) -> Result<Vec<QueueMessage>, QueueError> {
        pending().await
    }

    async fn renew(
        &self,
        _queue: &str,
        _id: &str,
        _pop_receipt: &str,
        _hide: Duration,
    ) -> Result<String, QueueError> {
        pending().await
    }

    async fn delete(&self, _queue: &str, _id: &str, _pop_receipt: &str) -> Result<(), QueueError> {
        pending().await
    }

    async fn length(&self, _queue: &str) -> Result<u64, QueueError> {
        pending().await
    }

    fn arrivals(&self, _queue: &str) -> Option<watch::Receiver<u64>> {
        None
    }
}
