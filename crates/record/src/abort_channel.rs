//! Ids of aborts, and the signal of an abort within this process.

use tokio::sync::broadcast;

use turnwheel_platform::ids::{ConversationKey, InputId, PromptId};

/// Signals that a receiver may lag behind. Beyond that it reads the store.
const CHANNEL_CAPACITY: usize = 64;

/// Id of the inbox item and the receipt that abort a prompt: at most one exists.
pub fn abort_id(prompt: &PromptId) -> InputId {
    InputId::new(format!("stop-{prompt}"))
}

/// Aborts accepted by this process. Missing a signal is harmless: the abort is in the store.
#[derive(Clone, Debug)]
pub struct AbortSignals(pub broadcast::Sender<ConversationKey>);

impl Default for AbortSignals {
    fn default() -> Self {
        Self(broadcast::Sender::new(CHANNEL_CAPACITY))
    }
}

impl AbortSignals {
    pub fn emit(&self, key: &ConversationKey) {
        // An error only means that this process has no receivers.
        let _ = self.0.send(key.clone());
    }
}
