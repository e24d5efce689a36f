//! The queues in memory, with notifications to listeners when a message becomes visible.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tokio::sync::{Notify, watch};

use super::super::TURNS;
use super::super::visibility_queue::{ClockReading, VisibilityQueue};
use turnwheel_platform::clock::Clock;

pub(super) struct LocalQueues {
    clock: Arc<dyn Clock>,
    state: Mutex<State>,
    /// Wakes the timer if a message becomes visible earlier than it expects.
    wake_timer: Notify,
}

struct State {
    queues: BTreeMap<String, ListenedQueue>,
    /// End of the timer's sleep.
    wakes_at: Duration,
}

/// A queue and its listeners.
#[derive(Default)]
struct ListenedQueue {
    messages: VisibilityQueue,
    /// Listeners were notified of all messages visible up to this moment.
    notified_until: Duration,
    arrivals: watch::Sender<u64>,
}

impl LocalQueues {
    pub(super) fn new(clock: Arc<dyn Clock>) -> Self {
        let state = State { queues: BTreeMap::new(), wakes_at: Duration::MAX };
        Self { clock, state: Mutex::new(state), wake_timer: Notify::new() }
    }

    /// Adds or hides messages. `work` returns the time of the next visible message; listeners are
    /// notified at that time.
    pub(super) fn update<T>(
        &self,
        queue: &str,
        work: impl FnOnce(&mut VisibilityQueue, ClockReading) -> (T, Duration),
    ) -> T {
        let mut state = self.state();
        // Read under the lock, so that notifications are in the order of time.
        let now = ClockReading::read(&*self.clock);
        let queue_state = state.queue(queue);
        let (answer, visible_at) = work(&mut queue_state.messages, now);
        if visible_at <= now.monotonic {
            queue_state.arrivals.send_modify(|count| *count += 1);
        } else if visible_at < state.wakes_at {
            state.wakes_at = visible_at;
            self.wake_timer.notify_one();
        }
        answer
    }

    /// Reads a queue or removes messages. Uses an empty queue if it does not exist.
    pub(super) fn with_messages<T>(
        &self,
        queue: &str,
        work: impl FnOnce(&mut VisibilityQueue, ClockReading) -> T,
    ) -> T {
        let mut state = self.state();
        let now = ClockReading::read(&*self.clock);
        match state.queues.get_mut(queue) {
            Some(queue_state) => work(&mut queue_state.messages, now),
            None => work(&mut VisibilityQueue::default(), now),
        }
    }

    /// Returns a receiver that is initially marked as changed, so that a listener polls first.
    pub(super) fn arrivals(&self, queue: &str) -> watch::Receiver<u64> {
        let mut receiver = self.state().queue(queue).arrivals.subscribe();
        receiver.mark_changed();
        receiver
    }

    /// Notifies listeners of messages that become visible, in an endless loop.
    pub(super) async fn notify_listeners(&self) {
        loop {
            match self.notify_due() {
                Some(wait) => {
                    // The next round checks again after the wait or a wake-up.
                    let _ = tokio::time::timeout(wait, self.wake_timer.notified()).await;
                }
                None => self.wake_timer.notified().await,
            }
        }
    }

    /// Notifies listeners of visible messages. Returns the time until the next message becomes
    /// visible; `None` if none is hidden.
    fn notify_due(&self) -> Option<Duration> {
        let mut state = self.state();
        let now = self.clock.monotonic();
        let mut wakes_at: Option<Duration> = None;
        for queue_state in state.queues.values_mut() {
            if queue_state
                .messages
                .first_visible_after(queue_state.notified_until)
                .is_some_and(|at| at <= now)
            {
                queue_state.arrivals.send_modify(|count| *count += 1);
            }
            queue_state.notified_until = now;
            let next = queue_state.messages.first_visible_after(now);
            wakes_at = [wakes_at, next].into_iter().flatten().min();
        }
        state.wakes_at = wakes_at.unwrap_or(Duration::MAX);
        wakes_at.map(|at| at.saturating_sub(now))
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl State {
    fn queue(&mut self, name: &str) -> &mut ListenedQueue {
        self.queues.entry(name.to_owned()).or_insert_with(|| {
            let messages = if name == TURNS {
                VisibilityQueue::with_owners()
            } else {
                VisibilityQueue::default()
            };
            ListenedQueue { messages, ..ListenedQueue::default() }
        })
    }
}
