//! Live events within one process. A conversation uses memory only while it has readers or a
//! partial response.
//!
//! A subscription takes the snapshot and its place in the stream under one lock: no gap and no
//! duplicates.

mod mailbox;
#[cfg(test)]
mod tests;

use std::collections::HashMap;
use std::fmt;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use async_trait::async_trait;

use self::mailbox::Mailbox;
use super::under_way::UnderWay;
use super::{Live, LiveEvent, LiveReader, Snapshot};
use crate::ids::{ConversationKey, EntryId};

/// Limit of remembered conversations without a reader. The partial response of a dead worker is
/// evicted after this many others have started.
const UNHEARD_MAX: usize = 4096;

/// Hub of live events; clones share their state.
#[derive(Clone, Default)]
pub struct EmbeddedLive {
    hub: Arc<Mutex<Hub>>,
}

#[derive(Default)]
struct Hub {
    conversations: HashMap<ConversationKey, Conversation>,
    /// Number of conversations without readers.
    unheard: usize,
    answers_begun: u64,
}

#[derive(Default)]
struct Conversation {
    answer: Option<Answer>,
    readers: Vec<Arc<Mailbox>>,
    /// Number of the newest published event; zero before the first.
    event_seq: u64,
}

struct Answer {
    under_way: UnderWay,
    /// Order of start in this process; the oldest response is evicted first.
    begun: u64,
    /// True if a commit followed the last delta, most likely that of this response. New readers
    /// then find it in the store. A further delta proves that the commit was another one.
    is_doubtful: bool,
    origin: Origin,
}

/// Instance that streams a response.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Origin {
    Here,
    /// Another instance; the response is known only while a poller runs.
    Elsewhere,
}

impl Hub {
    fn publish(&mut self, key: &ConversationKey, event: LiveEvent, origin: Origin) {
        if let LiveEvent::AnswerStarted(answer) = &event
            && (origin == Origin::Here || self.is_heard(key))
        {
            self.begin(key, UnderWay::new(answer.clone()), origin);
        }
        let Some(conversation) = self.conversations.get_mut(key) else { return };
        if conversation.take_in(&event) {
            conversation.tell(event);
            self.forget_idle(key);
        }
    }

    /// Remembers a response for later readers.
    fn begin(&mut self, key: &ConversationKey, under_way: UnderWay, origin: Origin) {
        if !self.conversations.contains_key(key) {
            self.make_room();
        }
        self.answers_begun += 1;
        let begun = self.answers_begun;
        self.conversation(key).answer =
            Some(Answer { under_way, begun, is_doubtful: false, origin });
    }

    fn lose(&mut self, key: &ConversationKey) {
        let Some(conversation) = self.conversations.get_mut(key) else { return };
        if conversation.answer.take_if(|answer| answer.origin == Origin::Elsewhere).is_some() {
            self.forget_idle(key);
        }
    }

    fn is_heard(&self, key: &ConversationKey) -> bool {
        self.conversations.get(key).is_some_and(|conversation| !conversation.readers.is_empty())
    }

    /// Evicts the oldest response without readers if there are too many.
    fn make_room(&mut self) {
        if self.unheard < UNHEARD_MAX {
            return;
        }
        let oldest = self
            .conversations
            .iter()
            .filter(|(_, conversation)| conversation.readers.is_empty())
            .min_by_key(|(_, conversation)| conversation.answer.as_ref().map(|it| it.begun))
            .map(|(key, _)| key.clone());
        if let Some(oldest) = oldest {
            self.conversations.remove(&oldest);
            self.unheard -= 1;
        }
    }

    /// Returns the conversation. A new one counts as one without readers.
    fn conversation(&mut self, key: &ConversationKey) -> &mut Conversation {
        if !self.conversations.contains_key(key) {
            self.unheard += 1;
        }
        self.conversations.entry(key.clone()).or_default()
    }

    fn forget_idle(&mut self, key: &ConversationKey) {
        let is_idle = self.conversations.get(key).is_some_and(|conversation| {
            conversation.readers.is_empty()
                && conversation.answer.as_ref().is_none_or(|answer| answer.is_doubtful)
        });
        if is_idle {
            self.conversations.remove(key);
            self.unheard -= 1;
        }
    }

    fn subscribe(&mut self, key: &ConversationKey) -> (Option<Snapshot>, Arc<Mailbox>) {
        let conversation = self.conversation(key);
        let (snapshot, unseen) = match &conversation.answer {
            Some(answer) if answer.is_doubtful => (None, Some(answer.message_id().clone())),
            Some(answer) => (Some(answer.under_way.snapshot()), None),
            None => (None, None),
        };
        let mailbox = Arc::new(Mailbox::new(unseen));
        conversation.readers.push(Arc::clone(&mailbox));
        if conversation.readers.len() == 1 {
            self.unheard -= 1;
        }
        (snapshot, mailbox)
    }

