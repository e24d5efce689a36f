//! Remote poller: reads the events of other instances in a conversation, once for all readers on
//! this instance.
//!
//! The head shows commits, and whether a poll for deltas is worthwhile; readers take durable events
//! from the store themselves. The poller publishes the events to local readers as if they were
//! local.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Weak};
use std::time::Duration;

use serde::Deserialize;
use tokio::sync::Notify;
use tokio::time::Instant;

use super::Inner;
use super::page::{self, Page};
use super::watch::Post;
use crate::agent::head::Claim;
use crate::agent::raw::RawJson;
use crate::clock::Timestamp;
use crate::ids::ConversationKey;
use crate::live::LiveEvent;
use crate::live::under_way::UnderWay;
use crate::store::{Freshness, HEAD_ID, Kind, Partition, Selection, StoreError, Stored};

/// Poll interval while another instance is active.
const BUSY: Duration = Duration::from_millis(500);
/// Interval between reads of the head while this instance is active, and while batches arrive.
const HEAD_EVERY: Duration = Duration::from_secs(2);
/// Longest poll interval of an idle conversation.
const RESTING: Duration = Duration::from_secs(2);
/// Longest poll interval of a conversation that is idle for [`QUIET_AFTER`].
const QUIET: Duration = Duration::from_secs(5);
/// Idle time after which the poller stops renewing the watch, until the next activity.
const QUIET_AFTER: Duration = Duration::from_mins(5);
/// Work that is due within this time counts as active.
const SOON: Duration = Duration::from_secs(1);
/// Batches of one query.
const PAGES: usize = 32;

/// The members of a head that the poller reads. The rest is ignored, so that heads of newer
/// versions work too.
#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct Sight {
    #[serde(default)]
    event_seq: u64,
    #[serde(default)]
    epoch: u64,
    claim: Option<Claim>,
    due: Option<Timestamp>,
    #[serde(default)]
    updated_at: Timestamp,
    phase: Option<RawJson>,
}

impl Sight {
    /// Parses a stored head.
    ///
    /// # Errors
    /// [`StoreError::Corrupt`]: skip this poll; the readers detect the error themselves.
    fn of(stored: &Stored) -> Result<Self, StoreError> {
        let read = stored.document.body.read();
        read.map_err(|error| StoreError::Corrupt(format!("invalid head: {error}")))
    }

    fn is_deleted(&self) -> bool {
        let owed = self.phase.as_ref().and_then(|phase| phase.string_member("owed"));
        owed.as_deref() == Some("deleted")
    }

    fn is_here(&self, live: &Inner) -> bool {
        self.claim.as_ref().is_some_and(|claim| live.is_own(&claim.worker))
    }

    fn goes_on(&self, now: Timestamp) -> bool {
        self.claim.is_some() || self.due.is_some_and(|due| due <= now.plus(SOON))
    }
}

pub(super) struct Lookout {
    key: ConversationKey,
    partition: Partition,
    /// True if a reader needs deltas too.
    wants_all: Arc<AtomicBool>,
    post: Post,
    sight: Option<Sight>,
    /// Time of the next read of the head. `last_head_read` is that of the last one.
    head_at: Instant,
    head_seen_at: Instant,
    /// Poll interval while the conversation is idle; it grows.
    pause: Duration,
    epoch: u64,
    /// The last batch that was read.
    page: Option<LastPage>,
    /// True after the first read of batches, which contains only past events.
    has_read: bool,
}

struct LastPage {
    id: String,
    began: Timestamp,
    n: u64,
}

/// Summary of one read of batches.
#[derive(Default)]
struct Told {
    is_any: bool,
    is_commit: bool,
}

/// State after past batches. New readers get this state, not its events.
#[derive(Default)]
struct Past {
    answer: Option<UnderWay>,
    /// True if a commit followed, most likely that of this response.
    is_doubtful: bool,
}

/// Polls until the last reader is gone, which drops this future.
pub(super) async fn run(
    live: Weak<Inner>,
    key: ConversationKey,
    wants_all: Arc<AtomicBool>,
    wake: Arc<Notify>,
) {
    let mut lookout = Lookout::new(key, wants_all);
    loop {
        let Some(inner) = live.upgrade() else { return };
        let pause = match lookout.look(&inner).await {
            Ok(pause) => pause,
            Err(error) => {
                tracing::debug!(%error, "conversation poll failed");
                RESTING
            }
        };
        drop(inner);
        tokio::select! {
            () = tokio::time::sleep(pause) => {}
            // Delayed, because more commits usually follow.
            () = wake.notified() => {
                lookout.head_at = Instant::now();
                tokio::time::sleep(pause.min(BUSY)).await;
            }
        }
    }
}

impl Lookout {
    fn new(key: ConversationKey, wants_all: Arc<AtomicBool>) -> Self {
        Self {
            partition: Partition::Conversation(key.clone()),
            key,
            wants_all,
            post: Post::default(),
            sight: None,
            head_at: Instant::now(),
            head_seen_at: Instant::now(),
            pause: BUSY,
            epoch: 0,
            page: None,
            has_read: false,
        }
    }

