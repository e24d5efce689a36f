//! Events as a stream with a result: pushed by one side, pulled by the other (ES-01 to ES-04).

use std::collections::VecDeque;
use std::fmt;
use std::sync::{Arc, Mutex};

use tokio::sync::Notify;

use crate::agent::message::Message;
use crate::app::agent::{AgentEvent, Subscription, lock};

/// Events in order, and a result that one of them brings. Clones share the stream: each event goes to one of them.
pub struct EventStream<E, R> {
    shared: Arc<Shared<E, R>>,
}

type Completes<E, R> = Box<dyn Fn(&E) -> Option<R> + Send + Sync>;

struct Shared<E, R> {
    state: Mutex<State<E, R>>,
    changed: Notify,
    /// The result that this event completes the stream with.
    completes: Completes<E, R>,
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
    /// `completes` gives the result of the event that ends the stream, and `None` for the others.
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

    /// Gives the event to a waiting consumer, or queues it. Ignored once the stream is done.
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

    /// Ends the stream and releases all waiters. A result that came before stays.
    pub fn end(&self, result: Option<R>) {
        let mut state = lock(&self.shared.state);
        state.is_done = true;
        if state.result.is_none() {
            state.result = result;
        }
        drop(state);
        self.shared.changed.notify_waiters();
    }

    /// The next event, in order; `None`: the stream is done and empty.
    pub async fn next(&self) -> Option<E> {
        self.wait_for(|state| match state.queue.pop_front() {
            Some(event) => Some(Some(event)),
            None if state.is_done => Some(None),
            None => None,
        })
        .await
    }

    /// The result, once the completing event was pushed or the stream was ended; `None`: it was ended without one.
    pub async fn result(&self) -> Option<R> {
        self.wait_for(|state| state.is_done.then(|| state.result.clone())).await
    }

    async fn wait_for<T>(&self, mut ready: impl FnMut(&mut State<E, R>) -> Option<T>) -> T {
        loop {
            let mut changed = std::pin::pin!(self.shared.changed.notified());
            // Before the look: what changes after it is not missed.
            changed.as_mut().enable();
            let found = ready(&mut lock(&self.shared.state));
            match found {
                Some(found) => return found,
                None => changed.await,
            }
        }
    }
}

/// Events of an agent from [`crate::app::Agent::events`] on, until its run ends. The result: the messages that are new in it.
#[derive(Debug)]
pub struct AgentEvents {
    pub(super) stream: EventStream<AgentEvent, Vec<Message>>,
    pub(super) _subscription: Subscription,
}

impl AgentEvents {
    /// The next event; `None` after the run's `agent_end`.
    pub async fn next(&mut self) -> Option<AgentEvent> {
        self.stream.next().await
    }

    /// The messages of the run's `agent_end`. It may be awaited beside or without the events.
    pub async fn result(&self) -> Vec<Message> {
        self.stream.result().await.unwrap_or_default()
    }
}

/// The end of a run: one after which a failed response is tried once more is none.
pub(super) fn messages_at_end(event: &AgentEvent) -> Option<Vec<Message>> {
    let AgentEvent::AgentEnd { messages, will_retry: false } = event else { return None };
    Some(messages.clone())
}

#[cfg(test)]
mod tests {
    use futures_util::FutureExt as _;

    use super::*;

    fn numbers() -> EventStream<u32, String> {
        EventStream::new(|number| (*number == 9).then(|| "nine".to_owned()))
    }

    #[tokio::test]
    async fn stream_gives_the_queue_then_waits_and_ends_with_its_result() {
        let stream = numbers();
        stream.push(1);
        stream.push(2);
        assert_eq!((stream.next().await, stream.next().await), (Some(1), Some(2)));
        assert_eq!(stream.next().now_or_never(), None, "it waits");
        let consumer = stream.clone();
        let (next, result, ()) = tokio::join!(consumer.next(), stream.result(), async {
            tokio::task::yield_now().await;
            stream.push(9);
            stream.push(10);
        });
        assert_eq!((next, result.as_deref()), (Some(9), Some("nine")));
        assert_eq!(stream.next().await, None, "nothing after the completing event");
        assert_eq!(stream.result().await.as_deref(), Some("nine"), "as often as it is asked for");
    }

    #[tokio::test]
    async fn end_releases_all_waiters_and_later_events_are_ignored() {
        let stream = numbers();
        let (one, two, result, ()) =
            tokio::join!(stream.next(), stream.next(), stream.result(), async {
                tokio::task::yield_now().await;
                stream.end(Some("over".to_owned()));
            });
        assert_eq!((one, two, result.as_deref()), (None, None, Some("over")));
        stream.push(9);
        assert_eq!(stream.next().await, None);
        assert_eq!(stream.result().await.as_deref(), Some("over"));
        let other = numbers();
        other.end(None);
        assert_eq!(other.result().await, None);
    }
}
