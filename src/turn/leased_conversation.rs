//! A leased conversation: the right of a worker to process it, and its state while the lease lasts.

use std::sync::Arc;
use std::time::Duration;

use crate::agent::content::ToolCall;
use crate::agent::entry::Entry;
use crate::agent::head::{Head, Lease};
use crate::agent::phase::{CallStatus, Phase};
use crate::agent::settings::Continuation;
use crate::agent::suspicion::Death;
use crate::agent::transition::Transition;
use crate::clock::Timestamp;
use crate::commands::delete;
use crate::commands::delete::LateUsage;
use crate::ids::{ConversationKey, PromptId, WorkerId};
use crate::queue;
use crate::services::Services;
use crate::store::{ETag, LeaseOutcome, LeaseRequest, Partition, StoreError, StoredDocument};
use crate::telemetry::error_class::ErrorClass;
use crate::turn::call_costs::CallCosts;
use crate::turn::context::TurnContext;
use crate::turn::documents;
use crate::turn::error::{TurnError, store_error};
use crate::turn::event_log::ModelCallLog;
use crate::turn::isolator::Isolation;
use crate::turn::nudge::NUDGE_WITHIN;
use crate::turn::nudge_sender::enqueue_nudge;
use crate::turn::turn_progress::TurnProgress;

/// One conversation under this worker's lease, with its loaded state.
pub(crate) struct LeasedConversation<'w> {
    pub(crate) services: &'w Services,
    pub(crate) key: ConversationKey,
    pub(crate) partition: Partition,
    /// Unique to this delivery: two deliveries in one process are two workers to each other.
    pub(crate) worker: WorkerId,
    pub(crate) head: Head,
    pub(crate) etag: ETag,
    /// Approximate size of the stored head.
    pub(crate) head_bytes: usize,
    /// The model response whose calls are open.
    pub(crate) response: Option<Arc<Entry>>,
    /// Results of its calls, buffered until source order allows them.
    pub(crate) buffered: Vec<Arc<Entry>>,
    pub(crate) epoch: u64,
    /// True if the lease is kept outside the head and already ours.
    pub(crate) is_outside_head: bool,
    /// Ends of the lease on the wall and monotonic clocks, as other workers see it. The earlier one
    /// counts.
    pub(crate) lease_until: Timestamp,
    pub(crate) lease_until_monotonic: Duration,
    pub(crate) progress: TurnProgress,
    pub(crate) costs: CallCosts,
    /// True if this delivery performs nothing: it commits the outcome of the lost step and releases
    /// the lease.
    pub(crate) is_commit_only: bool,
    /// Death of the worker that ran the step before. The first commit counts it.
    pub(crate) death: Option<Death>,
    /// True if no other turn runs in this process, so that its death is caused by the step.
    pub(crate) is_alone: bool,
    /// Trace context of this turn's span, if it has one.
    pub(crate) traceparent: Option<String>,
    /// The error that ended the prompt.
    pub(crate) fault: Option<ErrorClass>,
    /// The finished model call. The next commit logs it.
    pub(crate) model_call_log: Option<Box<ModelCallLog>>,
    /// `due` of the work left pending by the last commit. `None`: no work is pending, or this
    /// delivery continues with it.
    pub(crate) nudge_at: Option<Timestamp>,
}

/// Leases a conversation. Returns it with its stored inbox items, or `None` if another worker has
/// the lease or nothing can be processed.
pub(crate) async fn acquire_lease<'w>(
    services: &'w Services,
    key: &ConversationKey,
    turn_ends: Duration,
) -> Result<Option<(LeasedConversation<'w>, Vec<StoredDocument>)>, TurnError> {
    let worker = match services.isolation {
        // The parent process identifies the worker by this id.
        Isolation::InIsolatedProcess => services.worker.clone(),
        Isolation::Isolator(_) => {
            WorkerId::new(format!("{}.{}", services.worker, services.ids.new_id()))
        }
    };
    acquire_lease_as(services, worker, key, turn_ends).await
}