    /// Polls once. Returns the delay until the next poll.
    async fn look(&mut self, live: &Inner) -> Result<Duration, StoreError> {
        let is_news = Instant::now() >= self.head_at && self.look_at_head(live).await?;
        let Some(sight) = &self.sight else { return Ok(QUIET) };
        let now = live.clock.now();
        let (goes_on, is_here) = (sight.goes_on(now), sight.is_here(live));
        let is_quiet = !goes_on && sight.updated_at.until(now) > QUIET_AFTER;
        let wants_all = self.wants_all.load(Ordering::SeqCst);
        if wants_all && !is_quiet {
            self.post.keep(&*live.store, &self.partition, &live.instance, now).await;
        }
        self.head_at = Instant::now();
        if is_here {
            return Ok(HEAD_EVERY);
        }
        let mut told = Told::default();
        if goes_on && wants_all {
            told = self.read_pages(live).await?;
        }
        self.tell_commits(live);
        if told.is_any && !told.is_commit {
            // The publisher is most likely still active, so take-overs are checked less often.
            self.head_at = self.head_seen_at + HEAD_EVERY;
        }
        if goes_on || is_news {
            self.pause = BUSY;
        } else {
            self.pause = (self.pause * 2).min(if is_quiet { QUIET } else { RESTING });
        }
        Ok(self.pause)
    }

    /// Reads the head. True if there is a new commit.
    async fn look_at_head(&mut self, live: &Inner) -> Result<bool, StoreError> {
        self.head_seen_at = Instant::now();
        let found = live.store.read(&self.partition, HEAD_ID, Freshness::Any).await?;
        let sight = found.as_ref().map(Sight::of).transpose()?.filter(|sight| !sight.is_deleted());
        let known = self.sight.as_ref().map_or(0, |sight| sight.event_seq);
        self.sight = sight;
        let Some(sight) = &self.sight else {
            live.local.tell(&self.key, LiveEvent::Gone);
            return Ok(false);
        };
        let (is_news, epoch) = (sight.event_seq > known, sight.epoch);
        if self.enter(live, epoch) {
            // Commits of the new lease owner, such as the end of another's response, precede its
            // deltas.
            self.tell_commits(live);
        }
        Ok(is_news)
    }

    /// Enters an epoch; true if it is new. Uncommitted deltas of older epochs are void.
    fn enter(&mut self, live: &Inner, epoch: u64) -> bool {
        let is_new = epoch > self.epoch;
        if is_new {
            self.epoch = epoch;
            self.page = None;
            live.local.lose(&self.key);
        }
        is_new
    }

    /// Publishes commits of other instances. Those of this instance are already published.
    fn tell_commits(&self, live: &Inner) {
        let Some(sight) = self.sight.as_ref().filter(|sight| !sight.is_here(live)) else { return };
        let event_seq = sight.event_seq;
        if live.local.newest(&self.key) < event_seq {
            live.local.tell(&self.key, LiveEvent::Committed { event_seq, busy_with: None });
        }
    }

    async fn read_pages(&mut self, live: &Inner) -> Result<Told, StoreError> {
        let mut past = (!self.has_read).then(Past::default);
        if past.is_some() {
            self.page = None;
        }
        let mut told = Told::default();
        loop {
            let from_id = match &self.page {
                Some(last) => page::behind(&last.id),
                None => page::first_id(self.epoch),
            };
            let selection =
                Selection { from_id: Some(from_id), limit: PAGES, ..Selection::all(Kind::Live) };
            let found = live.store.select(&self.partition, &selection, Freshness::Any).await?;
            for stored in &found {
                self.turn_page(live, stored, past.as_mut(), &mut told);
            }
            if found.len() < PAGES {
                break;
            }
        }
        self.has_read = true;
        if let Some(under_way) = past.and_then(Past::under_way) {
            live.local.join(&self.key, under_way);
        }
        Ok(told)
    }

    fn turn_page(
        &mut self,
        live: &Inner,
        stored: &Stored,
        past: Option<&mut Past>,
        told: &mut Told,
    ) {
        let id = stored.document.id.clone();
        let page = match Page::of(stored) {
            Ok(page) => page,
            Err(error) => {
                tracing::debug!(%error, "delta batch skipped");
                self.page = Some(LastPage { id, began: Timestamp(0), n: 0 });
                return;
            }
        };
        self.enter(live, page.epoch);
        let follows = page.n == 1
            || self
                .page
                .as_ref()
                .is_some_and(|last| last.began == page.began && last.n + 1 == page.n);
        self.page = Some(LastPage { id, began: page.began, n: page.n });
        if page.from == live.instance {
            return;
        }
        told.is_any = true;
        told.is_commit |=
            page.told.iter().any(|event| matches!(event, LiveEvent::Committed { .. }));
        if let Some(past) = past {
            past.take_in(page, follows);
            return;
        }
        if !follows {
            live.local.lose(&self.key);
        }
        for event in page.told {
            live.local.tell(&self.key, event);
        }
        if let Some(so_far) = page.so_far {
            live.local.join(&self.key, so_far.under_way());
        }
    }
}

impl Past {
    fn take_in(&mut self, page: Page, follows: bool) {
        if !follows {
            self.answer = None;
        }
        for event in page.told {
            match event {
                LiveEvent::AnswerStarted(answer) => {
                    *self = Self { answer: Some(UnderWay::new(answer)), is_doubtful: false };
                }
                LiveEvent::Delta { message_id, event } => {
                    let answer =
                        self.answer.as_mut().filter(|it| it.answer.message_id == message_id);
                    if let Some(answer) = answer {
                        answer.take_in(&event);
                        self.is_doubtful = false;
                    }
                }
                LiveEvent::Reset { .. } => self.answer = None,
                LiveEvent::Committed { .. } => self.is_doubtful = true,
                LiveEvent::ToolUpdate(_) | LiveEvent::SoFar(_) | LiveEvent::Gone => {}
            }
        }
        if let Some(so_far) = page.so_far {
            *self = Self { answer: Some(so_far.under_way()), is_doubtful: false };
        }
    }

    fn under_way(self) -> Option<UnderWay> {
        self.answer.filter(|_| !self.is_doubtful)
    }
}
