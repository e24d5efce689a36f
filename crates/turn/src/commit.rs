//! The commit: one atomic conditional write, and the check of which commit won after a lost
//! response (design §5).

use std::time::Duration;

use futures_util::future::BoxFuture;

use crate::conversation_state::ConversationState;
use crate::inbox::{KnownInbox, to_count};
use crate::late_result::without_known_outcomes;
use crate::leased_conversation::LeasedConversation;
use crate::oversize::reduce_inputs;
use crate::plan::CommitPlan;
use turnwheel_conversation::inbox::InboxItem;
use turnwheel_conversation::path_settings::sets_active_tools;
use turnwheel_conversation::phase::Phase;
use turnwheel_conversation::step::{Input, finish_commit};
use turnwheel_conversation::transition::Transition;
use turnwheel_record::documents::{self, EventsBody};
use turnwheel_record::error::TurnError;
use turnwheel_record::event_log::{log_audit, log_commit, report_alerts};
use turnwheel_record::head_commit::{HeadCommit, stamp_head};
use turnwheel_record::lease::{LEASE_DURATION, STOP_MARGIN};
use turnwheel_record::nudge_sender::enqueue_nudge;
use turnwheel_record::services::Services;
use turnwheel_storage::live::LiveEvent;
use turnwheel_storage::queue;
use turnwheel_storage::store::conditional::{self, Witness};
use turnwheel_storage::store::{
    DocumentKind, ETag, Freshness, HEAD_ID, StoreError, StoredDocument, TAKE_OVER_DELAY, Write,
    events_id,
};

/// First wait before an identical batch is sent again; doubles each time.
const BACK_OFF: Duration = Duration::from_millis(50);

const BACK_OFF_MAX: Duration = Duration::from_secs(5);

/// The purpose of a commit.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum CommitKind {
    /// The drained inbox at the start of a delivery, and the outcome of an interrupted step.
    PendingWork,
    /// A model response.
    Response,
    ToolResults,
    /// A summary of the conversation or of a branch.
    Summary,
    /// The budget of the next model call, or the reason for waiting.
    Reservation,
    /// Usage posted to the ledger after the last effect.
    Settlement,
    /// A longer lease. The effect in progress continues.
    Renewal,
}

impl CommitKind {
    /// Value of the metric's attribute `turnwheel.commit.name`.
    fn metric_name(self) -> &'static str {
        match self {
            Self::PendingWork => "take-in",
            Self::Response => "answer",
            Self::ToolResults => "result",
            Self::Summary => "summary",
            Self::Reservation => "reserve",
            Self::Settlement => "settled",
            Self::Renewal => "renew",
        }
    }

    /// The fail points before and after the batch.
    fn fail_points(self) -> [&'static str; 2] {
        match self {
            Self::PendingWork => ["pending-work.before", "pending-work.after"],
            Self::Response => ["response.before", "response.after"],
            Self::ToolResults => ["result.before", "result.after"],
            Self::Summary => ["summary.before", "summary.after"],
            // These commits change only the head.
            Self::Reservation | Self::Settlement | Self::Renewal => ["renew.before", "renew.after"],
        }
    }
}

/// Outcome of a batch.
enum WriteOutcome {
    Won(WonCommit),
    /// Another commit came first. Holds the current head, if one exists.
    Lost(Option<Box<StoredDocument>>),
}

/// A commit that won.
struct WonCommit {
    etag: ETag,
    /// The head, if it was read after the commit: inbox changes may have been counted in it since.
    found: Option<Box<StoredDocument>>,
}

