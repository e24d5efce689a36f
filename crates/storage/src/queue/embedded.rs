//! The queues of `dev`: in memory, in real time. Queues that hold users' only copy also use a file.

mod queue_file;
mod queues;
#[cfg(test)]
mod tests;

use std::collections::BTreeSet;
use std::fmt;
use std::path::Path;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use async_trait::async_trait;
use tokio::sync::watch;
use tokio_util::task::AbortOnDropHandle;

use self::queue_file::{MessageRow, QueueFile};
use self::queues::LocalQueues;
use super::visibility_queue::HeldMessage;
use super::{Queue, QueueError, QueueMessage, validate_text};
use turnwheel_platform::clock::Clock;
use turnwheel_platform::ids::Ids;

/// Time after which a deletion empties the log although messages are left.
const LOG_AGE_MAX: Duration = Duration::from_mins(1);

pub struct EmbeddedQueue {
    clock: Arc<dyn Clock>,
    ids: Arc<dyn Ids>,
    queues: Arc<LocalQueues>,
    disk: Arc<QueueFile>,
    durable: BTreeSet<String>,
    /// Monotonic time at which the log was last emptied.
    log_emptied_at: Arc<Mutex<Duration>>,
    _timer: AbortOnDropHandle<()>,
}

impl EmbeddedQueue {
    /// Opens the queues. Those named in `durable` are stored in `file` and survive a restart; the
    /// others hold only nudges and do not.
    ///
    /// Messages that the previous process had received are visible at once; delayed messages keep
    /// the rest of their delay. Needs a Tokio runtime.
    ///
    /// # Errors
    /// [`QueueError::Unavailable`]: the file cannot be used, another process has it, or a newer
    /// version wrote it. Show the source of the error and do not start.
    pub async fn open(
        file: &Path,
        durable: &[&str],
        clock: Arc<dyn Clock>,
        ids: Arc<dyn Ids>,
    ) -> Result<Self, QueueError> {
        let path = file.to_owned();
        let (disk, rows) = run_blocking(move || {
            let (disk, rows) = QueueFile::open(&path)?;
            // A killed process has left the texts of deleted messages in it.
            disk.empty_log();
            Ok((disk, rows))
        })
        .await?;
        let queues = Arc::new(LocalQueues::new(Arc::clone(&clock)));
        let now = clock.now();
        let mut durable: BTreeSet<String> = durable.iter().map(|&name| name.to_owned()).collect();
        for row in rows {
            // Queues found in the file are durable even if the list no longer names them: a deleted
            // message must leave the file too.
            durable.insert(row.queue.clone());
            // At most the original delay, even if the wall clock was set back.
            let delay = now.until(row.visible_at).min(row.inserted_at.until(row.visible_at));
            let mut message = HeldMessage::new(row.id, row.text, row.inserted_at);
            message.dequeue_count = row.dequeue_count;
            insert_message(&queues, &row.queue, message, delay);
        }
        let notified_queues = Arc::clone(&queues);
        #[expect(
            clippy::disallowed_methods,
            reason = "a timer: it ends with the queue, and a later poll finds missed arrivals"
        )]
        let timer = AbortOnDropHandle::new(tokio::spawn(async move {
            notified_queues.notify_listeners().await;
        }));
        let log_emptied_at = Arc::new(Mutex::new(clock.monotonic()));
        let disk = Arc::new(disk);
        Ok(Self { clock, ids, queues, disk, durable, log_emptied_at, _timer: timer })
    }

    fn is_durable(&self, queue: &str) -> bool {
        self.durable.contains(queue)
    }
}

fn insert_message(queues: &LocalQueues, queue: &str, message: HeldMessage, delay: Duration) {
    queues.update(queue, |line, now| {
        let visible_at = now.monotonic.saturating_add(delay);
        line.insert(message, visible_at);
        ((), visible_at)
    });
}

/// Runs `work` on a blocking thread. It finishes even if the caller stops waiting.
async fn run_blocking<T: Send + 'static>(
    work: impl FnOnce() -> Result<T, QueueError> + Send + 'static,
) -> Result<T, QueueError> {
    match tokio::task::spawn_blocking(work).await {
        Ok(answer) => answer,
        Err(error) => Err(QueueError::Unavailable(Box::new(error))),
    }
}

