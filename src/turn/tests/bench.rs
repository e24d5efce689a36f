//! A test bench: several workers, one store, one queue, tools that count what they did, and a client that never gives up.

mod agent;
mod chat;
mod counting;
mod probes;
mod steady;
mod trouble;
mod windowed;

use std::sync::{Arc, Mutex};
use std::time::Duration;

use serde_json::{Value, json};
use tokio::sync::watch;
use tokio::time::Instant;

pub(super) use self::agent::{
    Done, GATE_EXPIRES, PATIENCE, Script, ScriptedAnswers, call, text, three_rounds,
};
use self::chat::Said as Chat;
pub(super) use self::counting::Counting;
use self::probes::CrashProbe;
pub(super) use self::probes::{HookProbe, PauseProbe, RuntimeClock};
pub(super) use self::steady::Steady;
pub(super) use self::trouble::{bad_queue, bad_store, die};
pub(super) use self::windowed::Windowed;
use crate::agent::content::Content;
use crate::agent::entry::{Entry, Source};
use crate::agent::event::Event;
use crate::agent::head::Head;
use crate::agent::inbox::InboxItem;
use crate::agent::phase::Phase;
use crate::agent::request::RequestKind;
use crate::agent::settings::{Settings, ToolExecution};
use crate::agents::Agents;
use crate::artifacts::MemoryArtifacts;
use crate::clock::Clock as _;
use crate::ids::{ConversationKey, Ids, SeededIds, TenantId, UserId, WorkerId};
use crate::live::MemoryLive;
use crate::model::Model;
use crate::queue::{self, Faults as QueueFaults, MemoryQueue, Queue as _};
use crate::settings::brakes::Brakes;
use crate::store::memory::{Faults, MemoryStore};
use crate::store::{ConversationStore, Freshness, HEAD_ID, Kind, Partition, Selection, Stored};
use crate::telemetry::Telemetry;
use crate::turn::admission::decide::{Decider, Said, decide};
use crate::turn::admission::idempotency::Idempotency;
use crate::turn::admission::patch::patch_conversation;
use crate::turn::admission::prompt::{
    FirstPromptRequest, Mode, PromptRequest, Sender, WhenBusy, accept_prompt, begin_conversation,
};
use crate::turn::admission::{Answer, Owner, Refusal};
use crate::turn::money::Money;
use crate::turn::record::{self, EventsBody};
use crate::turn::{
    EntryMemory, Limits, NoProbe, Nudge, Probe, Stops, World, delivery, invariants, recount, sweep,
};

pub(super) struct Bench {
    /// What workers write to; the memory store unless a test brings another.
    pub(super) shared: Arc<dyn ConversationStore>,
    pub(super) store: Arc<MemoryStore>,
    pub(super) queue: Arc<MemoryQueue>,
    pub(super) done: Done,
    pub(super) model: Arc<ScriptedAnswers>,
    /// Answers in the place of the scripted one.
    pub(super) other_model: Option<Arc<dyn Model>>,
    pub(super) clock: RuntimeClock,
    ids: Arc<dyn Ids>,
    agents: Agents,
    pub(super) dice: fastrand::Rng,
    /// Chance of a crash at each boundary.
    pub(super) crash_in_a_hundred: u8,
    /// Wall clocks of workers differ by up to so much.
    pub(super) skew_max: Duration,
    /// Chance that nobody ever decides a request.
    pub(super) ignored_in_a_hundred: u8,
    pub(super) story: Vec<String>,
    pub(super) was_asked_for_outcome: bool,
    /// Set when the workers are one process with an embedded store.
    steady: Option<Arc<Steady>>,
    /// Chance that a client changes a conversation between two deliveries.
    pub(super) patched_in_a_hundred: u8,
    pub(super) conversations: Vec<ConversationKey>,
    /// Chance that somebody says, edits or takes back something during a delivery.
    pub(super) chats_in_a_hundred: u8,
    /// How often something is said at most.
    pub(super) chats_max: usize,
    said: Vec<Chat>,
    /// Chance that both queues are deleted between two deliveries.
    pub(super) queues_lost_in_a_hundred: u8,
    /// With which conversations begin.
    pub(super) settings: Settings,
    /// What workers tell.
    pub(super) telemetry: Telemetry,
    /// Of budgets and rates.
    pub(super) money: Arc<Money>,
    /// Of workers that start from now on.
    pub(super) brakes: Arc<Brakes>,
}

