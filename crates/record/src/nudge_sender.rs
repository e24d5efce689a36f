//! Sending of nudges.

use std::time::Duration;

use crate::nudge::Nudge;
use crate::services::Services;
use turnwheel_platform::telemetry::Telemetry;
use turnwheel_storage::queue::Queue;

/// Sends a nudge. A lost nudge costs time, never work, because the sweep finds due work. Returns
/// true if the queue accepted it.
pub async fn enqueue_nudge(
    services: &Services,
    queue: &str,
    nudge: &Nudge,
    delay: Duration,
) -> bool {
    NudgeSender { queue: &*services.queue, telemetry: &services.telemetry }
        .send(queue, nudge, delay)
        .await
}

/// Sends nudges to a queue.
#[derive(Clone, Copy, Debug)]
pub struct NudgeSender<'a> {
    pub queue: &'a dyn Queue,
    pub telemetry: &'a Telemetry,
}

impl NudgeSender<'_> {
    /// As [`enqueue_nudge`].
    pub async fn send(self, queue: &str, nudge: &Nudge, delay: Duration) -> bool {
        let text = serde_json::to_string(nudge).unwrap_or_default();
        let sent = self.queue.send(queue, text, delay).await;
        if let Some(metrics) = self.telemetry.metrics() {
            metrics.record_queue_message(queue, "send", sent.is_ok());
        }
        if let Err(error) = &sent {
            tracing::warn!(conversation.id = %nudge.key.conversation_id, error = %error, "nudge not sent; the sweep will enqueue the work");
        }
        sent.is_ok()
    }
}