#[async_trait]
impl Queue for EmbeddedQueue {
    async fn send(&self, queue: &str, text: String, delay: Duration) -> Result<(), QueueError> {
        validate_text(&text)?;
        let now = self.clock.now();
        let id = self.ids.new_id();
        if !self.is_durable(queue) {
            insert_message(&self.queues, queue, HeldMessage::new(id, text, now), delay);
            return Ok(());
        }
        let (queues, disk) = (Arc::clone(&self.queues), Arc::clone(&self.disk));
        let row = MessageRow {
            queue: queue.to_owned(),
            id,
            text,
            inserted_at: now,
            visible_at: now.plus(delay),
            dequeue_count: 0,
        };
        run_blocking(move || {
            disk.insert(&row)?;
            insert_message(
                &queues,
                &row.queue,
                HeldMessage::new(row.id, row.text, row.inserted_at),
                delay,
            );
            Ok(())
        })
        .await
    }

    async fn receive(
        &self,
        queue: &str,
        count_max: usize,
        hide: Duration,
    ) -> Result<Vec<QueueMessage>, QueueError> {
        let all = self.queues.update(queue, |line, now| {
            let all = line.receive(now, count_max, hide, || self.ids.new_id());
            let is_hidden = !all.is_empty();
            let notify_at =
                if is_hidden { now.monotonic.saturating_add(hide) } else { Duration::MAX };
            (all, notify_at)
        });
        if self.is_durable(queue) && !all.is_empty() {
            let counts: Vec<_> =
                all.iter().map(|message| (message.id.clone(), message.dequeue_count)).collect();
            let disk = Arc::clone(&self.disk);
            // If this fails, the messages become visible again later.
            run_blocking(move || disk.set_dequeue_counts(&counts)).await?;
        }
        Ok(all)
    }

    async fn renew(
        &self,
        queue: &str,
        id: &str,
        pop_receipt: &str,
        hide: Duration,
    ) -> Result<String, QueueError> {
        let receipt = self.ids.new_id();
        self.queues.update(queue, |line, now| {
            let hidden_until = now.monotonic.saturating_add(hide);
            match line.renew(id, pop_receipt, hidden_until, receipt.clone()) {
                Ok(()) => (Ok(receipt), hidden_until),
                Err(error) => (Err(error), Duration::MAX),
            }
        })
    }

    async fn delete(&self, queue: &str, id: &str, pop_receipt: &str) -> Result<(), QueueError> {
        if !self.is_durable(queue) {
            return self.queues.with_messages(queue, |line, _| {
                line.check_receipt(id, pop_receipt)?;
                line.remove(id);
                Ok(())
            });
        }
        self.queues.with_messages(queue, |line, _| line.check_receipt(id, pop_receipt))?;
        let (queues, disk) = (Arc::clone(&self.queues), Arc::clone(&self.disk));
        let (queue, id) = (queue.to_owned(), id.to_owned());
        let (now, emptied_at) = (self.clock.monotonic(), Arc::clone(&self.log_emptied_at));
        // First the file: a message deleted only in memory would return after a restart.
        run_blocking(move || {
            disk.delete(&id)?;
            let left = queues.with_messages(&queue, |line, _| {
                line.remove(&id);
                line.len()
            });
            // A checkpoint syncs two files: not for each message of a backlog.
            let mut emptied_at = emptied_at.lock().unwrap_or_else(PoisonError::into_inner);
            if left == 0 || now.saturating_sub(*emptied_at) >= LOG_AGE_MAX {
                disk.empty_log();
                *emptied_at = now;
            }
            Ok(())
        })
        .await
    }

    async fn length(&self, queue: &str) -> Result<u64, QueueError> {
        Ok(self.queues.with_messages(queue, |line, _| line.len().try_into().unwrap_or(u64::MAX)))
    }

    fn arrivals(&self, queue: &str) -> Option<watch::Receiver<u64>> {
        Some(self.queues.arrivals(queue))
    }
}

impl fmt::Debug for EmbeddedQueue {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("EmbeddedQueue").finish_non_exhaustive()
    }
}