impl Bench {
    pub(super) fn new(seed: u64) -> Self {
        let done = Done::default();
        let clock = RuntimeClock { began: Instant::now(), ahead: Duration::ZERO };
        let store = Arc::new(MemoryStore::with_faults(seed, Faults::default()));
        Self {
            shared: store.clone(),
            store,
            queue: Arc::new(MemoryQueue::new(Arc::new(clock), seed, QueueFaults::default())),
            agents: agent::catalog(&done).into(),
            done,
            model: Arc::default(),
            other_model: None,
            clock,
            ids: Arc::new(SeededIds::new(seed)),
            dice: fastrand::Rng::with_seed(seed),
            crash_in_a_hundred: 0,
            skew_max: Duration::ZERO,
            ignored_in_a_hundred: 0,
            story: Vec::new(),
            was_asked_for_outcome: false,
            steady: None,
            patched_in_a_hundred: 0,
            conversations: vec![owner().key("c")],
            chats_in_a_hundred: 0,
            chats_max: 0,
            said: Vec::new(),
            queues_lost_in_a_hundred: 0,
            settings: Settings::default(),
            telemetry: Telemetry::default(),
            money: Arc::default(),
            brakes: Arc::default(),
        }
    }

    /// The same, with a model that follows another script.
    pub(super) fn with(seed: u64, script: Script) -> Self {
        let bench = Self::new(seed);
        *bench.model.script.lock().unwrap() = script;
        bench
    }

    /// From now on conversations begin with calls that run at once.
    pub(super) fn run_calls_at_once(&mut self, most: u32) {
        self.settings.tool_execution = Some(ToolExecution::Parallel);
        self.settings.parallel_tools_max = Some(most);
    }

