//! Publisher: sends live events of this instance to watchers on other instances, in batches: four in
//! the first second of a response, then one in [`LATER_INTERVAL`].
//!
//! A conversation without remote watchers costs one point read per response, made when its first
//! delta arrives, and one more for each further 20 s of streaming. Nothing waits for a publisher.
//! Events that it loses reach readers with the commit.

use std::collections::HashMap;
use std::sync::{Arc, Weak};
use std::time::Duration;

use tokio::sync::Notify;
use tokio::time::Instant;
use tokio_util::task::AbortOnDropHandle;

use super::SharedState;
use super::delta_batch::{DeltaBatch, StoredPartialResponse};
use super::watchers::{self, Watcher};
use crate::live::{LiveEvent, LiveResponse};
use crate::store::{Partition, StoreError, Write};
use turnwheel_platform::clock::Timestamp;
use turnwheel_platform::ids::{ConversationKey, WorkerId};

/// Interval of the first batches of a response, which a reader waits for.
const FIRST_INTERVAL: Duration = Duration::from_millis(250);
const FIRST_BATCHES: u32 = 4;
/// Interval of the later batches. Each is a document that is created and then deleted by its `ttl`,
/// at 11 request units.
const LATER_INTERVAL: Duration = Duration::from_millis(650);
/// Delay after a failed write.
const RETRY_DELAY: Duration = Duration::from_secs(1);
/// Interval between checks for watchers while a response without watchers streams.
const WATCHER_CHECK_INTERVAL: Duration = Duration::from_secs(20);
/// Delay after a failed check for watchers.
const CHECK_RETRY_DELAY: Duration = Duration::from_secs(2);
/// Interval of the batches with the partial response, for readers that come later. Batches expire: a
/// reader finds this one, and all that follow it.
const PARTIAL_INTERVAL: Duration = Duration::from_secs(90);
/// Time that a publisher waits for the next response.
const IDLE_MAX: Duration = Duration::from_secs(10);
/// Time without events after which a publisher gives up an active model or tool.
const SILENCE_MAX: Duration = Duration::from_mins(2);
/// Limits of the events for the next batch. Beyond them, the batch contains the partial response
/// instead.
const EVENTS_MAX: usize = 2048;
const BYTES_MAX: usize = 256 * 1024;
/// Publishers of one process. Events of further conversations stay local.
const PUBLISHERS_MAX: usize = 4096;

#[derive(Default)]
pub(super) struct Publishers(HashMap<ConversationKey, BatchPublisher>);

pub(super) struct BatchPublisher {
    epoch: u64,
    started_at: Timestamp,
    /// Number of the last batch.
    batch_number: u64,
    /// Number of batches since the start of the response.
    batches_of_response: u32,
    watch_state: WatchState,
    /// Events of the next batch.
    pending: Vec<LiveEvent>,
    pending_bytes: usize,
    /// True if the next batch contains the partial response in place of its events.
    needs_partial: bool,
    /// Time from which the next batch contains the partial response after its events.
    partial_due_at: Instant,
    last_event_at: Instant,
    /// The response that streams.
    response: Option<LiveResponse>,
    /// True if a response or a tool may be active.
    is_active: bool,
    wake: Arc<Notify>,
    /// Started by the first delta.
    task: Option<AbortOnDropHandle<()>>,
}

enum WatchState {
    Unknown,
    Unwatched { check_at: Instant },
    Watched { watchers: Vec<Watcher>, until: Timestamp },
}

/// Next action of a publisher.
enum NextAction {
    CheckWatchers,
    /// Writes the batch, then waits.
    WriteBatch(Box<DeltaBatch>, Duration),
    Wait(Duration, Arc<Notify>),
    Finish,
}

impl Publishers {
    #[cfg(test)]
    pub(super) fn count(&self) -> usize {
        self.0.len()
    }

    /// Passes an event to its publisher. `start` starts the task of a new publisher.
    pub(super) fn publish(
        &mut self,
        key: &ConversationKey,
        event: &LiveEvent,
        now: Timestamp,
        start: impl FnOnce() -> AbortOnDropHandle<()>,
    ) {
        if let Some(epoch) = event.epoch() {
            self.open_epoch(key, epoch, now);
        }
        let Some(publisher) = self.0.get_mut(key) else { return };
        publisher.add_event(event);
        if publisher.task.is_some() {
            return;
        }
        if matches!(event, LiveEvent::Delta { .. } | LiveEvent::ToolUpdate(_)) {
            publisher.task = Some(start());
        } else if !publisher.is_active {
            // The response ended without a delta, and no task would remove its publisher.
            self.0.remove(key);
        }
    }

