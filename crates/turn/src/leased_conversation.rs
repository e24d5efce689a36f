//! A leased conversation: the right of a worker to process it, and its state while the lease lasts.

use std::sync::{Arc, OnceLock};
use std::time::Duration;

use futures_util::future::BoxFuture;

use crate::call_costs::CallCosts;
use crate::clock_change;
use crate::commit::CommitKind;
use crate::conversation_state::ConversationState;
use crate::inbox::KnownInbox;
use crate::late_result::KeptResults;
use crate::turn_progress::TurnProgress;
use turnwheel_commands::delete;
use turnwheel_commands::delete::LateUsage;
use turnwheel_commands::knowledge::Knowledge;
use turnwheel_conversation::head::Head;
use turnwheel_conversation::phase::Phase;
use turnwheel_conversation::settings::Continuation;
use turnwheel_conversation::suspicion::{Death, SUSPECT_DEATHS};
use turnwheel_conversation::transition::Transition;
use turnwheel_extensions::context::HookSubject;
use turnwheel_model::ModelConnection;
use turnwheel_platform::clock::Timestamp;
use turnwheel_platform::ids::{ConversationKey, WorkerId};
use turnwheel_platform::telemetry::error_class::ErrorClass;
use turnwheel_record::documents;
use turnwheel_record::error::{TurnError, store_error};
use turnwheel_record::event_log::ModelCallLog;
use turnwheel_record::isolator::{CrashState, Isolation};
use turnwheel_record::lease::{LEASE_DURATION, LeaseState};
use turnwheel_record::nudge::{NUDGE_WITHIN, Nudge};
use turnwheel_record::nudge_sender::enqueue_nudge;
use turnwheel_record::services::Services;
use turnwheel_storage::queue;
use turnwheel_storage::store::{
    ETag, Freshness, HEAD_ID, LeaseOutcome, LeaseRequest, Partition, StoreError, StoredDocument,
    TAKE_OVER_DELAY,
};
use turnwheel_tools::knowledge::KnowledgePorts;

/// Interval between renewals.
const RENEWAL_INTERVAL: Duration = Duration::from_secs(20);
/// Usable part of a lease one [`RENEWAL_INTERVAL`] after it began, before the margin in which
/// effects stop.
const USABLE_AT_RENEWAL: Duration = Duration::from_secs(30);
/// Wait before retrying a failed renewal.
const RETRY_WAIT: Duration = Duration::from_secs(1);
/// Rest of another worker's lease below which that worker is dead or stalled: a live one renews it
/// 40 s before its end.
const STALLED_REST: Duration = Duration::from_secs(20);
/// A nudge that comes early by the difference of two clocks is repeated with this addition.
const CLOCK_MARGIN: Duration = Duration::from_secs(1);

/// One conversation under this worker's lease, with its loaded state.
#[derive(Debug)]
pub struct LeasedConversation<'w> {
    pub services: &'w Services,
    pub state: ConversationState,
    pub lease: LeaseState,
    pub progress: TurnProgress,
    pub costs: CallCosts,
    pub crash: CrashState,
    pub telemetry: TurnTelemetry,
    pub kept_results: KeptResults,
    /// `due` of the work left pending by the last commit. `None`: no work is pending, or this
    /// delivery continues with it.
    pub nudge_at: Option<Timestamp>,
    /// Set at the first model call that may use one.
    pub model_connection: Option<Arc<ModelConnection>>,
    /// Set at the first event that has hooks.
    pub hook_subject: OnceLock<Arc<HookSubject>>,
    /// Set at the first tool call.
    knowledge: OnceLock<KnowledgePorts>,
}

/// Facts of this turn for spans and logs.
#[derive(Debug, Default)]
pub struct TurnTelemetry {
    /// Trace context of the turn's span, if it has one.
    pub traceparent: Option<String>,
    /// Trace contexts of the requests whose inbox items the commits of the turn applied.
    pub applied_requests: Vec<String>,
    /// The error that ended the prompt.
    pub fault: Option<ErrorClass>,
    /// The finished model call. The next commit logs it.
    pub model_call_log: Option<Box<ModelCallLog>>,
}

