//! Remote poller: reads the events of other instances in a conversation, once for all readers on
//! this instance.
//!
//! The head shows commits, and whether a poll for deltas is worthwhile; readers take durable events
//! from the store themselves. The poller publishes the events to local readers as if they were
//! local.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Weak};
use std::time::Duration;

use serde::Deserialize;
use tokio::sync::Notify;
use tokio::time::Instant;

use super::SharedState;
use super::delta_batch::{self, DeltaBatch};
use super::watchers::WatchLease;
use crate::live::partial_response::PartialResponse;
use crate::live::{LiveEvent, last_response};
use crate::store::{
    DocumentKind, Freshness, HEAD_ID, Partition, Selection, StoreError, StoredDocument,
};
use turnwheel_conversation::head::Lease;
use turnwheel_json::raw::RawJson;
use turnwheel_platform::clock::Timestamp;
use turnwheel_platform::ids::ConversationKey;

/// Poll interval while another instance is active.
const BUSY_INTERVAL: Duration = Duration::from_millis(500);
/// Interval between reads of the head while this instance is active, and while batches arrive.
const HEAD_INTERVAL: Duration = Duration::from_secs(2);
/// Longest poll interval of an idle conversation.
const IDLE_INTERVAL_MAX: Duration = Duration::from_secs(2);
/// Longest poll interval of a conversation that is idle for [`QUIET_AFTER`].
const QUIET_INTERVAL_MAX: Duration = Duration::from_secs(5);
/// Idle time after which the poller stops renewing the watch, until the next activity.
const QUIET_AFTER: Duration = Duration::from_mins(5);
/// Work that is due within this time counts as active.
const DUE_SOON: Duration = Duration::from_secs(1);
/// Work without a worker counts as active until it is overdue for this time.
const OVERDUE_MAX: Duration = Duration::from_mins(1);
/// Batches of one query.
const BATCHES_MAX: usize = 32;

/// The members of a head that the poller reads. The rest is ignored, so that heads of newer
/// versions work too.
#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct HeadProbe {
    #[serde(default)]
    event_seq: u64,
    #[serde(default)]
    epoch: u64,
    #[serde(rename = "claim")]
    lease: Option<Lease>,
    /// Beside the body: an accepted request does not write the body.
    #[serde(skip)]
    due: Option<Timestamp>,
    #[serde(default)]
    incarnation: String,
    #[serde(default)]
    #[serde(rename = "answers")]
    response_count: u64,
    #[serde(default)]
    updated_at: Timestamp,
    phase: Option<RawJson>,
}

impl HeadProbe {
    /// Parses a stored head.
    ///
    /// # Errors
    /// [`StoreError::Corrupt`]: skip this poll; the readers detect the error themselves.
    fn from_stored(stored: &StoredDocument) -> Result<Self, StoreError> {
        let read = stored.document.body.read::<Self>();
        let head = read.map_err(|error| StoreError::Corrupt(format!("invalid head: {error}")))?;
        Ok(Self { due: stored.document.due, ..head })
    }

    fn is_deleted(&self) -> bool {
        let pending_work = self.phase.as_ref().and_then(|phase| phase.string_member("owed"));
        pending_work.as_deref() == Some("deleted")
    }

    fn is_leased_here(&self, live: &SharedState) -> bool {
        self.lease.as_ref().is_some_and(|claim| live.is_own_worker(&claim.worker))
    }

    fn is_active(&self, now: Timestamp) -> bool {
        let is_due = |due: Timestamp| due <= now.plus(DUE_SOON) && due.until(now) < OVERDUE_MAX;
        self.lease.is_some() || self.due.is_some_and(is_due)
    }

    fn committed(&self) -> LiveEvent {
        LiveEvent::Committed {
            event_seq: self.event_seq,
            running_prompt: None,
            ended_response: last_response(&self.incarnation, self.response_count),
        }
    }
}

pub(super) struct RemotePoller {
    key: ConversationKey,
    partition: Partition,
    /// Number of the period in which readers need deltas too; 0: none does.
    delta_period: Arc<AtomicU64>,
    watch_lease: WatchLease,
    head: Option<HeadProbe>,
    /// Time of the next read of the head. `last_head_read` is that of the last one.
    next_head_read: Instant,
    last_head_read: Instant,
    /// Poll interval while the conversation is idle; it grows.
    interval: Duration,
    epoch: u64,
    /// The last batch that was read.
    last_batch: Option<LastBatch>,
    /// The period whose first read of batches is done. That read returns events from before the
    /// period.
    caught_up_period: u64,
}

