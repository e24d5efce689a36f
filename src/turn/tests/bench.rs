//! Test environment: several workers, one store, one queue, tools that count their calls, and
//! clients that retry until accepted.

mod agent;
mod altered;
mod chat;
mod clients;
mod counting;
mod delivering;
mod isolating;
mod probes;
mod steady;
mod story;
mod trouble;
mod versions;
mod windowed;

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use serde_json::Value;
use tokio::time::Instant;

pub(super) use self::agent::{
    Done, GATE_EXPIRES, PATIENCE, Script, ScriptedAnswers, call, text, three_rounds,
};
pub(super) use self::altered::Altered;
use self::chat::Said as Chat;
pub(super) use self::counting::Counting;
pub(super) use self::probes::{HookProbe, PauseProbe, RuntimeClock};
pub(super) use self::steady::Steady;
pub(super) use self::story::{Scene, Story};
pub(super) use self::trouble::{bad_blobs, bad_queue, bad_store, die};
pub(super) use self::versions::{Mix, lost_to_older};
pub(super) use self::windowed::Windowed;
use super::finish_turn::{Decide, Decides};
use crate::agent::entry::Entry;
use crate::agent::event::Event;
use crate::agent::head::Head;
use crate::agent::inbox::InboxItem;
use crate::agent::phase::Phase;
use crate::agent::settings::{Settings, ToolExecution};
use crate::agents::Agents;
use crate::artifacts::{self, MemoryArtifacts};
use crate::clock::Clock as _;
use crate::extensions::{Extension, FinishTurn};
use crate::ids::fate::Fate;
use crate::ids::{ConversationKey, Ids, SeededIds, TenantId, UserId, WorkerId};
use crate::live::MemoryLive;
use crate::model::Model;
use crate::queue::{Faults as QueueFaults, MemoryQueue};
use crate::settings::brakes::Brakes;
use crate::store::memory::{Faults, MemoryStore};
use crate::store::{ConversationStore, Freshness, HEAD_ID, Kind, Partition, Selection, Stored};
use crate::telemetry::Telemetry;
use crate::turn::admission::Owner;
use crate::turn::admission::idempotency::Idempotency;
use crate::turn::money::Money;
use crate::turn::notify::Herald;
use crate::turn::record::{self, EventsBody};
use crate::turn::{
    EntryMemory, Isolation, Limits, NoProbe, Nudge, Probe, Stops, World, invariants, sweep,
};

