//! Live events within one process. A conversation uses memory only while it has readers or a
//! partial response.
//!
//! A subscription takes the snapshot and its place in the stream under one lock: no gap and no
//! duplicates.

mod reader_queue;
#[cfg(test)]
mod tests;

use std::collections::HashMap;
use std::fmt;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use async_trait::async_trait;

use self::reader_queue::ReaderQueue;
use super::partial_response::PartialResponse;
use super::{Live, LiveEvent, LiveReader, Snapshot};
use turnwheel_platform::ids::{ConversationKey, EntryId};

/// Limit of remembered conversations without a reader. The partial response of a dead worker is
/// evicted after this many others have started.
const WITHOUT_READERS_MAX: usize = 4096;

/// Hub of live events; clones share their state.
#[derive(Clone, Default)]
pub struct EmbeddedLive {
    hub: Arc<Mutex<Hub>>,
}

#[derive(Default)]
struct Hub {
    conversations: HashMap<ConversationKey, ConversationState>,
    /// Number of conversations without readers.
    without_readers: usize,
    responses_started: u64,
}

#[derive(Default)]
struct ConversationState {
    response: Option<ActiveResponse>,
    readers: Vec<Arc<ReaderQueue>>,
    /// Number of the newest published event; zero before the first.
    event_seq: u64,
}

struct ActiveResponse {
    partial: PartialResponse,
    /// Order of start in this process; the oldest response is evicted first.
    start_number: u64,
    origin: Origin,
}

/// Instance that streams a response.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Origin {
    Local,
    /// Another instance; the response is known only while a poller runs.
    Remote,
}

impl Hub {
    fn publish(&mut self, key: &ConversationKey, event: LiveEvent, origin: Origin) {
        if let LiveEvent::ResponseStarted(answer) = &event
            && (origin == Origin::Local || self.has_readers(key))
        {
            self.start_response(key, PartialResponse::new(answer.clone()), origin);
        }
        let Some(conversation) = self.conversations.get_mut(key) else { return };
        if conversation.apply(&event) {
            conversation.deliver(event);
            self.remove_if_idle(key);
        }
    }

    /// Remembers a response for later readers.
    fn start_response(&mut self, key: &ConversationKey, partial: PartialResponse, origin: Origin) {
        if !self.conversations.contains_key(key) {
            self.evict_oldest();
        }
        self.responses_started += 1;
        let start_number = self.responses_started;
        self.conversation_mut(key).response =
            Some(ActiveResponse { partial, start_number, origin });
    }

    fn forget_response(
        &mut self,
        key: &ConversationKey,
        is_void: impl FnOnce(&ActiveResponse) -> bool,
    ) {
        let Some(conversation) = self.conversations.get_mut(key) else { return };
        if conversation.response.take_if(|response| is_void(response)).is_some() {
            self.remove_if_idle(key);
        }
    }

    fn forget_remote(&mut self, key: &ConversationKey) {
        self.forget_response(key, |response| response.origin == Origin::Remote);
    }

    fn has_readers(&self, key: &ConversationKey) -> bool {
        self.conversations.get(key).is_some_and(|conversation| !conversation.readers.is_empty())
    }

    /// Evicts the oldest response without readers if there are too many.
    fn evict_oldest(&mut self) {
        if self.without_readers < WITHOUT_READERS_MAX {
            return;
        }
        let oldest = self
            .conversations
            .iter()
            .filter(|(_, conversation)| conversation.readers.is_empty())
            .min_by_key(|(_, conversation)| {
                conversation.response.as_ref().map(|it| it.start_number)
            })
            .map(|(key, _)| key.clone());
        if let Some(oldest) = oldest {
            self.conversations.remove(&oldest);
            self.without_readers -= 1;
        }
    }

    /// Returns the conversation. A new one counts as one without readers.
    fn conversation_mut(&mut self, key: &ConversationKey) -> &mut ConversationState {
        if !self.conversations.contains_key(key) {
            self.without_readers += 1;
        }
        self.conversations.entry(key.clone()).or_default()
    }

    fn remove_if_idle(&mut self, key: &ConversationKey) {
        let is_idle = self.conversations.get(key).is_some_and(|conversation| {
            conversation.readers.is_empty() && conversation.response.is_none()
        });
        if is_idle {
            self.conversations.remove(key);
            self.without_readers -= 1;
        }
    }

    fn subscribe(&mut self, key: &ConversationKey) -> (Option<Snapshot>, Arc<ReaderQueue>) {
        let conversation = self.conversation_mut(key);
        let snapshot = conversation.response.as_ref().map(|response| response.partial.snapshot());
        let mailbox = Arc::new(ReaderQueue::default());
        conversation.readers.push(Arc::clone(&mailbox));
        if conversation.readers.len() == 1 {
            self.without_readers -= 1;
        }
        (snapshot, mailbox)
    }

    /// Returns the response of which the reader missed a part. Its later deltas reach the reader
    /// again.
    fn catch_up(&self, key: &ConversationKey, mailbox: &ReaderQueue) -> Option<Snapshot> {
        let skipped = mailbox.end_gap()?;
        let response = self.conversations.get(key)?.response.as_ref()?;
        (*response.message_id() == skipped).then(|| response.partial.snapshot())
    }

