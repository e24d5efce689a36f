//! A client that waits for its prompt at the process that accepts it (`execution: here`).

use std::fmt;
use std::sync::Arc;

use tokio_util::sync::{CancellationToken, DropGuard};

use crate::pipeline::Signal;
use crate::prompt_request::{Disposition, Sender};
use turnwheel_agent_files::Execution;
use turnwheel_conversation::head::Head;
use turnwheel_record::nudge::Nudge;
use turnwheel_record::services::Services;

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

/// The signal of an input of that sender. The process takes the first turn itself if the agent asks for
/// it, the conversation is idle, and no worker has died in its last step: a step that kills its process
/// must not end the requests of all other clients.
pub(crate) fn start_signal<'a>(
    services: &Services,
    head: &Head,
    sender: &'a Sender,
    disposition: Disposition,
) -> Signal<'a> {
    let traceparent = sender.traceparent.as_deref();
    let runs_here = || {
        let agent = services.agents.find(Some(&head.agent));
        agent.is_ok_and(|agent| agent.execution == Execution::Here)
    };
    let is_leased_or_suspect =
        head.lease.is_some() || head.leases_without_progress > 0 || !head.suspicion.is_blank();
    match &sender.client {
        Some(client)
            if disposition == Disposition::Started && !is_leased_or_suspect && runs_here() =>
        {
            Signal::Start { client, traceparent }
        }
        _ => Signal::Wake(traceparent),
    }
}