/// The nudge for the pending work of a released conversation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum NextNudge {
    /// No work is pending, or it is due so late that the sweep enqueues it.
    NotNeeded,
    Immediate,
    Delayed,
    /// The queue did not accept it.
    Refused,
}

/// Leases a conversation. `expired`: the end of a lease that is over, see [`LeaseRequest`]. `None`:
/// another worker has the lease, or nothing can be processed.
pub(crate) async fn acquire_lease<'w>(
    services: &'w Services,
    key: &ConversationKey,
    turn_ends: Duration,
    expired: Option<Timestamp>,
) -> Result<Option<LeasedConversation<'w>>, TurnError> {
    let worker = match services.isolation {
        // The parent process identifies the worker by this id.
        Isolation::InIsolatedProcess => services.worker.clone(),
        Isolation::Isolator(_) => {
            WorkerId::new(format!("{}.{}", services.worker, services.ids.new_id()))
        }
    };
    Box::pin(acquire_lease_as(services, worker, key, turn_ends, expired)).await
}

/// Like [`acquire_lease`], for a given worker id. A lease of the same worker does not block it: a
/// dead worker is followed at once.
pub(crate) async fn acquire_lease_as<'w>(
    services: &'w Services,
    worker: WorkerId,
    key: &ConversationKey,
    turn_ends: Duration,
    expired: Option<Timestamp>,
) -> Result<Option<LeasedConversation<'w>>, TurnError> {
    // Read the clocks before the request: a slow response must not make the lease look longer than
    // other workers see it.
    let (now, monotonic) = (services.clock.now(), services.clock.monotonic());
    let until = now.plus(LEASE_DURATION);
    let request = LeaseRequest { key, worker: &worker, now, until, expired };
    let Some(acquired) = Box::pin(acquire_head(services, request)).await? else {
        return Ok(None);
    };
    let AcquiredHead { mut head, etag, head_bytes, is_outside_head, is_unconfirmed } = acquired;
    head.correct_clock(now);
    // If leases end with their process, only the start-up can detect a death.
    let death = (head.lease.is_some() && !is_outside_head)
        .then_some(Death::Presumed { delay_deaths: SUSPECT_DEATHS });
    let lease = LeaseState {
        worker,
        epoch: head.epoch + 1,
        is_outside_head,
        until,
        until_monotonic: monotonic + LEASE_DURATION,
    };
    let state = ConversationState {
        key: key.clone(),
        partition: Partition::Conversation(key.clone()),
        inbox: KnownInbox::of_head(&head),
        head,
        head_bytes,
        etag,
        is_unconfirmed,
        response: None,
        buffered: Vec::new(),
        run_prompt: None,
    };
    let conversation = LeasedConversation {
        services,
        state,
        lease,
        progress: TurnProgress::new(turn_ends),
        costs: CallCosts::default(),
        crash: CrashState { death, ..CrashState::default() },
        telemetry: TurnTelemetry::default(),
        kept_results: KeptResults::default(),
        nudge_at: None,
        model_connection: None,
        hook_subject: OnceLock::new(),
        knowledge: OnceLock::new(),
    };
    Ok(Some(conversation))
}

/// The head of a conversation that no other worker has.
struct AcquiredHead {
    head: Head,
    etag: ETag,
    head_bytes: usize,
    is_outside_head: bool,
    is_unconfirmed: bool,
}

