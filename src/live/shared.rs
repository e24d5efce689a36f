//! Live events among instances that share one store. Local readers get them at once, readers on
//! other instances in batches. Nothing durable passes here: a fault of the store delays readers
//! until the commit.

mod lookout;
mod page;
mod relay;
#[cfg(test)]
mod tests;
mod watch;

use std::collections::HashMap;
use std::fmt;
use std::future::Future;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tokio::sync::Notify;
use tokio_util::task::AbortOnDropHandle;

use self::relay::Relays;
use super::{Attention, EmbeddedLive, Interest, Live, LiveEvent, LiveReader, Snapshot};
use crate::clock::Clock;
use crate::ids::{ConversationKey, WorkerId};
use crate::store::ConversationStore;

/// Poll interval of readers with a poller. It covers events that the poller missed.
const LOOK_EVERY: Duration = Duration::from_secs(30);

/// Live events of all instances; clones share their state. Needs a Tokio runtime.
#[derive(Clone)]
pub struct SharedLive {
    inner: Arc<Inner>,
}

struct Inner {
    local: EmbeddedLive,
    store: Arc<dyn ConversationStore>,
    clock: Arc<dyn Clock>,
    /// Id of the process; the ids of its workers begin with it.
    instance: WorkerId,
    relays: Mutex<Relays>,
    lookouts: Mutex<HashMap<ConversationKey, Looking>>,
}

/// A poller and the number of its readers. Dropping it ends the poller.
struct Looking {
    for_commits: usize,
    for_all: usize,
    wants_all: Arc<AtomicBool>,
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
        let inner = Inner {
            local: EmbeddedLive::default(),
            store,
            clock,
            instance,
            relays: Mutex::default(),
            lookouts: Mutex::default(),
        };
        Self { inner: Arc::new(inner) }
    }
}

impl Inner {
    fn relays(&self) -> MutexGuard<'_, Relays> {
        self.relays.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn lookouts(&self) -> MutexGuard<'_, HashMap<ConversationKey, Looking>> {
        self.lookouts.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// True if the worker of a lease belongs to this process.
    fn is_own(&self, worker: &WorkerId) -> bool {
        let rest = worker.as_str().strip_prefix(self.instance.as_str());
        rest.is_some_and(|rest| rest.is_empty() || rest.starts_with('.'))
    }
}

#[expect(
    clippy::disallowed_methods,
    reason = "ends with its readers or its response; events lost with the process are in the commit"
)]
fn start(work: impl Future<Output = ()> + Send + 'static) -> AbortOnDropHandle<()> {
    AbortOnDropHandle::new(tokio::spawn(work))
}

impl Live for SharedLive {
    fn publish(&self, key: &ConversationKey, event: LiveEvent) {
        let live = &self.inner;
        let is_commit = matches!(event, LiveEvent::Committed { .. } | LiveEvent::Gone);
        {
            // Held over both calls: a partial response is read between two events, never while only
            // one of the two has the event.
            let mut relays = live.relays();
            relays.hear(key, &event, live.clock.now(), || {
                start(relay::run(Arc::downgrade(live), key.clone()))
            });
            live.local.publish(key, event);
        }
        if is_commit && let Some(looking) = live.lookouts().get(key) {
            looking.wake.notify_one();
        }
    }

    fn subscribe(&self, key: &ConversationKey) -> (Option<Snapshot>, Box<dyn LiveReader>) {
        self.inner.local.subscribe(key)
    }

    fn attend(&self, key: &ConversationKey, interest: Interest) -> Box<dyn Attention> {
        let mut lookouts = self.inner.lookouts();
        let looking = lookouts.entry(key.clone()).or_insert_with(|| {
            let (wants_all, wake) = (Arc::new(AtomicBool::new(false)), Arc::new(Notify::new()));
            let run = lookout::run(
                Arc::downgrade(&self.inner),
                key.clone(),
                Arc::clone(&wants_all),
                Arc::clone(&wake),
            );
            Looking { for_commits: 0, for_all: 0, wants_all, wake, _task: start(run) }
        });
        *looking.count(interest) += 1;
        if interest == Interest::All && !looking.wants_all.swap(true, Ordering::SeqCst) {
            looking.wake.notify_one();
        }
        Box::new(Attending { live: Arc::clone(&self.inner), key: key.clone(), interest })
    }

    fn look_every(&self) -> Duration {
        LOOK_EVERY
    }
}

impl Looking {
    fn count(&mut self, interest: Interest) -> &mut usize {
        match interest {
            Interest::Commits => &mut self.for_commits,
            Interest::All => &mut self.for_all,
        }
    }
}

/// The remote subscription of one reader.
struct Attending {
    live: Arc<Inner>,
    key: ConversationKey,
    interest: Interest,
}

impl Attention for Attending {}

impl Drop for Attending {
    fn drop(&mut self) {
        let mut lookouts = self.live.lookouts();
        let Some(looking) = lookouts.get_mut(&self.key) else { return };
        *looking.count(self.interest) -= 1;
        if looking.for_all > 0 {
            return;
        }
        looking.wants_all.store(false, Ordering::SeqCst);
        // No poller reads further events of the response.
        self.live.local.lose(&self.key);
        if looking.for_commits == 0 {
            lookouts.remove(&self.key);
        }
    }
}

impl fmt::Debug for SharedLive {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("SharedLive")
            .field("local", &self.inner.local)
            .field("pollers", &self.inner.lookouts().len())
            .finish_non_exhaustive()
    }
}

impl fmt::Debug for Attending {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("PollerSubscription").field("key", &self.key).finish_non_exhaustive()
    }
}
