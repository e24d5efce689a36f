//! The queues in memory, with notifications to listeners when a message becomes visible.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tokio::sync::{Notify, watch};

use super::super::line::{Line, Moment};
use crate::clock::Clock;

#[derive(Debug)]
pub(super) struct Lines {
    clock: Arc<dyn Clock>,
    state: Mutex<State>,
    /// Wakes the timer if a message becomes visible earlier than it expects.
    earlier: Notify,
}

#[derive(Debug)]
struct State {
    queues: BTreeMap<String, Told>,
    /// End of the timer's sleep.
    wakes_at: Duration,
}

/// A queue and its listeners.
#[derive(Debug, Default)]
struct Told {
    line: Line,
    /// Listeners were notified of all messages visible up to this moment.
    told_until: Duration,
    arrivals: watch::Sender<u64>,
}

impl Lines {
    pub(super) fn new(clock: Arc<dyn Clock>) -> Self {
        let state = State { queues: BTreeMap::new(), wakes_at: Duration::MAX };
        Self { clock, state: Mutex::new(state), earlier: Notify::new() }
    }

    /// Adds or hides messages. `work` returns the time of the next visible message; listeners are
    /// notified at that time.
    pub(super) fn change<T>(
        &self,
        queue: &str,
        work: impl FnOnce(&mut Line, Moment) -> (T, Duration),
    ) -> T {
        let mut state = self.state();
        // Read under the lock, so that notifications are in the order of time.
        let now = Moment::of(&*self.clock);
        let told = state.queue(queue);
        let (answer, visible_at) = work(&mut told.line, now);
        if visible_at <= now.monotonic {
            told.arrivals.send_modify(|count| *count += 1);
        } else if visible_at < state.wakes_at {
            state.wakes_at = visible_at;
            self.earlier.notify_one();
        }
        answer
    }

    /// Reads a queue or removes messages. Uses an empty queue if it does not exist.
    pub(super) fn look<T>(&self, queue: &str, work: impl FnOnce(&mut Line, Moment) -> T) -> T {
        let mut state = self.state();
        let now = Moment::of(&*self.clock);
        match state.queues.get_mut(queue) {
            Some(told) => work(&mut told.line, now),
            None => work(&mut Line::default(), now),
        }
    }

    pub(super) fn names(&self) -> Vec<String> {
        self.state().queues.keys().cloned().collect()
    }

    /// Returns a receiver that is initially marked as changed, so that a listener polls first.
    pub(super) fn arrivals(&self, queue: &str) -> watch::Receiver<u64> {
        let mut receiver = self.state().queue(queue).arrivals.subscribe();
        receiver.mark_changed();
        receiver
    }

    /// Notifies listeners of messages that become visible, in an endless loop.
    pub(super) async fn tell(&self) {
        loop {
            match self.tell_due() {
                Some(wait) => {
                    // The next round checks again after the wait or a wake-up.
                    let _ = tokio::time::timeout(wait, self.earlier.notified()).await;
                }
                None => self.earlier.notified().await,
            }
        }
    }

    /// Notifies listeners of visible messages. Returns the time until the next message becomes
    /// visible; `None` if none is hidden.
    fn tell_due(&self) -> Option<Duration> {
        let mut state = self.state();
        let now = self.clock.monotonic();
        let mut wakes_at: Option<Duration> = None;
        for told in state.queues.values_mut() {
            if told.line.first_visible_after(told.told_until).is_some_and(|at| at <= now) {
                told.arrivals.send_modify(|count| *count += 1);
            }
            told.told_until = now;
            let next = told.line.first_visible_after(now);
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
    fn queue(&mut self, name: &str) -> &mut Told {
        self.queues.entry(name.to_owned()).or_default()
    }
}
