//! The environment of a run: a temporary store, queues in memory, a clock that also advances when
//! idle, and a trap at one fail point.

use std::collections::BTreeSet;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use async_trait::async_trait;
use tokio::sync::Notify;

use crate::agent::notice::Notice;
use crate::agents::{Agent, Agents, Catalog};
use crate::artifacts::MemoryArtifacts;
use crate::certify::conversation::Conversation;
use crate::certify::ledger::{Ledger, counted};
use crate::certify::player::Player;
use crate::certify::run::Cut;
use crate::certify::store::RunStore;
use crate::certify::{Kept, Order, Tools};
use crate::clock::{Clock, SystemClock, Timestamp, millis};
use crate::ids::{ConversationKey, Ids as _, SeededIds, WorkerId};
use crate::live::MemoryLive;
use crate::queue::{self, MemoryQueue};
use crate::store::embedded::OpenError;
use crate::telemetry::Telemetry;
use crate::turn::money::Money;
use crate::turn::notify::{Herald, Told};
use crate::turn::{EntryMemory, Isolation, Limits, Probe, Stops, World};

/// Real time plus the skipped waits.
#[derive(Debug, Default)]
pub(super) struct Time {
    system: SystemClock,
    ahead: AtomicU64,
}

impl Time {
    pub(super) fn pass(&self, span: Duration) {
        self.ahead.fetch_add(millis(span), Ordering::SeqCst);
    }

    fn ahead(&self) -> Duration {
        Duration::from_millis(self.ahead.load(Ordering::SeqCst))
    }
}

impl Clock for Time {
    fn now(&self) -> Timestamp {
        self.system.now().plus(self.ahead())
    }

    fn monotonic(&self) -> Duration {
        self.system.monotonic() + self.ahead()
    }
}

/// Records every fail point, and blocks the task that hits one of them for the n-th time.
#[derive(Debug)]
pub(super) struct Trap {
    at: Option<Cut>,
    seen: Mutex<Vec<&'static str>>,
    pub(super) reached: Notify,
    pub(super) go: Notify,
}

impl Trap {
    fn at(cut: Option<Cut>) -> Self {
        Self { at: cut, seen: Mutex::default(), reached: Notify::new(), go: Notify::new() }
    }

    /// In the order of their hits.
    pub(super) fn seen(&self) -> Vec<&'static str> {
        self.seen.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// True if this is the fail point and the occurrence of the trap.
    fn is_it(&self, boundary: &'static str) -> bool {
        let mut seen = self.seen.lock().unwrap_or_else(PoisonError::into_inner);
        seen.push(boundary);
        self.at.is_some_and(|cut| {
            let times = seen.iter().filter(|seen| **seen == boundary).count();
            cut.boundary == boundary && times == cut.occurrence as usize
        })
    }
}

#[async_trait]
impl Probe for Trap {
    async fn reached(&self, boundary: &'static str) {
        if self.is_it(boundary) {
            self.reached.notify_one();
            self.go.notified().await;
        }
    }
}

/// Accepts every notification and records its id.
#[derive(Debug, Default)]
pub(super) struct Crier(Mutex<BTreeSet<String>>);

impl Crier {
    pub(super) fn has_told(&self, id: &str) -> bool {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).contains(id)
    }
}

#[async_trait]
impl Herald for Crier {
    async fn tell(&self, _key: &ConversationKey, notice: &Notice) -> Told {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).insert(notice.id.clone());
        Told::Taken
    }
}

fn queue_of(time: &Arc<Time>) -> Arc<MemoryQueue> {
    let clock: Arc<dyn Clock> = Arc::clone(time) as _;
    Arc::new(MemoryQueue::new(clock, 0, queue::Faults::default()))
}

pub(super) struct Stage {
    pub(super) store: Arc<RunStore>,
    pub(super) queue: Arc<MemoryQueue>,
    pub(super) artifacts: Arc<MemoryArtifacts>,
    pub(super) time: Arc<Time>,
    pub(super) ids: Arc<SeededIds>,
    pub(super) trap: Arc<Trap>,
    pub(super) crier: Arc<Crier>,
    pub(super) ledger: Arc<Ledger>,
    pub(super) model: Arc<Player>,
    pub(super) agents: Agents,
}

impl Stage {
    /// # Errors
    /// There is no folder for the store.
    pub(super) async fn set(
        order: &Order,
        (agent, conversation): (&Agent, &Conversation),
        (kept, cut): (Kept, Option<Cut>),
    ) -> Result<Self, OpenError> {
        let time = Arc::new(Time::default());
        let ledger = Arc::new(Ledger::default());
        let is_stub = |tool: &str| order.tools == Tools::Stub && !order.harmless.contains(tool);
        let agent = counted(agent, &ledger, is_stub);
        let mut agents = Catalog::default();
        agents.agents.insert(agent.name.clone(), Arc::new(agent));
        Ok(Self {
            store: Arc::new(RunStore::open(kept).await?),
            queue: queue_of(&time),
            artifacts: Arc::new(MemoryArtifacts::new(0, 0)),
            time,
            ids: Arc::new(SeededIds::new(0)),
            trap: Arc::new(Trap::at(cut)),
            crier: Arc::default(),
            ledger,
            model: Arc::new(Player::of(conversation)),
            agents: agents.into(),
        })
    }

    /// Kills the process. With a store of its own, its queues are lost too.
    ///
    /// # Errors
    /// There is no folder for the next process's store.
    pub(super) async fn kill(&mut self) -> Result<bool, OpenError> {
        let is_alone = self.store.kill().await?;
        if is_alone {
            self.queue = queue_of(&self.time);
        }
        Ok(is_alone)
    }

    /// Creates an instance with its own memory; everything else is shared.
    pub(super) fn instance(&self, order: &Order) -> Arc<World> {
        Arc::new(World {
            store: Arc::clone(&self.store) as _,
            queue: Arc::clone(&self.queue) as _,
            artifacts: Arc::clone(&self.artifacts) as _,
            live: Arc::new(MemoryLive::new(0, 0)),
            model: Arc::clone(&self.model) as _,
            agents: self.agents.clone(),
            extensions: order.extensions.clone(),
            entries: Arc::new(EntryMemory::default()),
            stops: Stops::default(),
            writers: Arc::default(),
            herald: Some(Arc::clone(&self.crier) as _),
            clock: Arc::clone(&self.time) as _,
            ids: Arc::clone(&self.ids) as _,
            probe: Arc::clone(&self.trap) as _,
            worker: WorkerId::new(self.ids.fresh()),
            limits: Limits::default(),
            money: Arc::new(Money::default()),
            brakes: Arc::default(),
            isolation: Isolation::default(),
            telemetry: Telemetry::default(),
        })
    }
}
