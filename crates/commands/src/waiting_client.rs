//! A client that waits for its prompt at the process that accepts it (`execution: here`).

use std::fmt;
use std::sync::Arc;

use tokio_util::sync::{CancellationToken, DropGuard};

use turnwheel_record::nudge::Nudge;

/// Runs turns in the process that accepts their prompt.
pub trait TurnRunner: fmt::Debug + Send + Sync {
    /// Starts a task that takes the turns of the nudged conversation until `gone` is cancelled. A message
    /// wakes a worker for its later turns. False: no task was started.
    fn start(&self, nudge: Nudge, gone: CancellationToken) -> bool;
}

/// A request that waits for the outcome of its prompt.
#[derive(Clone, Debug)]
pub struct WaitingClient {
    runner: Arc<dyn TurnRunner>,
    gone: CancellationToken,
}

impl WaitingClient {
    /// The client is gone as soon as the guard is dropped.
    pub fn new(runner: Arc<dyn TurnRunner>) -> (Self, DropGuard) {
        let gone = CancellationToken::new();
        let guard = gone.clone().drop_guard();
        (Self { runner, gone }, guard)
    }

    pub(crate) fn start(&self, nudge: Nudge) -> bool {
        self.runner.start(nudge, self.gone.clone())
    }
}