struct LastBatch {
    id: String,
    started_at: Timestamp,
    number: u64,
}

/// Summary of one read of batches.
#[derive(Default)]
struct BatchSummary {
    has_events: bool,
    has_commit: bool,
}

/// State after past batches. New readers get this state, not its events.
#[derive(Default)]
struct CatchUp {
    response: Option<PartialResponse>,
}

/// Polls until the last reader is gone, which drops this future.
pub(super) async fn run_poller(
    live: Weak<SharedState>,
    key: ConversationKey,
    delta_period: Arc<AtomicU64>,
    wake: Arc<Notify>,
) {
    let mut poller = RemotePoller::new(key, delta_period);
    loop {
        let Some(inner) = live.upgrade() else { return };
        let interval = match poller.poll(&inner).await {
            Ok(interval) => interval,
            Err(error) => {
                tracing::debug!(%error, "conversation poll failed");
                IDLE_INTERVAL_MAX
            }
        };
        drop(inner);
        tokio::select! {
            () = tokio::time::sleep(interval) => {}
            // Delayed, because more commits usually follow.
            () = wake.notified() => {
                poller.next_head_read = Instant::now();
                // A lagging replica may not have the commit yet, so the next read follows soon.
                poller.interval = BUSY_INTERVAL;
                tokio::time::sleep(interval.min(BUSY_INTERVAL)).await;
            }
        }
    }
}

impl RemotePoller {
    fn new(key: ConversationKey, delta_period: Arc<AtomicU64>) -> Self {
        Self {
            partition: Partition::Conversation(key.clone()),
            key,
            delta_period,
            watch_lease: WatchLease::default(),
            head: None,
            next_head_read: Instant::now(),
            last_head_read: Instant::now(),
            interval: BUSY_INTERVAL,
            epoch: 0,
            last_batch: None,
            caught_up_period: 0,
        }
    }

    /// Polls once. Returns the delay until the next poll.
    async fn poll(&mut self, live: &SharedState) -> Result<Duration, StoreError> {
        let has_commit = Instant::now() >= self.next_head_read && self.poll_head(live).await?;
        let Some(head) = &self.head else { return Ok(QUIET_INTERVAL_MAX) };
        let now = live.clock.now();
        let (is_active, is_leased_here) = (head.is_active(now), head.is_leased_here(live));
        let is_quiet = !is_active && head.updated_at.until(now) > QUIET_AFTER;
        let delta_period = self.delta_period.load(Ordering::SeqCst);
        let wants_deltas = delta_period != 0;
        if wants_deltas && !is_quiet {
            self.watch_lease.renew_if_due(&*live.store, &self.partition, &live.instance, now).await;
        }
        self.next_head_read = Instant::now();
        if is_leased_here {
            // Other instances commit requests meanwhile.
            self.publish_commits(live);
            return Ok(HEAD_INTERVAL);
        }
        let mut summary = BatchSummary::default();
        if is_active && wants_deltas {
            summary = self.read_batches(live, delta_period).await?;
        }
        self.publish_commits(live);
        if summary.has_events && !summary.has_commit {
            // The publisher is most likely still active, so take-overs are checked less often.
            self.next_head_read = self.last_head_read + HEAD_INTERVAL;
        }
        if is_active || has_commit {
            self.interval = BUSY_INTERVAL;
        } else {
            self.interval = (self.interval * 2).min(if is_quiet {
                QUIET_INTERVAL_MAX
            } else {
                IDLE_INTERVAL_MAX
            });
        }
        Ok(self.interval)
    }

    /// Reads the head. True if there is a new commit.
    async fn poll_head(&mut self, live: &SharedState) -> Result<bool, StoreError> {
        self.last_head_read = Instant::now();
        let found = live.store.read(&self.partition, HEAD_ID, Freshness::Any).await?;
        let head = found
            .as_ref()
            .map(HeadProbe::from_stored)
            .transpose()?
            .filter(|head| !head.is_deleted());
        let known_event_seq = self.head.as_ref().map_or(0, |head| head.event_seq);
        self.head = head;
        let Some(head) = &self.head else {
            live.local.publish_remote(&self.key, LiveEvent::Deleted);
            return Ok(false);
        };
        let (has_commit, epoch) = (head.event_seq > known_event_seq, head.epoch);
        if self.enter_epoch(live, epoch) {
            // Commits of the new lease owner, such as the end of another's response, precede its
            // deltas.
            self.publish_commits(live);
        }
        Ok(has_commit)
    }

