//! A queue trigger: receives, runs concurrently, keeps each message hidden while it runs, and settles it.
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

/// Until the host stops; then until what runs has ended.
pub(super) async fn listen(host: Arc<Shared>, function: Function, queue: String) {
    let poison = (!queue.ends_with("-poison")).then(|| poison_of(&queue));
    let poison = poison.filter(|poison| queue::is_name(poison));
    let mut arrivals = host.queues.arrivals(&queue);
    // Where only polling tells of arrivals, the host still knows what it put there itself.
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
        // Seen before the look: what arrives during the look is noticed after it.
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
                    tracing::warn!(error = %error, "cannot read queue {}; trying again", listener.queue);
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

/// Pends for ever where only polling tells.
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
            tracing::error!(error = %error, "a delivery from {} died; its message comes back", self.queue);
        }
    }

    async fn handle(self: Arc<Self>, message: Received) {
        let count_max = self.host.config.queues.dequeue_count_max;
        if message.dequeue_count > count_max {
            tracing::warn!(
                messaging.message_id = %message.id,
                "a message of {} came {} times: it is not delivered again", self.queue, message.dequeue_count
            );
            return self.set_aside(&message, &message.pop_receipt).await;
        }
        let Some(text) = self.decode(&message.text) else {
            tracing::warn!(
                messaging.message_id = %message.id,
                "a message of {} is not base64, as `messageEncoding` demands", self.queue
            );
            return self.set_aside(&message, &message.pop_receipt).await;
        };
        let raw = Received { text, ..message.clone() };
        let (outcome, receipt) = self.deliver(&raw).await;
        // Without a receipt somebody else has the message by now: it is theirs to settle.
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

    /// Invokes, and renews the lease at half time for as long as that takes; `None`: the lease was lost.
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

    /// The text alone goes to the poison queue; the message goes only after that.
    async fn set_aside(&self, message: &Received, receipt: &str) {
        let Some(poison) = &self.poison else { return };
        let queues = &self.host.queues;
        let sent = queues.send(poison, message.text.clone(), Duration::ZERO).await;
        if sent.is_ok() {
            tracing::warn!(messaging.message_id = %message.id, "a message of {} went to {poison}", self.queue);
            let deleted = queues.delete(&self.queue, &message.id, receipt).await;
            self.tell("delete", deleted);
        } else {
            self.tell("set aside", sent);
        }
    }

    fn tell(&self, verb: &str, outcome: Result<(), QueueError>) {
        if let Err(error) = outcome {
            tracing::warn!(error = %error, "could not {verb} a message of {}; it may come again", self.queue);
        }
    }
}
