//! Clients that wait at this process for turns of their conversations (`execution: here`): with a request
//! (`?wait=`), or with an event stream.

use std::collections::{HashMap, VecDeque};
use std::fmt;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tokio::time::Instant;
use tokio_util::sync::{CancellationToken, DropGuard};

use turnwheel_platform::ids::ConversationKey;
use turnwheel_record::nudge::Nudge;

/// Time in which a client opens an event stream after its request was accepted.
const EXPECTED_WITHIN: Duration = Duration::from_secs(5);
/// Conversations whose event stream is expected. More are left to workers.
const EXPECTED_MAX: usize = 64;

/// Runs turns in the process at which their client waits.
pub trait TurnRunner: fmt::Debug + Send + Sync {
    /// Starts a task that takes the turns of the nudged conversation until `gone` is cancelled. A message
    /// wakes a worker for its later turns. False: no task was started.
    fn start(&self, nudge: Nudge, gone: CancellationToken) -> bool;
}

/// The client of a request that starts turns.
#[derive(Clone, Debug)]
pub enum WaitingClient {
    /// The request waits for the outcome of its prompt.
    Request { runner: Arc<dyn TurnRunner>, gone: CancellationToken },
    /// The client reads the event stream of the conversation, or opens it now.
    Stream(Arc<WaitingClients>),
}

impl WaitingClient {
    /// False: a worker must be woken.
    pub(crate) fn start(&self, nudge: Nudge) -> bool {
        match self {
            Self::Request { runner, gone } => runner.start(nudge, gone.clone()),
            Self::Stream(clients) => clients.start_for_stream(nudge),
        }
    }
}

/// The clients that wait at this process.
#[derive(Debug)]
pub struct WaitingClients {
    runner: Arc<dyn TurnRunner>,
    streams: Mutex<Streams>,
}

#[derive(Debug, Default)]
struct Streams {
    open: HashMap<ConversationKey, OpenStreams>,
    /// Conversations that were to start before their stream was open, oldest first.
    expected: VecDeque<(Instant, Nudge)>,
}

/// The open streams of one conversation.
#[derive(Debug, Default)]
struct OpenStreams {
    count: usize,
    gone: CancellationToken,
}

/// An open event stream. Its client is gone as soon as this is dropped.
#[derive(Debug)]
pub struct StreamClient {
    clients: Arc<WaitingClients>,
    key: ConversationKey,
}

impl WaitingClients {
    pub fn new(runner: Arc<dyn TurnRunner>) -> Self {
        Self { runner, streams: Mutex::default() }
    }

    /// Returns the client of a request that waits. It is gone as soon as the guard is dropped.
    pub fn request(&self) -> (WaitingClient, DropGuard) {
        let gone = CancellationToken::new();
        let guard = gone.clone().drop_guard();
        (WaitingClient::Request { runner: Arc::clone(&self.runner), gone }, guard)
    }

    /// Adds an event stream. If the conversation was to start before, its turns start now.
    pub fn open_stream(self: &Arc<Self>, key: &ConversationKey) -> StreamClient {
        let mut streams = self.streams();
        let open = streams.open.entry(key.clone()).or_default();
        open.count += 1;
        let gone = open.gone.clone();
        let expected = streams.take_expected(key);
        drop(streams);
        if let Some(nudge) = expected {
            // A worker is woken for it already: the first of both takes the lease.
            self.runner.start(nudge, gone);
        }
        StreamClient { clients: Arc::clone(self), key: key.clone() }
    }

    fn start_for_stream(&self, nudge: Nudge) -> bool {
        let mut streams = self.streams();
        let Some(open) = streams.open.get(&nudge.key) else {
            streams.expect(nudge);
            return false;
        };
        let gone = open.gone.clone();
        drop(streams);
        self.runner.start(nudge, gone)
    }

    fn streams(&self) -> MutexGuard<'_, Streams> {
        self.streams.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Streams {
    fn expect(&mut self, nudge: Nudge) {
        self.take_expected(&nudge.key);
        if self.expected.len() < EXPECTED_MAX {
            self.expected.push_back((Instant::now(), nudge));
        }
    }

    /// Takes the nudge of that conversation, and removes those whose time is over.
    fn take_expected(&mut self, key: &ConversationKey) -> Option<Nudge> {
        self.expected.retain(|(since, _)| since.elapsed() < EXPECTED_WITHIN);
        let position = self.expected.iter().position(|(_, nudge)| nudge.key == *key)?;
        self.expected.remove(position).map(|(_, nudge)| nudge)
    }
}

impl Drop for StreamClient {
    fn drop(&mut self) {
        let mut streams = self.clients.streams();
        let Some(open) = streams.open.get_mut(&self.key) else { return };
        open.count -= 1;
        if open.count == 0
            && let Some(open) = streams.open.remove(&self.key)
        {
            open.gone.cancel();
        }
    }
}
