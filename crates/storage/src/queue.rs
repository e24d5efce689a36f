//! Queues of small texts: nudges, and `agent-prompts`, which holds the users' only copy of a prompt
//! until it is acknowledged.
//!
//! Delivery is at least once, in no order. The port follows Azure Storage queues: a received
//! message is hidden while a receiver processes it.

#[cfg(test)]
mod contract;
mod embedded;
#[cfg(any(test, feature = "testing"))]
mod hanging;
mod memory;
pub mod output_binding;
mod owner_order;
#[cfg(test)]
mod properties;
pub mod redrive;
mod storage;
mod visibility_queue;

use std::fmt;
use std::time::Duration;

use async_trait::async_trait;
use serde::{Deserialize, Serialize};
use tokio::sync::watch;

pub use self::embedded::EmbeddedQueue;
#[cfg(any(test, feature = "testing"))]
pub use self::hanging::HangingQueue;
pub use self::memory::{MemoryQueue, QueueFaults};
pub use self::redrive::redrive;
pub use self::storage::StorageQueue;
use turnwheel_platform::clock::Timestamp;
use turnwheel_platform::error_chain::as_text;

/// Maximum bytes of one message (Storage: 64 KiB).
pub const MESSAGE_BYTES_MAX: usize = 64 * 1024;

/// The expiry of a message that never expires: the last second that [`Timestamp`] can format as
/// ISO 8601.
pub const NEVER: Timestamp = Timestamp(253_402_207_200_000);

pub const TURNS: &str = "agent-turns";
pub const PROMPTS: &str = "agent-prompts";
pub const NOTIFY: &str = "agent-notify";

/// Name of the poison queue, for messages that cannot be delivered.
pub fn poison_queue(queue: &str) -> String {
    format!("{queue}-poison")
}

/// True if Azure Storage allows the name for a queue.
pub fn is_queue_name(name: &str) -> bool {
    (3..=63).contains(&name.len())
        && name.bytes().all(|byte| matches!(byte, b'a'..=b'z' | b'0'..=b'9' | b'-'))
        && !name.starts_with('-')
        && !name.ends_with('-')
        && !name.contains("--")
}

/// Validates a message text for every queue.
///
/// # Errors
/// The text is too large or has a character that no queue accepts: send another one.
pub fn validate_text(text: &str) -> Result<(), QueueError> {
    if text.len() > MESSAGE_BYTES_MAX {
        return Err(QueueError::TooLarge(text.len()));
    }
    let is_bad = |c: char| {
        (c < ' ' && !matches!(c, '\t' | '\n' | '\r')) || matches!(c, '\u{fffe}' | '\u{ffff}')
    };
    text.chars().find(|c| is_bad(*c)).map_or(Ok(()), |c| Err(QueueError::BadCharacter(c)))
}

#[derive(Clone, PartialEq, Eq)]
pub struct QueueMessage {
    pub id: String,
    /// Changes with every receive and renewal; only the newest one is valid.
    pub pop_receipt: String,
    /// Number of receives, starting at 1.
    pub dequeue_count: u32,
    pub text: String,
    pub inserted_at: Timestamp,
    pub expires_at: Timestamp,
    pub next_visible_at: Timestamp,
}

impl fmt::Debug for QueueMessage {
    /// Omits the text, which may be a user's prompt, and the pop receipt, which permits deletion.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("QueueMessage")
            .field("id", &self.id)
            .field("dequeue_count", &self.dequeue_count)
            .field("bytes", &self.text.len())
            .finish_non_exhaustive()
    }
}

/// Its JSON has the causes as text.
#[derive(Debug, thiserror::Error, Serialize, Deserialize)]
pub enum QueueError {
    /// The message is deleted, or another receiver has it: do nothing more with it.
    #[error("the message is deleted or was received again")]
    Gone,
    #[error("the message is too large: {0} bytes")]
    TooLarge(usize),
    /// Storage sends messages as XML, which cannot contain the character. Every queue rejects it,
    /// so that the error shows up in `dev` too. Send JSON or base64.
    #[error("a message cannot contain the character U+{:04X}: send JSON, which escapes it, or base64", u32::from(*.0))]
    BadCharacter(char),
    /// The outcome is unknown: try again.
    #[error("the queue is unavailable")]
    Unavailable(
        #[source]
        #[serde(with = "as_text")]
        Box<dyn std::error::Error + Send + Sync>,
    ),
}

#[async_trait]
pub trait Queue: Send + Sync + fmt::Debug {
    /// Sends a message that is hidden for `delay`. Creates the queue if it does not exist.
    async fn send(&self, queue: &str, text: String, delay: Duration) -> Result<(), QueueError>;

    /// Receives at most `count_max` visible messages and hides them for `hide`.
    async fn receive(
        &self,
        queue: &str,
        count_max: usize,
        hide: Duration,
    ) -> Result<Vec<QueueMessage>, QueueError>;

    /// Hides a received message for `hide` from now. Returns the new pop receipt.
    async fn renew(
        &self,
        queue: &str,
        id: &str,
        pop_receipt: &str,
        hide: Duration,
    ) -> Result<String, QueueError>;

    async fn delete(&self, queue: &str, id: &str, pop_receipt: &str) -> Result<(), QueueError>;

    /// Number of messages, hidden ones included. Approximate on Azure Storage.
    async fn length(&self, queue: &str) -> Result<u64, QueueError>;

    /// Returns a counter that changes whenever a message may have become visible. `None` if the
    /// queue needs polling.
    fn arrivals(&self, queue: &str) -> Option<watch::Receiver<u64>>;
}
