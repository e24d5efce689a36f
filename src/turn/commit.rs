//! The commit: one atomic conditional write, and the proof of who won when its answer was lost (design §5).

use std::time::Duration;

use crate::agent::draft::Draft;
use crate::agent::inbox::InboxItem;
use crate::agent::phase::Phase;
use crate::agent::step::Input;
use crate::clock::{Timestamp, millis};
use crate::ids::CommitId;
use crate::live::LiveEvent;
use crate::queue;
use crate::store::{
    ClaimRequest, ETag, Freshness, HEAD_ID, StoreError, TAKE_OVER_AFTER, Write, events_id,
};
use crate::turn::delivery::{CLAIM, Hold, MARGIN, NUDGE_WITHIN, TurnError, Waiting};
use crate::turn::record::{self, EventsBody};
use crate::turn::{Nudge, World};

/// First wait before an identical batch is sent again; doubles each time.
const BACK_OFF: Duration = Duration::from_millis(50);

/// What became of a batch.
enum Verdict {
    Won(ETag),
    /// Another commit came first.
    Lost,
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
        inputs: &[Input],
        looked_at: &[Waiting],
    ) -> Result<(), TurnError> {
        let mut inputs = inputs.to_vec();
        loop {
            let mut draft = self.try_out(&inputs);
            self.finish(name, &mut draft);
            let writes = match self.writes(&draft, looked_at) {
                Ok(writes) => writes,
                Err(StoreError::TooLarge(what)) if !is_poison(&inputs) => {
                    inputs = vec![Input::Poisoned {
                        reason: format!("The step outgrew what one commit can hold: {what}."),
                    }];
                    continue;
                }
                Err(source) => return Err(self.error("commit", source)),
            };
            self.world.probe.reached(boundary(name, "before")).await;
            let verdict = match self.write(writes, &draft).await {
                Err(StoreError::TooLarge(what)) if !is_poison(&inputs) => {
                    inputs = vec![Input::Poisoned {
                        reason: format!("The step outgrew what one commit can hold: {what}."),
                    }];
                    continue;
                }
                other => other.map_err(|source| self.error("commit", source))?,
            };
            match verdict {
                Verdict::Won(etag) => {
                    self.world.probe.reached(boundary(name, "after")).await;
                    self.won(draft, etag).await;
                    return Ok(());
                }
                Verdict::Lost => self.reload().await?,
            }
        }
    }

    /// Claim, times and the marks of this commit.
    fn finish(&mut self, name: &str, draft: &mut Draft) {
        let is_last = self.is_last(draft);
        let head = &mut draft.head;
        let has_news = !draft.entries.is_empty() || !draft.events.is_empty();
        head.commit_id = CommitId::new(self.world.ids.fresh());
        head.epoch = self.epoch;
        // The step that begins with this commit has been tried once more; its progress sets the count back.
        if name == "take-in" {
            head.claims += 1;
        }
        if has_news {
            head.revision += 1;
            head.updated_at = draft.now;
        }
        self.until = draft.now.plus(CLAIM);
        if is_last {
            head.claim = None;
            head.due = head.owed_at(draft.now);
            if self.is_counting {
                head.due = head.due.map(|due| due.max(draft.now.plus(back_off(head.claims))));
            }
        } else {
            head.claim = Some(self.claim());
            head.due = Some(self.until.plus(TAKE_OVER_AFTER));
        }
    }

    fn writes(&self, draft: &Draft, looked_at: &[Waiting]) -> Result<Vec<Write>, StoreError> {
        let mut writes = record::writes(draft, &self.etag)?;
        let landed = |item: &InboxItem| {
            draft.receipts.iter().any(|receipt| receipt.input_id == item.input_id)
        };
        // What was looked at and left waiting owes nothing by itself: the phase that will take it in does.
        for waiting in looked_at.iter().filter(|waiting| waiting.is_due && !landed(&waiting.item)) {
            writes
                .push(Write::Replace(record::inbox_document(&self.key, &waiting.item, None), None));
        }
        Ok(writes)
    }

    /// Sends the batch until it is certain what became of it.
    async fn write(&self, writes: Vec<Write>, draft: &Draft) -> Result<Verdict, StoreError> {
        let mut wait = BACK_OFF;
        loop {
            let answer = self.world.store.write(&self.partition, writes.clone()).await;
            let doubt = match answer {
                Ok(etags) => {
                    return Ok(etags.into_iter().next().map_or(Verdict::Lost, Verdict::Won));
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
                Ok(None) | Err(StoreError::Unavailable(_)) => {}
                Err(error) => return Err(error),
            }
            let is_late = self.world.clock.monotonic() + wait + MARGIN >= self.until_monotonic;
            if is_late {
                return Err(doubt.unwrap_or(StoreError::Conflict));
            }
            tokio::time::sleep(wait).await;
            wait *= 2;
        }
    }

    /// `None`: the head is as it was before, so the batch was not applied, or not yet: send it again, never another one.
    async fn who_won(&self, draft: &Draft) -> Result<Option<Verdict>, StoreError> {
        let Some(stored) =
            self.world.store.read(&self.partition, HEAD_ID, Freshness::Latest).await?
        else {
            return Ok(Some(Verdict::Lost));
        };
        if stored.etag == self.etag {
            return Ok(None);
        }
        let head = record::read_head(&stored)?;
        if head.commit_id == draft.head.commit_id {
            return Ok(Some(Verdict::Won(stored.etag)));
        }
        let Some(first) = draft.events.first() else { return Ok(Some(Verdict::Lost)) };
        let witness =
            self.world.store.read(&self.partition, &events_id(first.n), Freshness::Latest).await?;
        let is_mine = match witness {
            Some(stored) => {
                record::read::<EventsBody>(&stored.document)?.commit_id == draft.head.commit_id
            }
            None => false,
        };
        // Won, and others have moved on since: the ETag is theirs, so the next commit of ours loses once and reloads.
        Ok(Some(if is_mine { Verdict::Won(self.etag.clone()) } else { Verdict::Lost }))
    }

    async fn won(&mut self, draft: Draft, etag: ETag) {
        self.is_counted = true;
        self.etag = etag;
        self.answer = draft.answer;
        self.head = draft.head;
        self.until_monotonic = self.world.clock.monotonic() + CLAIM;
        self.world.entries.append(&self.head, &draft.entries);
        self.world.live.publish(&self.key, LiveEvent::Committed { event_seq: self.head.event_seq });
        if self.is_settled && self.head.claim.is_some() {
            // The right outside the head lives as long as the one in it.
            let _ = self.renew_settled().await;
        }
        let notice_nudge = !draft.notices.is_empty();
        if notice_nudge {
            ring(self.world, queue::NOTIFY, &self.nudge(), Duration::ZERO).await;
        }
        self.nudge_for_rest().await;
    }

    /// The last commit of a delivery rings for what is still owed; none rings for what this delivery goes on with.
    async fn nudge_for_rest(&self) {
        let now = self.world.clock.now();
        let Some(due) = self.head.due.filter(|_| self.head.claim.is_none()) else { return };
        let wait = now.until(due);
        if wait < NUDGE_WITHIN {
            self.world.probe.reached("nudge.before").await;
            ring(self.world, queue::TURNS, &self.nudge(), wait).await;
            self.world.probe.reached("nudge.after").await;
        }
    }

    fn nudge(&self) -> Nudge {
        let traceparent = self.head.prompt.as_ref().and_then(|run| run.traceparent.clone());
        Nudge { key: self.key.clone(), traceparent }
    }

    /// After a lost commit: is the claim still mine?
    async fn reload(&mut self) -> Result<(), TurnError> {
        let stored = self.world.store.read(&self.partition, HEAD_ID, Freshness::Latest).await;
        let stored = stored.map_err(|source| self.error("reload", source))?;
        let lost = TurnError::ClaimLost { key: self.key.clone() };
        let Some(stored) = stored else { return Err(lost) };
        let head = record::read_head(&stored).map_err(|source| self.error("reload", source))?;
        let is_mine = if self.is_settled {
            self.renew_settled().await
        } else {
            match (&head.claim, self.is_counted) {
                (Some(claim), true) => claim.epoch == self.epoch && claim.worker == self.worker,
                // Nothing of ours is committed yet: whoever came between may have claimed.
                (Some(_), false) | (None, true) => false,
                (None, false) => true,
            }
        };
        if !is_mine || head.phase == Phase::Deleted {
            return Err(lost);
        }
        if !self.is_counted {
            self.epoch = head.epoch + 1;
        }
        self.head = head;
        self.etag = stored.etag;
        self.load_answer().await
    }

    async fn renew_settled(&mut self) -> bool {
        let now = self.world.clock.now();
        self.until = now.plus(CLAIM);
        let request = ClaimRequest { key: &self.key, worker: &self.worker, now, until: self.until };
        let is_mine = self.world.store.renew(request).await.is_ok();
        if is_mine {
            self.until_monotonic = self.world.clock.monotonic() + CLAIM;
        }
        is_mine
    }

    /// Extends the claim while an effect runs.
    ///
    /// # Errors
    /// [`TurnError::ClaimLost`]: stop the effect.
    pub(super) async fn renew(&mut self) -> Result<(), TurnError> {
        if self.is_settled {
            return if self.renew_settled().await {
                Ok(())
            } else {
                Err(TurnError::ClaimLost { key: self.key.clone() })
            };
        }
        self.commit("renew", &[], &[]).await
    }

    /// When the holder stops without a renewal: the earlier of what both clocks say.
    pub(super) fn is_claim_ending(&self) -> bool {
        let margin = Timestamp(self.until.0.saturating_sub(millis(MARGIN)));
        self.world.clock.now() >= margin
            || self.world.clock.monotonic() + MARGIN >= self.until_monotonic
    }
}

