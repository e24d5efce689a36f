//! Test environment: one store, several instances, and readers that rebuild the response.

use std::sync::Arc;
use std::time::Duration;

use serde_json::json;
use tokio::time::Instant;

use super::counting::CountingStore;
use crate::agent::content::{Block, joined_text};
use crate::agent::event::AnswerEvent;
use crate::agent::raw::RawJson;
use crate::clock::{Clock, Timestamp, millis};
use crate::ids::WorkerId;
use crate::live::contract::{key, start, waiting};
use crate::live::shared::SharedLive;
use crate::live::shared::watch::{self, Place};
use crate::live::{Attention, Interest, Live as _, LiveEvent, LiveReader};
use crate::store::memory::MemoryStore;
use crate::store::{
    ConversationStore as _, Document, Freshness, HEAD_ID, Kind, Partition, Selection, Stored, Write,
};

/// Time of the runtime, paused or not.
#[derive(Clone, Copy, Debug)]
pub(super) struct RuntimeClock(Instant);

impl Clock for RuntimeClock {
    fn now(&self) -> Timestamp {
        Timestamp(1_800_000_000_000 + millis(self.0.elapsed()))
    }

    fn monotonic(&self) -> Duration {
        self.0.elapsed()
    }
}

/// Lets time pass; all timers of that time fire.
pub(super) async fn after(ms: u64) {
    tokio::time::sleep(Duration::from_millis(ms)).await;
}

/// The response of the contract test in an epoch.
pub(super) fn begun(epoch: u64) -> LiveEvent {
    let LiveEvent::AnswerStarted(answer) = start("m1") else { unreachable!() };
    LiveEvent::AnswerStarted(crate::live::LiveAnswer { epoch, ..answer })
}

pub(super) struct Stage {
    pub(super) memory: Arc<MemoryStore>,
    pub(super) store: Arc<CountingStore>,
    clock: RuntimeClock,
}

impl Stage {
    pub(super) fn new() -> Self {
        let memory = Arc::new(MemoryStore::with_faults(1, crate::store::memory::Faults::default()));
        let store = Arc::new(CountingStore::new(Arc::clone(&memory)));
        Self { memory, store, clock: RuntimeClock(Instant::now()) }
    }

    pub(super) fn instance(&self, name: &str) -> SharedLive {
        let store = Arc::clone(&self.store);
        SharedLive::new(store, Arc::new(self.clock), WorkerId::new(name))
    }

    fn at() -> Partition {
        Partition::Conversation(key("c"))
    }

    /// Stores the head as a commit of the worker leaves it; without a worker, idle.
    pub(super) async fn head(&self, epoch: u64, event_seq: u64, worker: Option<&str>) {
        let now = self.clock.now();
        let claim = worker.map(|worker| json!({"worker": worker, "epoch": epoch, "until": now}));
        let phase = if worker.is_some() {
            json!({"owed": "model", "attempt": 1})
        } else {
            json!({"owed": "idle"})
        };
        let body = json!({"epoch": epoch, "eventSeq": event_seq, "claim": claim, "updatedAt": now, "phase": phase});
        self.put(RawJson::of(&body)).await;
    }

    pub(super) async fn deleted(&self) {
        self.put(RawJson::of(&json!({"epoch": 1, "eventSeq": 1, "phase": {"owed": "deleted"}})))
            .await;
    }

    async fn put(&self, body: RawJson) {
        let head = Document {
            id: HEAD_ID.to_owned(),
            kind: Kind::Head,
            body,
            due: None,
            created_at: Some(Timestamp(1)),
            state: Some("running".to_owned()),
            ttl: None,
        };
        let write = if self.memory.history(&Self::at(), HEAD_ID).is_empty() {
            Write::Create(head)
        } else {
            Write::Replace(head, None)
        };
        self.memory.write(&Self::at(), vec![write]).await.unwrap();
    }

    pub(super) async fn pages(&self) -> Vec<Stored> {
        let all = Selection::all(Kind::Live);
        self.memory.select(&Self::at(), &all, Freshness::Latest).await.unwrap()
    }

    /// Returns the watchers that this instance finds.
    pub(super) async fn watching(&self, me: &str) -> Vec<Place> {
        let me = WorkerId::new(me);
        watch::others(&*self.memory, &Self::at(), &me, self.clock.now()).await.unwrap()
    }
}

/// A reader that rebuilds the response as a client does: replace, then append.
pub(super) struct View {
    reader: Box<dyn LiveReader>,
    _attention: Box<dyn Attention>,
    text: String,
    pub(super) snapshots: usize,
}

impl View {
    pub(super) fn of(live: &SharedLive) -> Self {
        let (snapshot, reader) = live.subscribe(&key("c"));
        let attention = live.attend(&key("c"), Interest::All);
        let mut view = Self { reader, _attention: attention, text: String::new(), snapshots: 0 };
        if let Some(snapshot) = snapshot {
            view.replace(&snapshot.content);
        }
        view
    }

    pub(super) fn text(&self) -> &str {
        &self.text
    }

    fn replace(&mut self, content: &[Block]) {
        self.text = joined_text(content);
        self.snapshots += 1;
    }

    /// Applies and returns all queued events.
    pub(super) fn hear(&mut self) -> Vec<LiveEvent> {
        let heard = waiting(&mut *self.reader);
        for event in &heard {
            match event {
                LiveEvent::AnswerStarted(_) => self.text.clear(),
                LiveEvent::SoFar(snapshot) => self.replace(&snapshot.content),
                LiveEvent::Delta { event: AnswerEvent::TextDelta { delta, .. }, .. } => {
                    self.text += delta;
                }
                LiveEvent::Delta { .. }
                | LiveEvent::Committed { .. }
                | LiveEvent::Reset { .. }
                | LiveEvent::ToolUpdate(_)
                | LiveEvent::Gone => {}
            }
        }
        heard
    }
}
