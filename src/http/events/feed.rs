//! Event reader: merges stored and live events of one conversation for one client.

use std::collections::VecDeque;
use std::fmt;
use std::time::Duration;

use futures_util::FutureExt as _;
use serde_json::{Value, json};
use tokio::time::Instant;

use crate::agent::event::Event;
use crate::agent::message::{AssistantMessage, Message, StopReason};
use crate::agent::raw::{Extra, RawJson};
use crate::agent::usage::Usage;
use crate::clock::Timestamp;
use crate::http::events::fill::Filler;
use crate::http::events::frame::Frame;
use crate::http::events::is_settled;
use crate::http::events::told::Told;
use crate::ids::{ConversationKey, PromptId};
use crate::live::{Attention, Author, Interest, LiveAnswer, LiveEvent, LiveReader, Snapshot};
use crate::store::{Freshness, Kind, Partition, Selection, StoreError, events_id};
use crate::turn::World;
use crate::turn::admission::Refusal;
use crate::turn::record::{self, EventsBody};
use crate::turn::views::load;

/// Interval of checks that the conversation still exists.
const LOOK_AT_HEAD_EVERY: Duration = Duration::from_secs(5);
const COMMENT_EVERY: Duration = Duration::from_secs(15);
/// A stream is a running invocation. It ends long before the host's time-out, at which the host
/// kills the process.
const ENDS_AFTER: Duration = Duration::from_secs(200);
/// Number of `events` documents in one read.
const PAGE: usize = 32;
/// Maximum number of events of one commit. Bounds how far back the first read starts to find the
/// document with a given number.
const EVENTS_OF_COMMIT_MAX: u64 = 1_000;

/// Condition under which a reader ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Until {
    /// After the event with this number.
    Past(u64),
    /// When nothing runs.
    Settled,
    /// When the client disconnects or the maximum duration is over.
    Closed,
    /// Only when the reader is dropped. For readers in this process.
    Dropped,
}

pub struct Feed {
    world: World,
    key: ConversationKey,
    partition: Partition,
    /// Number of the last stored event that was emitted.
    after: u64,
    /// Number of the newest event of all commits announced live.
    heard: u64,
    until: Until,
    /// True if `last_emitted` is the end of a document, so that the next document starts after it.
    is_aligned: bool,
    filler: Filler,
    frames: VecDeque<Frame>,
    reader: Box<dyn LiveReader>,
    /// Keeps live events coming while the reader follows the conversation.
    _attention: Option<Box<dyn Attention>>,
    /// Snapshot of the model response in progress at the start. Emitted after the stored events.
    snapshot: Option<Snapshot>,
    told: Told,
    ends_at: Option<Instant>,
    last_frame_at: Instant,
    look_at: Instant,
    head_seen_at: Instant,
    /// True if a live event reported that the conversation was deleted.
    wants_head: bool,
    is_over: bool,
}

impl fmt::Debug for Feed {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Feed")
            .field("key", &self.key)
            .field("after", &self.after)
            .finish_non_exhaustive()
    }
}

impl Feed {
    /// Creates a reader that starts after event number `last_emitted`; 0 starts at the first event.
    pub fn new(world: World, key: ConversationKey, after: u64, until: Until) -> Self {
        let now = Instant::now();
        // Subscribe before the first read of stored events, so that no event falls between.
        let (snapshot, reader) = world.live.subscribe(&key);
        let attention = match until {
            Until::Past(_) => None,
            Until::Settled | Until::Closed | Until::Dropped => {
                Some(world.live.attend(&key, Interest::All))
            }
        };
        Self {
            partition: Partition::Conversation(key.clone()),
            filler: Filler::new(world.clone(), key.clone()),
            world,
            key,
            after,
            heard: 0,
            until,
            is_aligned: after == 0,
            frames: VecDeque::from([Frame::Retry]),
            reader,
            _attention: attention,
            snapshot,
            told: Told::default(),
            ends_at: (until != Until::Dropped).then(|| now + ENDS_AFTER),
            last_frame_at: now,
            look_at: now,
            head_seen_at: now,
            wants_head: false,
            is_over: false,
        }
    }

    /// Returns the next frame, or `None` at the end of the stream.
    pub async fn next(&mut self) -> Option<Frame> {
        loop {
            if let Some(frame) = self.frames.pop_front() {
                self.last_frame_at = Instant::now();
                return Some(frame);
            }
            if self.is_over {
                return None;
            }
            if let Err(refusal) = Box::pin(self.advance()).await {
                // The client reconnects and continues after its last event number.
                tracing::warn!(conversation.id = %self.key, error = %refusal, "event stream failed");
                self.is_over = true;
            }
        }
    }

