//! Clients that wait at this process for turns of their conversations (`execution: here`): with a request
//! (`?wait=`), or with an event stream.

use std::collections::{HashMap, VecDeque};
use std::fmt;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use turnwheel_platform::ids::ConversationKey;
use turnwheel_record::nudge::Nudge;

/// Time in which a client opens an event stream after its request was accepted.
const STREAM_OPENS_WITHIN: Duration = Duration::from_secs(5);
/// Accepted requests whose clients may open an event stream soon.
const EARLY_REQUESTS_MAX: usize = 64;

/// Runs turns in the process at which their client waits.
pub trait TurnRunner: fmt::Debug + Send + Sync {
    /// Starts a task that takes the turns of the nudged conversation until `gone` is cancelled. A message
    /// wakes a worker for its later turns. False: no task was started.
    fn start(&self, nudge: Nudge, gone: CancellationToken) -> bool;
}

/// The clients that wait at this process.
#[derive(Debug)]
pub struct WaitingClients {
    runner: Arc<dyn TurnRunner>,
    state: Mutex<State>,
}

#[derive(Debug, Default)]
struct State {
    waiting: HashMap<ConversationKey, ConversationClients>,
    /// Nudges of requests for which no client waited, oldest first.
    early: VecDeque<(Instant, Nudge)>,
}

/// The clients that wait for one conversation.
#[derive(Debug, Default)]
struct ConversationClients {
    count: usize,
    gone: CancellationToken,
}

/// A client that waits. It is gone as soon as this is dropped.
#[derive(Debug)]
pub struct WaitingClient {
    clients: Arc<WaitingClients>,
    key: ConversationKey,
}

impl WaitingClients {
    pub fn new(runner: Arc<dyn TurnRunner>) -> Self {
        Self { runner, state: Mutex::default() }
    }

    /// Adds a client. Its turns start now if a request for them was accepted in the last 5 s.
    pub fn add(self: &Arc<Self>, key: &ConversationKey) -> WaitingClient {
        let client = WaitingClient { clients: Arc::clone(self), key: key.clone() };
        let mut state = self.state();
        let clients = state.waiting.entry(key.clone()).or_default();
        clients.count += 1;
        let gone = clients.gone.clone();
        let early = state.take_early(key);
        drop(state);
        if let Some(nudge) = early {
            // A worker is woken for it already: the first of both takes the lease.
            self.runner.start(nudge, gone);
        }
        client
    }

    /// Starts the turns of the nudged conversation if a client waits for it. False: a worker must be woken.
    pub(crate) fn start(&self, nudge: Nudge) -> bool {
        let mut state = self.state();
        let Some(clients) = state.waiting.get(&nudge.key) else {
            state.add_early(nudge);
            return false;
        };
        let gone = clients.gone.clone();
        drop(state);
        self.runner.start(nudge, gone)
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl State {
    fn add_early(&mut self, nudge: Nudge) {
        self.take_early(&nudge.key);
        if self.early.len() == EARLY_REQUESTS_MAX {
            self.early.pop_front();
        }
        self.early.push_back((Instant::now(), nudge));
    }

    /// Takes the nudge of that conversation, and removes those whose time is over.
    fn take_early(&mut self, key: &ConversationKey) -> Option<Nudge> {
        self.early.retain(|(since, _)| since.elapsed() < STREAM_OPENS_WITHIN);
        let position = self.early.iter().position(|(_, nudge)| nudge.key == *key)?;
        self.early.remove(position).map(|(_, nudge)| nudge)
    }
}

impl Drop for WaitingClient {
    fn drop(&mut self) {
        let mut state = self.clients.state();
        let Some(clients) = state.waiting.get_mut(&self.key) else { return };
        clients.count -= 1;
        if clients.count == 0
            && let Some(clients) = state.waiting.remove(&self.key)
        {
            clients.gone.cancel();
        }
    }
}