    /// Enters an epoch; true if it is new. Uncommitted deltas of older epochs are void.
    fn enter_epoch(&mut self, live: &SharedState, epoch: u64) -> bool {
        let is_new = epoch > self.epoch;
        if is_new {
            self.epoch = epoch;
            self.last_batch = None;
            live.local.forget_before(&self.key, epoch);
        }
        is_new
    }

    /// Publishes commits of other instances. Those of this instance are already published.
    fn publish_commits(&self, live: &SharedState) {
        let Some(head) = &self.head else { return };
        let committed = head.committed();
        // A batch of an earlier version has the number of the commit, but not its response.
        live.local.forget_ended(&self.key, &committed);
        if live.local.newest_event_seq(&self.key) < head.event_seq {
            live.local.publish_remote(&self.key, committed);
        }
    }

    /// Starts a partial response that a batch contains, unless the head has ended it.
    fn start_response(&self, live: &SharedState, partial: PartialResponse) {
        let head = self.head.as_ref();
        if !head.is_some_and(|head| head.committed().ends(&partial.response)) {
            live.local.start_remote_response(&self.key, partial);
        }
    }

    async fn read_batches(
        &mut self,
        live: &SharedState,
        delta_period: u64,
    ) -> Result<BatchSummary, StoreError> {
        let mut catch_up = (self.caught_up_period != delta_period).then(CatchUp::default);
        if catch_up.is_some() {
            self.last_batch = None;
        }
        let mut summary = BatchSummary::default();
        loop {
            let from_id = match &self.last_batch {
                Some(last) => delta_batch::id_after(&last.id),
                None => delta_batch::id_prefix(self.epoch),
            };
            let selection = Selection {
                from_id: Some(from_id),
                limit: BATCHES_MAX,
                ..Selection::all(DocumentKind::Live)
            };
            let found = live.store.select(&self.partition, &selection, Freshness::Any).await?;
            for stored in &found {
                self.apply_batch(live, stored, catch_up.as_mut(), &mut summary);
            }
            if found.len() < BATCHES_MAX {
                break;
            }
        }
        self.caught_up_period = delta_period;
        if let Some(partial) = catch_up.and_then(|it| it.response) {
            self.start_response(live, partial);
        }
        Ok(summary)
    }

    fn apply_batch(
        &mut self,
        live: &SharedState,
        stored: &StoredDocument,
        catch_up: Option<&mut CatchUp>,
        summary: &mut BatchSummary,
    ) {
        let id = stored.document.id.clone();
        let batch = match DeltaBatch::from_stored(stored) {
            Ok(batch) => batch,
            Err(error) => {
                tracing::debug!(%error, "delta batch skipped");
                self.last_batch = Some(LastBatch { id, started_at: Timestamp(0), number: 0 });
                return;
            }
        };
        self.enter_epoch(live, batch.epoch);
        let follows = batch.number == 1
            || self.last_batch.as_ref().is_some_and(|last| {
                last.started_at == batch.started_at && last.number + 1 == batch.number
            });
        self.last_batch =
            Some(LastBatch { id, started_at: batch.started_at, number: batch.number });
        if batch.instance == live.instance {
            return;
        }
        summary.has_events = true;
        summary.has_commit |=
            batch.events.iter().any(|event| matches!(event, LiveEvent::Committed { .. }));
        if let Some(catch_up) = catch_up {
            catch_up.apply(batch, follows);
            return;
        }
        if !follows {
            live.local.forget_remote(&self.key);
        }
        for event in batch.events {
            live.local.publish_remote(&self.key, event);
        }
        if let Some(partial) = batch.partial {
            self.start_response(live, partial.to_partial());
        }
    }
}

impl CatchUp {
    fn apply(&mut self, batch: DeltaBatch, follows: bool) {
        if !follows {
            self.response = None;
        }
        for event in batch.events {
            self.response.take_if(|partial| event.ends(&partial.response));
            match event {
                LiveEvent::ResponseStarted(response) => {
                    self.response = Some(PartialResponse::new(response));
                }
                LiveEvent::Delta { message_id, event } => {
                    let answer =
                        self.response.as_mut().filter(|it| it.response.message_id == message_id);
                    if let Some(answer) = answer {
                        answer.apply(&event);
                    }
                }
                LiveEvent::Committed { .. }
                | LiveEvent::Reset { .. }
                | LiveEvent::ToolUpdate(_)
                | LiveEvent::Snapshot(_)
                | LiveEvent::Deleted => {}
            }
        }
        if let Some(partial) = batch.partial {
            self.response = Some(partial.to_partial());
        }
    }
}