    async fn advance(&mut self) -> Result<(), Refusal> {
        let now = Instant::now();
        if now >= self.look_at {
            if self.look().await? {
                return Ok(());
            }
            self.look_at = Instant::now() + self.world.live.look_every();
            self.caught_up().await?;
            if self.is_over || !self.frames.is_empty() {
                return Ok(());
            }
        }
        if self.ends_at.is_some_and(|ends_at| now >= ends_at) {
            self.is_over = true;
            return Ok(());
        }
        if now >= self.last_frame_at + COMMENT_EVERY {
            self.frames.push_back(Frame::Comment);
            return Ok(());
        }
        let comment_at = self.last_frame_at + COMMENT_EVERY;
        let wake_at = self.look_at.min(comment_at).min(self.ends_at.unwrap_or(comment_at));
        if let Ok(event) = tokio::time::timeout_at(wake_at, self.reader.next()).await {
            self.hear(event);
        }
        Ok(())
    }

    /// Reads and emits new stored events. True if another read is due at once.
    async fn look(&mut self) -> Result<bool, Refusal> {
        if matches!(self.until, Until::Past(last) if self.after >= last) {
            return Ok(false);
        }
        let next = self.after + 1;
        let selection = if self.is_aligned {
            Selection {
                from_id: Some(events_id(next)),
                limit: PAGE,
                ..Selection::all(Kind::Events)
            }
        } else {
            let from = next.saturating_sub(EVENTS_OF_COMMIT_MAX).max(1);
            Selection {
                from_id: Some(events_id(from)),
                to_id: Some(events_id(next)),
                ..Selection::all(Kind::Events)
            }
        };
        let found = self.world.store.select(&self.partition, &selection, Freshness::Latest).await?;
        // End of the stored events. Live events that arrive now belong between or after these.
        let is_end = self.is_aligned && found.len() < PAGE;
        let was_aligned = std::mem::replace(&mut self.is_aligned, true);
        let mut events = VecDeque::new();
        for stored in &found {
            let body: EventsBody = record::read(&stored.document)?;
            events.extend(body.events.into_iter().filter(|event| event.n >= next));
        }
        let is_new = !events.is_empty();
        let is_behind =
            is_end && self.snapshot.is_none() && self.tell_in_order(&mut events).await?;
        self.tell_up_to(&mut events, u64::MAX).await?;
        Ok(is_new || is_behind || !was_aligned)
    }

    /// Emits live and stored events in their order. Stored events may be ahead of live ones, and
    /// the deltas of a response would come after its end. True if events newer than `events` were
    /// committed.
    async fn tell_in_order(&mut self, events: &mut VecDeque<Event>) -> Result<bool, Refusal> {
        loop {
            self.tell_up_to(events, self.heard).await?;
            if self.heard > self.after {
                // Later live events wait for the next read.
                return Ok(true);
            }
            match self.reader.next().now_or_never() {
                Some(event) => self.hear(event),
                None => return Ok(false),
            }
        }
    }

    async fn tell_up_to(&mut self, events: &mut VecDeque<Event>, last: u64) -> Result<(), Refusal> {
        while let Some(event) = events.pop_front_if(|event| event.n <= last) {
            self.tell(&event).await?;
        }
        Ok(())
    }

    async fn tell(&mut self, event: &Event) -> Result<(), Refusal> {
        if event.n <= self.after || matches!(self.until, Until::Past(last) if event.n > last) {
            return Ok(());
        }
        if event.n != self.after + 1 {
            let what = format!("event {} of {} is missing", self.after + 1, self.key);
            return Err(Refusal::Corrupt(StoreError::Corrupt(what)));
        }
        let frame = if self.told.has_told(event) {
            Frame::IdOnly(event.n)
        } else {
            let data = self.filler.data(event).await?;
            Frame::Event { id: Some(event.n), name: event.body.name(), data }
        };
        self.after = event.n;
        self.frames.push_back(frame);
        Ok(())
    }

    /// Finishes a read in which all stored events were emitted: emits the snapshot and checks the
    /// end condition.
    async fn caught_up(&mut self) -> Result<(), Refusal> {
        if let Some(snapshot) = self.snapshot.take() {
            self.show(&snapshot);
        }
        if std::mem::take(&mut self.told.has_gap) && self.told.current.is_some() {
            let (snapshot, reader) = self.world.live.subscribe(&self.key);
            self.reader = reader;
            if let Some(snapshot) = snapshot {
                self.show(&snapshot);
            }
        }
        match self.until {
            Until::Past(_) => self.is_over = true,
            Until::Settled | Until::Closed | Until::Dropped => {
                let is_due = Instant::now() >= self.head_seen_at + LOOK_AT_HEAD_EVERY;
                let wants_end = self.until == Until::Settled && self.after > 0;
                if is_due || wants_end || std::mem::take(&mut self.wants_head) {
                    self.head_seen_at = Instant::now();
                    self.look_at_head(wants_end).await?;
                }
            }
        }
        Ok(())
    }