/// `None`: another worker has the lease, or nothing can be processed.
async fn acquire_head(
    services: &Services,
    request: LeaseRequest<'_>,
) -> Result<Option<AcquiredHead>, TurnError> {
    let LeaseRequest { key, worker, now, .. } = request;
    // The next commit takes the lease and proves that the head was the newest, so a worker that goes on
    // with its own conversation reads nothing.
    if services.store.has_leases_in_heads()
        && let Some((head, etag, head_bytes)) =
            services.entry_cache.take_cached_head(key, |head| is_next_call_due(head, now))
    {
        return Ok(Some(AcquiredHead {
            head,
            etag,
            head_bytes,
            is_outside_head: false,
            is_unconfirmed: true,
        }));
    }
    let lease = services.store.acquire_lease(request).await;
    let (stored, is_outside_head) =
        match lease.map_err(|source| store_error(key, "lease", source))? {
            LeaseOutcome::Available { head, is_acquired } => (head, is_acquired),
            LeaseOutcome::Leased { until } => {
                clock_change::recheck_lease_ahead(services, key, now, until).await;
                recheck_ending_lease(services, key, now, until).await;
                return Ok(None);
            }
            LeaseOutcome::Missing => return Ok(None),
        };
    match services.entry_cache.take_head(key, &stored) {
        Ok(head)
            if head.min_reader <= services.limits.reader_version
                && head.phase != Phase::Deleted =>
        {
            let head_bytes = stored.document.body.text().len();
            let etag = stored.etag;
            Ok(Some(AcquiredHead {
                head,
                etag,
                head_bytes,
                is_outside_head,
                is_unconfirmed: false,
            }))
        }
        unusable => {
            services.store.release_lease(key, worker).await;
            // Also true if only this member can be read.
            if documents::needs_newer_reader(&stored, services.limits.reader_version) {
                return Ok(None);
            }
            let head = unusable.map_err(|source| store_error(key, "read", source))?;
            if head.phase == Phase::Deleted {
                purge_deleted(services, key).await;
            }
            Ok(None)
        }
    }
}

/// Enqueues a nudge for the end of the lease of a dead or stalled worker. Only the first delivery
/// after that end continues its turn, so each nudge is replaced by at most one.
async fn recheck_ending_lease(
    services: &Services,
    key: &ConversationKey,
    now: Timestamp,
    until: Timestamp,
) {
    if now.until(until) >= STALLED_REST || !services.store.has_leases_in_heads() {
        return;
    }
    let wait = now.until(until.plus(TAKE_OVER_DELAY)) + CLOCK_MARGIN;
    let nudge = Nudge::for_conversation(key.clone(), None);
    enqueue_nudge(services, queue::TURNS, &nudge, wait).await;
}

