//! Event reader: merges stored and live events of one conversation for one client. Stored events
//! come from the store by number, so any instance serves any reader. Live events are only faster.

mod dedup;
mod event;
mod hydrate;
mod prompt_details;

use std::collections::VecDeque;
use std::fmt;
use std::time::Duration;

use futures_util::FutureExt as _;
use tokio::time::Instant;

use turnwheel_conversation::event::{Event, EventKind};
use turnwheel_conversation::head::Head;
use turnwheel_conversation::message::{AssistantMessage, Message, StopReason};
use turnwheel_conversation::phase::Phase;
use turnwheel_conversation::unknown_members::Extra;
use turnwheel_conversation::usage::RecordedUsage;
use turnwheel_json::raw::raw_object;
use turnwheel_platform::clock::Timestamp;
use turnwheel_platform::ids::{ConversationKey, EntryId, PromptId};
use turnwheel_record::contract::CommandError;
use turnwheel_record::documents::{self, EventsBody};
use turnwheel_record::load;
use turnwheel_record::services::Services;
use turnwheel_storage::live::{
    Interest, LiveEvent, LiveReader, LiveResponse, ModelIdentity, RemoteSubscription, Snapshot,
};
use turnwheel_storage::store::{
    ConversationStore, DocumentKind, Freshness, Partition, Selection, StoreError, StoredDocument,
    events_id,
};

pub use event::{EventMessage, EventPayload, StreamEvent, StreamItem};

use dedup::LiveDedup;
use hydrate::Hydrator;

/// Interval of checks that the conversation still exists.
const HEAD_CHECK_INTERVAL: Duration = Duration::from_secs(5);
/// A stream is a running invocation. It ends long before the host's time-out, at which the host
/// kills the process.
pub const STREAM_DURATION_MAX: Duration = Duration::from_secs(200);
/// Number of `events` documents in one read.
const DOCUMENTS_PER_READ: usize = 32;
/// Numbers of events before a given one among which the first read finds its document: of a usual
/// commit first, of the largest one last.
const EVENTS_PER_COMMIT: [u64; 4] = [16, 64, 256, 1_000];

/// Condition under which a reader ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum StreamEnd {
    /// After the event with this number.
    AfterEvent(u64),
    /// When nothing runs.
    WhenSettled,
    /// When the client disconnects or the maximum duration is over.
    AtMaxDuration,
    /// Only when the reader is dropped. For readers in this process.
    OnDrop,
}

/// Reader of the events of one conversation.
pub struct EventReader {
    services: Services,
    key: ConversationKey,
    partition: Partition,
    /// Number of the last stored event that was emitted.
    last_emitted: u64,
    /// Number of the newest event of all commits announced live.
    newest_announced: u64,
    /// A live event that waits for the stored events before it.
    waiting_event: Option<LiveEvent>,
    end: StreamEnd,
    /// True if `last_emitted` is the end of a document, so that the next document starts after it.
    is_aligned: bool,
    hydrator: Hydrator,
    items: VecDeque<StreamItem>,
    live: Box<dyn LiveReader>,
    /// Keeps live events coming while the reader follows the conversation.
    _subscription: Option<Box<dyn RemoteSubscription>>,
    /// Snapshot of the model response in progress at the start. Emitted after the stored events.
    snapshot: Option<Snapshot>,
    dedup: LiveDedup,
    ends_at: Option<Instant>,
    poll_at: Instant,
    head_checked_at: Instant,
    /// True if a live event reported that the conversation was deleted.
    should_check_head: bool,
    is_over: bool,
}

impl fmt::Debug for EventReader {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("EventReader")
            .field("key", &self.key)
            .field("after", &self.last_emitted)
            .finish_non_exhaustive()
    }
}

