//! Subscription to the events of an agent.

use std::fmt;
use std::sync::Arc;

use crate::embedded::{AgentInner, lock};

/// A subscription. Dropping it removes the listener.
#[must_use = "dropping the subscription removes the listener"]
pub struct Subscription {
    pub(super) inner: Arc<AgentInner>,
    pub(super) number: u64,
}

impl Subscription {
    pub fn unsubscribe(self) {
        drop(self);
    }
}

impl Drop for Subscription {
    fn drop(&mut self) {
        lock(&self.inner.listeners).retain(|(number, _)| *number != self.number);
    }
}

impl fmt::Debug for Subscription {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Subscription").field("number", &self.number).finish_non_exhaustive()
    }
}
