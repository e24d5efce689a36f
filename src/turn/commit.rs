//! The commit: one atomic conditional write, and the check of which commit won after a lost
//! response (design §5).

use std::time::Duration;

use crate::agent::draft::Draft;
use crate::agent::inbox::InboxItem;
use crate::agent::phase::Phase;
use crate::agent::step::Input;
use crate::ids::{CommitId, InputId};
use crate::live::LiveEvent;
use crate::queue;
use crate::store::{
    ETag, Freshness, HEAD_ID, Kind, Selection, StoreError, Stored, TAKE_OVER_AFTER, Write,
    events_id,
};
use crate::turn::claiming::{CLAIM, MARGIN};
use crate::turn::delivery::TurnError;
use crate::turn::event_log::{log_commit, report_alerts};
use crate::turn::hold::Hold;
use crate::turn::inbox::{Waiting, hand_over};
use crate::turn::record::{self, EventsBody};
use crate::turn::reduce::reduced;
use crate::turn::tried::Tried;
use crate::turn::{Nudge, World};

/// Work due sooner than this gets a nudge; the sweep enqueues the rest.
pub(super) const NUDGE_WITHIN: Duration = Duration::from_mins(2);
/// First wait before an identical batch is sent again; doubles each time.
const BACK_OFF: Duration = Duration::from_millis(50);

const BACK_OFF_MAX: Duration = Duration::from_secs(5);

/// Outcome of a batch.
enum Verdict {
    Won(ETag),
    /// Another commit came first. Holds the current head, if one exists.
    Lost(Option<Box<Stored>>),
    /// The sender changed an inbox item after it was read: this batch can never win.
    Stale,
}

