//! Live events among instances that share one store. Local readers get them at once, readers on
//! other instances in batches. Nothing durable passes here: a fault of the store delays readers
//! until the commit.

mod delta_batch;
mod poller;
mod publisher;
#[cfg(test)]
mod tests;
mod watchers;

use std::collections::HashMap;
use std::fmt;
use std::future::Future;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tokio::sync::Notify;
use tokio_util::task::AbortOnDropHandle;

use self::publisher::Publishers;
use super::{EmbeddedLive, Interest, Live, LiveEvent, LiveReader, RemoteSubscription, Snapshot};
use crate::store::ConversationStore;
use turnwheel_platform::clock::Clock;
use turnwheel_platform::ids::{ConversationKey, WorkerId};

/// Poll interval of readers with a poller. It covers events that the poller missed.
const POLL_INTERVAL: Duration = Duration::from_secs(30);

/// Live events of all instances; clones share their state. Needs a Tokio runtime.
#[derive(Clone)]
pub struct SharedLive {
    inner: Arc<SharedState>,
}

struct SharedState {
    local: EmbeddedLive,
    store: Arc<dyn ConversationStore>,
    clock: Arc<dyn Clock>,
    /// Id of the process; the ids of its workers begin with it.
    instance: WorkerId,
    publishers: Mutex<Publishers>,
    pollers: Mutex<HashMap<ConversationKey, PollerHandle>>,
}

/// A poller and the number of its readers. Dropping it ends the poller.
struct PollerHandle {
    commit_readers: usize,
    delta_readers: usize,
    /// Number of periods with readers of deltas. A period begins when the first one subscribes.
    delta_periods: u64,
    /// Number of the current period; 0 while no reader wants deltas. Shared with the poller.
    delta_period: Arc<AtomicU64>,
    wake: Arc<Notify>,
    _task: AbortOnDropHandle<()>,
}

impl SharedLive {
    /// `instance` is the id of this process's worker, with which the worker ids of its leases
    /// begin.
    pub fn new(
        store: Arc<dyn ConversationStore>,
        clock: Arc<dyn Clock>,
        instance: WorkerId,
    ) -> Self {
        let inner = SharedState {
            local: EmbeddedLive::default(),
            store,
            clock,
            instance,
            publishers: Mutex::default(),
            pollers: Mutex::default(),
        };
        Self { inner: Arc::new(inner) }
    }
}

impl SharedState {
    fn lock_publishers(&self) -> MutexGuard<'_, Publishers> {
        self.publishers.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn lock_pollers(&self) -> MutexGuard<'_, HashMap<ConversationKey, PollerHandle>> {
        self.pollers.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// True if the worker of a lease belongs to this process.
    fn is_own_worker(&self, worker: &WorkerId) -> bool {
        let rest = worker.as_str().strip_prefix(self.instance.as_str());
        rest.is_some_and(|rest| rest.is_empty() || rest.starts_with('.'))
    }
}

#[expect(
    clippy::disallowed_methods,
    reason = "ends with its readers or its response; events lost with the process are in the commit"
)]
fn spawn_task(work: impl Future<Output = ()> + Send + 'static) -> AbortOnDropHandle<()> {
    AbortOnDropHandle::new(tokio::spawn(work))
}

impl Live for SharedLive {
    fn publish(&self, key: &ConversationKey, event: LiveEvent) {
        let live = &self.inner;
        let is_commit = matches!(event, LiveEvent::Committed { .. } | LiveEvent::Deleted);
        {
            // Held over both calls: a partial response is read between two events, never while only
            // one of the two has the event.
            let mut publishers = live.lock_publishers();
            publishers.publish(key, &event, live.clock.now(), || {
                spawn_task(publisher::run_publisher(Arc::downgrade(live), key.clone()))
            });
            live.local.publish(key, event);
        }
        if is_commit {
            self.wake_pollers(key);
        }
    }

    fn subscribe(&self, key: &ConversationKey) -> (Option<Snapshot>, Box<dyn LiveReader>) {
        self.inner.local.subscribe(key)
    }

    fn subscribe_remote(
        &self,
        key: &ConversationKey,
        interest: Interest,
    ) -> Box<dyn RemoteSubscription> {
        let mut pollers = self.inner.lock_pollers();
        let poller = pollers.entry(key.clone()).or_insert_with(|| {
            let (delta_period, wake) = (Arc::new(AtomicU64::new(0)), Arc::new(Notify::new()));
            let run = poller::run_poller(
                Arc::downgrade(&self.inner),
                key.clone(),
                Arc::clone(&delta_period),
                Arc::clone(&wake),
            );
            PollerHandle {
                commit_readers: 0,
                delta_readers: 0,
                delta_periods: 0,
                delta_period,
                wake,
                _task: spawn_task(run),
            }
        });
        *poller.readers_mut(interest) += 1;
        if interest == Interest::CommitsAndDeltas && poller.delta_readers == 1 {
            poller.delta_periods += 1;
            poller.delta_period.store(poller.delta_periods, Ordering::SeqCst);
            poller.wake.notify_one();
        }
        Box::new(PollerSubscription { live: Arc::clone(&self.inner), key: key.clone(), interest })
    }

    fn wake_pollers(&self, key: &ConversationKey) {
        if let Some(poller) = self.inner.lock_pollers().get(key) {
            poller.wake.notify_one();
        }
    }

    fn poll_interval(&self) -> Duration {
        POLL_INTERVAL
    }
}

impl PollerHandle {
    fn readers_mut(&mut self, interest: Interest) -> &mut usize {
        match interest {
            Interest::Commits => &mut self.commit_readers,
            Interest::CommitsAndDeltas => &mut self.delta_readers,
        }
    }
}

/// The remote subscription of one reader.
struct PollerSubscription {
    live: Arc<SharedState>,
    key: ConversationKey,
    interest: Interest,
}

impl RemoteSubscription for PollerSubscription {}

impl Drop for PollerSubscription {
    fn drop(&mut self) {
        let mut pollers = self.live.lock_pollers();
        let Some(poller) = pollers.get_mut(&self.key) else { return };
        *poller.readers_mut(self.interest) -= 1;
        if poller.delta_readers > 0 {
            return;
        }
        poller.delta_period.store(0, Ordering::SeqCst);
        // No poller reads further events of the response.
        self.live.local.forget_remote(&self.key);
        if poller.commit_readers == 0 {
            pollers.remove(&self.key);
        }
    }
}

impl fmt::Debug for SharedLive {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("SharedLive").finish_non_exhaustive()
    }
}
