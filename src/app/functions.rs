//! Handlers of the queue and timer functions.

use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;

use crate::agent::raw::misfit;
use crate::http::functions::{FunctionFailure, Functions, Meta, TimerInfo};
use crate::queue;
use crate::telemetry::trace::Role;
use crate::turn::admission::queued::accept_queued;
use crate::turn::delivery::{self, TurnError};
use crate::turn::{Nudge, World, faults, notify, recount, sweep};

#[derive(Debug)]
pub(super) struct Handlers {
    pub(super) world: Arc<World>,
}

impl Handlers {
    fn count(&self, queue: &str, is_done: bool) {
        if let Some(metrics) = self.world.telemetry.metrics() {
            metrics.message(queue, "process", is_done);
        }
    }

    fn count_poison(&self, queue: &str) {
        if let Some(metrics) = self.world.telemetry.metrics() {
            metrics.poison(queue);
        }
    }
}

#[async_trait]
impl Functions for Handlers {
    async fn turn(&self, message: String, _meta: Meta) -> Result<(), FunctionFailure> {
        let Some(nudge) = nudge(&message) else { return Ok(()) };
        let handled = Box::pin(delivery::handle(&self.world, &nudge)).await;
        self.count(queue::TURNS, !matches!(handled, Err(TurnError::Store { .. })));
        match handled {
            Ok(_) => Ok(()),
            // The other worker continues the conversation.
            Err(TurnError::ClaimLost { key }) => {
                tracing::info!(conversation.id = %key.conversation_id, "delivery ended: another worker has the lease of {key}");
                Ok(())
            }
            Err(error) => Err(failure(&error)),
        }
    }

    async fn prompt(&self, message: String, meta: Meta) -> Result<(), FunctionFailure> {
        let span = self
            .world
            .telemetry
            .span("prompt")
            .role(Role::Consumer)
            .with("messaging.system", "azure_storage_queue")
            .with("messaging.operation.name", "process")
            .with("messaging.destination.name", queue::PROMPTS)
            .start();
        let message_id = meta.message_id.unwrap_or_default();
        let accepted = span.run(Box::pin(accept_queued(&self.world, &message, &message_id))).await;
        self.count(queue::PROMPTS, accepted.is_ok());
        if let Some(fault) = accepted.as_ref().err().and_then(faults::of_refusal) {
            span.fail(&fault);
        }
        accepted.map(|_| ()).map_err(|error| failure(&error))
    }

    async fn notify(&self, message: String, _meta: Meta) -> Result<(), FunctionFailure> {
        let Some(nudge) = nudge(&message) else { return Ok(()) };
        let told = notify::notify(&self.world, &nudge).await;
        self.count(queue::NOTIFY, told.is_ok());
        told.map_err(|error| failure(&error))
    }

    async fn sweep(&self, _timer: TimerInfo, _meta: Meta) -> Result<(), FunctionFailure> {
        sweep::sweep(&self.world, sweep::GRACE).await.map(|_| ()).map_err(|error| failure(&error))
    }

    /// The host moved a nudge to the poison queue. The conversation itself is intact, so a new
    /// nudge is sent.
    async fn turn_poison(&self, message: String, _meta: Meta) -> Result<(), FunctionFailure> {
        let Some(nudge) = nudge(&message) else { return Ok(()) };
        tracing::warn!(conversation.id = %nudge.key.conversation_id, "nudge moved to the poison queue; sending a new one conversation={}", nudge.key.conversation_id);
        self.count_poison(queue::TURNS);
        recount::nudge_again(&self.world, &nudge).await;
        Ok(())
    }

    /// The notification and its deadline are stored, so the recovery sweep enqueues it again.
    async fn notify_poison(&self, message: String, _meta: Meta) -> Result<(), FunctionFailure> {
        self.count_poison(queue::NOTIFY);
        if let Some(nudge) = nudge(&message) {
            tracing::warn!(conversation.id = %nudge.key.conversation_id, "notification nudge moved to the poison queue; the recovery sweep enqueues it again conversation={}", nudge.key.conversation_id);
        }
        Ok(())
    }
}

/// Parses a queue message. Returns `None` for an invalid message, which the caller acknowledges:
/// the pending work is in the store, so no work is lost.
fn nudge(message: &str) -> Option<Nudge> {
    match serde_json::from_str(message) {
        Ok(nudge) => Some(nudge),
        Err(error) => {
            let why = misfit(&error);
            tracing::error!(
                error = %why, "invalid queue message removed: not a nudge"
            );
            None
        }
    }
}

fn failure(error: &dyn std::error::Error) -> FunctionFailure {
    let mut text = error.to_string();
    let mut source = error.source();
    while let Some(cause) = source {
        text = format!("{text}: {cause}");
        source = cause.source();
    }
    FunctionFailure(text)
}

/// Time that active turns get to finish when `dev` stops. A model response that was billed is then
/// committed and not requested again.
pub(super) const DEV_STOP_WITHIN: Duration = Duration::from_secs(30);

/// Time that active turns get to finish when the handler stops.
pub(super) const STOP_WITHIN: Duration = Duration::from_secs(10);