impl Hold<'_> {
    /// Applies the inputs and commits the result. If another writer won but left the lease alone (a
    /// PATCH), applies the same inputs to the new head and commits again.
    ///
    /// # Errors
    /// [`TurnError::LeaseLost`]: discard the work. Otherwise stop the delivery; nothing is lost.
    pub(super) async fn commit(
        &mut self,
        name: &'static str,
        tried: Tried,
        looked_at: &[Waiting],
    ) -> Result<(), TurnError> {
        let (inputs, mut tried) = tried.into_parts(self);
        let mut less: Option<Vec<Input>> = None;
        let mut seen: Option<Vec<Waiting>> = None;
        let mut looks = 0;
        loop {
            let inputs = less.as_deref().unwrap_or(&inputs);
            // Uncounted items keep their `due`: a reduced step reads no inbox.
            let is_counted = inputs.iter().any(|input| matches!(input, Input::Looked(_)));
            let looked_at =
                if is_counted { seen.as_deref().unwrap_or(looked_at) } else { Default::default() };
            // The lease in this batch starts with its transition, however long the write takes.
            let (mut draft, began) = tried.take().unwrap_or_else(|| {
                let began = self.world.clock.monotonic();
                (self.draft(inputs), began)
            });
            self.finish(name, &mut draft);
            let mut bytes = Bytes::default();
            let sent = match self.writes(&draft, looked_at) {
                Ok(writes) => {
                    bytes = Bytes::of(&writes);
                    self.world.probe.reached(boundary(name, "before")).await;
                    self.write(writes, &draft).await
                }
                Err(error) => Err(error),
            };
            self.count_commit(name, &sent);
            match sent {
                Ok(Verdict::Won(etag)) => {
                    self.world.probe.reached(boundary(name, "after")).await;
                    self.won(draft, etag, (began, bytes)).await;
                    return Ok(());
                }
                Ok(Verdict::Lost(head)) => self.reload(head).await?,
                Ok(Verdict::Stale) => {
                    looks += 1;
                    let (again, waiting) = self.look_again(inputs, looks).await?;
                    (less, seen) = (Some(again), Some(waiting));
                }
                Err(StoreError::TooLarge(what)) => match reduced(inputs, &what) {
                    Some(reduced) => less = Some(reduced),
                    None => return Err(self.error("commit", StoreError::TooLarge(what))),
                },
                Err(source) => return Err(self.error("commit", source)),
            }
        }
    }

    fn count_commit(&self, name: &'static str, sent: &Result<Verdict, StoreError>) {
        let outcome = match sent {
            Ok(Verdict::Won(_)) => "won",
            Ok(Verdict::Lost(_) | Verdict::Stale) => "lost",
            Err(_) => "failed",
        };
        if let Some(metrics) = self.world.telemetry.metrics() {
            metrics.commit(name, outcome);
        }
    }

    /// Sets the lease, the times and the marks of this commit.
    fn finish(&self, name: &str, draft: &mut Draft) {
        // A renewal happens in the middle of an effect, which continues whatever time is left in
        // the turn.
        let is_last = name != "renew" && self.is_last(draft);
        let head = &mut draft.head;
        let has_news = !draft.entries.is_empty() || !draft.events.is_empty();
        head.commit_id = CommitId::new(self.world.ids.fresh());
        head.epoch = self.epoch;
        // A conversation that is idle or waits for an approver has no running step, so no death
        // counts against it.
        let is_step = head.phase != Phase::Idle
            && head.step_owed_at(draft.now).is_some_and(|due| due <= draft.now);
        if !is_step {
            head.note_progress();
        } else if let Some(death) = self.death {
            head.count_death(death, draft.now);
        }
        head.suspicion.is_alone = is_step && self.is_alone && !is_last;
        head.min_reader = head.reader_needed();
        if let (Some(run), Some(told)) = (&mut head.prompt, &self.traceparent) {
            run.last_turn = Some(told.clone());
        }
        if has_news {
            head.revision += 1;
            head.updated_at = draft.now;
        }
        if is_last {
            head.claim = None;
            head.due = head.owed_at(draft.now);
            if let Some(retry_at) = head.suspicion.retry_at {
                head.due = head.due.map(|due| due.max(retry_at));
            }
        } else {
            let until = draft.now.plus(CLAIM);
            head.claim = Some(self.claim(until));
            head.due = Some(until.plus(TAKE_OVER_AFTER));
        }
    }

    fn writes(&self, draft: &Draft, looked_at: &[Waiting]) -> Result<Vec<Write>, StoreError> {
        let version = |id: &InputId| {
            let seen = looked_at.iter().find(|waiting| waiting.item.input_id == *id);
            seen.map(|waiting| waiting.etag.clone())
        };
        let mut writes = record::writes(draft, &self.etag, version)?;
        let landed = |item: &InboxItem| {
            draft.receipts.iter().any(|receipt| receipt.input_id == item.input_id)
        };
        let left_waiting =
            looked_at.iter().filter(|waiting| waiting.is_due && !landed(&waiting.item));
        hand_over(&mut writes, left_waiting);
        Ok(writes)
    }

    /// Sends the batch until its outcome is certain.
    async fn write(&self, writes: Vec<Write>, draft: &Draft) -> Result<Verdict, StoreError> {
        let mut wait = BACK_OFF;
        loop {
            let answer = self.world.store.write(&self.partition, writes.clone()).await;
            let doubt = match answer {
                Ok(etags) => {
                    return Ok(etags.into_iter().next().map_or(Verdict::Lost(None), Verdict::Won));
                }
                Err(StoreError::Conflict) => None,
                Err(StoreError::Unavailable(source)) => Some(StoreError::Unavailable(source)),
                Err(
                    error @ (StoreError::TooLarge(_)
                    | StoreError::Invalid(_)
                    | StoreError::Corrupt(_)),
                ) => {
                    return Err(error);
                }
            };
            // Conclude nothing from the response: the head decides who won.
            match self.who_won(draft).await {
                Ok(Some(verdict)) => return Ok(verdict),
                Ok(None) => {
                    if let Some(verdict) = self.is_hopeless(&writes, draft).await? {
                        return Ok(verdict);
                    }
                }
                Err(StoreError::Unavailable(_)) => {}
                Err(error) => return Err(error),
            }
            let is_late = self.world.clock.monotonic() + wait + MARGIN >= self.until_monotonic;
            if is_late {
                return Err(doubt.unwrap_or(StoreError::Conflict));
            }
            tokio::time::sleep(wait).await;
            wait = (wait * 2).min(BACK_OFF_MAX);
        }
    }

    /// Checks whether an inbox item in the batch has changed since it was read. Returns `Stale` if
    /// so, `None` if not or if the store is unavailable. Reads the head once more afterwards,
    /// because this batch itself may have replaced the items.
    async fn is_hopeless(
        &self,
        writes: &[Write],
        draft: &Draft,
    ) -> Result<Option<Verdict>, StoreError> {
        let replaced: Vec<(&str, &ETag)> = writes
            .iter()
            .skip(1)
            .filter_map(|write| match write {
                Write::Replace(document, Some(etag)) => Some((document.id.as_str(), etag)),
                Write::Create(_) | Write::Replace(_, None) | Write::Delete(..) => None,
            })
            .collect();
        if replaced.is_empty() {
            return Ok(None);
        }
        let all = Selection::all(Kind::Inbox);
        let inbox = match self.world.store.select(&self.partition, &all, Freshness::Latest).await {
            Ok(inbox) => inbox,
            Err(StoreError::Unavailable(_)) => return Ok(None),
            Err(error) => return Err(error),
        };
        let is_there = |(id, etag): &(&str, &ETag)| {
            inbox.iter().any(|stored| stored.document.id == *id && stored.etag == **etag)
        };
        if replaced.iter().all(is_there) {
            return Ok(None);
        }
        match self.who_won(draft).await {
            Ok(verdict) => Ok(Some(verdict.unwrap_or(Verdict::Stale))),
            Err(StoreError::Unavailable(_)) => Ok(None),
            Err(error) => Err(error),
        }
    }

    /// Returns `None` if the head is unchanged: the batch is not applied, or not yet. Send the same
    /// batch again, never another one.
    async fn who_won(&self, draft: &Draft) -> Result<Option<Verdict>, StoreError> {
        let Some(stored) =
            self.world.store.read(&self.partition, HEAD_ID, Freshness::Latest).await?
        else {
            return Ok(Some(Verdict::Lost(None)));
        };
        if stored.etag == self.etag {
            return Ok(None);
        }
        let head = record::read_head(&stored)?;
        if head.commit_id == draft.head.commit_id {
            return Ok(Some(Verdict::Won(stored.etag)));
        }
        let lost = Verdict::Lost(Some(Box::new(stored)));
        // A head whose `eventSeq` is below this batch's first event never held the batch: no events
        // document needs to be read.
        let Some(first) = draft.events.first().filter(|first| first.n <= head.event_seq) else {
            return Ok(Some(lost));
        };
        let witness =
            self.world.store.read(&self.partition, &events_id(first.n), Freshness::Latest).await?;
        let is_mine = match witness {
            Some(stored) => {
                record::read::<EventsBody>(&stored.document)?.commit_id == draft.head.commit_id
            }
            None => false,
        };
        // Won, and other commits have followed: the ETag is theirs, so our next commit loses once
        // and reloads.
        Ok(Some(if is_mine { Verdict::Won(self.etag.clone()) } else { lost }))
    }

    async fn won(&mut self, draft: Draft, etag: ETag, (began, bytes): (Duration, Bytes)) {
        if let Some(claim) = &draft.head.claim {
            self.until = claim.until;
            self.until_monotonic = began + CLAIM;
        }
        self.death = None;
        self.etag = etag;
        if let Some(call) = self.model_call.take() {
            call.log(&self.key, Some(&draft.head), draft.now);
        }
        log_commit(&self.key, &draft);
        report_alerts(self.world, &self.key, &draft.alerts);
        self.answer = draft.answer;
        self.kept = draft.kept;
        self.head = draft.head;
        self.head_bytes = bytes.head;
        self.world.entries.append(&self.head, &draft.entries, bytes.entries);
        if !draft.events.is_empty() {
            // A renewal publishes nothing: readers would take the running response for a finished
            // one.
            let event_seq = self.head.event_seq;
            let busy_with = self.prompt_id().filter(|_| self.head.requests.is_empty());
            self.world.live.publish(&self.key, LiveEvent::Committed { event_seq, busy_with });
        }
        if self.is_settled && self.head.claim.is_some() {
            // Renew the lease outside the head together with the one in it.
            let _ = self.renew_settled().await;
        }
        let notice_nudge = !draft.notices.is_empty();
        if notice_nudge {
            ring(self.world, queue::NOTIFY, &self.nudge(), Duration::ZERO).await;
        }
        self.nudge_at = self.head.due.filter(|_| self.head.claim.is_none());
    }

    /// In the prompt's trace. If the prompt has just ended, in the trace of the turn that ended it.
    pub(super) fn nudge(&self) -> Nudge {
        let traceparent = match &self.head.prompt {
            Some(run) => run.traceparent.clone(),
            None => self.traceparent.clone(),
        };
        Nudge::of(self.key.clone(), traceparent)
    }
}

