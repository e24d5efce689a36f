//! Moves messages from a poison queue back to their queue.

use std::time::Duration;

use serde::Deserialize;

use crate::queue::{Queue, QueueError, poison_queue};

/// Time for which messages are hidden during the move. After a crash they are visible again on the
/// poison queue.
const HIDE: Duration = Duration::from_mins(1);
const BATCH_MAX: usize = 32;

/// A poison message with a reason. The host writes the bare text instead.
#[derive(Deserialize)]
#[serde(untagged)]
enum WrappedPoisonMessage {
    Whole {
        original: String,
        #[expect(dead_code, reason = "its presence distinguishes a wrapped text from a bare one")]
        reason: String,
    },
    /// The reason of another message, which has no room for it.
    Reason {
        #[expect(dead_code, reason = "its presence distinguishes the reason from a bare text")]
        #[serde(rename = "originalSha256")]
        original_sha256: String,
        #[expect(dead_code, reason = "its presence distinguishes the reason from a bare text")]
        reason: String,
    },
}

/// Moves the messages that are on the poison queue now, and returns their number. Messages that are
/// rejected again meanwhile stay. Each message is sent before it is deleted, so an interruption
/// duplicates at most one message.
///
/// # Errors
/// The queue is unavailable. The remaining messages are still on the poison queue: try again.
pub async fn redrive(queues: &dyn Queue, queue: &str) -> Result<u64, QueueError> {
    let poison = poison_queue(queue);
    let total = queues.length(&poison).await?;
    let (mut taken, mut moved) = (0, 0);
    while taken < total {
        let batch = usize::try_from(total - taken).unwrap_or(BATCH_MAX).min(BATCH_MAX);
        let received = queues.receive(&poison, batch, HIDE).await?;
        if received.is_empty() {
            break;
        }
        for message in received {
            let original = match serde_json::from_str::<WrappedPoisonMessage>(&message.text) {
                Ok(WrappedPoisonMessage::Whole { original, .. }) => Some(original),
                Ok(WrappedPoisonMessage::Reason { .. }) => None,
                Err(_) => Some(message.text),
            };
            if let Some(original) = original {
                queues.send(queue, original, Duration::ZERO).await?;
                moved += 1;
            }
            match queues.delete(&poison, &message.id, &message.pop_receipt).await {
                // Another process has moved it too. The message is sent twice; the second copy has
                // no effect.
                Ok(()) | Err(QueueError::Gone) => taken += 1,
                Err(error) => return Err(error),
            }
        }
    }
    Ok(moved)
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::*;
    use crate::queue::{MemoryQueue, PROMPTS, QueueFaults};
    use turnwheel_platform::clock::{ManualClock, Timestamp};

    #[tokio::test]
    async fn redriven_messages_are_unchanged() {
        let clock = Arc::new(ManualClock::new(Timestamp(0)));
        let queues = MemoryQueue::new(clock, 1, QueueFaults::default());
        let poison = poison_queue(PROMPTS);
        let wrapped = r#"{"reason":"no such agent","original":"{\"agent\":\"clerk\"}","receivedAt":"2026-01-01T00:00:00Z"}"#;
        let bare = r#"{"agent":"clerk","original":"unknown member"}"#;
        let reason = r#"{"reason":"no such agent","originalSha256":"ab","receivedAt":"2026-01-01T00:00:00Z"}"#;
        for text in [wrapped, reason, bare, "not json"] {
            queues.send(&poison, text.to_owned(), Duration::ZERO).await.unwrap();
        }
        assert_eq!(redrive(&queues, PROMPTS).await.unwrap(), 3);
        assert_eq!(queues.length(&poison).await.unwrap(), 0);
        let back = queues.receive(PROMPTS, 32, HIDE).await.unwrap();
        let mut texts: Vec<_> = back.into_iter().map(|message| message.text).collect();
        texts.sort();
        assert_eq!(
            texts,
            [
                "not json",
                r#"{"agent":"clerk","original":"unknown member"}"#,
                r#"{"agent":"clerk"}"#
            ]
        );
        assert_eq!(redrive(&queues, PROMPTS).await.unwrap(), 0);
    }
}