impl EventReader {
    /// Creates a reader that starts after event number `last_emitted`; 0 starts at the first event.
    pub fn new(
        services: Services,
        key: ConversationKey,
        last_emitted: u64,
        end: StreamEnd,
    ) -> Self {
        let now = Instant::now();
        // Subscribe before the first read of stored events, so that no event falls between.
        let (snapshot, live) = services.live.subscribe(&key);
        let subscription = match end {
            StreamEnd::AfterEvent(_) => None,
            StreamEnd::WhenSettled | StreamEnd::AtMaxDuration | StreamEnd::OnDrop => {
                Some(services.live.subscribe_remote(&key, Interest::CommitsAndDeltas))
            }
        };
        Self {
            partition: Partition::Conversation(key.clone()),
            hydrator: Hydrator::new(services.clone(), key.clone()),
            services,
            key,
            last_emitted,
            newest_announced: 0,
            waiting_event: None,
            end,
            is_aligned: last_emitted == 0,
            items: VecDeque::new(),
            live,
            _subscription: subscription,
            snapshot,
            dedup: LiveDedup::default(),
            ends_at: (end != StreamEnd::OnDrop).then(|| now + STREAM_DURATION_MAX),
            poll_at: now,
            head_checked_at: now,
            should_check_head: false,
            is_over: false,
        }
    }

    /// Returns the next item, or `None` at the end of the stream. After a dropped call the reader
    /// must be dropped too.
    pub async fn next(&mut self) -> Option<StreamItem> {
        loop {
            if let Some(item) = self.items.pop_front() {
                return Some(item);
            }
            if self.is_over {
                return None;
            }
            if let Err(error) = Box::pin(self.advance()).await {
                // The client reconnects and continues after its last event number.
                tracing::warn!(conversation.id = %self.key, error = %error, "event stream failed");
                self.is_over = true;
            }
        }
    }

    async fn advance(&mut self) -> Result<(), CommandError> {
        let now = Instant::now();
        if now >= self.poll_at {
            if self.emit_stored().await? {
                return Ok(());
            }
            self.poll_at = Instant::now() + self.services.live.poll_interval();
            self.finish_catch_up().await?;
            if self.is_over || !self.items.is_empty() {
                return Ok(());
            }
        }
        if self.ends_at.is_some_and(|ends_at| now >= ends_at) {
            self.is_over = true;
            return Ok(());
        }
        let wake_at = self.ends_at.map_or(self.poll_at, |ends_at| ends_at.min(self.poll_at));
        if let Ok(event) = tokio::time::timeout_at(wake_at, self.next_live_event()).await {
            self.handle_live_event(event);
        }
        Ok(())
    }

    /// Reads and emits new stored events. True if another read is due at once.
    async fn emit_stored(&mut self) -> Result<bool, CommandError> {
        if matches!(self.end, StreamEnd::AfterEvent(last) if self.last_emitted >= last) {
            return Ok(false);
        }
        let next = self.last_emitted + 1;
        let announced_before = self.newest_announced;
        let was_aligned = std::mem::replace(&mut self.is_aligned, true);
        let store = &*self.services.store;
        let found = if was_aligned {
            let following = Selection {
                from_id: Some(events_id(next)),
                limit: DOCUMENTS_PER_READ,
                ..Selection::all(DocumentKind::Events)
            };
            store.select(&self.partition, &following, Freshness::Latest).await?
        } else {
            find_document_with(store, &self.partition, next).await?
        };
        // End of the stored events. Live events that arrive now belong between or after these.
        let is_end = was_aligned && found.len() < DOCUMENTS_PER_READ;
        let mut events = VecDeque::new();
        for stored in &found {
            let body: EventsBody = documents::read(&stored.document)?;
            events.extend(body.events.into_iter().filter(|event| event.n >= next));
        }
        self.hydrator.cache_entries(documents::read_entries(&found)?);
        let is_new = !events.is_empty();
        let has_newer =
            is_end && self.snapshot.is_none() && self.emit_in_order(&mut events).await?;
        self.emit_up_to(&mut events, u64::MAX).await?;
        if is_end && announced_before > self.last_emitted {
            // Announced, and not stored: the conversation was deleted.
            self.newest_announced = self.last_emitted;
            self.waiting_event = None;
            return Ok(is_new);
        }
        Ok(is_new || has_newer || !was_aligned)
    }

    async fn next_live_event(&mut self) -> LiveEvent {
        match self.waiting_event.take() {
            Some(event) => event,
            None => self.live.next_event().await,
        }
    }

