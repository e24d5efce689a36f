//! Handlers of the queue and timer functions.

use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use tokio_util::sync::CancellationToken;

use crate::start::owner_turns::OwnerTurns;
use crate::start::read_check::ReadCheck;
use crate::start::work_file::WorkFile;
use turnwheel_commands::prompt_queue::{accept_queue_message, put_back, put_back_or_repeat};
use turnwheel_http::functions::{FunctionFailure, Functions, InvocationMeta, TimerInfo};
use turnwheel_json::raw::redacted_error;
use turnwheel_platform::error_chain::error_chain;
use turnwheel_platform::telemetry::trace::SpanRole;
use turnwheel_record::contract::CommandError;
use turnwheel_record::error::TurnError;
use turnwheel_record::nudge::Nudge;
use turnwheel_record::nudge_sender::enqueue_nudge;
use turnwheel_record::services::Services;
use turnwheel_record::{error_domain, notifications};
use turnwheel_storage::queue;
use turnwheel_storage::store::StoreError;
use turnwheel_turn::clock_change::{self, ClockWatch};
use turnwheel_turn::{crash_count, delivery, sweep};

#[derive(Debug)]
pub(crate) struct FunctionHandlers {
    pub(crate) services: Arc<Services>,
    /// `None`: leases end with the process.
    pub(crate) work_file: Option<Arc<WorkFile>>,
    pub(crate) read_check: ReadCheck,
    pub(crate) clock_watch: ClockWatch,
    pub(crate) owner_turns: OwnerTurns,
}

impl FunctionHandlers {
    async fn sweep_once(&self) -> Result<(), FunctionFailure> {
        if self.clock_watch.was_set_back(&*self.services.clock) {
            clock_change::end_waits(&self.services).await.map_err(|error| to_failure(&error))?;
        }
        let swept = sweep::sweep(&*self.services, sweep::GRACE_PERIOD).await;
        swept.map_err(|error| to_failure(&error))?;
        self.read_check.run_if_due(&self.services).await;
        Ok(())
    }

    /// Takes the turns of a nudge, which its caller counts in `owner_turns`. `client`: this process took them
    /// itself, for a client that waits here.
    pub(crate) async fn take_turns(
        &self,
        nudge: &Nudge,
        client: Option<&CancellationToken>,
    ) -> Result<(), FunctionFailure> {
        if self.services.shutdown.is_begun() {
            crash_count::put_back_nudge(&self.services, queue::TURNS, nudge).await;
            return Ok(());
        }
        let mark = self
            .work_file
            .as_ref()
            .filter(|_| nudge.schedule.is_none())
            .and_then(|file| file.add(&nudge.key, &self.services.shutdown));
        let handled = Box::pin(delivery::handle_for_client(&self.services, nudge, client)).await;
        // After an error the lease may be left.
        if let Some(mark) = mark.filter(|_| handled.is_ok()) {
            mark.end();
        }
        if client.is_none() {
            self.record_message(queue::TURNS, !matches!(handled, Err(TurnError::Store { .. })));
        }
        match handled {
            // The nudge of a stopped turn is enqueued.
            Ok(_) | Err(TurnError::Stopped { .. }) => Ok(()),
            // The other worker continues the conversation.
            Err(TurnError::LeaseLost { key }) => {
                tracing::info!(conversation.id = %key.conversation_id, "delivery ended: another worker has the lease of {key}");
                Ok(())
            }
            Err(TurnError::Store { source, .. }) if source.is_permanent() => {
                log_permanent_error(nudge, &source);
                Ok(())
            }
            Err(error) => Err(to_failure(&error)),
        }
    }

    fn record_message(&self, queue: &str, is_done: bool) {
        if let Some(metrics) = self.services.telemetry.metrics() {
            metrics.record_queue_message(queue, "process", is_done);
        }
    }

    fn record_poison(&self, queue: &str) {
        if let Some(metrics) = self.services.telemetry.metrics() {
            metrics.record_poison(queue);
        }
    }
}

#[async_trait]
impl Functions for FunctionHandlers {
    async fn turn(&self, message: String, _meta: InvocationMeta) -> Result<(), FunctionFailure> {
        let Some(nudge) = parse_nudge(&message) else { return Ok(()) };
        let Some(_turn) = self.owner_turns.start(&nudge.key) else {
            enqueue_nudge(&self.services, queue::TURNS, &nudge, OWNER_RETRY_DELAY).await;
            return Ok(());
        };
        self.take_turns(&nudge, None).await
    }

    async fn prompt(&self, message: String, meta: InvocationMeta) -> Result<(), FunctionFailure> {
        let span = self
            .services
            .telemetry
            .span("prompt")
            .with_role(SpanRole::Consumer)
            .with_attribute("messaging.system", "azure_storage_queue")
            .with_attribute("messaging.operation.name", "process")
            .with_attribute("messaging.destination.name", queue::PROMPTS)
            .start();
        let message_id = resolve_message_id(meta);
        let accept = accept_queue_message(&self.services, &message, &message_id);
        let accepted = span.run(Box::pin(accept)).await;
        self.record_message(queue::PROMPTS, accepted.is_ok());
        if let Some(error_class) =
            accepted.as_ref().err().and_then(error_domain::classify_command_error)
        {
            span.record_error(&error_class);
        }
        match accepted {
            Ok(_) => Ok(()),
            Err(error) => {
                Box::pin(put_back_or_repeat(&self.services, &message, &message_id, error))
                    .await
                    .map_err(|error| to_failure(&error))
            }
        }
    }

