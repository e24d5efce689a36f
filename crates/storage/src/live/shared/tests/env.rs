//! Test environment: one store, several instances, and readers that rebuild the response.

use std::sync::{Arc, Mutex};
use std::time::Duration;

use serde_json::json;
use tokio::time::Instant;

use super::counting_store::CountingStore;
use crate::live::contract::{key, queued_events, response_started, text_start};
use crate::live::shared::SharedLive;
use crate::live::shared::watchers::{self, Watcher};
use crate::live::{Interest, Live as _, LiveEvent, LiveReader, RemoteSubscription};
use crate::store::memory::MemoryStore;
use crate::store::{
    ConversationStore as _, Document, DocumentKind, Freshness, HEAD_ID, Partition, Selection,
    StoredDocument, Write,
};
use turnwheel_conversation::content::{Block, joined_text};
use turnwheel_conversation::event::AssistantMessageEvent;
use turnwheel_json::raw::RawJson;
use turnwheel_platform::clock::{Clock, Timestamp, millis};
use turnwheel_platform::ids::WorkerId;

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
pub(super) async fn sleep_ms(ms: u64) {
    tokio::time::sleep(Duration::from_millis(ms)).await;
}

/// The response of the contract test in an epoch.
pub(super) fn response_started_in(epoch: u64) -> LiveEvent {
    let LiveEvent::ResponseStarted(answer) = response_started("m1") else { unreachable!() };
    LiveEvent::ResponseStarted(crate::live::LiveResponse { epoch, ..answer })
}

/// Starts the response of epoch 1, without text.
pub(super) async fn start_response(live: &SharedLive) {
    live.publish(&key("c"), response_started_in(1));
    live.publish(&key("c"), text_start("m1"));
    sleep_ms(100).await;
}

/// Two instances: the worker's, with the lease of epoch 1, and that of a registered reader.
pub(super) async fn relayed() -> (TestEnv, SharedLive, SharedLive, ReaderView) {
    let env = TestEnv::new();
    let (a, b) = (env.instance("a"), env.instance("b"));
    env.put_head(1, 1, Some("a.1")).await;
    let view = ReaderView::subscribe(&b);
    sleep_ms(100).await;
    (env, a, b, view)
}

pub(super) struct TestEnv {
    pub(super) memory: Arc<MemoryStore>,
    pub(super) store: Arc<CountingStore>,
    clock: RuntimeClock,
}

impl TestEnv {
    pub(super) fn new() -> Self {
        let memory =
            Arc::new(MemoryStore::with_faults(1, crate::store::memory::StoreFaults::default()));
        let store = Arc::new(CountingStore::new(Arc::clone(&memory) as _, Mutex::default()));
        Self { memory, store, clock: RuntimeClock(Instant::now()) }
    }

    pub(super) fn instance(&self, name: &str) -> SharedLive {
        let store = Arc::clone(&self.store);
        SharedLive::new(store, Arc::new(self.clock), WorkerId::new(name))
    }

    fn partition() -> Partition {
        Partition::Conversation(key("c"))
    }

    /// Stores the head as a commit of the worker leaves it; without a worker, idle.
    pub(super) async fn put_head(&self, epoch: u64, event_seq: u64, worker: Option<&str>) {
        self.put_head_with_responses(0, epoch, event_seq, worker).await;
    }

    /// As [`Self::put_head`], after that number of responses.
    pub(super) async fn put_head_with_responses(
        &self,
        responses: u64,
        epoch: u64,
        event_seq: u64,
        worker: Option<&str>,
    ) {
        let now = self.clock.now();
        let claim = worker.map(|worker| json!({"worker": worker, "epoch": epoch, "until": now}));
        let phase = if worker.is_some() {
            json!({"owed": "model", "attempt": 1})
        } else {
            json!({"owed": "idle"})
        };
        let body = json!({
            "answers": responses, "epoch": epoch, "eventSeq": event_seq, "claim": claim,
            "updatedAt": now, "phase": phase,
        });
        self.put_head_document(RawJson::from_value(&body)).await;
    }

    pub(super) async fn put_deleted_head(&self) {
        self.put_head_document(RawJson::from_value(
            &json!({"epoch": 1, "eventSeq": 1, "phase": {"owed": "deleted"}}),
        ))
        .await;
    }

    async fn put_head_document(&self, body: RawJson) {
        let head = Document {
            body,
            created_at: Some(Timestamp(1)),
            state: Some("running".to_owned()),
            ..Document::new(HEAD_ID, DocumentKind::Head, &(), None)
        };
        let write = if self.memory.history(&Self::partition(), HEAD_ID).is_empty() {
            Write::Create(head)
        } else {
            Write::Replace(head, None)
        };
        self.memory.write(&Self::partition(), vec![write]).await.unwrap();
    }

    /// Counts an accepted input in the head, whose body it leaves alone.
    pub(super) async fn accept_input(&self) {
        let counted = Write::CountInboxChange { due: Some(self.clock.now()), room: None };
        self.memory.write(&Self::partition(), vec![counted]).await.unwrap();
    }

    /// Deletes batches as the store does at their `ttl`.
    pub(super) async fn delete_batches(&self, batches: &[StoredDocument]) {
        for batch in batches {
            let delete = Write::Delete(batch.document.id.clone(), None);
            self.memory.write(&Self::partition(), vec![delete]).await.unwrap();
        }
    }

    pub(super) async fn batches(&self) -> Vec<StoredDocument> {
        let all = Selection::all(DocumentKind::Live);
        self.memory.select(&Self::partition(), &all, Freshness::Latest).await.unwrap()
    }

    /// Returns the watchers that this instance finds.
    pub(super) async fn watchers_for(&self, me: &str) -> Vec<Watcher> {
        let me = WorkerId::new(me);
        watchers::find_other_watchers(&*self.memory, &Self::partition(), &me, self.clock.now())
            .await
            .unwrap()
    }
}

/// A reader that rebuilds the response as a client does: replace, then append.
pub(super) struct ReaderView {
    reader: Box<dyn LiveReader>,
    _attention: Box<dyn RemoteSubscription>,
    text: String,
    pub(super) snapshots: usize,
}

impl ReaderView {
    pub(super) fn subscribe(live: &SharedLive) -> Self {
        let (snapshot, reader) = live.subscribe(&key("c"));
        let attention = live.subscribe_remote(&key("c"), Interest::CommitsAndDeltas);
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
    pub(super) fn read_queued(&mut self) -> Vec<LiveEvent> {
        let events = queued_events(&mut *self.reader);
        for event in &events {
            match event {
                LiveEvent::ResponseStarted(_) => self.text.clear(),
                LiveEvent::Snapshot(snapshot) => self.replace(&snapshot.content),
                LiveEvent::Delta {
                    event: AssistantMessageEvent::TextDelta { delta, .. }, ..
                } => {
                    self.text += delta;
                }
                LiveEvent::Delta { .. }
                | LiveEvent::Committed { .. }
                | LiveEvent::Reset { .. }
                | LiveEvent::ToolUpdate(_)
                | LiveEvent::Deleted => {}
            }
        }
        events
    }
}