impl LeasedConversation<'_> {
    /// Applies the inputs and commits the result. If another writer won but left the lease alone (a
    /// PATCH), applies the same inputs to the new head and commits again.
    ///
    /// # Errors
    /// [`TurnError::LeaseLost`]: discard the work. Otherwise stop the delivery; nothing is lost.
    pub(crate) fn commit(
        &mut self,
        kind: CommitKind,
        plan: CommitPlan,
    ) -> BoxFuture<'_, Result<(), TurnError>> {
        // Boxed here: it is large, and most callers commit only sometimes.
        Box::pin(self.commit_until_won(kind, plan))
    }

    async fn commit_until_won(
        &mut self,
        kind: CommitKind,
        plan: CommitPlan,
    ) -> Result<(), TurnError> {
        let [before, after] = kind.fail_points();
        let (inputs, mut plan) = plan.into_parts(&self.state.etag, self.services.clock.monotonic());
        let mut changed: Option<Vec<Input>> = None;
        let mut rereads = 0;
        loop {
            let inputs = changed.as_deref().unwrap_or(&inputs);
            // Also after a renewal during the hooks of this commit.
            if reads_inbox(inputs) && !self.state.is_inbox_current() {
                rereads += 1;
                let is_commit_only = self.crash.is_commit_only;
                let state = &mut self.state;
                let inputs =
                    without_known_outcomes(self.services, state, inputs, is_commit_only).await;
                changed = Some(self.rebase_inputs(kind, &inputs, rereads).await?);
                continue;
            }
            // The lease in this batch starts with its transition, however long the write takes.
            let (mut transition, began) = plan.take().unwrap_or_else(|| {
                let began = self.services.clock.monotonic();
                (self.state.build_transition(self.services, inputs), began)
            });
            finish_commit(&mut transition);
            let inbox = self.inbox_after(inputs, &transition);
            self.stamp_head(kind, &mut transition, &inbox);
            let mut bytes = BatchBytes::default();
            let sent = match build_writes(&self.state.etag, &transition) {
                Ok(writes) => {
                    bytes = BatchBytes::from_writes(&writes);
                    self.services.fail_points.hit(before).await;
                    self.write_until_certain(writes, &transition).await
                }
                Err(error) => Err(error),
            };
            count_commit(self.services, kind, &sent);
            match sent {
                Ok(WriteOutcome::Won(won)) => {
                    self.services.fail_points.hit(after).await;
                    let observed = self.observed_facts(kind, &transition);
                    self.state.inbox = inbox;
                    if self.telemetry.traceparent.is_some() {
                        let applied = applied_requests(inputs, &transition);
                        self.telemetry.applied_requests.extend(applied);
                    }
                    adopt_counted_changes(&mut transition, won.found.as_deref());
                    self.apply_won(transition, won.etag, began, bytes).await;
                    if !observed.is_empty() {
                        let context = self.state.context(self.services);
                        Box::pin(self.run_observers(&context, observed)).await;
                    }
                    return Ok(());
                }
                Ok(WriteOutcome::Lost(head)) => self.reload_head(head).await?,
                Err(StoreError::TooLarge(what)) => match reduce_inputs(inputs, &what) {
                    Some(reduced) => changed = Some(reduced),
                    None => return Err(self.state.error("commit", StoreError::TooLarge(what))),
                },
                Err(source) => return Err(self.state.error("commit", source)),
            }
        }
    }

    /// The inbox after the commit of these inputs. One that does not drain it leaves the items that get no
    /// receipt.
    fn inbox_after(&self, inputs: &[Input], transition: &Transition) -> KnownInbox {
        let is_drained = inputs.iter().any(|input| matches!(input, Input::DrainInbox));
        if reads_inbox(inputs) && is_drained {
            return self.state.inbox.after_drain(transition);
        }
        self.state.inbox.after_additions(&self.state.head, transition)
    }

    /// Sets the lease, the times and the marks of this commit.
    fn stamp_head(&self, kind: CommitKind, transition: &mut Transition, inbox: &KnownInbox) {
        // A renewal happens in the middle of an effect, which continues whatever time is left in
        // the turn.
        let is_last = kind != CommitKind::Renewal && self.is_last_commit(transition);
        let queued = transition.queued_new_items().count();
        let head = &mut transition.head;
        let has_news = !transition.entries.is_empty() || !transition.events.is_empty();
        head.epoch = self.lease.epoch;
        let queued = to_count(queued);
        head.inbox_count = inbox.count().or(head.inbox_count.map(|count| count + queued));
        // A conversation that is idle or waits for an approver has no running step, so no death
        // counts against it.
        let is_step = head.phase != Phase::Idle
            && head.next_step_due(transition.now).is_some_and(|due| due <= transition.now);
        if !is_step {
            head.reset_suspicion();
        } else if let Some(death) = self.crash.death {
            head.count_death(death, transition.now);
        }
        head.suspicion.is_running_alone = is_step && self.crash.is_alone && !is_last;
        // Only a turn lowers the reader version: its worker supports everything in the head.
        head.min_reader = head.required_reader();
        stamp_head(self.services, head, has_news.then_some(transition.now));
        if let (Some(run), Some(traceparent)) = (&mut head.prompt, &self.telemetry.traceparent) {
            run.last_turn = Some(traceparent.clone());
        }
        if is_last {
            head.lease = None;
            head.set_due(transition.now, inbox.wait_of_left_items());
        } else {
            let until = transition.now.plus(LEASE_DURATION);
            head.lease = Some(self.lease.to_stored(until));
            head.due = Some(until.plus(TAKE_OVER_DELAY));
        }
    }

    /// Sends the batch until its outcome is certain, or the lease is about to end.
    async fn write_until_certain(
        &self,
        writes: Vec<Write>,
        transition: &Transition,
    ) -> Result<WriteOutcome, StoreError> {
        let (services, state) = (self.services, &self.state);
        let witness = CommitWitness { services, state, transition };
        let has_time = |wait: &Duration| {
            self.services.clock.monotonic() + *wait + STOP_MARGIN < self.lease.until_monotonic
        };
        let waits = conditional::back_off_up_to(BACK_OFF, BACK_OFF_MAX).take_while(has_time);
        let store = &*self.services.store;
        conditional::write_until_certain(store, &self.state.partition, writes, &witness, waits)
            .await
    }

    async fn apply_won(
        &mut self,
        transition: Transition,
        etag: ETag,
        began: Duration,
        bytes: BatchBytes,
    ) {
        if let Some(lease) = &transition.head.lease {
            self.lease.extend(lease.until, began);
        }
        self.crash.death = None;
        (self.state.etag, self.state.is_unconfirmed) = (etag, false);
        if let Some(call) = self.telemetry.model_call_log.take() {
            call.log(&self.state.key, Some(&transition.head), transition.now);
        }
        log_commit(&self.state.key, &transition);
        let agent = self.services.agents.find(Some(&transition.head.agent));
        if let Ok(agent) = agent {
            if agent.audit.is_logged {
                log_audit(&self.state.key, &transition);
            }
            // An extension set them: those of a request are logged when it is checked.
            if transition.entries.iter().any(|entry| sets_active_tools(&entry.body)) {
                agent.log_unknown_tools(&transition.head.settings);
            }
        }
        report_alerts(self.services, &self.state.key, &transition.alerts);
        self.state.response = transition.response;
        self.state.buffered = transition.buffered;
        self.state.run_prompt = self.state.run_prompt_after(&transition.head, &transition.entries);
        self.state.head = transition.head;
        self.state.head_bytes = bytes.head;
        self.services.entry_cache.append(&self.state.head, &transition.entries, bytes.entries);
        if !transition.events.is_empty() {
            let head = &self.state.head;
            let running_prompt =
                self.state.prompt_id().filter(|_| head.step_requests().next().is_none());
            let committed = LiveEvent::committed(head, &transition.events, running_prompt);
            self.services.live.publish(&self.state.key, committed);
        }
        if self.lease.is_outside_head && self.state.head.lease.is_some() {
            // Renew the lease outside the head together with the one in it.
            let _ = self.lease.renew_outside_head(self.services, &self.state.key).await;
        }
        let notice_nudge = !transition.notifications.is_empty();
        if notice_nudge {
            enqueue_nudge(self.services, queue::NOTIFY, &self.nudge(), Duration::ZERO).await;
        }
        self.nudge_at = self.state.head.due.filter(|_| self.state.head.lease.is_none());
    }
}

