//! A lookout: what other instances do in a conversation, looked for once for all its readers on this one.
//!
//! The head says that something was committed, and whether it is worth looking for more; readers take events from the store
//! themselves. What it finds comes to readers as if it had happened here.

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

/// While something is going on elsewhere.
const BUSY: Duration = Duration::from_millis(500);
/// While it goes on here, where everybody is told at once; and between looks at the head while pages come.
const HEAD_EVERY: Duration = Duration::from_secs(2);
/// The longest between looks at a conversation that rests.
const RESTING: Duration = Duration::from_secs(2);
/// The same when it has rested for [`QUIET_AFTER`].
const QUIET: Duration = Duration::from_secs(5);
/// A conversation that rests for so long is not watched until something happens.
const QUIET_AFTER: Duration = Duration::from_mins(5);
/// What is due so soon counts as going on.
const SOON: Duration = Duration::from_secs(1);
/// Pages read at once.
const PAGES: usize = 32;

/// What the head tells of a conversation. Nothing else of it is read, so that a newer version's head is understood too.
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
    /// # Errors
    /// [`StoreError::Corrupt`]: the readers find out for themselves.
    fn of(stored: &Stored) -> Result<Self, StoreError> {
        let read = stored.document.body.read();
        read.map_err(|error| StoreError::Corrupt(format!("a head: {error}")))
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
    /// Whether readers want more than commits.
    wants_all: Arc<AtomicBool>,
    post: Post,
    sight: Option<Sight>,
    /// When the head is due again, and when it was read last.
    head_at: Instant,
    head_seen_at: Instant,
    /// Between looks while nothing goes on; grows.
    pause: Duration,
    epoch: u64,
    /// The last page that was read.
    page: Option<LastPage>,
    /// Whether pages were looked for before: the first time, they tell the past.
    has_read: bool,
}

struct LastPage {
    id: String,
    began: Timestamp,
    n: u64,
}

/// What a look at the pages came to.
#[derive(Default)]
struct Told {
    is_any: bool,
    is_commit: bool,
}

/// What pages tell of the past: readers that come now are shown its outcome, not its course.
#[derive(Default)]
struct Past {
    answer: Option<UnderWay>,
    /// Something was committed since, most likely this answer.
    is_doubtful: bool,
}

/// Until nobody reads on, which drops it.
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
                tracing::debug!(%error, "a conversation was not looked at");
                RESTING
            }
        };
        drop(inner);
        tokio::select! {
            () = tokio::time::sleep(pause) => {}
            // Not at once: more of it follows most likely.
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

    /// Looks once; answers when the next look is due.
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
            // Who tells is at work, most likely: it is asked less often whether somebody else is.
            self.head_at = self.head_seen_at + HEAD_EVERY;
        }
        if goes_on || is_news {
            self.pause = BUSY;
        } else {
            self.pause = (self.pause * 2).min(if is_quiet { QUIET } else { RESTING });
        }
        Ok(self.pause)
    }

    /// Whether something was committed since the last look.
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
            // What the new holder committed first, such as the end of another's answer, comes before what it tells.
            self.tell_commits(live);
        }
        Ok(is_news)
    }

    /// Whether the epoch is a new one: what was told in an older one and is not committed is void.
    fn enter(&mut self, live: &Inner, epoch: u64) -> bool {
        let is_new = epoch > self.epoch;
        if is_new {
            self.epoch = epoch;
            self.page = None;
            live.local.lose(&self.key);
        }
        is_new
    }

    /// What is done here was told when it was done.
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
                tracing::debug!(%error, "a page was passed over");
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
