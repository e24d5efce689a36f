//! The common steps of commands: find an earlier request with the same key, replay its response or
//! store this request, and wake a worker.

use std::ops::Range;
use std::time::Duration;

use serde::Serialize;
use tokio::sync::OwnedMutexGuard;

use crate::request_hooks::RequestHooks;
use crate::target::Target;
use crate::waiting_client::WaitingClients;
use crate::{import, wake_worker};
use turnwheel_agent_files::Execution;
use turnwheel_conversation::head::Head;
use turnwheel_conversation::inbox::{
    IdempotencyRecord, InboxItem, InputQueue, NEXT_TURN_MESSAGES_MAX,
};
use turnwheel_conversation::waiting_command::AskingRequest;
use turnwheel_extensions::{Observation, SessionStartReason};
use turnwheel_platform::clock::Timestamp;
use turnwheel_platform::ids::{ConversationKey, InputId};
use turnwheel_platform::telemetry::trace;
use turnwheel_record::certain_write::{BatchOutcome, with_inbox_count, write_until_certain};
use turnwheel_record::contract::{CommandError, CommandResponse, INBOX_ITEMS_MAX};
use turnwheel_record::documents;
use turnwheel_record::event_log::log_prompt_accepted;
use turnwheel_record::head_commit::HeadCommit;
use turnwheel_record::idempotency::{Idempotency, PreviousRequest, find_previous_request};
use turnwheel_record::load;
use turnwheel_record::nudge::Nudge;
use turnwheel_record::services::Services;
use turnwheel_storage::store::{Document, DocumentKind, Write};

/// Attempts to store an input while other requests and workers change the count.
const ROOM_ATTEMPTS_MAX: usize = 4;
/// Time after which a client tries again if too many inputs wait.
const FULL_INBOX_RETRY: Duration = Duration::from_secs(1);
/// As [`FULL_INBOX_RETRY`], for messages for the next turn: only a prompt of a user makes room.
const NEXT_TURN_RETRY: Duration = Duration::from_mins(1);

/// Signal to workers after a request is stored.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Signal<'a> {
    /// The request is complete when it is stored.
    None,
    /// Wakes a worker, in that trace.
    Wake(Option<&'a str>),
    /// As `Wake`, if no client waits for the turns here, or this process cannot run them.
    Start { clients: &'a WaitingClients, traceparent: Option<&'a str> },
    /// Stops the effects of the running prompt, and wakes a worker.
    Compact,
    /// As `Compact`. A repetition always signals again, because the receipt of an abort does not
    /// show whether a worker has applied it.
    Abort,
}

impl<'a> Signal<'a> {
    /// The signal of a request that continues the conversation. The process takes the next turn itself, for
    /// a client that waits here, if the agent has `execution: here`, the conversation has no lease and needs
    /// no newer version, and no worker has died in its last step: a step that kills its process must not end
    /// the requests of all other clients.
    pub(crate) fn start_or_wake(
        services: &Services,
        head: &Head,
        clients: Option<&'a WaitingClients>,
        traceparent: Option<&'a str>,
    ) -> Self {
        let runs_here = || {
            let agent = services.agents.find(Some(&head.agent));
            agent.is_ok_and(|agent| agent.execution == Execution::Here)
        };
        let needs_worker = head.lease.is_some()
            || head.leases_without_progress > 0
            || !head.suspicion.is_blank()
            || head.min_reader > services.limits.reader_version;
        match clients {
            Some(clients) if !needs_worker && runs_here() => Self::Start { clients, traceparent },
            _ => Self::Wake(traceparent),
        }
    }