/// Stored sizes of a batch.
#[derive(Clone, Copy, Default)]
struct Bytes {
    head: usize,
    entries: usize,
}

impl Bytes {
    fn of(writes: &[Write]) -> Self {
        let mut bytes = Self::default();
        for write in writes {
            match write {
                Write::Create(document) | Write::Replace(document, _) => match document.kind {
                    Kind::Head => bytes.head += document.body.text().len(),
                    Kind::Entry => bytes.entries += document.body.text().len(),
                    Kind::Events
                    | Kind::Inbox
                    | Kind::Receipt
                    | Kind::Notice
                    | Kind::Live
                    | Kind::Watch
                    | Kind::Scope => {}
                },
                Write::Delete(..) => {}
            }
        }
        bytes
    }
}

/// Sends a nudge. A lost nudge costs time, never work, because the sweep finds due work. Returns
/// true if the queue accepted it.
pub(super) async fn ring(world: &World, queue: &str, nudge: &Nudge, delay: Duration) -> bool {
    let text = serde_json::to_string(nudge).unwrap_or_default();
    let sent = world.queue.send(queue, text, delay).await;
    if let Some(metrics) = world.telemetry.metrics() {
        metrics.message(queue, "send", sent.is_ok());
    }
    if let Err(error) = &sent {
        tracing::warn!(conversation.id = %nudge.key.conversation_id, error = %error, "nudge not sent; the sweep will enqueue the work");
    }
    sent.is_ok()
}

fn boundary(name: &'static str, side: &'static str) -> &'static str {
    match (name, side) {
        ("take-in", "before") => "take-in.before",
        ("take-in", _) => "take-in.after",
        ("answer", "before") => "answer.before",
        ("answer", _) => "answer.after",
        ("summary", "before") => "summary.before",
        ("summary", _) => "summary.after",
        ("result", "before") => "result.before",
        ("result", _) => "result.after",
        // Other commits that change only the head.
        (_, "before") => "renew.before",
        _ => "renew.after",
    }
}