    async fn notify(&self, message: String, _meta: InvocationMeta) -> Result<(), FunctionFailure> {
        let Some(nudge) = parse_nudge(&message) else { return Ok(()) };
        if self.services.shutdown.is_begun() {
            crash_count::put_back_nudge(&self.services, queue::NOTIFY, &nudge).await;
            return Ok(());
        }
        let outcome = notifications::notify(&self.services, &nudge).await;
        self.record_message(queue::NOTIFY, outcome.is_ok());
        match outcome {
            Err(error) if error.is_permanent() => {
                log_permanent_error(&nudge, &error);
                Ok(())
            }
            outcome => outcome.map_err(|error| to_failure(&error)),
        }
    }

    async fn sweep(&self, _timer: TimerInfo, _meta: InvocationMeta) -> Result<(), FunctionFailure> {
        tokio::select! {
            biased;
            // The next sweep, of another process, finds the rest.
            () = self.services.shutdown.clone().wait_until_begun() => Ok(()),
            outcome = Box::pin(self.sweep_once()) => outcome,
        }
    }

    /// The host moved a nudge to the poison queue. The conversation itself is intact, so a new
    /// nudge is sent.
    async fn turn_poison(
        &self,
        message: String,
        _meta: InvocationMeta,
    ) -> Result<(), FunctionFailure> {
        let Some(nudge) = parse_nudge(&message) else { return Ok(()) };
        tracing::warn!(conversation.id = %nudge.key.conversation_id, "nudge moved to the poison queue; sending a new one conversation={}", nudge.key.conversation_id);
        self.record_poison(queue::TURNS);
        crash_count::requeue_nudge(&self.services, &nudge).await;
        Ok(())
    }

    /// The notification and its deadline are stored, so the recovery sweep enqueues it again.
    async fn notify_poison(
        &self,
        message: String,
        _meta: InvocationMeta,
    ) -> Result<(), FunctionFailure> {
        self.record_poison(queue::NOTIFY);
        if let Some(nudge) = parse_nudge(&message) {
            tracing::warn!(conversation.id = %nudge.key.conversation_id, "notification nudge moved to the poison queue; the recovery sweep enqueues it again conversation={}", nudge.key.conversation_id);
        }
        Ok(())
    }

    async fn put_back(
        &self,
        function: &str,
        message: String,
        meta: InvocationMeta,
    ) -> Result<(), FunctionFailure> {
        if function == "prompt" {
            let message_id = resolve_message_id(meta);
            let error =
                CommandError::Unavailable { what: "this process, which ends", source: None };
            let put = put_back(&self.services, &message, &message_id, error);
            return Box::pin(put).await.map_err(|error| to_failure(&error));
        }
        let Some(nudge) = parse_nudge(&message) else { return Ok(()) };
        let is_notification = function.starts_with("notify");
        let queue = if is_notification { queue::NOTIFY } else { queue::TURNS };
        crash_count::put_back_nudge(&self.services, queue, &nudge).await;
        Ok(())
    }
}

/// The id of a message, or else of the invocation: a run that an operator starts has no message. An
/// invocation is no id of a message, which has another invocation at each delivery. The space
/// distinguishes it from keys of senders and ids of the queue.
fn resolve_message_id(meta: InvocationMeta) -> String {
    let of_invocation = meta.invocation_id.map(|id| format!("invocation {id}"));
    meta.message_id.or(of_invocation).unwrap_or_default()
}

/// Parses a queue message. Returns `None` for an invalid message, which the caller acknowledges:
/// the pending work is in the store, so no work is lost.
fn parse_nudge(message: &str) -> Option<Nudge> {
    match serde_json::from_str::<Nudge>(message) {
        Ok(nudge) => match nudge.find_impossible_member() {
            None => Some(nudge),
            Some(member) => {
                tracing::error!(member, "invalid queue message removed: not an id of a document");
                None
            }
        },
        Err(error) => {
            let reason = redacted_error(&error);
            tracing::error!(
                error = %reason, "invalid queue message removed: not a nudge"
            );
            None
        }
    }
}

/// Logs why a delivery ends. Another delivery would fail as well, and the poison queue would send a
/// new nudge without end. The recovery sweep enqueues pending work that exists.
fn log_permanent_error(nudge: &Nudge, error: &StoreError) {
    tracing::error!(conversation.id = %nudge.key.conversation_id, error = %error_chain(error), "nudge removed: the conversation cannot be processed conversation={}", nudge.key.conversation_id);
}

fn to_failure(error: &dyn std::error::Error) -> FunctionFailure {
    FunctionFailure(error_chain(error))
}

/// Delay of a nudge whose owner has as many running turns as it may have.
const OWNER_RETRY_DELAY: Duration = Duration::from_secs(1);

/// Time that active turns get to finish when `dev` stops. A model response that was billed is then
/// committed and not requested again.
pub(crate) const DEV_STOP_TIMEOUT: Duration = Duration::from_secs(30);

/// Time that requests get to finish when the built-in host has stopped.
pub(crate) const STOP_TIMEOUT: Duration = Duration::from_secs(10);

#[cfg(test)]
mod tests;
