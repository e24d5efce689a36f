//! A queue trigger: receives messages, runs them concurrently, renews their leases, and deletes or
//! releases them.
//!
//! Source: azure-sdk-for-net, `QueueListener.cs` and `QueueProcessor.cs`.

use std::sync::Arc;
use std::time::Duration;

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use tokio::sync::watch;
use tokio::task::JoinSet;

use super::function::Function;
use super::{HostState, InvocationError, envelope};
use turnwheel_storage::queue::{self, QueueError, QueueMessage, poison_queue};

/// The first wait after an empty receive; it doubles up to `maxPollingInterval`.
const FIRST_POLL_INTERVAL: Duration = Duration::from_millis(100);

/// One queue function and its queue.
struct Listener {
    host: Arc<HostState>,
    function: Function,
    queue: String,
    /// `None` on a poison queue: nothing is moved from there.
    poison_queue: Option<String>,
}

/// Receives until the host stops, then waits for the running deliveries.
pub(super) async fn listen(host: Arc<HostState>, function: Function, queue: String) {
    let poison = (!queue.ends_with("-poison")).then(|| poison_queue(&queue));
    let poison = poison.filter(|poison| queue::is_queue_name(poison));
    let mut arrivals = host.queues.arrivals(&queue);
    // Where only polling detects arrivals, the host still signals the outputs it sent itself.
    let mut own_outputs = host.output_signals.get(&queue).map(watch::Sender::subscribe);
    let listener = Arc::new(Listener { host, function, queue, poison_queue: poison });
    let host = &listener.host;
    let mut running = JoinSet::new();
    let mut wait = FIRST_POLL_INTERVAL;
    let mut is_failing = false;
    while !host.stop.is_cancelled() {
        if running.len() > host.config.queues.new_batch_threshold {
            tokio::select! {
                () = host.stop.cancelled() => break,
                ended = running.join_next() => listener.log_panic(ended),
            }
            continue;
        }
        // Mark the signals as seen before the receive, so that an arrival during it is noticed
        // after it.
        for signal in [&mut arrivals, &mut own_outputs].into_iter().flatten() {
            signal.borrow_and_update();
        }
        let batch_size = host.config.queues.batch_size;
        let received = host.queues.receive(&listener.queue, batch_size, host.lease).await;
        match received {
            Ok(messages) if !messages.is_empty() => {
                is_failing = false;
                wait = FIRST_POLL_INTERVAL;
                for message in messages {
                    running.spawn(Arc::clone(&listener).process_message(message));
                }
                continue;
            }
            Ok(_) => is_failing = false,
            Err(error) => {
                if !is_failing {
                    tracing::warn!(queue = %listener.queue, error = %error, "queue read failed");
                }
                is_failing = true;
            }
        }
        tokio::select! {
            () = host.stop.cancelled() => break,
            () = wait_for_change(&mut arrivals) => {}
            () = wait_for_change(&mut own_outputs) => wait = FIRST_POLL_INTERVAL,
            Some(ended) = running.join_next() => listener.log_panic(Some(ended)),
            () = tokio::time::sleep(wait) => {
                wait = (wait * 2).min(host.config.queues.polling_interval_max);
            }
        }
    }
    while let Some(ended) = running.join_next().await {
        listener.log_panic(Some(ended));
    }
}

/// Waits for a signal; pends for ever where only polling detects arrivals.
async fn wait_for_change(arrivals: &mut Option<watch::Receiver<u64>>) {
    if let Some(receiver) = arrivals {
        if receiver.changed().await.is_ok() {
            return;
        }
        *arrivals = None;
    }
    std::future::pending::<()>().await;
}

impl Listener {
    fn log_panic(&self, ended: Option<Result<(), tokio::task::JoinError>>) {
        if let Some(Err(error)) = ended {
            tracing::error!(queue = %self.queue, error = %error, "delivery panicked");
        }
    }