/// Like [`acquire_lease`], for a given worker id. A lease of the same worker does not block it: a
/// dead worker is followed at once.
pub(crate) async fn acquire_lease_as<'w>(
    services: &'w Services,
    worker: WorkerId,
    key: &ConversationKey,
    turn_ends: Duration,
) -> Result<Option<(LeasedConversation<'w>, Vec<StoredDocument>)>, TurnError> {
    // Read the clocks before the request: a slow response must not make the lease look longer than
    // other workers see it.
    let (now, monotonic) = (services.clock.now(), services.clock.monotonic());
    let until = now.plus(LEASE_DURATION);
    let request = LeaseRequest { key, worker: &worker, now, until };
    let lease = services
        .store
        .acquire_lease(request)
        .await
        .map_err(|source| store_error(key, "lease", source))?;
    let LeaseOutcome::Available { head: stored, inbox, is_acquired: is_outside_head } = lease
    else {
        return Ok(None);
    };
    let head = match services.entry_cache.take_head(key, &stored) {
        Ok(head)
            if head.min_reader <= services.limits.reader_version
                && head.phase != Phase::Deleted =>
        {
            head
        }
        unusable => {
            services.store.release_lease(key, &worker).await;
            // Also true if only this member can be read.
            if documents::needs_newer_reader(&stored, services.limits.reader_version) {
                return Ok(None);
            }
            let head = unusable.map_err(|source| store_error(key, "read", source))?;
            if head.phase == Phase::Deleted {
                purge_deleted(services, key).await;
            }
            return Ok(None);
        }
    };
    // If leases end with their process, only the start-up can detect a death.
    let death =
        (head.lease.is_some() && !is_outside_head).then_some(Death::Presumed { is_delayed: true });
    let conversation = LeasedConversation {
        services,
        key: key.clone(),
        partition: Partition::Conversation(key.clone()),
        worker,
        epoch: head.epoch + 1,
        head,
        head_bytes: stored.document.body.text().len(),
        etag: stored.etag,
        response: None,
        buffered: Vec::new(),
        is_outside_head,
        lease_until: until,
        lease_until_monotonic: monotonic + LEASE_DURATION,
        progress: TurnProgress::new(turn_ends),
        costs: CallCosts::default(),
        is_commit_only: false,
        death,
        is_alone: false,
        traceparent: None,
        fault: None,
        model_call_log: None,
        nudge_at: None,
    };
    Ok(Some((conversation, inbox)))
}

/// Completes the purge of a deleted conversation, or removes its tombstone.
async fn purge_deleted(services: &Services, key: &ConversationKey) {
    services.entry_cache.remove(key);
    if let Err(error) = delete::purge(services, key).await {
        tracing::warn!(conversation.id = %key.conversation_id, error = %error, "purge incomplete; the sweep continues it");
    }
}

