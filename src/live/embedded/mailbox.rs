//! Bounded queue of the events that one reader has not read.

use std::collections::VecDeque;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use tokio::sync::Notify;

use super::super::LiveEvent;
use crate::ids::EntryId;

/// Events in the queue of one reader.
pub(super) const EVENTS_MAX: usize = 2048;
/// Bytes in the queue of one reader, unless a single event is larger.
pub(super) const BYTES_MAX: usize = 1024 * 1024;

pub(super) struct Mailbox {
    mail: Mutex<Mail>,
    arrived: Notify,
}

#[derive(Default)]
struct Mail {
    events: VecDeque<Arc<LiveEvent>>,
    bytes: usize,
    /// The response of which this reader missed a part. It gets no more of its deltas and reads the
    /// whole response from the store.
    unseen: Option<EntryId>,
}

impl Mailbox {
    pub(super) fn new(unseen: Option<EntryId>) -> Self {
        Self { mail: Mutex::new(Mail { unseen, ..Mail::default() }), arrived: Notify::new() }
    }

    /// Queues an event. `message_id` is that of the partial response, `event_seq` that of the
    /// newest commit, this one included.
    pub(super) fn put(&self, event: Arc<LiveEvent>, message_id: Option<&EntryId>, event_seq: u64) {
        let mut mail = self.mail();
        if !mail.wants(&event) {
            return;
        }
        let bytes = event.bytes();
        let is_full = mail.events.len() >= EVENTS_MAX || mail.bytes + bytes > BYTES_MAX;
        if is_full && !mail.events.is_empty() {
            mail.events.clear();
            mail.bytes = 0;
            mail.add(Arc::new(LiveEvent::Committed { event_seq, busy_with: None }), 0);
            if !matches!(*event, LiveEvent::AnswerStarted(_) | LiveEvent::SoFar(_)) {
                mail.unseen = message_id.cloned();
            }
            if !mail.wants(&event) {
                drop(mail);
                self.arrived.notify_one();
                return;
            }
        }
        mail.add(event, bytes);
        drop(mail);
        self.arrived.notify_one();
    }

    pub(super) async fn take(&self) -> LiveEvent {
        loop {
            // Reads before it waits. A stale notification costs only one more read.
            let next = self.mail().pop();
            if let Some(event) = next {
                return Arc::unwrap_or_clone(event);
            }
            self.arrived.notified().await;
        }
    }

    #[cfg(test)]
    pub(super) fn waiting(&self) -> usize {
        self.mail().events.len()
    }

    fn mail(&self) -> MutexGuard<'_, Mail> {
        self.mail.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Mail {
    fn wants(&mut self, event: &LiveEvent) -> bool {
        match event {
            LiveEvent::Delta { message_id, .. } => self.unseen.as_ref() != Some(message_id),
            LiveEvent::AnswerStarted(_) | LiveEvent::SoFar(_) => {
                self.unseen = None;
                true
            }
            LiveEvent::Committed { .. }
            | LiveEvent::Gone
            | LiveEvent::Reset { .. }
            | LiveEvent::ToolUpdate(_) => true,
        }
    }

    fn add(&mut self, event: Arc<LiveEvent>, bytes: usize) {
        self.bytes += bytes;
        self.events.push_back(event);
    }

    fn pop(&mut self) -> Option<Arc<LiveEvent>> {
        let event = self.events.pop_front()?;
        self.bytes = self.bytes.saturating_sub(event.bytes());
        Some(event)
    }
}