fn count_commit(services: &Services, kind: CommitKind, sent: &Result<WriteOutcome, StoreError>) {
    let outcome = match sent {
        Ok(WriteOutcome::Won(_)) => "won",
        Ok(WriteOutcome::Lost(_)) => "lost",
        Err(_) => "failed",
    };
    if let Some(metrics) = services.telemetry.metrics() {
        metrics.record_commit(kind.metric_name(), outcome);
    }
}

/// Takes over the changes that others have counted in the head since the commit.
fn adopt_counted_changes(transition: &mut Transition, found: Option<&StoredDocument>) {
    if let Some(StoredDocument { document, .. }) = found {
        transition.head.inbox_count = document.inbox_count;
        transition.head.due = document.due;
    }
}

/// Trace contexts of the requests whose items the commit of these inputs applies.
fn applied_requests(inputs: &[Input], transition: &Transition) -> Vec<String> {
    let is_applied = |item: &InboxItem| {
        transition.receipts.iter().any(|receipt| receipt.input_id == item.input_id)
    };
    let read = inputs.iter().filter_map(|input| {
        if let Input::InboxRead(pending) = input { Some(pending) } else { None }
    });
    let items = read.flatten().map(|pending| &*pending.item).filter(|item| is_applied(item));
    items.filter_map(|item| item.request_traceparent().map(ToOwned::to_owned)).collect()
}