/// How long a step that was tried in vain waits: not at all the first time.
fn back_off(claims: u32) -> Duration {
    if claims <= 1 { Duration::ZERO } else { Duration::from_secs(1 << claims.min(6)) }
}

fn is_poison(inputs: &[Input]) -> bool {
    inputs.iter().any(|input| matches!(input, Input::Poisoned { .. }))
}

/// Rings a doorbell. A lost one costs time, never work: the sweep finds what is owed.
pub(super) async fn ring(world: &World, queue: &str, nudge: &Nudge, delay: Duration) {
    let text = serde_json::to_string(nudge).unwrap_or_default();
    if let Err(error) = world.queue.send(queue, text, delay).await {
        tracing::warn!(conversation.id = %nudge.key.conversation_id, error = %error, "a nudge for {} was not sent; the sweep will find the work", nudge.key.conversation_id);
    }
}

fn boundary(name: &'static str, side: &'static str) -> &'static str {
    match (name, side) {
        ("take-in", "before") => "take-in.before",
        ("take-in", _) => "take-in.after",
        ("answer", "before") => "answer.before",
        ("answer", _) => "answer.after",
        ("result", "before") => "result.before",
        ("result", _) => "result.after",
        (_, "before") => "renew.before",
        _ => "renew.after",
    }
}
