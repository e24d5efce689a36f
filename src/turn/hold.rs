//! A leased conversation: the right of a worker to process it, and its state while the lease lasts.

use std::sync::Arc;
use std::time::Duration;

use crate::agent::content::ToolCall;
use crate::agent::draft::{Draft, Rules};
use crate::agent::entry::Entry;
use crate::agent::head::{Claim, Head};
use crate::agent::phase::{CallStatus, Phase};
use crate::agent::settings::{Continuation, MODEL, Settings};
use crate::agent::step::Paying;
use crate::agent::suspicion::Death;
use crate::agent::usage::Usage;
use crate::clock::Timestamp;
use crate::ids::{ConversationKey, PromptId, WorkerId};
use crate::queue;
use crate::store::{ClaimRequest, Claimed, ETag, Partition, StoreError, Stored};
use crate::telemetry::fault::Fault;
use crate::turn::admission::delete::{self, LostCall};
use crate::turn::claiming::CLAIM;
use crate::turn::commit::{NUDGE_WITHIN, ring};
use crate::turn::delivery::{TurnError, store_error};
use crate::turn::event_log::ModelCall;
use crate::turn::inbox::{LANDING_BYTES, LANDING_OPERATIONS};
use crate::turn::{Isolation, World, record};

/// One conversation under this worker's lease, with its loaded state.
#[expect(clippy::struct_excessive_bools, reason = "the flags are independent")]
pub(super) struct Hold<'w> {
    pub(super) world: &'w World,
    pub(super) key: ConversationKey,
    pub(super) partition: Partition,
    /// Unique to this delivery: two deliveries in one process are two workers to each other.
    pub(super) worker: WorkerId,
    pub(super) head: Head,
    pub(super) etag: ETag,
    /// Approximate size of the stored head.
    pub(super) head_bytes: usize,
    /// The model response whose calls are open.
    pub(super) answer: Option<Arc<Entry>>,
    /// Results of its calls, buffered until source order allows them.
    pub(super) kept: Vec<Arc<Entry>>,
    pub(super) epoch: u64,
    /// True if the lease is kept outside the head and already ours.
    pub(super) is_settled: bool,
    /// Ends of the lease on the wall and monotonic clocks, as other workers see it. The earlier one
    /// counts.
    pub(super) until: Timestamp,
    pub(super) until_monotonic: Duration,
    /// End of this turn, on the monotonic clock.
    pub(super) turn_ends: Duration,
    /// Number of model responses received in this delivery.
    pub(super) answers_taken: u32,
    /// True if tools or a compaction ran in this delivery. They may have used most of the turn.
    pub(super) has_run_tools: bool,
    /// True if this delivery performs nothing: it commits the outcome of the lost step and releases
    /// the lease.
    pub(super) is_counting: bool,
    /// Death of the worker that ran the step before. The first commit counts it.
    pub(super) death: Option<Death>,
    /// True if no other turn runs in this process, so that its death is caused by the step.
    pub(super) is_alone: bool,
    /// Trace context of this turn's span, if it has one.
    pub(super) traceparent: Option<String>,
    /// True if the rate limit has admitted the next model call.
    pub(super) is_admitted: bool,
    /// The ledger update since the last commit. The next commit records it.
    pub(super) told: Option<Paying>,
    /// The error that ended the prompt.
    pub(super) fault: Option<Fault>,
    /// The finished model call. The next commit logs it.
    pub(super) model_call: Option<Box<ModelCall>>,
    /// `due` of the work left pending by the last commit. `None`: no work is pending, or this
    /// delivery continues with it.
    pub(super) nudge_at: Option<Timestamp>,
    /// Usage and number of model calls that are made but not yet committed.
    pub(super) unbooked: Option<(Usage, u32)>,
}

/// Leases a conversation. Returns it with its stored inbox items, or `None` if another worker has
/// the lease or nothing can be processed.
pub(super) async fn take<'w>(
    world: &'w World,
    key: &ConversationKey,
    turn_ends: Duration,
) -> Result<Option<(Hold<'w>, Vec<Stored>)>, TurnError> {
    let worker = match world.isolation {
        // The parent process identifies the worker by this id.
        Isolation::Inside => world.worker.clone(),
        Isolation::By(_) => WorkerId::new(format!("{}.{}", world.worker, world.ids.fresh())),
    };
    take_as(world, worker, key, turn_ends).await
}

