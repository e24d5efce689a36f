//! Bounded queue of the events that one reader has not read.

use std::collections::VecDeque;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use tokio::sync::Notify;

use super::super::LiveEvent;
use turnwheel_platform::ids::EntryId;

/// Events in the queue of one reader.
pub(super) const EVENTS_MAX: usize = 2048;
/// Bytes in the queue of one reader, unless a single event is larger.
pub(super) const BYTES_MAX: usize = 1024 * 1024;

#[derive(Default)]
pub(super) struct ReaderQueue {
    state: Mutex<QueueState>,
    arrived: Notify,
}

#[derive(Default)]
struct QueueState {
    events: VecDeque<Arc<LiveEvent>>,
    bytes: usize,
    /// The response of which this reader missed a part. It gets no more of its deltas, until it has
    /// read all queued events and takes the response so far.
    skipped_response: Option<EntryId>,
}

impl ReaderQueue {
    /// Queues an event. `message_id` is that of the partial response, `event_seq` that of the
    /// newest commit, this one included.
    pub(super) fn push(&self, event: Arc<LiveEvent>, message_id: Option<&EntryId>, event_seq: u64) {
        let mut state = self.lock_state();
        if !state.accept(&event) {
            return;
        }
        let bytes = event.text_bytes();
        let is_full = state.events.len() >= EVENTS_MAX || state.bytes + bytes > BYTES_MAX;
        if is_full && !state.events.is_empty() {
            state.events.clear();
            state.bytes = 0;
            let newest =
                LiveEvent::Committed { event_seq, running_prompt: None, ended_response: None };
            state.add(Arc::new(newest), 0);
            if !matches!(*event, LiveEvent::ResponseStarted(_) | LiveEvent::Snapshot(_)) {
                state.skipped_response = message_id.cloned();
            }
            if !state.accept(&event) {
                drop(state);
                self.arrived.notify_one();
                return;
            }
        }
        state.add(event, bytes);
        drop(state);
        self.arrived.notify_one();
    }

    /// Waits for the next event. `None`: no event is queued, and deltas were skipped.
    pub(super) async fn next_event(&self) -> Option<LiveEvent> {
        loop {
            // Reads before it waits. A stale notification costs only one more read.
            let (next, has_gap) = {
                let mut state = self.lock_state();
                (state.pop(), state.skipped_response.is_some())
            };
            if let Some(event) = next {
                return Some(Arc::unwrap_or_clone(event));
            }
            if has_gap {
                return None;
            }
            self.arrived.notified().await;
        }
    }

    /// Ends the gap if no event is queued; returns the response of which a part was missed.
    pub(super) fn end_gap(&self) -> Option<EntryId> {
        let mut state = self.lock_state();
        if state.events.is_empty() { state.skipped_response.take() } else { None }
    }

    #[cfg(test)]
    pub(super) fn queued_count(&self) -> usize {
        self.lock_state().events.len()
    }

    fn lock_state(&self) -> MutexGuard<'_, QueueState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl QueueState {
    fn accept(&mut self, event: &LiveEvent) -> bool {
        match event {
            LiveEvent::Delta { message_id, .. } => {
                self.skipped_response.as_ref() != Some(message_id)
            }
            LiveEvent::ResponseStarted(_) | LiveEvent::Snapshot(_) => {
                self.skipped_response = None;
                true
            }
            LiveEvent::Committed { .. }
            | LiveEvent::Deleted
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
        self.bytes = self.bytes.saturating_sub(event.text_bytes());
        Some(event)
    }
}
