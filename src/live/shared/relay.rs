//! Publisher: sends live events of this instance to watchers on other instances, in at most four
//! batches a second.
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

use super::Inner;
use super::page::{Page, SoFar};
use super::watch::{self, Place};
use crate::clock::Timestamp;
use crate::ids::{ConversationKey, WorkerId};
use crate::live::LiveEvent;
use crate::store::{Partition, StoreError, Write};

/// Four batches a second.
const PAGE_EVERY: Duration = Duration::from_millis(250);
/// Delay after a failed write.
const TRY_AGAIN: Duration = Duration::from_secs(1);
/// Interval between checks for watchers while a response without watchers streams.
const LOOK_EVERY: Duration = Duration::from_secs(20);
/// Time that a publisher waits for the next response.
const LINGERS: Duration = Duration::from_secs(10);
/// Time without events after which a publisher gives up an active model or tool.
const SILENCE_MAX: Duration = Duration::from_mins(2);
/// Limits of the events for the next batch. Beyond them, the batch contains the partial response
/// instead.
const EVENTS_MAX: usize = 2048;
const BYTES_MAX: usize = 256 * 1024;
/// Publishers of one process. Events of further conversations stay local.
const RELAYS_MAX: usize = 4096;

#[derive(Default)]
pub(super) struct Relays(HashMap<ConversationKey, Relay>);

pub(super) struct Relay {
    epoch: u64,
    began: Timestamp,
    /// Number of the last batch.
    n: u64,
    watched: Watched,
    /// Events of the next batch.
    waiting: Vec<LiveEvent>,
    bytes: usize,
    /// True if the next batch contains the partial response in place of its events.
    begins_anew: bool,
    heard_at: Instant,
    /// True if a response or a tool may be active.
    is_under_way: bool,
    wake: Arc<Notify>,
    /// Started by the first delta.
    task: Option<AbortOnDropHandle<()>>,
}

enum Watched {
    NotKnown,
    Nobody { look_at: Instant },
    By { places: Vec<Place>, until: Timestamp },
}

/// Next action of a publisher.
enum Next {
    Look,
    Write(Box<Page>),
    Wait(Duration, Arc<Notify>),
    Over,
}

impl Relays {
    #[cfg(test)]
    pub(super) fn count(&self) -> usize {
        self.0.len()
    }

    /// Passes an event to its publisher. `start` starts the task of a new publisher.
    pub(super) fn hear(
        &mut self,
        key: &ConversationKey,
        event: &LiveEvent,
        now: Timestamp,
        start: impl FnOnce() -> AbortOnDropHandle<()>,
    ) {
        if let Some(epoch) = event.epoch() {
            self.open(key, epoch, now);
        }
        let Some(relay) = self.0.get_mut(key) else { return };
        relay.hear(event);
        if relay.task.is_some() {
            return;
        }
        match event {
            LiveEvent::Delta { .. } | LiveEvent::ToolUpdate(_) => relay.task = Some(start()),
            // The response ended without a delta, and no task would remove its publisher.
            LiveEvent::Committed { .. } | LiveEvent::Reset { .. } | LiveEvent::Gone => {
                self.0.remove(key);
            }
            LiveEvent::AnswerStarted(_) | LiveEvent::SoFar(_) => {}
        }
    }

    fn open(&mut self, key: &ConversationKey, epoch: u64, now: Timestamp) {
        if let Some(relay) = self.0.get_mut(key) {
            if epoch != relay.epoch {
                (relay.epoch, relay.began, relay.n) = (epoch, now, 0);
            }
        } else if self.0.len() < RELAYS_MAX {
            self.0.insert(key.clone(), Relay::new(epoch, now));
        }
    }
}

impl Relay {
    fn new(epoch: u64, began: Timestamp) -> Self {
        Self {
            epoch,
            began,
            n: 0,
            watched: Watched::NotKnown,
            waiting: Vec::new(),
            bytes: 0,
            begins_anew: false,
            heard_at: Instant::now(),
            is_under_way: true,
            wake: Arc::default(),
            task: None,
        }
    }

    fn hear(&mut self, event: &LiveEvent) {
        self.heard_at = Instant::now();
        let is_of_answer = match event {
            LiveEvent::AnswerStarted(_) => {
                self.is_under_way = true;
                if !self.is_watched() {
                    // A watcher may have arrived since; the first delta triggers a check.
                    self.watched = Watched::NotKnown;
                }
                true
            }
            LiveEvent::Delta { .. } => {
                self.is_under_way = true;
                true
            }
            LiveEvent::ToolUpdate(_) => {
                self.is_under_way = true;
                false
            }
            LiveEvent::Reset { .. } => {
                self.is_under_way = false;
                true
            }
            LiveEvent::Committed { .. } => {
                self.is_under_way = false;
                false
            }
            LiveEvent::SoFar(_) | LiveEvent::Gone => return,
        };
        if !self.is_watched() {
            if matches!(self.watched, Watched::NotKnown) {
                self.wake.notify_one();
            }
            return;
        }
        if self.begins_anew && is_of_answer {
            return;
        }
        self.bytes += event.bytes();
        self.waiting.push(event.clone());
        if self.bytes > BYTES_MAX || self.waiting.len() > EVENTS_MAX {
            self.begin_anew();
        }
        self.wake.notify_one();
    }

