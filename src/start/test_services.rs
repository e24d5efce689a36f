//! Services on memory ports, for tests.

use std::sync::Arc;

use turnwheel_model::scripted::ScriptedModel;
use turnwheel_platform::clock::{ManualClock, Timestamp};
use turnwheel_platform::ids::{SeededIds, WorkerId};
use turnwheel_record::services::{ServicePorts, Services};
use turnwheel_storage::artifacts::MemoryArtifacts;
use turnwheel_storage::live::EmbeddedLive;
use turnwheel_storage::queue::{MemoryQueue, QueueFaults};
use turnwheel_storage::store::memory::MemoryStore;

pub(crate) struct TestServices {
    pub(crate) services: Services,
    pub(crate) store: Arc<MemoryStore>,
    pub(crate) queue: Arc<MemoryQueue>,
}

impl TestServices {
    pub(crate) fn new(now: Timestamp) -> Self {
        let clock = Arc::new(ManualClock::new(now));
        let store = Arc::new(MemoryStore::new());
        let queue = Arc::new(MemoryQueue::new(Arc::clone(&clock) as _, 7, QueueFaults::default()));
        let ports = ServicePorts {
            store: Arc::clone(&store) as _,
            queue: Arc::clone(&queue) as _,
            artifacts: Arc::new(MemoryArtifacts::new(7, 0)),
            live: Arc::new(EmbeddedLive::default()),
            model: Arc::new(ScriptedModel),
            clock,
            ids: Arc::new(SeededIds::new(7)),
        };
        Self { services: Services::new(WorkerId::new("w"), ports), store, queue }
    }
}
