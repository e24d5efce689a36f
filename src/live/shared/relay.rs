//! Relaying: what happens on this instance is told to those that watch elsewhere, in at most four pages a second.
//!
//! A conversation that nobody watches elsewhere costs one point read per answer, made beside the answer when its first
//! delta comes, and one more for each further 20 s that it streams. Nothing waits for a relay, and what it loses is only
//! told later, by the commit.

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

/// Four pages a second.
const PAGE_EVERY: Duration = Duration::from_millis(250);
/// After a page that was not taken.
const TRY_AGAIN: Duration = Duration::from_secs(1);
/// How often it is looked for a watch while nobody watches an answer that goes on.
const LOOK_EVERY: Duration = Duration::from_secs(20);
/// How long a relay waits for the next answer.
const LINGERS: Duration = Duration::from_secs(10);
/// A model or tool that says nothing for so long is no longer waited for.
const SILENCE_MAX: Duration = Duration::from_mins(2);
/// What waits for the next page; beyond it, the page holds the answer so far instead.
const EVENTS_MAX: usize = 2048;
const BYTES_MAX: usize = 256 * 1024;
/// Relays of one process; what begins beyond is told on this instance alone.
const RELAYS_MAX: usize = 4096;

#[derive(Default)]
pub(super) struct Relays(HashMap<ConversationKey, Relay>);

pub(super) struct Relay {
    epoch: u64,
    began: Timestamp,
    /// Of the last page that was sent.
    n: u64,
    watched: Watched,
    /// For the next page.
    waiting: Vec<LiveEvent>,
    bytes: usize,
    /// Whether the next page holds the answer so far in place of what was heard of it.
    begins_anew: bool,
    heard_at: Instant,
    /// Whether an answer or a tool may be under way.
    is_under_way: bool,
    wake: Arc<Notify>,
    /// Runs from the first delta on.
    task: Option<AbortOnDropHandle<()>>,
}

enum Watched {
    NotKnown,
    Nobody { look_at: Instant },
    By { places: Vec<Place>, until: Timestamp },
}

/// What a relay does next.
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

    /// Passes on what is published; `start` runs the relay that it is the first for.
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
            // It ended without a word, and nobody else would forget it.
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
                    // Somebody may have come since: looked for with the first delta.
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

    /// Tells nobody until somebody is found again.
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
                // Between answers nobody is looked for: the next one looks for itself.
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
        // Whatever the clock of who wrote it said, it is looked again when a place would have ended.
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
            // A newcomer has missed what was told before.
            self.begin_anew();
        }
        self.watched = Watched::By { places: found, until: until.min(now.plus(watch::LASTS)) };
    }

    /// What was told with the page may be lost: the next one makes up for it, unless none ever can.
    fn failed(&mut self, error: &StoreError) {
        match error {
            StoreError::Unavailable(_) | StoreError::Conflict => self.begin_anew(),
            StoreError::TooLarge(_) | StoreError::Invalid(_) | StoreError::Corrupt(_) => {
                self.stop();
            }
        }
    }
}

/// Until the conversation falls silent, or the process ends.
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
                    tracing::debug!(%error, "nobody was looked for");
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
                    tracing::debug!(%error, "a page was not written");
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