    pub(crate) async fn emit(self, services: &Services, key: &ConversationKey) {
        if !matches!(self, Self::None) {
            // So event streams of this instance register before another instance streams the
            // response.
            services.live.wake_pollers(key);
        }
        match self {
            Self::None => {}
            Self::Wake(traceparent) => wake_worker(services, key, traceparent).await,
            Self::Start { clients, traceparent } => {
                let own = traceparent.map(ToOwned::to_owned);
                if !clients.start(Nudge::for_conversation(key.clone(), own)) {
                    wake_worker(services, key, traceparent).await;
                }
            }
            Self::Compact | Self::Abort => {
                services.abort_signals.emit(key);
                let traceparent = trace::current_traceparent();
                wake_worker(services, key, traceparent.as_deref()).await;
            }
        }
    }
}

/// A request to one conversation.
#[derive(Clone, Copy, Debug)]
pub(crate) struct CommandContext<'a> {
    pub services: &'a Services,
    pub key: &'a ConversationKey,
    pub idempotency: &'a Idempotency,
    pub signal: Signal<'a>,
}

/// The documents of a request. They are created together.
#[derive(Debug, Default)]
pub(crate) struct RequestDocuments<'a> {
    /// The request itself, if a worker applies it. Storing adds its response.
    pub item: Option<Box<InboxItem>>,
    pub own: Vec<Document>,
    /// Left out if another request aborts the same prompt.
    pub abort: Option<Document>,
    /// Head of the conversation that the request creates.
    pub new_head: Option<&'a Head>,
}

impl From<InboxItem> for RequestDocuments<'_> {
    fn from(item: InboxItem) -> Self {
        Self { item: Some(Box::new(item)), ..Self::default() }
    }
}

/// Outcome of the write that creates the documents of a request.
pub(crate) enum Creation {
    Stored,
    /// A document with the request's input id exists.
    Repeated(PreviousRequest),
    /// Another document of the batch exists.
    Blocked,
}