    /// Emits live and stored events in their order. Stored events may be ahead of live ones, and
    /// the deltas of a response would come after its end. True if events newer than `events` were
    /// committed.
    async fn emit_in_order(&mut self, events: &mut VecDeque<Event>) -> Result<bool, CommandError> {
        loop {
            self.emit_up_to(events, self.newest_announced).await?;
            if self.newest_announced > self.last_emitted {
                // Later live events wait for the next read.
                return Ok(true);
            }
            match self.next_live_event().now_or_never() {
                Some(event) => self.handle_live_event(event),
                None => return Ok(false),
            }
        }
    }

    async fn emit_up_to(
        &mut self,
        events: &mut VecDeque<Event>,
        last: u64,
    ) -> Result<(), CommandError> {
        while let Some(event) = events.pop_front_if(|event| event.n <= last) {
            self.emit(&event).await?;
        }
        Ok(())
    }

    async fn emit(&mut self, event: &Event) -> Result<(), CommandError> {
        if event.n <= self.last_emitted
            || matches!(self.end, StreamEnd::AfterEvent(last) if event.n > last)
        {
            return Ok(());
        }
        if event.n != self.last_emitted + 1 {
            let detail = format!("event {} of {} is missing", self.last_emitted + 1, self.key);
            return Err(CommandError::Corrupt(StoreError::Corrupt(detail)));
        }
        let item = if self.dedup.is_duplicate(event) {
            StreamItem::Confirmed(event.n)
        } else {
            StreamItem::Event(Box::new(self.hydrator.hydrate(event).await?))
        };
        self.last_emitted = event.n;
        self.items.push_back(item);
        Ok(())
    }

    /// Finishes a read in which all stored events were emitted: emits the snapshot and checks the
    /// end condition.
    async fn finish_catch_up(&mut self) -> Result<(), CommandError> {
        if let Some(snapshot) = self.snapshot.take() {
            self.handle_live_event(LiveEvent::Snapshot(snapshot));
        }
        match self.end {
            StreamEnd::AfterEvent(_) => self.is_over = true,
            StreamEnd::WhenSettled | StreamEnd::AtMaxDuration | StreamEnd::OnDrop => {
                let is_due = Instant::now() >= self.head_checked_at + HEAD_CHECK_INTERVAL;
                let should_end = self.end == StreamEnd::WhenSettled && self.last_emitted > 0;
                if is_due || should_end || std::mem::take(&mut self.should_check_head) {
                    self.head_checked_at = Instant::now();
                    self.check_head(should_end).await?;
                }
            }
        }
        Ok(())
    }

    async fn check_head(&mut self, should_end: bool) -> Result<(), CommandError> {
        let Some((head, _)) = load::find_head(&self.services, &self.key).await? else {
            self.is_over = true;
            return Ok(());
        };
        let has_all = head.event_seq == self.last_emitted;
        self.is_over = should_end && has_all && is_settled(&self.services, &head).await?;
        Ok(())
    }

    fn handle_live_event(&mut self, event: LiveEvent) {
        if event.previous_event_seq() > self.last_emitted {
            // Its commit was announced before this reader subscribed.
            self.newest_announced = self.newest_announced.max(event.previous_event_seq());
            self.waiting_event = Some(event);
            self.poll_at = Instant::now();
            return;
        }
        match event {
            LiveEvent::Committed { event_seq, .. } => {
                self.newest_announced = self.newest_announced.max(event_seq);
                if event_seq > self.last_emitted {
                    self.poll_at = Instant::now();
                }
            }
            LiveEvent::Deleted => {
                self.should_check_head = true;
                self.poll_at = Instant::now();
            }
            LiveEvent::ResponseStarted(message) => self.start_message(&message),
            LiveEvent::Snapshot(snapshot) => self.emit_snapshot(&snapshot),
            LiveEvent::Delta { message_id, event } => {
                if let Some((prompt_id, turn)) = self.current_turn(&message_id) {
                    let payload = EventPayload::MessageUpdate { message_id, event };
                    self.push_live_event(prompt_id, turn, payload);
                }
            }
            LiveEvent::Reset { message_id } => {
                if let Some((prompt_id, turn)) = self.current_turn(&message_id) {
                    *self.dedup.message_resets.entry(message_id.clone()).or_default() += 1;
                    let payload = EventPayload::MessageReset { message_id };
                    self.push_live_event(prompt_id, turn, payload);
                }
            }
            LiveEvent::ToolUpdate(update) => {
                let (prompt_id, turn) = (update.prompt_id.clone(), update.turn);
                let payload = EventPayload::ToolExecutionUpdate(update);
                self.push_live_event(prompt_id, turn, payload);
            }
        }
    }