    fn unsubscribe(&mut self, key: &ConversationKey, mailbox: &Arc<Mailbox>) {
        let Some(conversation) = self.conversations.get_mut(key) else { return };
        conversation.readers.retain(|reader| !Arc::ptr_eq(reader, mailbox));
        if conversation.readers.is_empty() {
            self.unheard += 1;
            self.lose(key);
            self.forget_idle(key);
        }
    }
}

impl Conversation {
    /// Applies an event. True if readers get it: a delta without its start would be taken for a
    /// start.
    fn take_in(&mut self, event: &LiveEvent) -> bool {
        match event {
            LiveEvent::Committed { event_seq, .. } => {
                self.event_seq = self.event_seq.max(*event_seq);
                if let Some(answer) = &mut self.answer {
                    answer.is_doubtful = true;
                }
                true
            }
            LiveEvent::Delta { message_id, event } => match self.answer_of(message_id) {
                Some(answer) => {
                    answer.is_doubtful = false;
                    answer.under_way.take_in(event);
                    true
                }
                None => false,
            },
            LiveEvent::Reset { message_id } => {
                if self.answer_of(message_id).is_some() {
                    self.answer = None;
                }
                true
            }
            LiveEvent::AnswerStarted(_)
            | LiveEvent::ToolUpdate(_)
            | LiveEvent::SoFar(_)
            | LiveEvent::Gone => true,
        }
    }

    fn answer_of(&mut self, message_id: &EntryId) -> Option<&mut Answer> {
        self.answer.as_mut().filter(|answer| answer.message_id() == message_id)
    }

    fn tell(&self, event: LiveEvent) {
        if self.readers.is_empty() {
            return;
        }
        let event = Arc::new(event);
        let message_id = self.answer.as_ref().map(Answer::message_id);
        for reader in &self.readers {
            reader.put(Arc::clone(&event), message_id, self.event_seq);
        }
    }
}

impl Answer {
    fn message_id(&self) -> &EntryId {
        &self.under_way.answer.message_id
    }
}

impl EmbeddedLive {
    fn hub(&self) -> MutexGuard<'_, Hub> {
        self.hub.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Publishes an event of another instance.
    pub(super) fn tell(&self, key: &ConversationKey, event: LiveEvent) {
        self.hub().publish(key, event, Origin::Elsewhere);
    }

    /// Adds a partial response of another instance.
    pub(super) fn join(&self, key: &ConversationKey, under_way: UnderWay) {
        let snapshot = under_way.snapshot();
        let mut hub = self.hub();
        if !hub.is_heard(key) {
            return;
        }
        hub.begin(key, under_way, Origin::Elsewhere);
        hub.publish(key, LiveEvent::SoFar(snapshot), Origin::Elsewhere);
    }

    /// Forgets the partial response of another instance, because its further events are not
    /// received.
    pub(super) fn lose(&self, key: &ConversationKey) {
        self.hub().lose(key);
    }

    /// Calls `read` with the partial response, unless that is most likely committed.
    pub(super) fn under_way<T>(
        &self,
        key: &ConversationKey,
        look: impl FnOnce(&UnderWay) -> T,
    ) -> Option<T> {
        let hub = self.hub();
        let answer = hub.conversations.get(key)?.answer.as_ref()?;
        (!answer.is_doubtful).then(|| look(&answer.under_way))
    }

    /// Number of the newest event that was published to readers of the conversation; 0 without any.
    pub(super) fn newest(&self, key: &ConversationKey) -> u64 {
        self.hub().conversations.get(key).map_or(0, |conversation| conversation.event_seq)
    }
}

impl Live for EmbeddedLive {
    fn publish(&self, key: &ConversationKey, event: LiveEvent) {
        self.hub().publish(key, event, Origin::Here);
    }

    fn subscribe(&self, key: &ConversationKey) -> (Option<Snapshot>, Box<dyn LiveReader>) {
        let (snapshot, mailbox) = self.hub().subscribe(key);
        let reader = EmbeddedReader { live: self.clone(), key: key.clone(), mailbox };
        (snapshot, Box::new(reader))
    }
}

impl fmt::Debug for EmbeddedLive {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let hub = self.hub();
        f.debug_struct("EmbeddedLive")
            .field("conversations", &hub.conversations.len())
            .field("without_readers", &hub.unheard)
            .finish_non_exhaustive()
    }
}

struct EmbeddedReader {
    live: EmbeddedLive,
    key: ConversationKey,
    mailbox: Arc<Mailbox>,
}

#[async_trait]
impl LiveReader for EmbeddedReader {
    async fn next(&mut self) -> LiveEvent {
        self.mailbox.take().await
    }
}

impl Drop for EmbeddedReader {
    fn drop(&mut self) {
        self.live.hub().unsubscribe(&self.key, &self.mailbox);
    }
}

impl fmt::Debug for EmbeddedReader {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("EmbeddedReader").field("key", &self.key).finish_non_exhaustive()
    }
}