impl CommandContext<'_> {
    pub(crate) fn input_id(&self) -> InputId {
        self.idempotency.input_id(self.key)
    }

    /// Waits for an earlier request of this process with the same key. Requests without a key of
    /// their client have nothing to wait for.
    pub(crate) async fn lock(&self) -> Option<OwnedMutexGuard<()>> {
        if !self.idempotency.is_repeatable {
            return None;
        }
        Some(self.services.request_locks.lock(self.key, self.input_id()).await)
    }

    async fn find_previous(&self) -> Result<Option<PreviousRequest>, CommandError> {
        find_previous_request(self.services, self.key, self.input_id().as_str()).await
    }

    /// The response to an earlier request with the same key.
    pub(crate) async fn find_response(&self) -> Result<Option<CommandResponse>, CommandError> {
        match self.find_previous().await? {
            Some(previous) => self.replay(&previous).await.map(Some),
            None => Ok(None),
        }
    }

    /// Returns the first response again. If the item is still queued, signals again, because the
    /// first nudge may be lost.
    async fn replay(&self, previous: &PreviousRequest) -> Result<CommandResponse, CommandError> {
        let response = previous.replay(self.idempotency)?;
        if previous.is_queued() || matches!(self.signal, Signal::Abort) {
            self.emit_signal().await;
        }
        Ok(response)
    }

    pub(super) async fn emit_signal(&self) {
        self.signal.emit(self.services, self.key).await;
    }

    /// Accepts a request to an existing conversation: replays an earlier one, or calls `store` with
    /// the current head.
    pub(crate) async fn accept<S>(
        &self,
        store: impl FnOnce(Head) -> S,
    ) -> Result<CommandResponse, CommandError>
    where
        S: Future<Output = Result<CommandResponse, CommandError>>,
    {
        let _lock = self.lock().await;
        let (head, previous) =
            tokio::join!(load::head(self.services, self.key), self.find_previous());
        let (head, _) = head?;
        if let Some(previous) = previous? {
            return self.replay(&previous).await;
        }
        // An abort is always accepted.
        if !matches!(self.signal, Signal::Abort) {
            self.find_room(head.inbox_count, None).await?;
        }
        store(head).await
    }

    /// The counts at which the conversation has room for another input of this queue. Edits and
    /// withdrawals count as well, so above the bound the inbox is read. Messages for the next turn have a
    /// bound of their own: the prompt that delivers them has room always.
    ///
    /// # Errors
    /// [`CommandError::InboxFull`]: too many inputs wait.
    async fn find_room(
        &self,
        count: Option<u32>,
        queue: Option<InputQueue>,
    ) -> Result<Range<u32>, CommandError> {
        let count = count.unwrap_or(0);
        if count < INBOX_ITEMS_MAX {
            return Ok(0..INBOX_ITEMS_MAX);
        }
        let is_next_turn = |queue: Option<InputQueue>| queue == Some(InputQueue::NextTurn);
        let inbox = load::inbox(self.services, self.key).await?;
        let same = inbox.iter().filter(|it| is_next_turn(it.queue()) == is_next_turn(queue));
        let waiting = u32::try_from(same.count()).unwrap_or(u32::MAX);
        let (max, retry_after) = if is_next_turn(queue) {
            (NEXT_TURN_MESSAGES_MAX, NEXT_TURN_RETRY)
        } else {
            (INBOX_ITEMS_MAX, FULL_INBOX_RETRY)
        };
        let is_full = waiting >= max;
        // A worker counts anew, or applies items whose nudges are lost.
        let has_surplus = u32::try_from(inbox.len()).is_ok_and(|items| items < count);
        if has_surplus || (is_full && inbox.iter().any(InboxItem::has_effect_when_idle)) {
            wake_worker(self.services, self.key, None).await;
        }
        if is_full {
            let is_next_turn = is_next_turn(queue);
            return Err(CommandError::InboxFull { is_next_turn, retry_after });
        }
        // Below `count` a worker has counted anew since the read.
        Ok(count..count.saturating_add(max - waiting))
    }

    /// Writes the documents of the request. If the write is lost, reads the earlier request.
    pub(crate) async fn create(&self, writes: Vec<Write>) -> Result<Creation, CommandError> {
        if let BatchOutcome::Won(_) = write_until_certain(self.services, self.key, writes).await? {
            return Ok(Creation::Stored);
        }
        Ok(self.find_previous().await?.map_or(Creation::Blocked, Creation::Repeated))
    }

    /// Like [`Self::create`], but an input that is counted is stored only if it has room. The store
    /// decides, since other requests may have been stored after the read of the head.
    async fn create_in_room(
        &self,
        mut writes: Vec<Write>,
        queue: Option<InputQueue>,
    ) -> Result<Creation, CommandError> {
        let is_counted = matches!(writes.last(), Some(Write::CountInboxChange { .. }));
        if !is_counted {
            return self.create(writes).await;
        }
        let mut counts = 0..INBOX_ITEMS_MAX;
        for _ in 0..ROOM_ATTEMPTS_MAX {
            if let Some(Write::CountInboxChange { room, .. }) = writes.last_mut() {
                *room = Some(counts);
            }
            match self.create(writes.clone()).await? {
                Creation::Blocked => {}
                creation @ (Creation::Stored | Creation::Repeated(_)) => return Ok(creation),
            }
            let count = load::head(self.services, self.key).await?.0.inbox_count;
            counts = self.find_room(count, queue).await?;
        }
        Ok(Creation::Blocked)
    }

    async fn create_documents(
        &self,
        documents: RequestDocuments<'_>,
        due: Option<Timestamp>,
        queue: Option<InputQueue>,
    ) -> Result<Creation, CommandError> {
        let RequestDocuments { own, abort, new_head, .. } = documents;
        let own: Vec<Write> = match new_head {
            Some(head) => {
                let count = own.iter().filter(|it| it.kind == DocumentKind::Inbox).count();
                let inbox_count = Some(u32::try_from(count).unwrap_or(u32::MAX));
                let head = Head { inbox_count, due, ..head.clone() };
                HeadCommit::create(&head).with_created(own).into_writes()?
            }
            None => own.into_iter().map(Write::Create).collect(),
        };
        self.services.fail_points.hit("admission.accept").await;
        let Some(abort) = abort else {
            return self.create_in_room(with_inbox_count(own, due), queue).await;
        };
        let with_abort = own.iter().cloned().chain([Write::Create(abort)]).collect();
        match self.create(with_inbox_count(with_abort, due)).await? {
            // Another request aborts the same prompt: one abort is enough.
            Creation::Blocked => self.create_in_room(with_inbox_count(own, due), queue).await,
            creation @ (Creation::Stored | Creation::Repeated(_)) => Ok(creation),
        }
    }

    /// Stores a request. Signals if one of its documents is pending work.
    pub(crate) async fn store(
        &self,
        mut documents: RequestDocuments<'_>,
        response: CommandResponse,
    ) -> Result<CommandResponse, CommandError> {
        let new_head = documents.new_head;
        let mut item = documents.item.take();
        let queue = item.as_deref().and_then(InboxItem::queue);
        let has_actions = documents.own.iter().any(|it| it.kind == DocumentKind::Inbox);
        let mut is_pending = has_actions || documents.abort.is_some();
        if let Some(item) = &mut item {
            item.idempotency = self.idempotency.to_record(&response);
            documents.own.push(documents::inbox_document(item));
            // A held item is no pending work: the next delivery of the conversation applies it.
            is_pending |= item.has_effect_when_idle();
        }
        let due = is_pending.then(|| self.services.clock.now());
        match self.create_documents(documents, due, queue).await? {
            Creation::Stored => {}
            Creation::Repeated(found) => {
                let replayed = self.replay(&found).await?;
                let is_own_write =
                    matches!(&found, PreviousRequest::Queued(it) if Some(it) == item.as_ref());
                return Ok(CommandResponse { is_replayed: !is_own_write, ..replayed });
            }
            Creation::Blocked => {
                // Only an existing head can prevent the create of an absent document.
                if new_head.is_some() {
                    import::check_id_available(self.services, self.key, &self.input_id()).await?;
                }
                return Err(CommandError::contended());
            }
        }
        if let Some(item) = &item {
            log_prompt_accepted(self.key, item, new_head);
        }
        self.observe_creation(new_head).await;
        self.services.fail_points.hit("admission.accepted").await;
        if is_pending {
            self.emit_signal().await;
        }
        Ok(response)
    }

    /// Stores a request whose hooks ask a question. A worker runs them again, and opens the approval
    /// request.
    pub(super) async fn store_asking(
        &self,
        target: &Target,
        request: &AskingRequest,
        response: &impl Serialize,
    ) -> Result<CommandResponse, CommandError> {
        let input_id = self.input_id();
        let conversation_id = &target.head().conversation_id;
        let location = format!("conversations/{conversation_id}/inbox/{input_id}");
        let response = CommandResponse::new(202, response).with_location(location);
        let traceparent = trace::current_traceparent();
        let item = InboxItem {
            input_id,
            accepted_at: self.services.clock.now(),
            idempotency: IdempotencyRecord::default(),
            traceparent: traceparent.clone(),
            body: request.to_inbox_body(),
        };
        let context = CommandContext { signal: Signal::Wake(traceparent.as_deref()), ..*self };
        let documents = RequestDocuments { new_head: target.new_head(), ..item.into() };
        context.store(documents, response).await
    }

    /// Runs the observers of a new conversation. It does nothing for an existing one.
    pub(crate) async fn observe_creation(&self, new_head: Option<&Head>) {
        if let Some(head) = new_head {
            self.observe_start(head, SessionStartReason::New).await;
        }
    }

    /// Runs the observers of the conversation that the request has created.
    pub(crate) async fn observe_start(&self, head: &Head, reason: SessionStartReason) {
        let input_id = self.input_id();
        RequestHooks::new(self.services, head, &input_id)
            .observe(&Observation::SessionStart { reason })
            .await;
    }
}