fn reads_inbox(inputs: &[Input]) -> bool {
    inputs.iter().any(|input| matches!(input, Input::InboxRead(_)))
}

fn build_writes(etag: &ETag, transition: &Transition) -> Result<Vec<Write>, StoreError> {
    HeadCommit::replace(&transition.head, etag.clone())
        .with_entries_of(&transition.entries, transition.person_messages())
        .with_events(&transition.events)
        .with_receipts(&transition.receipts, |id| transition.new_items.contains(id))
        .with_created(transition.queued_new_items().map(documents::inbox_document))
        .with_notifications(&transition.notifications)
        .into_writes()
}

/// The head decides which commit won.
struct CommitWitness<'c> {
    services: &'c Services,
    state: &'c ConversationState,
    transition: &'c Transition,
}

impl CommitWitness<'_> {
    /// Returns `None` if the head is unchanged: the batch is not applied, or not yet. Send the same
    /// batch again, never another one.
    async fn find_winner(&self) -> Result<Option<WriteOutcome>, StoreError> {
        let Some(stored) =
            self.services.store.read(&self.state.partition, HEAD_ID, Freshness::Latest).await?
        else {
            return Ok(Some(WriteOutcome::Lost(None)));
        };
        if stored.etag == self.state.etag {
            return Ok(None);
        }
        let head = documents::read_head(&stored)?;
        if head.commit_id == self.transition.head.commit_id {
            let won = WonCommit { etag: stored.etag.clone(), found: Some(Box::new(stored)) };
            return Ok(Some(WriteOutcome::Won(won)));
        }
        let lost = WriteOutcome::Lost(Some(Box::new(stored)));
        // A head whose `eventSeq` is below this batch's first event never held the batch: no events
        // document needs to be read.
        let Some(first) = self.transition.events.first().filter(|first| first.n <= head.event_seq)
        else {
            return Ok(Some(lost));
        };
        let witness = self
            .services
            .store
            .read(&self.state.partition, &events_id(first.n), Freshness::Latest)
            .await?;
        let is_mine = match witness {
            Some(stored) => {
                documents::read::<EventsBody>(&stored.document)?.commit_id
                    == self.transition.head.commit_id
            }
            None => false,
        };
        // Won, and other commits have followed: the ETag is theirs, so our next commit loses once
        // and reloads.
        let won = || WonCommit { etag: self.state.etag.clone(), found: None };
        Ok(Some(if is_mine { WriteOutcome::Won(won()) } else { lost }))
    }
}

impl Witness for CommitWitness<'_> {
    type Outcome = WriteOutcome;

    fn won(&self, etags: Vec<ETag>) -> WriteOutcome {
        let won = |etag| WriteOutcome::Won(WonCommit { etag, found: None });
        etags.into_iter().next().map_or(WriteOutcome::Lost(None), won)
    }

    async fn find_outcome(
        &self,
        _: &[Write],
        _: &StoreError,
    ) -> Result<Option<WriteOutcome>, StoreError> {
        match self.find_winner().await {
            Err(StoreError::Unavailable(_)) => Ok(None),
            decided => decided,
        }
    }
}

/// Stored sizes of a batch.
#[derive(Clone, Copy, Default)]
struct BatchBytes {
    head: usize,
    /// Documents with entries, and their events.
    entries: usize,
}

impl BatchBytes {
    fn from_writes(writes: &[Write]) -> Self {
        let mut bytes = Self::default();
        for write in writes {
            match write {
                Write::Create(document) | Write::Replace(document, _) => {
                    let length = document.body.text().len();
                    if document.kind == DocumentKind::Head {
                        bytes.head += length;
                    } else if document.entry_key().is_some() {
                        bytes.entries += length;
                    }
                }
                Write::Delete(..) | Write::CountInboxChange { .. } => {}
            }
        }
        bytes
    }
}
