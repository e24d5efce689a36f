//! Live events among instances that share one store: told at once where they happen, and in pages to those that watch from
//! elsewhere. Nothing durable passes here, and every fault of the store only makes readers wait for the commit.

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

/// Lookouts tell what happens elsewhere; this is for what they could not see.
const LOOK_EVERY: Duration = Duration::from_secs(30);

/// Clones share what they know. Needs a runtime where it is used.
#[derive(Clone)]
pub struct SharedLive {
    inner: Arc<Inner>,
}

struct Inner {
    local: EmbeddedLive,
    store: Arc<dyn ConversationStore>,
    clock: Arc<dyn Clock>,
    /// The process; its workers' ids begin with it.
    instance: WorkerId,
    relays: Mutex<Relays>,
    lookouts: Mutex<HashMap<ConversationKey, Looking>>,
}

/// One lookout and for how many readers it looks; dropped, it ends.
struct Looking {
    for_commits: usize,
    for_all: usize,
    wants_all: Arc<AtomicBool>,
    wake: Arc<Notify>,
    _task: AbortOnDropHandle<()>,
}

impl SharedLive {
    /// `instance`: the id of this process's worker, as its deliveries' claims begin.
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

    /// Whether a claim's worker is of this process.
    fn is_own(&self, worker: &WorkerId) -> bool {
        let rest = worker.as_str().strip_prefix(self.instance.as_str());
        rest.is_some_and(|rest| rest.is_empty() || rest.starts_with('.'))
    }
}

#[expect(
    clippy::disallowed_methods,
    reason = "ends with its readers or its answer; what is lost with the process, the commit tells"
)]
fn start(work: impl Future<Output = ()> + Send + 'static) -> AbortOnDropHandle<()> {
    AbortOnDropHandle::new(tokio::spawn(work))
}

impl Live for SharedLive {
    fn publish(&self, key: &ConversationKey, event: LiveEvent) {
        let live = &self.inner;
        let is_commit = matches!(event, LiveEvent::Committed { .. } | LiveEvent::Gone);
        {
            // Held over both: an answer so far is taken between two events, never between the two that hear of one.
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

/// One reader that attends.
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
        // Nobody looks on for what comes next of it.
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
            .field("lookouts", &self.inner.lookouts().len())
            .finish_non_exhaustive()
    }
}

impl fmt::Debug for Attending {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Attending").field("key", &self.key).finish_non_exhaustive()
    }
}