pub(super) struct Bench {
    /// Store that workers use: the memory store, unless a test sets another.
    pub(super) shared: Arc<dyn ConversationStore>,
    pub(super) store: Arc<MemoryStore>,
    pub(super) queue: Arc<MemoryQueue>,
    pub(super) artifacts: Arc<MemoryArtifacts>,
    pub(super) done: Done,
    pub(super) model: Arc<ScriptedAnswers>,
    /// Replaces the scripted model.
    pub(super) other_model: Option<Arc<dyn Model>>,
    pub(super) clock: RuntimeClock,
    ids: Arc<dyn Ids>,
    agents: Agents,
    pub(super) dice: fastrand::Rng,
    /// Replaces `rng`, so that a run with the same injected faults can be repeated.
    pub(super) fate: Option<Fate>,
    /// Number of workers and clients created so far.
    workers: u32,
    /// Set while two versions work side by side.
    pub(super) mix: Option<Mix>,
    /// By request id: true if the request is never decided.
    ignored: BTreeMap<String, bool>,
    /// Number of commits at the time when no undecided request was left.
    looked_at: Option<u64>,
    /// Chance in percent of a crash at each fail point.
    pub(super) crash_in_a_hundred: u8,
    /// Chance in percent that a worker stalls at a fail point, possibly beyond the end of its
    /// lease.
    pub(super) still_in_a_hundred: u8,
    /// Upper bound of the difference between the wall clocks of workers.
    pub(super) skew_max: Duration,
    /// Chance in percent that a request is never decided.
    pub(super) ignored_in_a_hundred: u8,
    pub(super) story: Story,
    pub(super) was_asked_for_outcome: bool,
    /// Set if the workers are one process with an embedded store.
    steady: Option<Arc<Steady>>,
    /// The conversation whose tool calls kill their process.
    pub(super) killer: Option<&'static str>,
    /// True if the deliveries of one round run in one process, which crashes as a whole.
    pub(super) shares_processes: bool,
    /// Chance in percent that a client patches a conversation between two deliveries.
    pub(super) patched_in_a_hundred: u8,
    pub(super) conversations: Vec<ConversationKey>,
    /// Chance in percent that a client sends, edits or clears an input during a delivery.
    pub(super) chats_in_a_hundred: u8,
    /// Upper bound of the number of inputs that such clients send.
    pub(super) chats_max: usize,
    said: Vec<Chat>,
    /// Chance in percent that both queues are deleted between two deliveries.
    pub(super) queues_lost_in_a_hundred: u8,
    /// Initial settings of conversations.
    pub(super) settings: Settings,
    /// Telemetry of workers.
    pub(super) telemetry: Telemetry,
    /// Used by workers created from now on; without it no notification is written.
    pub(super) notifier: Option<Arc<dyn Herald>>,
    /// Budgets and rates.
    pub(super) money: Arc<Money>,
    /// Used by workers created from now on.
    pub(super) brakes: Arc<Brakes>,
    /// Used by workers created from now on.
    pub(super) extensions: Vec<Arc<dyn Extension>>,
}

impl Bench {
    pub(super) fn new(seed: u64) -> Self {
        Self::of(seed, None)
    }

    /// An environment whose faults are decided by `fault_plan`; a share of the tools' responses is
    /// lost.
    pub(super) fn fated(seed: u64, fate: &Fate, script: Script, answers_lost: f64) -> Self {
        let bench = Self::of(seed, Some(&(fate.clone(), answers_lost)));
        *bench.model.script.lock().unwrap() = script;
        let story = bench.story.clone();
        fate.tell(move |mishap| story.tell(mishap));
        bench
    }

    fn of(seed: u64, fate: Option<&(Fate, f64)>) -> Self {
        let done = Done::default();
        let clock = RuntimeClock { began: Instant::now(), ahead: Duration::ZERO };
        let (ours, none) = (fate.map(|(fate, _)| fate.clone()), QueueFaults::default());
        let (store, queue, artifacts) = match &ours {
            None => (
                MemoryStore::with_faults(seed, Faults::default()),
                MemoryQueue::new(Arc::new(clock), seed, none),
                MemoryArtifacts::new(0, 0),
            ),
            Some(fate) => (
                MemoryStore::with_fate(fate.clone(), Faults::default()),
                MemoryQueue::with_fate(Arc::new(clock), fate.clone(), none),
                MemoryArtifacts::with_fate(fate.clone(), artifacts::Faults::default()),
            ),
        };
        let store = Arc::new(store);
        Self {
            shared: store.clone(),
            store,
            queue: Arc::new(queue),
            artifacts: Arc::new(artifacts),
            agents: agent::catalog(&done, fate).into(),
            fate: ours,
            workers: 0,
            mix: None,
            ignored: BTreeMap::new(),
            looked_at: None,
            done,
            model: Arc::default(),
            other_model: None,
            clock,
            ids: Arc::new(SeededIds::new(seed)),
            dice: fastrand::Rng::with_seed(seed),
            crash_in_a_hundred: 0,
            still_in_a_hundred: 0,
            skew_max: Duration::ZERO,
            ignored_in_a_hundred: 0,
            story: Story::default(),
            was_asked_for_outcome: false,
            steady: None,
            killer: None,
            shares_processes: false,
            patched_in_a_hundred: 0,
            conversations: vec![owner().key("c")],
            chats_in_a_hundred: 0,
            chats_max: 0,
            said: Vec::new(),
            queues_lost_in_a_hundred: 0,
            settings: Settings::default(),
            telemetry: Telemetry::default(),
            notifier: None,
            money: Arc::default(),
            brakes: Arc::default(),
            extensions: Vec::new(),
        }
    }

