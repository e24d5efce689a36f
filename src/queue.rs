//! Queues of small texts: doorbells of ours, and `agent-prompts`, which holds users' only copy until it is acknowledged.
//!
//! At least once, in no order. The shape is Storage queues': messages are hidden while somebody works on them.

#[cfg(test)]
mod contract;
pub mod doorbell;
mod embedded;
mod line;
mod memory;
#[cfg(test)]
mod properties;
mod redrive;
mod storage;

use std::fmt;
use std::time::Duration;

use async_trait::async_trait;
use tokio::sync::watch;

pub use self::embedded::{EmbeddedQueue, Peeked};
pub use self::memory::{Faults, MemoryQueue};
pub use self::redrive::redrive;
pub use self::storage::StorageQueue;
use crate::clock::Timestamp;

/// Bytes of one message (Storage: 64 KiB).
pub const MESSAGE_BYTES_MAX: usize = 64 * 1024;

/// The expiry of a message that never expires: the last second that [`Timestamp`] can write as ISO 8601.
pub const NEVER: Timestamp = Timestamp(253_402_207_200_000);

pub const TURNS: &str = "agent-turns";
pub const PROMPTS: &str = "agent-prompts";
pub const NOTIFY: &str = "agent-notify";

/// The queue that takes what cannot be delivered.
pub fn poison_of(queue: &str) -> String {
    format!("{queue}-poison")
}

/// Storage's rule for the names of queues.
pub fn is_name(name: &str) -> bool {
    (3..=63).contains(&name.len())
        && name.bytes().all(|byte| matches!(byte, b'a'..=b'z' | b'0'..=b'9' | b'-'))
        && !name.starts_with('-')
        && !name.ends_with('-')
        && !name.contains("--")
}

/// What every queue asks of a text before it takes it.
fn check(text: &str) -> Result<(), QueueError> {
    if text.len() > MESSAGE_BYTES_MAX {
        return Err(QueueError::TooLarge(text.len()));
    }
    let is_bad = |c: char| {
        (c < ' ' && !matches!(c, '\t' | '\n' | '\r')) || matches!(c, '\u{fffe}' | '\u{ffff}')
    };
    text.chars().find(|c| is_bad(*c)).map_or(Ok(()), |c| Err(QueueError::BadCharacter(c)))
}

#[derive(Clone, PartialEq, Eq)]
pub struct Received {
    pub id: String,
    /// Changes with every receive and renewal; only the newest deletes.
    pub pop_receipt: String,
    /// From 1.
    pub dequeue_count: u32,
    pub text: String,
    pub inserted_at: Timestamp,
    pub expires_at: Timestamp,
    pub next_visible_at: Timestamp,
}

impl fmt::Debug for Received {
    /// Without the text, which may be a person's prompt, and without the receipt, which deletes it.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Received")
            .field("id", &self.id)
            .field("dequeue_count", &self.dequeue_count)
            .field("bytes", &self.text.len())
            .finish_non_exhaustive()
    }
}

#[derive(Debug, thiserror::Error)]
pub enum QueueError {
    /// The message is gone, or somebody else has it: do nothing more with it.
    #[error("the message is no longer held")]
    Gone,
    #[error("the message is too large: {0} bytes")]
    TooLarge(usize),
    /// Storage carries messages in XML, which has no such character; refused everywhere, so that `dev` shows it.
    #[error("no queue carries the character U+{:04X}: send JSON, which escapes it, or base64", u32::from(*.0))]
    BadCharacter(char),
    /// Try again.
    #[error("the queue did not answer")]
    Unavailable(#[source] Box<dyn std::error::Error + Send + Sync>),
}

#[async_trait]
pub trait Queue: Send + Sync + fmt::Debug {
    /// Creates the queue when it does not exist. Hidden for `delay`.
    async fn send(&self, queue: &str, text: String, delay: Duration) -> Result<(), QueueError>;

    /// At most `count_max` visible messages, hidden for `hide` from everyone else.
    async fn receive(
        &self,
        queue: &str,
        count_max: usize,
        hide: Duration,
    ) -> Result<Vec<Received>, QueueError>;

    /// Hides a received message for `hide` from now; answers the new pop receipt.
    async fn renew(
        &self,
        queue: &str,
        id: &str,
        pop_receipt: &str,
        hide: Duration,
    ) -> Result<String, QueueError>;

    async fn delete(&self, queue: &str, id: &str, pop_receipt: &str) -> Result<(), QueueError>;

    /// Messages there are, hidden ones included; approximate where the service is.
    async fn length(&self, queue: &str) -> Result<u64, QueueError>;

    /// Changes whenever a message may have become visible; `None` where only polling tells.
    fn arrivals(&self, queue: &str) -> Option<watch::Receiver<u64>>;
}