/// True if the conversation only waits for its next model call: nothing in its inbox, nothing to
/// decide, no failure.
fn is_next_call_due(head: &Head, now: Timestamp) -> bool {
    matches!(head.phase, Phase::Model { .. })
        && head.lease.is_none()
        && head.inbox_count == Some(0)
        && head.requests.is_empty()
        && head.waiting_commands.is_empty()
        && head.pause.is_none()
        && head.suspicion.is_blank()
        && head.next_step_due(now).is_some_and(|due| due <= now)
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
    /// find the conversation leased.
    pub(crate) async fn release(self) -> NextNudge {
        let services = self.services;
        services.fail_points.hit("release.before").await;
        services.store.release_lease(&self.state.key, &self.lease.worker).await;
        services.fail_points.hit("release.after").await;
        let due = self.nudge_at.or_else(|| self.end_of_own_lease());
        let nudge_and_wait = due.map(|due| (self.nudge(), services.clock.now().until(due)));
        // Another process continues, so this head is old when a client waits here again.
        let is_handed_over = self.progress.is_for_client() && due.is_some();
        let ConversationState { key, head, etag, head_bytes, is_unconfirmed, .. } = self.state;
        if !is_unconfirmed && !is_handed_over {
            services.entry_cache.store_head(&key, etag, head, head_bytes);
        }
        let Some((nudge, wait)) = nudge_and_wait else { return NextNudge::NotNeeded };
        if wait >= NUDGE_WITHIN {
            return NextNudge::NotNeeded;
        }
        services.fail_points.hit("nudge.before").await;
        let is_enqueued = enqueue_nudge(services, queue::TURNS, &nudge, wait).await;
        services.fail_points.hit("nudge.after").await;
        if !is_enqueued {
            return NextNudge::Refused;
        }
        if wait.is_zero() { NextNudge::Immediate } else { NextNudge::Delayed }
    }

    /// When another worker can continue, if the head still has this lease: the turn has failed, or
    /// the store went away. The message of this delivery may come before, or not again.
    fn end_of_own_lease(&self) -> Option<Timestamp> {
        let lease = self.state.head.lease.as_ref().filter(|_| !self.lease.is_outside_head)?;
        (lease.worker == self.lease.worker).then(|| lease.until.plus(TAKE_OVER_DELAY))
    }

    /// Records the usage of lost work if the conversation was deleted, because its cost still
    /// counts.
    pub(crate) async fn report_lost_call(&mut self) {
        let Some((usage, calls)) = self.costs.take_uncommitted_usage() else { return };
        let call = LateUsage {
            incarnation: &self.state.head.incarnation,
            epoch: self.lease.epoch,
            usage,
            calls,
        };
        if let Err(error) = delete::record_late_usage(self.services, &self.state.key, &call).await {
            tracing::warn!(conversation.id = %self.state.key.conversation_id, error = %error,
                "usage of a deleted conversation not recorded; its estimate is recorded instead");
        }
    }

    /// Renews the lease while it is polled. Returns an error once effects must stop: the lease is
    /// lost, or the process ends. Cancel-safe: a pending renewal and the next commit need the same version of the
    /// head, so at most one of them wins.
    pub(crate) async fn renew_until_lost(&mut self) -> TurnError {
        let (services, key) = (self.services, self.state.key.clone());
        let has_write = self.state.head.phase.call_batch().has_running_write();
        tokio::select! {
            biased;
            () = services.shutdown.wait_for_deadline(has_write) => TurnError::Stopped { key },
            error = self.renew_repeatedly() => error,
        }
    }

    async fn renew_repeatedly(&mut self) -> TurnError {
        let clock = &*self.services.clock;
        // Counts from the last renewal, so that many short waits in a row still renew in time.
        let mut wait = self.lease.time_left(clock).saturating_sub(USABLE_AT_RENEWAL);
        loop {
            tokio::time::sleep(wait.min(self.lease.time_left(clock))).await;
            let left = self.lease.time_left(clock);
            if left.is_zero() {
                return self.state.lease_lost();
            }
            // An unresponsive store must not keep an effect running.
            match tokio::time::timeout(left, self.renew_lease()).await {
                Ok(Ok(())) => wait = RENEWAL_INTERVAL,
                Ok(Err(TurnError::Store {
                    source: source @ StoreError::Unavailable(_), ..
                })) => {
                    tracing::warn!(conversation.id = %self.state.key.conversation_id, error = %source, "lease renewal failed, retrying");
                    wait = RETRY_WAIT;
                }
                Ok(Err(error)) => return error,
                Err(_elapsed) => return self.state.lease_lost(),
            }
        }
    }

    /// Like [`LeasedConversation::renew_until_lost`], for hooks. They run within commits, which
    /// renew, so the unboxed future type would contain itself.
    pub(crate) fn renew_until_lost_boxed(&mut self) -> BoxFuture<'_, TurnError> {
        Box::pin(self.renew_until_lost())
    }

    /// Ensures that 20 s of the lease remain. Call it just before sending (invariant 6).
    pub(crate) async fn ensure_lease(&mut self) -> Result<(), TurnError> {
        let is_too_short = self.lease.is_too_short(&*self.services.clock);
        if is_too_short { self.renew_lease().await } else { Ok(()) }
    }

    async fn renew_lease(&mut self) -> Result<(), TurnError> {
        if !self.lease.is_outside_head {
            let plan = self.state.plan(self.services, Vec::new());
            return self.commit(CommitKind::Renewal, plan).await;
        }
        let is_ours = self.lease.renew_outside_head(self.services, &self.state.key).await;
        if is_ours { Ok(()) } else { Err(self.state.lease_lost()) }
    }

    /// Loads the head if another writer has changed it, so that the next commit is not lost.
    ///
    /// # Errors
    /// The store is unavailable, or the lease is no longer ours: discard the work.
    pub(crate) async fn refresh_head(&mut self) -> Result<(), TurnError> {
        let read = self.services.store.read(&self.state.partition, HEAD_ID, Freshness::Latest);
        let stored = read.await.map_err(|source| self.state.error("read", source))?;
        if stored.as_ref().is_some_and(|stored| stored.etag == self.state.etag) {
            return Ok(());
        }
        self.reload_head(stored.map(Box::new)).await
    }

    /// Loads the head after a lost commit.
    ///
    /// # Errors
    /// The lease is no longer ours: discard the work.
    pub(crate) async fn reload_head(
        &mut self,
        stored: Option<Box<StoredDocument>>,
    ) -> Result<(), TurnError> {
        let Some(stored) = stored else { return Err(self.state.lease_lost()) };
        let head =
            documents::read_head(&stored).map_err(|source| self.state.error("reload", source))?;
        let is_ours = if self.lease.is_outside_head {
            self.lease.renew_outside_head(self.services, &self.state.key).await
        } else {
            // Without its own lease in the head, this worker has committed nothing yet. An
            // intermediate holder may have applied inbox items read here, so the data read is valid
            // only without one.
            let before = &self.state.head;
            self.lease.is_visible(&head)
                || (head.epoch == before.epoch && head.lease == before.lease)
        };
        // A write by this version would drop the members that only a newer version supports.
        let is_newer = head.min_reader > self.services.limits.reader_version;
        if !is_ours || is_newer || head.phase == Phase::Deleted {
            return Err(self.state.lease_lost());
        }
        (self.state.head, self.state.etag) = (head, stored.etag);
        self.state.is_unconfirmed = false;
        self.state.load_run(self.services).await
    }

    /// The stores of the built-in tools, for all calls of this delivery.
    pub(crate) fn knowledge(&self) -> &KnowledgePorts {
        self.knowledge.get_or_init(|| Knowledge::ports(self.services))
    }

    /// In the prompt's trace. If the prompt has just ended, in the trace of the turn that ended it.
    pub fn nudge(&self) -> Nudge {
        let traceparent = match &self.state.head.prompt {
            Some(run) => run.traceparent.clone(),
            None => self.telemetry.traceparent.clone(),
        };
        Nudge::for_conversation(self.state.key.clone(), traceparent)
    }

    /// True if this delivery may make another model call. After the first one it needs
    /// `continuation: inline`, or a client that waits here, and an empty inbox.
    pub(crate) fn can_call_model(&self, head: &Head) -> bool {
        let is_inline = || {
            head.waiting_items == 0
                && (self.progress.is_for_client()
                    || self.state.context(self.services).settings.continuation
                        == Some(Continuation::Inline))
        };
        let (now, limits) = (self.services.clock.monotonic(), &self.services.limits);
        !self.services.shutdown.is_begun()
            && self.progress.can_call_model(now, limits.turn_duration, is_inline)
    }

    /// True if this delivery performs nothing after this commit, so that the commit clears the
    /// lease.
    pub(crate) fn is_last_commit(&self, transition: &Transition) -> bool {
        if self.crash.is_commit_only {
            return true;
        }
        match &transition.head.phase {
            Phase::Idle | Phase::Deleted => true,
            Phase::Model { .. } | Phase::Summary { .. }
                if transition.head.is_waiting_for_decision() || transition.head.pause.is_some() =>
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
}