    /// As [`Self::new`], with a model that follows another script.
    pub(super) fn with(seed: u64, script: Script) -> Self {
        let bench = Self::new(seed);
        *bench.model.script.lock().unwrap() = script;
        bench
    }

    /// Conversations created from now on run up to `most` calls in parallel.
    pub(super) fn run_calls_at_once(&mut self, most: u32) {
        self.settings.tool_execution = Some(ToolExecution::Parallel);
        self.settings.parallel_tools_max = Some(most);
    }

    /// Workers created from now on have an extension that continues each prompt once after its
    /// first text, and then ends it.
    pub(super) fn decide_turns(&mut self, is_decided: bool) {
        let decide: Decide = |turn| match (turn.tool_results.is_empty(), turn.rounds % 2) {
            (true, 1) => Some(FinishTurn::Continue),
            (true, _) => Some(FinishTurn::End),
            (false, _) => None,
        };
        self.extensions.clear();
        self.extensions.extend(is_decided.then(|| Decides::new(decide) as Arc<dyn Extension>));
    }

    /// Creates a worker process; a crash loses all its memory.
    pub(super) fn worker(&mut self, probe: Arc<dyn Probe>) -> World {
        self.workers += 1;
        let ahead = self.clock_ahead();
        let world = World {
            store: self.shared.clone(),
            queue: self.queue.clone(),
            artifacts: self.artifacts.clone(),
            live: Arc::new(MemoryLive::new(0, 0)),
            model: self.other_model.clone().unwrap_or_else(|| self.model.clone()),
            agents: self.agents.clone(),
            extensions: self.extensions.clone(),
            entries: Arc::new(EntryMemory::default()),
            stops: Stops::default(),
            writers: Arc::default(),
            herald: self.notifier.clone(),
            clock: Arc::new(RuntimeClock { ahead, ..self.clock }),
            worker: WorkerId::new(self.ids.fresh()),
            ids: self.ids.clone(),
            probe,
            limits: Limits::default(),
            money: Arc::clone(&self.money),
            brakes: Arc::clone(&self.brakes),
            isolation: Isolation::default(),
            telemetry: self.telemetry.clone(),
        };
        self.of_some_version(world)
    }

    pub(super) fn key() -> ConversationKey {
        owner().key("c")
    }

    pub(super) fn nudge() -> Nudge {
        Nudge::of(Self::key(), None)
    }

    pub(super) async fn head(&self) -> Option<Head> {
        self.head_of(&Self::key()).await
    }

    pub(super) async fn head_of(&self, key: &ConversationKey) -> Option<Head> {
        let partition = Partition::Conversation(key.clone());
        let stored = if self.is_watched_from_outside() {
            self.store.newest(&partition, HEAD_ID)?
        } else {
            self.shared.read(&partition, HEAD_ID, Freshness::Latest).await.ok()??
        };
        Some(record::read_head(&stored).unwrap())
    }

    pub(super) async fn entries(&self) -> Vec<Entry> {
        self.entries_of(&Self::key()).await
    }

    pub(super) async fn entries_of(&self, key: &ConversationKey) -> Vec<Entry> {
        let partition = Partition::Conversation(key.clone());
        let all = Selection::all(Kind::Entry);
        let stored = self.shared.select(&partition, &all, Freshness::Latest).await.unwrap();
        stored.iter().map(|stored| record::read(&stored.document).unwrap()).collect()
    }

    pub(super) async fn events(&self) -> Vec<Event> {
        self.events_of(&Self::key()).await
    }