/// Like [`acquire_lease`], for a given worker id. A lease of the same worker does not block it: a
/// dead worker is followed at once.
pub(super) async fn take_as<'w>(
    world: &'w World,
    worker: WorkerId,
    key: &ConversationKey,
    turn_ends: Duration,
) -> Result<Option<(Hold<'w>, Vec<Stored>)>, TurnError> {
    // Read the clocks before the request: a slow response must not make the lease look longer than
    // other workers see it.
    let (now, monotonic) = (world.clock.now(), world.clock.monotonic());
    let until = now.plus(CLAIM);
    let request = ClaimRequest { key, worker: &worker, now, until };
    let claimed =
        world.store.claim(request).await.map_err(|source| store_error(key, "lease", source))?;
    let Claimed::Free { head: stored, inbox, is_settled } = claimed else { return Ok(None) };
    let head = match world.entries.head(key, &stored) {
        Ok(head) if head.min_reader <= world.limits.reader && head.phase != Phase::Deleted => head,
        unusable => {
            world.store.release(key, &worker).await;
            // Also true if only this member can be read.
            if record::needs_newer(&stored, world.limits.reader) {
                return Ok(None);
            }
            let head = unusable.map_err(|source| store_error(key, "read", source))?;
            if head.phase == Phase::Deleted {
                purge(world, key).await;
            }
            return Ok(None);
        }
    };
    // If leases end with their process, only the start-up can detect a death.
    let death =
        (head.claim.is_some() && !is_settled).then_some(Death::Presumed { is_delayed: true });
    let hold = Hold {
        world,
        key: key.clone(),
        partition: Partition::Conversation(key.clone()),
        worker,
        epoch: head.epoch + 1,
        head,
        head_bytes: stored.document.body.text().len(),
        etag: stored.etag,
        answer: None,
        kept: Vec::new(),
        is_settled,
        until,
        until_monotonic: monotonic + CLAIM,
        turn_ends,
        answers_taken: 0,
        has_run_tools: false,
        is_counting: false,
        death,
        is_alone: false,
        traceparent: None,
        is_admitted: false,
        told: None,
        fault: None,
        model_call: None,
        nudge_at: None,
        unbooked: None,
    };
    Ok(Some((hold, inbox)))
}

/// Completes the purge of a deleted conversation, or removes its tombstone.
async fn purge(world: &World, key: &ConversationKey) {
    world.entries.forget(key);
    if let Err(error) = delete::purge(world, key).await {
        tracing::warn!(conversation.id = %key.conversation_id, error = %error, "purge incomplete; the sweep continues it");
    }
}