    async fn process_message(self: Arc<Self>, message: QueueMessage) {
        let count_max = self.host.config.queues.dequeue_count_max;
        // A poison queue has no limit of deliveries.
        if message.dequeue_count > count_max && self.poison_queue.is_some() {
            tracing::warn!(
                messaging.message_id = %message.id,
                queue = %self.queue,
                deliveries = message.dequeue_count,
                "message not delivered again: too many deliveries"
            );
            return self.move_to_poison(&message, &message.pop_receipt).await;
        }
        let Some(text) = self.decode(&message.text) else {
            tracing::warn!(
                messaging.message_id = %message.id,
                queue = %self.queue,
                "message rejected: it is not base64, as `messageEncoding` requires"
            );
            return self.move_to_poison(&message, &message.pop_receipt).await;
        };
        let raw = QueueMessage { text, ..message.clone() };
        let (outcome, receipt) = self.deliver(&raw).await;
        // Without a receipt another receiver has the message and settles it.
        let Some(receipt) = receipt else { return };
        match outcome {
            Ok(()) => {
                let deleted = self.host.queues.delete(&self.queue, &message.id, &receipt).await;
                self.log_failure("delete", deleted);
            }
            Err(_) if message.dequeue_count >= count_max => {
                self.move_to_poison(&message, &receipt).await;
            }
            // On a poison queue a failed message waits for the end of its lease.
            Err(_) if self.poison_queue.is_none() => {}
            Err(_) => {
                let hide = self.host.config.queues.visibility_timeout;
                let released =
                    self.host.queues.renew(&self.queue, &message.id, &receipt, hide).await;
                self.log_failure("release", released.map(|_| ()));
            }
        }
    }

    fn decode(&self, text: &str) -> Option<String> {
        if !self.host.config.queues.is_base64 {
            return Some(text.to_owned());
        }
        String::from_utf8(STANDARD.decode(text).ok()?).ok()
    }

    /// Invokes the function, and renews the lease at half time until it ends. The receipt is `None`
    /// if the lease was lost.
    async fn deliver(
        &self,
        message: &QueueMessage,
    ) -> (Result<(), InvocationError>, Option<String>) {
        let host = &self.host;
        let id = envelope::new_guid(host.ids.as_ref());
        let body = envelope::message_envelope(&self.function, message, host.envelope_context());
        let mut invocation = Box::pin(host.invoke(&self.function, &id, &body));
        let mut receipt = Some(message.pop_receipt.clone());
        let mut wait = host.lease / 2;
        loop {
            tokio::select! {
                biased;
                outcome = &mut invocation => return (outcome, receipt),
                () = tokio::time::sleep(wait), if receipt.is_some() => {
                    let current_receipt = receipt.as_deref().unwrap_or_default();
                    match host.queues.renew(&self.queue, &message.id, current_receipt, host.lease).await {
                        Ok(renewed) => {
                            receipt = Some(renewed);
                            wait = host.lease / 2;
                        }
                        Err(QueueError::Gone) => {
                            receipt = None;
                            self.log_failure("renew", Err(QueueError::Gone));
                        }
                        Err(error) => {
                            wait = (wait / 2).max(host.lease / 60);
                            self.log_failure("renew", Err(error));
                        }
                    }
                }
            }
        }
    }

    /// Sends the text alone to the poison queue, then deletes the message.
    async fn move_to_poison(&self, message: &QueueMessage, receipt: &str) {
        let Some(poison) = &self.poison_queue else { return };
        let queues = &self.host.queues;
        let sent = queues.send(poison, message.text.clone(), Duration::ZERO).await;
        if sent.is_ok() {
            tracing::warn!(
                messaging.message_id = %message.id,
                queue = %self.queue,
                poison_queue = %poison,
                "message moved to poison queue"
            );
            let deleted = queues.delete(&self.queue, &message.id, receipt).await;
            self.log_failure("delete", deleted);
        } else {
            self.log_failure("move", sent);
        }
    }

    fn log_failure(&self, verb: &str, outcome: Result<(), QueueError>) {
        if let Err(error) = outcome {
            tracing::warn!(
                queue = %self.queue,
                operation = verb,
                error = %error,
                "queue operation failed; the message may be delivered again"
            );
        }
    }
}