    async fn look_at_head(&mut self, wants_end: bool) -> Result<(), Refusal> {
        let Some((head, _)) = load::find_head(&self.world, &self.key).await? else {
            self.is_over = true;
            return Ok(());
        };
        let has_all = head.event_seq == self.after;
        self.is_over = wants_end && has_all && is_settled(&self.world, &head).await?;
        Ok(())
    }

    fn hear(&mut self, event: LiveEvent) {
        match event {
            LiveEvent::Committed { event_seq, .. } => {
                self.heard = self.heard.max(event_seq);
                // Also sent in place of deltas for which this reader was too slow.
                self.told.has_gap |= self.told.current.is_some();
                if event_seq > self.after || self.told.has_gap {
                    self.look_at = Instant::now();
                }
            }
            LiveEvent::Gone => {
                self.wants_head = true;
                self.look_at = Instant::now();
            }
            LiveEvent::AnswerStarted(answer) => self.begin(&answer),
            LiveEvent::SoFar(snapshot) => self.show(&snapshot),
            LiveEvent::Delta { message_id, event } => {
                let Some(current) =
                    self.told.current.as_ref().filter(|answer| answer.message_id == message_id)
                else {
                    return;
                };
                let data = json!({"messageId": message_id, "assistantMessageEvent": event});
                let (prompt_id, turn) = (current.prompt_id.clone(), current.turn);
                self.push("message_update", (&prompt_id, turn), data);
            }
            LiveEvent::Reset { message_id } => {
                let Some(current) =
                    self.told.current.as_ref().filter(|answer| answer.message_id == message_id)
                else {
                    return;
                };
                let (prompt_id, turn) = (current.prompt_id.clone(), current.turn);
                *self.told.resets.entry(message_id.clone()).or_default() += 1;
                self.push("message_reset", (&prompt_id, turn), json!({"messageId": message_id}));
            }
            LiveEvent::ToolUpdate(update) => {
                let data = serde_json::to_value(&update).unwrap_or_default();
                self.push("tool_execution_update", (&update.prompt_id, update.turn), data);
            }
        }
    }

    /// Emits the start of a model response, unless its stored copy was emitted.
    fn begin(&mut self, answer: &LiveAnswer) {
        if self.told.ended.contains(&answer.message_id) {
            return;
        }
        let at = (&answer.prompt_id, answer.turn);
        let turn = (answer.prompt_id.clone(), answer.turn);
        if answer.begins_agent && self.told.agents.insert(turn.clone()) {
            self.push("agent_start", at, json!({}));
        }
        if answer.begins_turn && self.told.turns.insert(turn) {
            self.push("turn_start", at, json!({}));
        }
        let is_first = self.told.starts.insert(answer.message_id.clone());
        if is_first || self.told.resets.contains_key(&answer.message_id) {
            let message = nothing_yet(&answer.author, self.world.clock.now());
            let data = json!({"messageId": answer.message_id, "message": message});
            self.push("message_start", at, data);
        }
        self.told.current = Some(answer.clone());
    }

    /// Emits the content of a response so far. Clients replace their content by it, then append.
    fn show(&mut self, snapshot: &Snapshot) {
        let answer = &snapshot.answer;
        if self.told.ended.contains(&answer.message_id) {
            return;
        }
        self.begin(answer);
        let data = json!({"messageId": answer.message_id, "content": snapshot.content});
        self.push("message_snapshot", (&answer.prompt_id, answer.turn), data);
    }

    /// Queues a live event, which has no number.
    fn push(&mut self, name: &str, (prompt_id, turn): (&PromptId, u64), members: Value) {
        let mut data = json!({
            "type": name, "promptId": prompt_id, "turn": turn, "at": self.world.clock.now().to_string(),
        });
        if let (Some(data), Value::Object(members)) = (data.as_object_mut(), members) {
            for (name, value) in members {
                data.entry(name).or_insert(value);
            }
        }
        self.frames.push_back(Frame::Event { id: None, name: name.to_owned(), data });
    }
}

/// Returns the assistant message at its start, without content.
fn nothing_yet(author: &Author, timestamp: Timestamp) -> Value {
    let message = AssistantMessage {
        content: Vec::new(),
        api: author.api.clone(),
        provider: author.provider.clone(),
        model: author.model.clone(),
        usage: Usage::default(),
        stop_reason: StopReason::Stop,
        error_message: None,
        timestamp,
        extra: Extra::new(),
    };
    RawJson::of(&Message::Assistant(message)).value()
}