    fn open_epoch(&mut self, key: &ConversationKey, epoch: u64, now: Timestamp) {
        if let Some(publisher) = self.0.get_mut(key) {
            if epoch != publisher.epoch {
                (publisher.epoch, publisher.started_at, publisher.batch_number) = (epoch, now, 0);
            }
        } else if self.0.len() < PUBLISHERS_MAX {
            self.0.insert(key.clone(), BatchPublisher::new(epoch, now));
        }
    }
}

impl BatchPublisher {
    fn new(epoch: u64, began: Timestamp) -> Self {
        Self {
            epoch,
            started_at: began,
            batch_number: 0,
            batches_of_response: 0,
            watch_state: WatchState::Unknown,
            pending: Vec::new(),
            pending_bytes: 0,
            needs_partial: false,
            partial_due_at: Instant::now() + PARTIAL_INTERVAL,
            last_event_at: Instant::now(),
            response: None,
            is_active: true,
            wake: Arc::default(),
            task: None,
        }
    }

    fn add_event(&mut self, event: &LiveEvent) {
        self.last_event_at = Instant::now();
        let is_of_answer = match event {
            LiveEvent::ResponseStarted(response) => {
                self.is_active = true;
                self.response = Some(response.clone());
                self.batches_of_response = 0;
                self.partial_due_at = Instant::now() + PARTIAL_INTERVAL;
                if !self.is_watched() {
                    // A watcher may have arrived since; the first delta triggers a check.
                    self.watch_state = WatchState::Unknown;
                }
                true
            }
            LiveEvent::Delta { .. } => {
                self.is_active = true;
                true
            }
            LiveEvent::ToolUpdate(_) => {
                self.is_active = true;
                false
            }
            LiveEvent::Reset { .. } => {
                self.end_response(event);
                true
            }
            LiveEvent::Committed { .. } => {
                self.end_response(event);
                false
            }
            LiveEvent::Deleted => {
                self.end_response(event);
                return;
            }
            LiveEvent::Snapshot(_) => return,
        };
        if !self.is_watched() {
            if matches!(self.watch_state, WatchState::Unknown) {
                self.wake.notify_one();
            }
            return;
        }
        if self.needs_partial && is_of_answer {
            return;
        }
        self.pending_bytes += event.text_bytes();
        self.pending.push(event.clone());
        if self.pending_bytes > BYTES_MAX || self.pending.len() > EVENTS_MAX {
            self.restart_from_partial();
        }
        self.wake.notify_one();
    }

    /// A commit may be that of a request, while another response streams.
    fn end_response(&mut self, end: &LiveEvent) {
        self.response.take_if(|response| end.ends(response));
        self.is_active = self.response.is_some();
    }

    fn is_watched(&self) -> bool {
        matches!(self.watch_state, WatchState::Watched { .. })
    }

    fn restart_from_partial(&mut self) {
        self.needs_partial = true;
        self.pending.clear();
        self.pending_bytes = 0;
    }

    /// Stops publishing until a check finds a watcher.
    fn stop_publishing(&mut self) {
        self.restart_from_partial();
        self.needs_partial = false;
        self.watch_state =
            WatchState::Unwatched { check_at: Instant::now() + WATCHER_CHECK_INTERVAL };
    }

    fn next_action(
        &mut self,
        from: &WorkerId,
        now: Timestamp,
        partial: impl FnOnce() -> Option<StoredPartialResponse>,
    ) -> NextAction {
        let timeout = if self.is_active { SILENCE_MAX } else { IDLE_MAX };
        let silent = self.last_event_at.elapsed();
        if silent >= timeout {
            return NextAction::Finish;
        }
        let left = timeout.saturating_sub(silent);
        let wait = |span: Duration| NextAction::Wait(span.min(left), Arc::clone(&self.wake));
        match &self.watch_state {
            WatchState::Unknown => NextAction::CheckWatchers,
            WatchState::Unwatched { check_at: look_at } => {
                let span = look_at.saturating_duration_since(Instant::now());
                // No checks between responses: the next response triggers one.
                if span.is_zero() && self.is_active {
                    NextAction::CheckWatchers
                } else {
                    wait(span.max(FIRST_INTERVAL))
                }
            }
            WatchState::Watched { until, .. } if *until <= now => NextAction::CheckWatchers,
            WatchState::Watched { until, .. } => {
                if self.pending.is_empty() && !self.needs_partial {
                    return wait(now.until(*until));
                }
                self.batch_number += 1;
                self.batches_of_response += 1;
                let is_early = self.batches_of_response <= FIRST_BATCHES;
                let pause = if is_early { FIRST_INTERVAL } else { LATER_INTERVAL };
                let is_due = self.response.is_some() && Instant::now() >= self.partial_due_at;
                let needs_partial = std::mem::take(&mut self.needs_partial) || is_due;
                let partial = if needs_partial { partial() } else { None };
                if partial.is_some() {
                    self.partial_due_at = Instant::now() + PARTIAL_INTERVAL;
                }
                self.pending_bytes = 0;
                let batch = DeltaBatch {
                    instance: from.clone(),
                    epoch: self.epoch,
                    started_at: self.started_at,
                    number: self.batch_number,
                    events: std::mem::take(&mut self.pending),
                    partial,
                };
                NextAction::WriteBatch(Box::new(batch), pause)
            }
        }
    }