    /// Returns prompt and turn of a message if it is the model response in progress.
    fn current_turn(&self, message_id: &EntryId) -> Option<(PromptId, u64)> {
        let current = self.dedup.current_message.as_ref();
        let current = current.filter(|current| current.message_id == *message_id)?;
        Some((current.prompt_id.clone(), current.turn))
    }

    /// Emits the start of a model response, unless its stored copy was emitted.
    fn start_message(&mut self, response: &LiveResponse) {
        if self.dedup.ended_messages.contains(&response.message_id) {
            return;
        }
        let prompt_id = || response.prompt_id.clone();
        let turn = (prompt_id(), response.turn);
        if response.is_agent_start && self.dedup.agent_starts.insert(turn.clone()) {
            self.push_live_event(prompt_id(), response.turn, EventPayload::AgentStart);
        }
        if response.is_turn_start && self.dedup.turn_starts.insert(turn) {
            self.push_live_event(prompt_id(), response.turn, EventPayload::TurnStart);
        }
        let is_first = self.dedup.message_starts.insert(response.message_id.clone());
        if is_first || self.dedup.message_resets.contains_key(&response.message_id) {
            let message = empty_message(&response.identity, self.services.clock.now());
            let payload = EventPayload::MessageStart {
                message_id: response.message_id.clone(),
                message: Some(EventMessage::Started(Box::new(message))),
                input_id: None,
            };
            self.push_live_event(prompt_id(), response.turn, payload);
        }
        self.dedup.current_message = Some(response.clone());
    }

    /// Emits the content of a response so far. Clients replace their content by it, then append.
    fn emit_snapshot(&mut self, snapshot: &Snapshot) {
        let response = &snapshot.response;
        if self.dedup.ended_messages.contains(&response.message_id) {
            return;
        }
        self.start_message(response);
        let payload = EventPayload::Other {
            kind: EventKind::MessageSnapshot,
            members: raw_object!({"messageId": response.message_id, "content": snapshot.content}),
        };
        self.push_live_event(response.prompt_id.clone(), response.turn, payload);
    }

    /// Queues a live event, which has no number.
    fn push_live_event(&mut self, prompt_id: PromptId, turn: u64, payload: EventPayload) {
        let at = self.services.clock.now();
        let prompt_id = Some(prompt_id);
        let event = StreamEvent { number: None, at, prompt_id, turn, payload };
        self.items.push_back(StreamItem::Event(Box::new(event)));
    }
}

/// Returns the assistant message at its start, without content.
fn empty_message(author: &ModelIdentity, timestamp: Timestamp) -> Message {
    Message::Assistant(AssistantMessage {
        content: Vec::new(),
        api: author.api.clone(),
        provider: author.provider.clone(),
        model: author.model.clone(),
        usage: RecordedUsage::default(),
        stop_reason: StopReason::Stop,
        error_message: None,
        timestamp,
        extra: Extra::new(),
    })
}

/// True if nothing runs, waits for an approval or is queued, and no event followed since `head` was
/// read.
///
/// # Errors
/// The store is unavailable.
pub async fn is_settled(services: &Services, head: &Head) -> Result<bool, CommandError> {
    if head.phase != Phase::Idle {
        return Ok(false);
    }
    let (inbox, now) = load::inbox_then_head(services, &head.key()).await?;
    let is_idle = now.phase == Phase::Idle && now.event_seq == head.event_seq;
    Ok(is_idle && !load::has_pending_work(&now, &inbox))
}

/// The document with that event, or the last one before it.
async fn find_document_with(
    store: &dyn ConversationStore,
    partition: &Partition,
    event: u64,
) -> Result<Vec<StoredDocument>, StoreError> {
    for events in EVENTS_PER_COMMIT {
        let before = Selection {
            from_id: Some(events_id(event.saturating_sub(events).max(1))),
            to_id: Some(events_id(event)),
            ..Selection::all(DocumentKind::Events)
        };
        if let Some(last) = store.select(partition, &before, Freshness::Latest).await?.pop() {
            return Ok(vec![last]);
        }
    }
    Ok(Vec::new())
}