impl Hold<'_> {
    /// Releases the lease, then enqueues a nudge for pending work: a nudge delivered earlier would
    /// find the conversation leased. Returns true if it enqueued a nudge without delay.
    pub(super) async fn let_go(self) -> bool {
        let world = self.world;
        world.probe.reached("release.before").await;
        world.store.release(&self.key, &self.worker).await;
        world.probe.reached("release.after").await;
        let rings = self.nudge_at.map(|due| (self.nudge(), world.clock.now().until(due)));
        world.entries.keep_head(&self.key, self.etag, self.head, self.head_bytes);
        let Some((nudge, wait)) = rings else { return false };
        if wait >= NUDGE_WITHIN {
            return false;
        }
        world.probe.reached("nudge.before").await;
        let is_rung = ring(world, queue::TURNS, &nudge, wait).await;
        world.probe.reached("nudge.after").await;
        is_rung && wait.is_zero()
    }

    /// Records the usage of lost work if the conversation was deleted, because its cost still
    /// counts.
    pub(super) async fn report_lost_call(&mut self) {
        let Some((usage, calls)) = self.unbooked.take() else { return };
        let call =
            LostCall { incarnation: &self.head.incarnation, epoch: self.epoch, usage, calls };
        if let Err(error) = delete::report_call(self.world, &self.key, &call).await {
            tracing::warn!(conversation.id = %self.key.conversation_id, error = %error,
                "usage of a deleted conversation not recorded; its estimate is recorded instead");
        }
    }

    pub(super) fn error(&self, what: &'static str, source: StoreError) -> TurnError {
        store_error(&self.key, what, source)
    }

    /// Loads the model response whose calls are pending, and its buffered results.
    pub(super) async fn load_answer(&mut self) -> Result<(), TurnError> {
        let (answer, kept) = match &self.head.phase {
            Phase::Calls { answer, calls, .. } => {
                let entries = self.entries().await?;
                let at = |seq: u64| {
                    let place = usize::try_from(seq.saturating_sub(1)).unwrap_or(usize::MAX);
                    entries.get(place).cloned()
                };
                let kept = calls.iter().filter_map(|call| match call.status {
                    CallStatus::Done { result, kept: Some(_) } => at(result),
                    CallStatus::Done { kept: None, .. }
                    | CallStatus::Ready
                    | CallStatus::Waiting { .. }
                    | CallStatus::Started { .. } => None,
                });
                (at(*answer), kept.collect())
            }
            Phase::Idle | Phase::Model { .. } | Phase::Summary { .. } | Phase::Deleted => {
                (None, Vec::new())
            }
        };
        // Assign both only now: a cancelled renewal must not leave the conversation without its
        // response.
        (self.answer, self.kept) = (answer, kept);
        Ok(())
    }

    pub(super) async fn entries(&self) -> Result<Arc<Vec<Arc<Entry>>>, TurnError> {
        let entries = self.world.entries.entries(&*self.world.store, &self.head).await;
        entries.map_err(|source| self.error("read the entries of", source))
    }

    /// A call of the response whose calls are open.
    pub(super) fn open_call(&self, index: usize) -> Option<&ToolCall> {
        self.answer.as_ref()?.body.message()?.as_assistant()?.tool_calls().nth(index)
    }

    pub(super) fn prompt_id(&self) -> Option<PromptId> {
        self.head.prompt.as_ref().map(|run| run.id.clone())
    }

    /// Effective settings: the conversation's settings override the agent's.
    pub(super) fn settings(&self) -> Settings {
        match self.world.agents.find(Some(&self.head.agent)) {
            Ok(agent) => self.head.settings.over(&agent.settings),
            Err(_) => self.head.settings.clone(),
        }
    }

    pub(super) fn rules(&self) -> Rules {
        let settings = self.settings();
        Rules {
            rounds_max: settings.rounds_max(),
            hard_rounds_max: settings.hard_rounds(),
            budget: settings.bounds(),
            calls_at_once: settings.calls_at_once(),
            room: self.room(&settings),
            retry: settings.retry.unwrap_or_default(),
            model: settings.model.unwrap_or_else(|| MODEL.to_owned()),
            steering_mode: settings.steering_mode.unwrap_or_default(),
            follow_up_mode: settings.follow_up_mode.unwrap_or_default(),
            steering_skips_tools: settings.steering_skips_tools.unwrap_or(true),
            taken_in_operations_max: LANDING_OPERATIONS,
            taken_in_bytes_max: LANDING_BYTES,
            writes_notices: self.world.herald.is_some(),
            settle_after: self.world.limits.settle_after,
        }
    }

    /// True if this delivery may make another model call. The first is allowed unless tools used
    /// the model's time. Further ones need `continuation: inline`, an empty inbox and half of the
    /// turn left.
    pub(super) fn may_answer(&self, head: &Head) -> bool {
        let is_first = self.answers_taken == 0;
        if is_first && !self.has_run_tools {
            return true;
        }
        let has_time = self.world.clock.monotonic() + self.world.limits.turn / 2 < self.turn_ends;
        let is_inline = || self.settings().continuation == Some(Continuation::Inline);
        has_time && (is_first || (head.waiting == 0 && is_inline()))
    }

    /// True if this delivery performs nothing after this commit, so that the commit clears the
    /// lease.
    pub(super) fn is_last(&self, draft: &Draft) -> bool {
        if self.is_counting {
            return true;
        }
        match &draft.head.phase {
            Phase::Idle | Phase::Deleted => true,
            Phase::Model { .. } | Phase::Summary { .. }
                if draft.head.is_paused() || draft.head.brake.is_some() =>
            {
                true
            }
            Phase::Model { not_before, .. } | Phase::Summary { not_before, .. } => {
                not_before.is_some_and(|time| time > draft.now) || !self.may_answer(&draft.head)
            }
            Phase::Calls { .. } => !draft.batch().is_performing(),
        }
    }

    /// The lease to write into the head while this delivery continues.
    pub(super) fn claim(&self, until: Timestamp) -> Claim {
        Claim { worker: self.worker.clone(), epoch: self.epoch, until }
    }
}
