//! The commit: one atomic conditional write, and the proof of who won when its answer was lost (design §5).

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

/// Nudges are sent for what is due sooner than this; the rest is the sweep's.
pub(super) const NUDGE_WITHIN: Duration = Duration::from_mins(2);
/// First wait before an identical batch is sent again; doubles each time.
const BACK_OFF: Duration = Duration::from_millis(50);

const BACK_OFF_MAX: Duration = Duration::from_secs(5);

/// What became of a batch.
enum Verdict {
    Won(ETag),
    /// Another commit came first; the head as it is now, or none.
    Lost(Option<Box<Stored>>),
    /// What waits was changed by its sender since it was looked at: this batch can never win.
    Stale,
}

impl Hold<'_> {
    /// Applies the inputs and commits what they come to. Lost against a change that left the claim alone (a PATCH): the
    /// same inputs are applied to the new head and committed anew.
    ///
    /// # Errors
    /// [`TurnError::ClaimLost`]: discard the work. Otherwise the delivery cannot go on; nothing is lost.
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
            // Who is not counted keeps what it is owed: a step that was made smaller looks at nobody.
            let is_counted = inputs.iter().any(|input| matches!(input, Input::Looked(_)));
            let looked_at =
                if is_counted { seen.as_deref().unwrap_or(looked_at) } else { Default::default() };
            // The claim that this batch writes begins with its draft, however long the batch is on its way.
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

    /// Claim, times and the marks of this commit.
    fn finish(&self, name: &str, draft: &mut Draft) {
        // A renewal is made in the middle of something: whatever the turn's time says, it goes on.
        let is_last = name != "renew" && self.is_last(draft);
        let head = &mut draft.head;
        let has_news = !draft.entries.is_empty() || !draft.events.is_empty();
        head.commit_id = CommitId::new(self.world.ids.fresh());
        head.epoch = self.epoch;
        // What has come to rest, waiting for a person or for nothing, is no step: nothing that died has tried it.
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

    /// Sends the batch until it is certain what became of it.
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
            // Conclude nothing from the answer: the head says who won.
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

    /// What became of a batch that replaces items which are no longer as they were looked at; `None`: they still are, or the
    /// store did not say. The head is asked once more after them, for this very batch may be what has replaced them.
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

    /// `None`: the head is as it was before, so the batch was not applied, or not yet: send it again, never another one.
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
        // A head that has not come as far as this batch's events never held them: no witness needs to be heard.
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
        // Won, and others have moved on since: the ETag is theirs, so the next commit of ours loses once and reloads.
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
            // A renewal is no news: readers would take the answer that goes on for one that has ended.
            let event_seq = self.head.event_seq;
            let busy_with = self.prompt_id().filter(|_| self.head.requests.is_empty());
            self.world.live.publish(&self.key, LiveEvent::Committed { event_seq, busy_with });
        }
        if self.is_settled && self.head.claim.is_some() {
            // The right outside the head lives as long as the one in it.
            let _ = self.renew_settled().await;
        }
        let notice_nudge = !draft.notices.is_empty();
        if notice_nudge {
            ring(self.world, queue::NOTIFY, &self.nudge(), Duration::ZERO).await;
        }
        self.nudge_at = self.head.due.filter(|_| self.head.claim.is_none());
    }

    /// In the prompt's trace; when it has just ended, in the trace of the turn that ended it.
    pub(super) fn nudge(&self) -> Nudge {
        let traceparent = match &self.head.prompt {
            Some(run) => run.traceparent.clone(),
            None => self.traceparent.clone(),
        };
        Nudge::of(self.key.clone(), traceparent)
    }
}

/// Of a batch, as it is stored.
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

/// Rings a doorbell. A lost one costs time, never work: the sweep finds what is owed.
/// Whether it was taken.
pub(super) async fn ring(world: &World, queue: &str, nudge: &Nudge, delay: Duration) -> bool {
    let text = serde_json::to_string(nudge).unwrap_or_default();
    let sent = world.queue.send(queue, text, delay).await;
    if let Some(metrics) = world.telemetry.metrics() {
        metrics.message(queue, "send", sent.is_ok());
    }
    if let Err(error) = &sent {
        tracing::warn!(conversation.id = %nudge.key.conversation_id, error = %error, "a nudge for {} was not sent; the sweep will find the work", nudge.key.conversation_id);
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
        // Whatever else changes the head alone.
        (_, "before") => "renew.before",
        _ => "renew.after",
    }
}
