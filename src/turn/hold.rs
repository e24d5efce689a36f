//! A worker's hold on one conversation: the right to act, and what is known of it while the right lasts.

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

/// The right to act on one conversation, and what is known of it.
#[expect(clippy::struct_excessive_bools, reason = "each is a fact of its own")]
pub(super) struct Hold<'w> {
    pub(super) world: &'w World,
    pub(super) key: ConversationKey,
    pub(super) partition: Partition,
    /// This delivery's own: two deliveries of one process are two workers to each other.
    pub(super) worker: WorkerId,
    pub(super) head: Head,
    pub(super) etag: ETag,
    /// Of the head as it is stored, about.
    pub(super) head_bytes: usize,
    /// The answer whose calls are open.
    pub(super) answer: Option<Arc<Entry>>,
    /// Of its calls: the entries that keep results until their turn comes.
    pub(super) kept: Vec<Arc<Entry>>,
    pub(super) epoch: u64,
    /// Whether the right is kept outside the head and is already ours.
    pub(super) is_settled: bool,
    /// Wall and monotonic ends of the claim that others see: the earlier one holds.
    pub(super) until: Timestamp,
    pub(super) until_monotonic: Duration,
    /// When this turn must be over.
    pub(super) turn_ends: Duration,
    /// Answers taken in this delivery.
    pub(super) answers_taken: u32,
    /// Whether tools or a summary have run in this delivery: they may have taken most of the turn.
    pub(super) has_run_tools: bool,
    /// Whether nothing is performed: what was found is committed, and the lease given back.
    pub(super) is_counting: bool,
    /// Of the worker that had the step before; counted by the first commit.
    pub(super) death: Option<Death>,
    /// Whether no other turn runs in this process, so that its death is the step's.
    pub(super) is_alone: bool,
    /// Of this turn's span, if there is one.
    pub(super) traceparent: Option<String>,
    /// Whether the next model call has been let through.
    pub(super) is_admitted: bool,
    /// What the tenant's books have been told since the last commit that says so.
    pub(super) told: Option<Paying>,
    /// Why the prompt cannot go on, once that is known.
    pub(super) fault: Option<Fault>,
    /// Has ended; logged with the commit that follows.
    pub(super) model_call: Option<Box<ModelCall>>,
    /// When what the newest commit left owed falls due; absent: nothing is owed, or this delivery goes on with it.
    pub(super) nudge_at: Option<Timestamp>,
    /// What model calls cost that are made and not committed.
    pub(super) unbooked: Option<(Usage, u32)>,
}

/// The right to act on a conversation, and what waits in its inbox; `None`: it is somebody else's, or there is nothing to
/// act on.
pub(super) async fn take<'w>(
    world: &'w World,
    key: &ConversationKey,
    turn_ends: Duration,
) -> Result<Option<(Hold<'w>, Vec<Stored>)>, TurnError> {
    let worker = match world.isolation {
        // The process that started this one knows the worker by its id.
        Isolation::Inside => world.worker.clone(),
        Isolation::By(_) => WorkerId::new(format!("{}.{}", world.worker, world.ids.fresh())),
    };
    take_as(world, worker, key, turn_ends).await
}

/// The same for a worker that may have it already: a dead one is followed at once.
pub(super) async fn take_as<'w>(
    world: &'w World,
    worker: WorkerId,
    key: &ConversationKey,
    turn_ends: Duration,
) -> Result<Option<(Hold<'w>, Vec<Stored>)>, TurnError> {
    // Before the store is asked: a slow answer must not make the claim look longer than others see it.
    let (now, monotonic) = (world.clock.now(), world.clock.monotonic());
    let until = now.plus(CLAIM);
    let request = ClaimRequest { key, worker: &worker, now, until };
    let claimed =
        world.store.claim(request).await.map_err(|source| store_error(key, "claim", source))?;
    let Claimed::Free { head: stored, inbox, is_settled } = claimed else { return Ok(None) };
    let head = match world.entries.head(key, &stored) {
        Ok(head) if head.min_reader <= world.limits.reader && head.phase != Phase::Deleted => head,
        unusable => {
            world.store.release(key, &worker).await;
            // Also where nothing but that can be read of it.
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
    // Where leases end with their process, only a start can know of a death.
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

/// A tombstone that is visited owes the rest of its purge, or its own end.
async fn purge(world: &World, key: &ConversationKey) {
    world.entries.forget(key);
    if let Err(error) = delete::purge(world, key).await {
        tracing::warn!(conversation.id = %key.conversation_id, error = %error, "the purge of {} did not come to its end: the sweep goes on", key.conversation_id);
    }
}

impl Hold<'_> {
    /// Gives the right back, and only then rings for what is still owed: a bell that is heard before finds the conversation
    /// held. Whether it rang for now.
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

    /// The work was lost. If it was because the conversation is deleted, its cost still counts.
    pub(super) async fn report_lost_call(&mut self) {
        let Some((usage, calls)) = self.unbooked.take() else { return };
        let call =
            LostCall { incarnation: &self.head.incarnation, epoch: self.epoch, usage, calls };
        if let Err(error) = delete::report_call(self.world, &self.key, &call).await {
            tracing::warn!(conversation.id = %self.key.conversation_id, error = %error,
                "usage of a deleted conversation not recorded; its estimate will be");
        }
    }

    pub(super) fn error(&self, what: &'static str, source: StoreError) -> TurnError {
        store_error(&self.key, what, source)
    }

    /// The answer that the phase names, whose calls are what is owed, and what is kept of their results.
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
        // Only now: whoever stops waiting for a renewal must not leave a hold that has forgotten its answer.
        (self.answer, self.kept) = (answer, kept);
        Ok(())
    }

    pub(super) async fn entries(&self) -> Result<Arc<Vec<Arc<Entry>>>, TurnError> {
        let entries = self.world.entries.entries(&*self.world.store, &self.head).await;
        entries.map_err(|source| self.error("read the entries of", source))
    }

    /// A call of the answer whose calls are open.
    pub(super) fn open_call(&self, index: usize) -> Option<&ToolCall> {
        self.answer.as_ref()?.body.message()?.as_assistant()?.tool_calls().nth(index)
    }

    pub(super) fn prompt_id(&self) -> Option<PromptId> {
        self.head.prompt.as_ref().map(|run| run.id.clone())
    }

    /// Settings in force: the conversation's over the agent's.
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

    /// Whether this delivery answers (once more): the first answer always, unless tools have used up the time that the
    /// model may need; later ones where turns continue inline.
    pub(super) fn may_answer(&self, head: &Head) -> bool {
        let is_first = self.answers_taken == 0;
        if is_first && !self.has_run_tools {
            return true;
        }
        let has_time = self.world.clock.monotonic() + self.world.limits.turn / 2 < self.turn_ends;
        let is_inline = || self.settings().continuation == Some(Continuation::Inline);
        has_time && (is_first || (head.waiting == 0 && is_inline()))
    }

    /// Whether nothing more will be performed in this delivery after this commit, so that it clears the claim.
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

    /// The claim as the head shows it while this delivery goes on.
    pub(super) fn claim(&self, until: Timestamp) -> Claim {
        Claim { worker: self.worker.clone(), epoch: self.epoch, until }
    }
}