    /// A worker process: it forgets everything when it crashes.
    pub(super) fn worker(&mut self, probe: Arc<dyn Probe>) -> World {
        let ahead = self.dice.u64(0..=u64::try_from(self.skew_max.as_millis()).unwrap());
        World {
            store: self.shared.clone(),
            queue: self.queue.clone(),
            artifacts: Arc::new(MemoryArtifacts::new(0, 0)),
            live: Arc::new(MemoryLive::new(0, 0)),
            model: self.other_model.clone().unwrap_or_else(|| self.model.clone()),
            agents: self.agents.clone(),
            extensions: Vec::new(),
            entries: Arc::new(EntryMemory::default()),
            stops: Stops::default(),
            herald: None,
            clock: Arc::new(RuntimeClock { ahead: Duration::from_millis(ahead), ..self.clock }),
            worker: WorkerId::new(self.ids.fresh()),
            ids: self.ids.clone(),
            probe,
            limits: Limits::default(),
            money: Arc::clone(&self.money),
            brakes: Arc::clone(&self.brakes),
            telemetry: self.telemetry.clone(),
        }
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
        let stored = self.shared.read(&partition, HEAD_ID, Freshness::Latest).await.ok()??;
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

    /// The client: sends the prompt until it is accepted.
    pub(super) async fn ask(&mut self, world: &World) {
        self.ask_in(world, "c", "go").await;
    }

    pub(super) async fn ask_in(&mut self, world: &World, id: &str, said: &str) {
        for _ in 0..100 {
            let request = FirstPromptRequest {
                conversation_id: Some(id.to_owned()),
                settings: Some(self.settings.clone()),
                input: Some(Content::Text(said.to_owned())),
                ..FirstPromptRequest::default()
            };
            let key = idempotency(&format!("{id} {said}"));
            match begin_conversation(world, &owner(), request, &key, &sender()).await {
                Ok(_) => return,
                Err(error) => self.story.push(format!("the prompt was not accepted: {error}")),
            }
            tokio::time::sleep(Duration::from_secs(1)).await;
        }
        panic!("the prompt was never accepted: {:#?}", self.story);
    }

    /// As from a queue: a prompt that finds the conversation busy waits its turn.
    pub(super) async fn queue_up(
        &self,
        world: &World,
        key: &ConversationKey,
        said: &str,
    ) -> Result<Answer, Refusal> {
        let request = PromptRequest {
            input: Some(Content::Text(said.to_owned())),
            ..PromptRequest::default()
        };
        accept_prompt(world, key, request, &idempotency(said), &sender()).await
    }

    /// Joins the prompt that runs.
    pub(super) async fn steer(&self, world: &World, said: &str) -> Result<Answer, Refusal> {
        let request = PromptRequest {
            input: Some(Content::Text(said.to_owned())),
            mode: Some(Mode::Steer),
            ..PromptRequest::default()
        };
        accept_prompt(world, &Self::key(), request, &idempotency(said), &sender()).await
    }

    /// Takes what is on the queue, one delivery each; a crash leaves its message to come back.
    pub(super) async fn deliver(&mut self) -> bool {
        let received =
            self.queue.receive(queue::TURNS, 3, Duration::from_secs(90)).await.unwrap_or_default();
        let is_any = !received.is_empty();
        let mut running = Vec::new();
        let (one_process, _) = watch::channel(None);
        let one_process = Arc::new(one_process);
        for message in received {
            let crashed = match &self.steady {
                Some(_) => Arc::clone(&one_process),
                None => Arc::new(watch::channel(None).0),
            };
            let mut crash = crashed.subscribe();
            let probe = CrashProbe {
                dice: Mutex::new(fastrand::Rng::with_seed(self.dice.u64(..))),
                in_a_hundred: self.crash_in_a_hundred,
                crashed,
            };
            let world = self.worker(Arc::new(probe));
            let nudge: Nudge = serde_json::from_str(&message.text).unwrap();
            let queue = self.queue.clone();
            running.push(async move {
                tokio::select! {
                    outcome = delivery::handle(&world, &nudge) => {
                        if outcome.is_ok() {
                            let _ = queue.delete(queue::TURNS, &message.id, &message.pop_receipt).await;
                        }
                        (false, format!("{}: {outcome:?}", world.worker))
                    }
                    at = crash.wait_for(Option::is_some) => (true, format!("{} crashed at {:?}", world.worker, at.unwrap().unwrap())),
                }
            });
        }
        let chat = self.next_chat();
        let (ended, done) = tokio::join!(futures_util::future::join_all(running), chat);
        self.note_act(done);
        let mut has_crashed = false;
        for (is_crash, told) in ended {
            has_crashed |= is_crash;
            self.story.push(told);
        }
        if has_crashed && self.steady.is_some() {
            self.start_again().await;
        }
        is_any
    }

    /// The embedded store's process died: its claims and its doorbells with it.
    pub(super) async fn start_again(&mut self) {
        self.queue.drop_queue(queue::TURNS);
        self.shared = self.store.clone();
        if let Some(steady) = self.steady.take() {
            self.use_steady(Steady::reopen(steady).await);
        }
        let world = self.worker(Arc::new(NoProbe));
        let rung = recount::start_up(&world).await;
        self.story.push(format!("started again: {rung:?}"));
    }

    /// From now on workers write to the embedded store; a crash is one of the whole process.
    pub(super) fn use_steady(&mut self, steady: Arc<Steady>) {
        self.shared = steady.clone();
        self.steady = Some(steady);
    }

    /// Decides what is asked, as somebody who looks at what really happened.
    pub(super) async fn decide(&mut self) {
        for key in self.conversations.clone() {
            self.decide_in(&key).await;
        }
    }

    /// Says the same to everything that is asked.
    pub(super) async fn decide_all(&mut self, decision: &str) {
        let world = self.worker(Arc::new(NoProbe));
        for key in self.conversations.clone() {
            for request in self.head_of(&key).await.unwrap().requests {
                let said = Said { decision: decision.to_owned(), reason: None, value: None };
                decide(&world, &key, request.id.as_str(), said, &person()).await.unwrap();
            }
        }
    }

    /// Decides what is asked in one conversation.
    pub(super) async fn decide_one(&mut self, id: &str) {
        self.decide_in(&owner().key(id)).await;
    }

    async fn decide_in(&mut self, key: &ConversationKey) {
        let Some(head) = self.head_of(key).await else { return };
        let world = self.worker(Arc::new(NoProbe));
        for request in &head.requests {
            let decision = if request.kind == RequestKind::Outcome {
                self.was_asked_for_outcome = true;
                let call = request.call.unwrap();
                let effect = crate::ids::EffectId::of_call(
                    &head.conversation_id,
                    &head.incarnation,
                    call.answer,
                    call.index,
                );
                let happened = self.done.lock().unwrap().contains_key(effect.as_str());
                if happened { "happened" } else { "did_not_happen" }
            } else if is_ignored(request.id.as_str(), self.ignored_in_a_hundred) {
                continue;
            } else {
                "approve"
            };
            let said = Said { decision: decision.to_owned(), reason: None, value: None };
            let outcome = decide(&world, key, request.id.as_str(), said, &person()).await;
            self.story.push(format!(
                "decided {}: {decision}: {:?}",
                request.id,
                outcome.map(|answer| answer.status)
            ));
        }
    }

    async fn patch(&mut self) {
        if self.dice.u8(0..100) >= self.patched_in_a_hundred {
            return;
        }
        let world = self.worker(Arc::new(NoProbe));
        let key = self.conversations[self.dice.usize(0..self.conversations.len())].clone();
        let number = self.dice.u32(..);
        let patch = json!({"name": format!("name {number}")});
        let idempotency = idempotency(&format!("patch {number}"));
        let patched =
            patch_conversation(&world, &key, patch.as_object().unwrap(), &idempotency, |_| true);
        let status = patched.await.map(|answer| answer.status);
        self.story.push(format!("patched {key}: {status:?}"));
    }

    fn lose_queues(&mut self) {
        // Where no queue is ever lost, chance is left alone.
        let chance = self.queues_lost_in_a_hundred;
        if chance > 0 && self.dice.u8(0..100) < chance {
            self.story.push("the queues were deleted".to_owned());
            self.queue.drop_queue(queue::TURNS);
            self.queue.drop_queue(queue::NOTIFY);
        }
    }

    pub(super) async fn has_come_to_rest(&self) -> bool {
        for key in &self.conversations {
            let Some(head) = self.head_of(key).await else { return false };
            let partition = Partition::Conversation(key.clone());
            let all = Selection::all(Kind::Inbox);
            let inbox = self.shared.select(&partition, &all, Freshness::Latest).await;
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

    /// Until all prompts have ended. Time passes when nothing is to be done, and the sweep runs each minute.
    pub(super) async fn run(&mut self) {
        assert!(self.comes_to_rest().await, "the prompts never ended: {:#?}", self.story);
    }

    /// Whether all prompts have ended, in the end.
    pub(super) async fn comes_to_rest(&mut self) -> bool {
        let mut swept = self.clock.monotonic();
        for _ in 0..6_000 {
            let is_busy = self.deliver().await;
            self.decide().await;
            self.patch().await;
            self.lose_queues();
            if self.has_come_to_rest().await {
                return true;
            }
            if self.clock.monotonic() > swept + Duration::from_mins(1) {
                swept = self.clock.monotonic();
                self.sweep().await;
            }
            if !is_busy {
                tokio::time::sleep(Duration::from_secs(5)).await;
            }
        }
        false
    }

    pub(super) async fn sweep(&mut self) {
        let world = self.worker(Arc::new(NoProbe));
        let swept = sweep::sweep(&world, sweep::GRACE).await;
        self.story.push(format!("swept: {swept:?}"));
    }

    /// The record without what differs from run to run.
    pub(super) async fn normal(&self) -> Vec<Value> {
        invariants::normal(&self.entries().await)
    }
}

/// Whether nobody will ever decide that request.
fn is_ignored(id: &str, in_a_hundred: u8) -> bool {
    id.bytes().map(u32::from).sum::<u32>() * 37 % 100 < u32::from(in_a_hundred)
}

fn person() -> Decider {
    Decider::Person { tenant: TenantId::new("t"), user: UserId::new("u"), roles: Vec::new() }
}

pub(super) fn owner() -> Owner {
    Owner { tenant: TenantId::new("t"), user: UserId::new("u") }
}

fn sender() -> Sender {
    let traceparent = crate::telemetry::trace::traceparent();
    Sender { source: Source::User, traceparent, when_busy: WhenBusy::WaitItsTurn }
}

pub(super) fn idempotency(key: &str) -> Idempotency {
    Idempotency {
        key: key.to_owned(),
        is_repeatable: true,
        route: "POST /prompts",
        body_hash: "h".to_owned(),
    }
}
