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
use super::{InvocationError, Shared, envelope};
use crate::queue::{self, QueueError, Received, poison_of};

/// The first wait after an empty receive; it doubles up to `maxPollingInterval`.
const POLL_FIRST: Duration = Duration::from_millis(100);

/// One queue function and its queue.
struct Listener {
    host: Arc<Shared>,
    function: Function,
    queue: String,
    /// `None` on a poison queue: nothing is moved from there.
    poison: Option<String>,
}

/// Receives until the host stops, then waits for the running deliveries.
pub(super) async fn listen(host: Arc<Shared>, function: Function, queue: String) {
    let poison = (!queue.ends_with("-poison")).then(|| poison_of(&queue));
    let poison = poison.filter(|poison| queue::is_name(poison));
    let mut arrivals = host.queues.arrivals(&queue);
    // Where only polling detects arrivals, the host still signals the outputs it sent itself.
    let mut woken = host.woken.get(&queue).map(watch::Sender::subscribe);
    let listener = Arc::new(Listener { host, function, queue, poison });
    let host = &listener.host;
    let mut running = JoinSet::new();
    let mut wait = POLL_FIRST;
    let mut is_failing = false;
    while !host.stop.is_cancelled() {
        if running.len() > host.config.queues.new_batch_threshold {
            tokio::select! {
                () = host.stop.cancelled() => break,
                ended = running.join_next() => listener.look(ended),
            }
            continue;
        }
        // Mark the signals as seen before the receive, so that an arrival during it is noticed
        // after it.
        for seen in [&mut arrivals, &mut woken].into_iter().flatten() {
            seen.borrow_and_update();
        }
        let batch_size = host.config.queues.batch_size;
        let received = host.queues.receive(&listener.queue, batch_size, host.lease).await;
        match received {
            Ok(messages) if !messages.is_empty() => {
                is_failing = false;
                wait = POLL_FIRST;
                for message in messages {
                    running.spawn(Arc::clone(&listener).handle(message));
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
            () = changed(&mut arrivals) => {}
            () = changed(&mut woken) => wait = POLL_FIRST,
            Some(ended) = running.join_next() => listener.look(Some(ended)),
            () = tokio::time::sleep(wait) => {
                wait = (wait * 2).min(host.config.queues.polling_interval_max);
            }
        }
    }
    while let Some(ended) = running.join_next().await {
        listener.look(Some(ended));
    }
}

/// Waits for a signal; pends for ever where only polling detects arrivals.
async fn changed(arrivals: &mut Option<watch::Receiver<u64>>) {
    if let Some(receiver) = arrivals {
        if receiver.changed().await.is_ok() {
            return;
        }
        *arrivals = None;
    }
    std::future::pending::<()>().await;
}

impl Listener {
    fn look(&self, ended: Option<Result<(), tokio::task::JoinError>>) {
        if let Some(Err(error)) = ended {
            tracing::error!(queue = %self.queue, error = %error, "delivery panicked");
        }
    }

    async fn handle(self: Arc<Self>, message: Received) {
        let count_max = self.host.config.queues.dequeue_count_max;
        if message.dequeue_count > count_max {
            tracing::warn!(
                messaging.message_id = %message.id,
                queue = %self.queue,
                deliveries = message.dequeue_count,
                "message not delivered again: too many deliveries"
            );
            return self.set_aside(&message, &message.pop_receipt).await;
        }
        let Some(text) = self.decode(&message.text) else {
            tracing::warn!(
                messaging.message_id = %message.id,
                queue = %self.queue,
                "message rejected: it is not base64, as `messageEncoding` requires"
            );
            return self.set_aside(&message, &message.pop_receipt).await;
        };
        let raw = Received { text, ..message.clone() };
        let (outcome, receipt) = self.deliver(&raw).await;
        // Without a receipt another receiver has the message and settles it.
        let Some(receipt) = receipt else { return };
        match outcome {
            Ok(()) => {
                let deleted = self.host.queues.delete(&self.queue, &message.id, &receipt).await;
                self.tell("delete", deleted);
            }
            Err(_) if message.dequeue_count >= count_max => {
                self.set_aside(&message, &receipt).await;
            }
            // On a poison queue a failed message waits for the end of its lease.
            Err(_) if self.poison.is_none() => {}
            Err(_) => {
                let hide = self.host.config.queues.visibility_timeout;
                let released =
                    self.host.queues.renew(&self.queue, &message.id, &receipt, hide).await;
                self.tell("release", released.map(|_| ()));
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
    async fn deliver(&self, message: &Received) -> (Result<(), InvocationError>, Option<String>) {
        let host = &self.host;
        let id = envelope::guid(host.ids.as_ref());
        let body =
            envelope::of_message(&self.function, message, host.clock.now(), host.ids.as_ref());
        let mut invocation = Box::pin(host.invoke(&self.function, &id, &body));
        let mut receipt = Some(message.pop_receipt.clone());
        let mut wait = host.lease / 2;
        loop {
            tokio::select! {
                biased;
                outcome = &mut invocation => return (outcome, receipt),
                () = tokio::time::sleep(wait), if receipt.is_some() => {
                    let held = receipt.as_deref().unwrap_or_default();
                    match host.queues.renew(&self.queue, &message.id, held, host.lease).await {
                        Ok(renewed) => {
                            receipt = Some(renewed);
                            wait = host.lease / 2;
                        }
                        Err(QueueError::Gone) => {
                            receipt = None;
                            self.tell("renew", Err(QueueError::Gone));
                        }
                        Err(error) => {
                            wait = (wait / 2).max(host.lease / 60);
                            self.tell("renew", Err(error));
                        }
                    }
                }
            }
        }
    }

    /// Sends the text alone to the poison queue, then deletes the message.
    async fn set_aside(&self, message: &Received, receipt: &str) {
        let Some(poison) = &self.poison else { return };
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
            self.tell("delete", deleted);
        } else {
            self.tell("move", sent);
        }
    }

    fn tell(&self, verb: &str, outcome: Result<(), QueueError>) {
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