    fn apply_watchers(&mut self, found: Result<Vec<Watcher>, StoreError>, now: Timestamp) {
        let found = match found {
            Ok(found) => found,
            Err(error) => {
                tracing::debug!(%error, "watcher check failed");
                self.check_watchers_soon(now);
                return;
            }
        };
        // The next check is due when the last watcher expires, limited by the local clock.
        let Some(until) = found.iter().map(|watcher| watcher.until).max() else {
            self.stop_publishing();
            return;
        };
        let is_known = |watcher: &Watcher| match &self.watch_state {
            WatchState::Watched { watchers: places, .. } => {
                places.iter().any(|known| known.instance == watcher.instance)
            }
            WatchState::Unknown | WatchState::Unwatched { .. } => false,
        };
        if !found.iter().all(is_known) {
            // A new watcher has missed the earlier events.
            self.restart_from_partial();
        }
        self.watch_state = WatchState::Watched {
            watchers: found,
            until: until.min(now.plus(watchers::WATCH_DURATION)),
        };
    }

    fn check_watchers_soon(&mut self, now: Timestamp) {
        match &mut self.watch_state {
            WatchState::Watched { until, .. } => *until = now.plus(CHECK_RETRY_DELAY),
            WatchState::Unknown | WatchState::Unwatched { .. } => {
                let check_at = Instant::now() + CHECK_RETRY_DELAY;
                self.watch_state = WatchState::Unwatched { check_at };
            }
        }
    }

    /// Handles a failed write. The next batch contains the lost events, unless a retry cannot
    /// succeed.
    fn apply_write_error(&mut self, error: &StoreError) {
        match error {
            StoreError::Unavailable(_) | StoreError::Conflict => self.restart_from_partial(),
            StoreError::TooLarge(_) | StoreError::Invalid(_) | StoreError::Corrupt(_) => {
                self.stop_publishing();
            }
        }
    }
}

/// Runs until the conversation has no more events, or the process ends.
pub(super) async fn run_publisher(live: Weak<SharedState>, key: ConversationKey) {
    let partition = Partition::Conversation(key.clone());
    loop {
        let Some(live) = live.upgrade() else { return };
        let now = live.clock.now();
        let next = {
            let mut publishers = live.lock_publishers();
            let Some(publisher) = publishers.0.get_mut(&key) else { return };
            let next = publisher.next_action(&live.instance, now, || {
                live.local.with_partial_response(&key, StoredPartialResponse::from_partial)
            });
            if matches!(next, NextAction::Finish) {
                publishers.0.remove(&key);
            }
            next
        };
        match next {
            NextAction::Finish => return,
            NextAction::CheckWatchers => {
                let watchers =
                    watchers::find_other_watchers(&*live.store, &partition, &live.instance, now)
                        .await;
                if let Some(publisher) = live.lock_publishers().0.get_mut(&key) {
                    publisher.apply_watchers(watchers, now);
                }
            }
            NextAction::WriteBatch(batch, mut pause) => {
                let write = vec![Write::Create(batch.to_document())];
                if let Err(error) = live.store.write(&partition, write).await {
                    tracing::debug!(%error, "delta batch write failed");
                    pause = RETRY_DELAY;
                    if let Some(publisher) = live.lock_publishers().0.get_mut(&key) {
                        publisher.apply_write_error(&error);
                    }
                }
                drop(live);
                tokio::time::sleep(pause).await;
            }
            NextAction::Wait(span, wake) => {
                drop(live);
                let _ = tokio::time::timeout(span, wake.notified()).await;
            }
        }
    }
}