    pub(super) async fn events_of(&self, key: &ConversationKey) -> Vec<Event> {
        let partition = Partition::Conversation(key.clone());
        let all = Selection::all(Kind::Events);
        let stored = self.shared.select(&partition, &all, Freshness::Latest).await.unwrap();
        stored
            .iter()
            .flat_map(|stored| record::read::<EventsBody>(&stored.document).unwrap().events)
            .collect()
    }

    pub(super) async fn has_come_to_rest(&self) -> bool {
        for key in &self.conversations {
            let Some(head) = self.head_of(key).await else { return false };
            let partition = Partition::Conversation(key.clone());
            let inbox = if self.is_watched_from_outside() {
                Ok(self.store.newest_of(&partition, Kind::Inbox))
            } else {
                let all = Selection::all(Kind::Inbox);
                self.shared.select(&partition, &all, Freshness::Latest).await
            };
            let is_held = |stored: &Stored| {
                let item: InboxItem = record::read(&stored.document).unwrap();
                !item.starts_when_idle()
            };
            let is_empty = inbox.is_ok_and(|inbox| inbox.iter().all(is_held));
            let is_owed = head.waiting > 0 || head.phase != Phase::Idle;
            if head.prompt.is_some() || head.prompts.is_empty() || !is_empty || is_owed {
                return false;
            }
        }
        true
    }

    /// Runs until all prompts have ended. If nothing is to be done, virtual time passes; the
    /// recovery sweep runs each minute.
    pub(super) async fn run(&mut self) {
        assert!(self.comes_to_rest().await, "the prompts never ended: {:#?}", self.story);
    }

    /// True if reads of the test bypass the injected faults.
    fn is_watched_from_outside(&self) -> bool {
        self.fate.is_some() && self.steady.is_none()
    }

    /// Runs until all prompts have ended; false if they never do.
    pub(super) async fn comes_to_rest(&mut self) -> bool {
        const SWEPT: Duration = Duration::from_mins(1);
        const STUCK: Duration = Duration::from_hours(12);
        let mut swept = self.clock.monotonic();
        let (mut moved, mut commits) = (swept, 0);
        for _ in 0..6_000 {
            let is_busy = self.deliver().await;
            self.patch().await;
            self.lose_queues();
            // Without a new commit there is no new request to decide.
            let now = self.store.commits();
            if now != commits {
                (moved, commits) = (self.clock.monotonic(), now);
            } else if self.is_watched_from_outside() && self.clock.monotonic() > moved + STUCK {
                return false;
            }
            if !self.is_watched_from_outside() || self.looked_at != Some(commits) {
                let are_all_decided = self.decide().await;
                self.looked_at = are_all_decided.then_some(commits);
                if self.has_come_to_rest().await {
                    return true;
                }
            }
            if self.clock.monotonic() > swept + SWEPT {
                swept = self.clock.monotonic();
                self.sweep().await;
            }
            if !is_busy {
                // Sleep until the next message or sweep.
                let until_swept = (swept + SWEPT).saturating_sub(self.clock.monotonic());
                let bell = self.queue.next_visible_in().unwrap_or(until_swept);
                let wait = bell.min(until_swept) + Duration::from_millis(1);
                tokio::time::sleep(wait).await;
            }
        }
        false
    }

    pub(super) async fn sweep(&mut self) {
        let world = self.worker(Arc::new(NoProbe));
        let swept = sweep::sweep(&world, sweep::GRACE).await;
        self.story.push(format!("swept: {swept:?}"));
    }

    /// The entries without the members that differ from run to run.
    pub(super) async fn normal(&self) -> Vec<Value> {
        invariants::normal(&self.entries().await)
    }
}

pub(super) fn owner() -> Owner {
    Owner { tenant: TenantId::new("t"), user: UserId::new("u") }
}

pub(super) fn idempotency(key: &str) -> Idempotency {
    Idempotency {
        key: key.to_owned(),
        is_repeatable: true,
        route: "POST /prompts",
        body_hash: "h".to_owned(),
    }
}
