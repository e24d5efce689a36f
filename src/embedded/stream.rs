//! Event stream with a result, between a producer and consumers (ES-01 to ES-04).

use std::collections::VecDeque;
use std::fmt;
use std::sync::{Arc, Mutex};

use tokio::sync::Notify;

use crate::embedded::{AgentEvent, Subscription, lock};
use turnwheel_conversation::message::Message;

/// An ordered stream of events, one of which completes it with a result. Clones share the stream:
/// each event goes to one of them.
pub struct EventStream<E, R> {
    shared: Arc<Shared<E, R>>,
}

type CompleteFn<E, R> = Box<dyn Fn(&E) -> Option<R> + Send + Sync>;

struct Shared<E, R> {
    state: Mutex<State<E, R>>,
    changed: Notify,
    /// Returns the result if this event completes the stream.
    completes: CompleteFn<E, R>,
}

struct State<E, R> {
    queue: VecDeque<E>,
    is_done: bool,
    result: Option<R>,
}

impl<E, R> Clone for EventStream<E, R> {
    fn clone(&self) -> Self {
        Self { shared: Arc::clone(&self.shared) }
    }
}

impl<E, R> fmt::Debug for EventStream<E, R> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("EventStream").field("is_done", &lock(&self.shared.state).is_done).finish()
    }
}

impl<E, R: Clone> EventStream<E, R> {
    /// Creates a stream. `completes` returns the result for the event that ends the stream, and
    /// `None` for all others.
    pub fn new(completes: impl Fn(&E) -> Option<R> + Send + Sync + 'static) -> Self {
        let state = State { queue: VecDeque::new(), is_done: false, result: None };
        Self {
            shared: Arc::new(Shared {
                state: Mutex::new(state),
                changed: Notify::new(),
                completes: Box::new(completes),
            }),
        }
    }

    /// Queues an event and wakes waiting consumers. Has no effect after the end of the stream.
    pub fn push(&self, event: E) {
        let mut state = lock(&self.shared.state);
        if state.is_done {
            return;
        }
        if let Some(result) = (self.shared.completes)(&event) {
            (state.is_done, state.result) = (true, Some(result));
        }
        state.queue.push_back(event);
        drop(state);
        self.shared.changed.notify_waiters();
    }

    /// Ends the stream and wakes all waiters. An existing result stays.
    pub fn end(&self, result: Option<R>) {
        let mut state = lock(&self.shared.state);
        state.is_done = true;
        if state.result.is_none() {
            state.result = result;
        }
        drop(state);
        self.shared.changed.notify_waiters();
    }

    /// Returns the next event. `None` if the stream has ended and is empty.
    pub async fn next(&self) -> Option<E> {
        self.wait_for(|state| match state.queue.pop_front() {
            Some(event) => Some(Some(event)),
            None if state.is_done => Some(None),
            None => None,
        })
        .await
    }

    /// Waits for the end of the stream and returns its result. `None` if it ended without one.
    pub async fn result(&self) -> Option<R> {
        self.wait_for(|state| state.is_done.then(|| state.result.clone())).await
    }

    async fn wait_for<T>(&self, mut ready: impl FnMut(&mut State<E, R>) -> Option<T>) -> T {
        loop {
            let mut changed = std::pin::pin!(self.shared.changed.notified());
            // Register before the check, so that a later change is not missed.
            changed.as_mut().enable();
            let found = ready(&mut lock(&self.shared.state));
            match found {
                Some(found) => return found,
                None => changed.await,
            }
        }
    }
}

/// Events of an agent from [`crate::embedded::Agent::events`] until the end of its run. The result is
/// the list of new messages of that run.
#[derive(Debug)]
pub struct AgentEvents {
    pub(super) stream: EventStream<AgentEvent, Vec<Message>>,
    pub(super) _subscription: Subscription,
}

impl AgentEvents {
    /// Returns the next event. `None` after `agent_end` of the run.
    pub async fn next(&mut self) -> Option<AgentEvent> {
        self.stream.next().await
    }

    /// Waits for `agent_end` and returns its messages. It works with or without reading the events.
    pub async fn result(&self) -> Vec<Message> {
        self.stream.result().await.unwrap_or_default()
    }
}

/// Returns the messages of an event that ends the run. `agent_end` before a retry does not end it.
pub(super) fn final_messages(event: &AgentEvent) -> Option<Vec<Message>> {
    let AgentEvent::AgentEnd { messages, will_retry: false } = event else { return None };
    Some(messages.clone())
}

#[cfg(test)]
mod tests {
    use futures_util::FutureExt as _;

    use super::*;

    fn number_stream() -> EventStream<u32, String> {
        EventStream::new(|number| (*number == 9).then(|| "nine".to_owned()))
    }

    #[tokio::test]
    async fn stream_returns_events_then_result() {
        let stream = number_stream();
        stream.push(1);
        stream.push(2);
        assert_eq!((stream.next().await, stream.next().await), (Some(1), Some(2)));
        assert_eq!(stream.next().now_or_never(), None, "an empty stream waits");
        let consumer = stream.clone();
        let (next, result, ()) = tokio::join!(consumer.next(), stream.result(), async {
            tokio::task::yield_now().await;
            stream.push(9);
            stream.push(10);
        });
        assert_eq!((next, result.as_deref()), (Some(9), Some("nine")));
        assert_eq!(stream.next().await, None, "no event after the completing one");
        assert_eq!(stream.result().await.as_deref(), Some("nine"), "the result can be read again");
    }

    #[tokio::test]
    async fn end_wakes_waiters_and_ignores_later_events() {
        let stream = number_stream();
        let (one, two, result, ()) =
            tokio::join!(stream.next(), stream.next(), stream.result(), async {
                tokio::task::yield_now().await;
                stream.end(Some("over".to_owned()));
            });
        assert_eq!((one, two, result.as_deref()), (None, None, Some("over")));
        stream.push(9);
        assert_eq!(stream.next().await, None);
        assert_eq!(stream.result().await.as_deref(), Some("over"));
        let other = number_stream();
        other.end(None);
        assert_eq!(other.result().await, None);
    }
}