impl LeasedConversation<'_> {
    /// Releases the lease, then enqueues a nudge for pending work: a nudge delivered earlier would
    /// find the conversation leased. Returns true if it enqueued a nudge without delay.
    pub(crate) async fn release(self) -> bool {
        let services = self.services;
        services.fail_points.hit("release.before").await;
        services.store.release_lease(&self.key, &self.worker).await;
        services.fail_points.hit("release.after").await;
        let nudge_and_wait =
            self.nudge_at.map(|due| (self.nudge(), services.clock.now().until(due)));
        services.entry_cache.store_head(&self.key, self.etag, self.head, self.head_bytes);
        let Some((nudge, wait)) = nudge_and_wait else { return false };
        if wait >= NUDGE_WITHIN {
            return false;
        }
        services.fail_points.hit("nudge.before").await;
        let is_enqueued = enqueue_nudge(services, queue::TURNS, &nudge, wait).await;
        services.fail_points.hit("nudge.after").await;
        is_enqueued && wait.is_zero()
    }

    /// Records the usage of lost work if the conversation was deleted, because its cost still
    /// counts.
    pub(crate) async fn report_lost_call(&mut self) {
        let Some((usage, calls)) = self.costs.take_uncommitted_usage() else { return };
        let call =
            LateUsage { incarnation: &self.head.incarnation, epoch: self.epoch, usage, calls };
        if let Err(error) = delete::record_late_usage(self.services, &self.key, &call).await {
            tracing::warn!(conversation.id = %self.key.conversation_id, error = %error,
                "usage of a deleted conversation not recorded; its estimate is recorded instead");
        }
    }

    pub(crate) fn error(&self, what: &'static str, source: StoreError) -> TurnError {
        store_error(&self.key, what, source)
    }

    /// Loads the model response whose calls are pending, and its buffered results.
    pub(crate) async fn load_response(&mut self) -> Result<(), TurnError> {
        let (response, buffered) = match &self.head.phase {
            Phase::Calls { response_seq: response, calls, .. } => {
                let entries = self.load_entries().await?;
                let at = |seq: u64| {
                    let index = usize::try_from(seq.saturating_sub(1)).unwrap_or(usize::MAX);
                    entries.get(index).cloned()
                };
                let buffered = calls.iter().filter_map(|call| match call.status {
                    CallStatus::Done { result_seq: result, buffered: Some(_) } => at(result),
                    CallStatus::Done { buffered: None, .. }
                    | CallStatus::Ready
                    | CallStatus::Waiting { .. }
                    | CallStatus::Started { .. } => None,
                });
                (at(*response), buffered.collect())
            }
            Phase::Idle | Phase::Model { .. } | Phase::Summary { .. } | Phase::Deleted => {
                (None, Vec::new())
            }
        };
        // Assign both only now: a cancelled renewal must not leave the conversation without its
        // response.
        (self.response, self.buffered) = (response, buffered);
        Ok(())
    }

    pub(crate) async fn load_entries(&self) -> Result<Arc<Vec<Arc<Entry>>>, TurnError> {
        let entries =
            self.services.entry_cache.load_entries(&*self.services.store, &self.head).await;
        entries.map_err(|source| self.error("read the entries of", source))
    }

    /// A call of the response whose calls are open.
    pub(crate) fn open_call(&self, index: usize) -> Option<&ToolCall> {
        self.response.as_ref()?.body.message()?.as_assistant()?.tool_calls().nth(index)
    }

    pub(crate) fn prompt_id(&self) -> Option<PromptId> {
        self.head.prompt.as_ref().map(|run| run.id.clone())
    }

    pub(crate) fn turn_context(&self) -> TurnContext {
        TurnContext::resolve(self.services, &self.head)
    }

    /// True if this delivery may make another model call. After the first one it needs
    /// `continuation: inline` and an empty inbox.
    pub(crate) fn can_call_model(&self, head: &Head) -> bool {
        let is_inline = || {
            head.waiting_items == 0
                && self.turn_context().settings.continuation == Some(Continuation::Inline)
        };
        let (now, limits) = (self.services.clock.monotonic(), &self.services.limits);
        self.progress.can_call_model(now, limits.turn_duration, is_inline)
    }

    /// True if this delivery performs nothing after this commit, so that the commit clears the
    /// lease.
    pub(crate) fn is_last_commit(&self, transition: &Transition) -> bool {
        if self.is_commit_only {
            return true;
        }
        match &transition.head.phase {
            Phase::Idle | Phase::Deleted => true,
            Phase::Model { .. } | Phase::Summary { .. }
                if transition.head.is_waiting_for_budget() || transition.head.pause.is_some() =>
            {
                true
            }
            Phase::Model { not_before, .. } | Phase::Summary { not_before, .. } => {
                not_before.is_some_and(|time| time > transition.now)
                    || !self.can_call_model(&transition.head)
            }
            Phase::Calls { .. } => !transition.call_batch().is_in_progress(),
        }
    }

    /// The lease to write into the head while this delivery continues.
    pub(crate) fn lease(&self, until: Timestamp) -> Lease {
        Lease { worker: self.worker.clone(), epoch: self.epoch, until }
    }
}

/// Time until a lease expires without renewal.
pub(crate) const LEASE_DURATION: Duration = Duration::from_mins(1);