    fn unsubscribe(&mut self, key: &ConversationKey, mailbox: &Arc<ReaderQueue>) {
        let Some(conversation) = self.conversations.get_mut(key) else { return };
        conversation.readers.retain(|reader| !Arc::ptr_eq(reader, mailbox));
        if conversation.readers.is_empty() {
            self.without_readers += 1;
            self.forget_remote(key);
            self.remove_if_idle(key);
        }
    }
}

impl ConversationState {
    /// Applies an event. True if readers get it: a delta without its start would be taken for a
    /// start.
    fn apply(&mut self, event: &LiveEvent) -> bool {
        self.response.take_if(|response| event.ends(&response.partial.response));
        match event {
            LiveEvent::Committed { event_seq, .. } => {
                self.event_seq = self.event_seq.max(*event_seq);
                true
            }
            LiveEvent::Delta { message_id, event } => match self.response_mut(message_id) {
                Some(answer) => {
                    answer.partial.apply(event);
                    true
                }
                None => false,
            },
            LiveEvent::Reset { .. }
            | LiveEvent::ResponseStarted(_)
            | LiveEvent::ToolUpdate(_)
            | LiveEvent::Snapshot(_)
            | LiveEvent::Deleted => true,
        }
    }

    fn response_mut(&mut self, message_id: &EntryId) -> Option<&mut ActiveResponse> {
        self.response.as_mut().filter(|answer| answer.message_id() == message_id)
    }

    fn deliver(&self, event: LiveEvent) {
        if self.readers.is_empty() {
            return;
        }
        let event = Arc::new(event);
        let message_id = self.response.as_ref().map(ActiveResponse::message_id);
        for reader in &self.readers {
            reader.push(Arc::clone(&event), message_id, self.event_seq);
        }
    }
}

impl ActiveResponse {
    fn message_id(&self) -> &EntryId {
        &self.partial.response.message_id
    }
}

impl EmbeddedLive {
    fn lock_hub(&self) -> MutexGuard<'_, Hub> {
        self.hub.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Publishes an event of another instance.
    pub(super) fn publish_remote(&self, key: &ConversationKey, event: LiveEvent) {
        self.lock_hub().publish(key, event, Origin::Remote);
    }

    /// Adds a partial response of another instance, unless the readers have all of it.
    pub(super) fn start_remote_response(&self, key: &ConversationKey, partial: PartialResponse) {
        let snapshot = partial.snapshot();
        let mut hub = self.lock_hub();
        let Some(conversation) = hub.conversations.get(key) else { return };
        let known = conversation.response.as_ref().map(|response| &response.partial);
        if conversation.readers.is_empty() || known == Some(&partial) {
            return;
        }
        hub.start_response(key, partial, Origin::Remote);
        hub.publish(key, LiveEvent::Snapshot(snapshot), Origin::Remote);
    }

    /// Forgets the partial response of another instance, because its further events are not
    /// received.
    pub(super) fn forget_remote(&self, key: &ConversationKey) {
        self.lock_hub().forget_remote(key);
    }

    /// Forgets the partial response of an earlier epoch, which is void.
    pub(super) fn forget_before(&self, key: &ConversationKey, epoch: u64) {
        let is_earlier = |response: &ActiveResponse| response.partial.response.epoch < epoch;
        self.lock_hub().forget_response(key, is_earlier);
    }

    /// Forgets the partial response if this commit ends it; the readers know the commit.
    pub(super) fn forget_ended(&self, key: &ConversationKey, commit: &LiveEvent) {
        let is_ended = |response: &ActiveResponse| commit.ends(&response.partial.response);
        self.lock_hub().forget_response(key, is_ended);
    }

    /// Calls `read` with the partial response, if there is one.
    pub(super) fn with_partial_response<T>(
        &self,
        key: &ConversationKey,
        read: impl FnOnce(&PartialResponse) -> T,
    ) -> Option<T> {
        let hub = self.lock_hub();
        let response = hub.conversations.get(key)?.response.as_ref()?;
        Some(read(&response.partial))
    }

    /// Number of the newest event that was published to readers of the conversation; 0 without any.
    pub(super) fn newest_event_seq(&self, key: &ConversationKey) -> u64 {
        self.lock_hub().conversations.get(key).map_or(0, |conversation| conversation.event_seq)
    }
}

impl Live for EmbeddedLive {
    fn publish(&self, key: &ConversationKey, event: LiveEvent) {
        self.lock_hub().publish(key, event, Origin::Local);
    }

    fn subscribe(&self, key: &ConversationKey) -> (Option<Snapshot>, Box<dyn LiveReader>) {
        let (snapshot, mailbox) = self.lock_hub().subscribe(key);
        let reader = EmbeddedReader { live: self.clone(), key: key.clone(), mailbox };
        (snapshot, Box::new(reader))
    }
}

impl fmt::Debug for EmbeddedLive {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("EmbeddedLive").finish_non_exhaustive()
    }
}

struct EmbeddedReader {
    live: EmbeddedLive,
    key: ConversationKey,
    mailbox: Arc<ReaderQueue>,
}

#[async_trait]
impl LiveReader for EmbeddedReader {
    async fn next_event(&mut self) -> LiveEvent {
        loop {
            if let Some(event) = self.mailbox.next_event().await {
                return event;
            }
            let snapshot = self.live.lock_hub().catch_up(&self.key, &self.mailbox);
            if let Some(snapshot) = snapshot {
                return LiveEvent::Snapshot(snapshot);
            }
        }
    }
}

impl Drop for EmbeddedReader {
    fn drop(&mut self) {
        self.live.lock_hub().unsubscribe(&self.key, &self.mailbox);
    }
}