    fn is_watched(&self) -> bool {
        matches!(self.watched, Watched::By { .. })
    }

    fn begin_anew(&mut self) {
        self.begins_anew = true;
        self.waiting.clear();
        self.bytes = 0;
    }

    /// Stops publishing until a check finds a watcher.
    fn stop(&mut self) {
        self.begin_anew();
        self.begins_anew = false;
        self.watched = Watched::Nobody { look_at: Instant::now() + LOOK_EVERY };
    }

    fn next(
        &mut self,
        from: &WorkerId,
        now: Timestamp,
        so_far: impl FnOnce() -> Option<SoFar>,
    ) -> Next {
        let patience = if self.is_under_way { SILENCE_MAX } else { LINGERS };
        let silent = self.heard_at.elapsed();
        if silent >= patience {
            return Next::Over;
        }
        let left = patience.saturating_sub(silent);
        let wait = |span: Duration| Next::Wait(span.min(left), Arc::clone(&self.wake));
        match &self.watched {
            Watched::NotKnown => Next::Look,
            Watched::Nobody { look_at } => {
                let span = look_at.saturating_duration_since(Instant::now());
                // No checks between responses: the next response triggers one.
                if span.is_zero() && self.is_under_way {
                    Next::Look
                } else {
                    wait(span.max(PAGE_EVERY))
                }
            }
            Watched::By { until, .. } if *until <= now => Next::Look,
            Watched::By { until, .. } => {
                if self.waiting.is_empty() && !self.begins_anew {
                    return wait(now.until(*until));
                }
                self.n += 1;
                let so_far = if self.begins_anew { so_far() } else { None };
                self.begins_anew = false;
                self.bytes = 0;
                Next::Write(Box::new(Page {
                    from: from.clone(),
                    epoch: self.epoch,
                    began: self.began,
                    n: self.n,
                    told: std::mem::take(&mut self.waiting),
                    so_far,
                }))
            }
        }
    }

    fn looked(&mut self, found: Vec<Place>, now: Timestamp) {
        // The next check is due when the last watcher expires, limited by the local clock.
        let Some(until) = found.iter().map(|place| place.until).max() else {
            self.stop();
            return;
        };
        let knows = |place: &Place| match &self.watched {
            Watched::By { places, .. } => {
                places.iter().any(|known| known.instance == place.instance)
            }
            Watched::NotKnown | Watched::Nobody { .. } => false,
        };
        if !found.iter().all(knows) {
            // A new watcher has missed the earlier events.
            self.begin_anew();
        }
        self.watched = Watched::By { places: found, until: until.min(now.plus(watch::LASTS)) };
    }

    /// Handles a failed write. The next batch contains the lost events, unless a retry cannot
    /// succeed.
    fn failed(&mut self, error: &StoreError) {
        match error {
            StoreError::Unavailable(_) | StoreError::Conflict => self.begin_anew(),
            StoreError::TooLarge(_) | StoreError::Invalid(_) | StoreError::Corrupt(_) => {
                self.stop();
            }
        }
    }
}

/// Runs until the conversation has no more events, or the process ends.
pub(super) async fn run(live: Weak<Inner>, key: ConversationKey) {
    let partition = Partition::Conversation(key.clone());
    loop {
        let Some(live) = live.upgrade() else { return };
        let now = live.clock.now();
        let next = {
            let mut relays = live.relays();
            let Some(relay) = relays.0.get_mut(&key) else { return };
            let next = relay.next(&live.instance, now, || live.local.under_way(&key, SoFar::of));
            if matches!(next, Next::Over) {
                relays.0.remove(&key);
            }
            next
        };
        match next {
            Next::Over => return,
            Next::Look => {
                let found = watch::others(&*live.store, &partition, &live.instance, now).await;
                let found = found.unwrap_or_else(|error| {
                    tracing::debug!(%error, "watcher check failed");
                    Vec::new()
                });
                if let Some(relay) = live.relays().0.get_mut(&key) {
                    relay.looked(found, now);
                }
            }
            Next::Write(page) => {
                let write = vec![Write::Create(page.document())];
                let mut pause = PAGE_EVERY;
                if let Err(error) = live.store.write(&partition, write).await {
                    tracing::debug!(%error, "delta batch write failed");
                    pause = TRY_AGAIN;
                    if let Some(relay) = live.relays().0.get_mut(&key) {
                        relay.failed(&error);
                    }
                }
                drop(live);
                tokio::time::sleep(pause).await;
            }
            Next::Wait(span, wake) => {
                drop(live);
                let _ = tokio::time::timeout(span, wake.notified()).await;
            }
        }
    }
}
