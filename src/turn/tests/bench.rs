//! A test bench: several workers, one store, one queue, tools that count what they did, and a client that never gives up.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use async_trait::async_trait;
use serde_json::{Value, json};
use tokio::sync::watch;
use tokio::time::Instant;

use crate::agent::content::Content;
use crate::agent::entry::{Entry, EntryBody, Source};
use crate::agent::event::Event;
use crate::agent::head::Head;
use crate::agent::message::{AssistantMessage, Message};
use crate::agent::phase::OnUnknown;
use crate::agent::request::{Effect, RequestKind};
use crate::agents::{Agent, Catalog};
use crate::artifacts::MemoryArtifacts;
use crate::clock::{Clock, Timestamp, millis};
use crate::ids::{ConversationKey, Ids, SeededIds, TenantId, UserId, WorkerId};
use crate::live::MemoryLive;
use crate::model::{Answer, Listener, Model, ModelRecord, ModelRequest, Prices};
use crate::queue::{self, Faults as QueueFaults, MemoryQueue, Queue as _};
use crate::store::memory::MemoryStore;
use crate::store::{ConversationStore, Freshness, HEAD_ID, Kind, Partition, Selection};
use crate::tools::{Arguments, Ask, RunTool, ToolContext, ToolDefinition, ToolOutcome, ToolResult};
use crate::turn::admission::Owner;
use crate::turn::admission::decide::{Decider, Said, decide};
use crate::turn::admission::idempotency::Idempotency;
use crate::turn::admission::prompt::{FirstPromptRequest, Sender, WhenBusy, begin_conversation};
use crate::turn::record::{self, EventsBody};
use crate::turn::{EntryMemory, Limits, NoProbe, Nudge, Probe, World, delivery, sweep};

/// Wall and monotonic time of the paused runtime: sleeping moves it.
#[derive(Debug)]
pub(super) struct RuntimeClock(Instant);

impl Clock for RuntimeClock {
    fn now(&self) -> Timestamp {
        Timestamp(1_800_000_000_000 + millis(self.0.elapsed()))
    }

    fn monotonic(&self) -> Duration {
        self.0.elapsed()
    }
}

/// What tools did, by effect id.
pub(super) type Done = Arc<Mutex<BTreeMap<String, u32>>>;

#[derive(Debug)]
struct CountingTool {
    definition: ToolDefinition,
    ask: Option<Ask>,
    done: Done,
}

impl CountingTool {
    fn boxed(name: &str, effect: Effect, is_gated: bool, done: &Done) -> Arc<dyn RunTool> {
        let definition = ToolDefinition {
            name: name.to_owned(),
            label: name.to_owned(),
            description: String::new(),
            parameters: json!({"type": "object"}),
            effect,
            on_unknown: OnUnknown::Ask,
            timeout: Duration::from_secs(30),
            revision: "1".to_owned(),
        };
        let ask = is_gated.then(|| Ask {
            reason: "Gated".to_owned(),
            approvers: vec!["owner".to_owned()],
            not_requester: false,
            expires_after: Duration::from_hours(24),
        });
        Arc::new(Self { definition, ask, done: Arc::clone(done) })
    }
}

#[async_trait]
impl RunTool for CountingTool {
    fn definition(&self) -> &ToolDefinition {
        &self.definition
    }

    fn ask(&self, _arguments: &Arguments) -> Option<Ask> {
        self.ask.clone()
    }

    async fn call(&self, _arguments: Arguments, context: ToolContext) -> ToolOutcome {
        // At once: a call that is polled at all is a call that was sent.
        *self.done.lock().unwrap().entry(context.effect_id.to_string()).or_default() += 1;
        tokio::time::sleep(Duration::from_millis(50)).await;
        ToolOutcome::Returned(ToolResult::text(format!("{} done", self.definition.name)))
    }
}

/// Answers by how many results it reads: three rounds of tools, then a text.
#[derive(Debug, Default)]
pub(super) struct CountingModel {
    pub(super) answers: Mutex<u32>,
}

#[async_trait]
impl Model for CountingModel {
    async fn answer(&self, request: ModelRequest<'_>, _listener: &dyn Listener) -> Answer {
        tokio::time::sleep(Duration::from_millis(100)).await;
        *self.answers.lock().unwrap() += 1;
        let results = request
            .messages
            .iter()
            .filter(|message| matches!(message, Message::ToolResult(_)))
            .count();
        let call = |id: &str, name: &str| json!({"type": "toolCall", "id": id, "name": name, "arguments": {"n": results}});
        let content = match results {
            0 => vec![
                json!({"type": "text", "text": "first"}),
                call("c1", "look"),
                call("c2", "pay"),
            ],
            1 | 2 => vec![call("c1", "nope"), call("c2", "gated"), call("c3", "put")],
            _ => vec![json!({"type": "text", "text": "done"})],
        };
        let stop = if content.len() > 1 { "toolUse" } else { "stop" };
        let message: AssistantMessage = serde_json::from_str(
            &json!({"content": content, "api": "a", "provider": "p", "model": "m", "stopReason": stop, "timestamp": 0}).to_string(),
        )
        .unwrap();
        Answer { message, failure: None }
    }

    fn record(&self, model: &str) -> Result<ModelRecord, String> {
        Ok(ModelRecord {
            id: model.to_owned(),
            name: model.to_owned(),
            api: "a".to_owned(),
            provider: "p".to_owned(),
            reasoning: false,
            images: false,
            cost: Prices::default(),
            context_window: 1_000,
            max_tokens: 100,
            deployment_name: model.to_owned(),
        })
    }
}

/// Stops its worker at a boundary, some of the time.
#[derive(Debug)]
struct CrashProbe {
    dice: Mutex<fastrand::Rng>,
    in_a_hundred: u8,
    crashed: watch::Sender<Option<&'static str>>,
}

#[async_trait]
impl Probe for CrashProbe {
    async fn reached(&self, boundary: &'static str) {
        let is_crash = self.dice.lock().unwrap().u8(0..100) < self.in_a_hundred;
        if is_crash && self.crashed.send_if_modified(|at| at.replace(boundary).is_none()) {
            std::future::pending::<()>().await;
        }
    }
}

pub(super) struct Bench {
    pub(super) store: Arc<MemoryStore>,
    pub(super) queue: Arc<MemoryQueue>,
    pub(super) done: Done,
    pub(super) model: Arc<CountingModel>,
    clock: Arc<RuntimeClock>,
    ids: Arc<dyn Ids>,
    agents: Arc<Catalog>,
    dice: fastrand::Rng,
    /// Chance of a crash at each boundary.
    pub(super) crash_in_a_hundred: u8,
    pub(super) story: Vec<String>,
    pub(super) was_asked_for_outcome: bool,
}

impl Bench {
    pub(super) fn new(seed: u64) -> Self {
        let done = Done::default();
        let agent = Agent {
            name: "clerk".to_owned(),
            description: String::new(),
            settings: crate::agent::settings::Settings::default(),
            instructions: "Be good.".to_owned(),
            tools: vec![
                CountingTool::boxed("look", Effect::Read, false, &done),
                CountingTool::boxed("pay", Effect::Write, false, &done),
                CountingTool::boxed("gated", Effect::Write, true, &done),
                CountingTool::boxed("put", Effect::Idempotent, false, &done),
            ],
            response_schema: None,
            revision: "r".to_owned(),
        };
        let agents = Catalog {
            agents: BTreeMap::from([("clerk".to_owned(), Arc::new(agent))]),
            ..Catalog::default()
        };
        let clock = Arc::new(RuntimeClock(Instant::now()));
        Self {
            store: Arc::new(MemoryStore::with_faults(
                seed,
                crate::store::memory::Faults::default(),
            )),
            queue: Arc::new(MemoryQueue::new(clock.clone(), seed, QueueFaults::default())),
            done,
            model: Arc::default(),
            clock,
            ids: Arc::new(SeededIds::new(seed)),
            agents: Arc::new(agents),
            dice: fastrand::Rng::with_seed(seed),
            crash_in_a_hundred: 0,
            story: Vec::new(),
            was_asked_for_outcome: false,
        }
    }

    /// A worker process: it forgets everything when it crashes.
    pub(super) fn worker(&mut self, probe: Arc<dyn Probe>) -> World {
        World {
            store: self.store.clone(),
            queue: self.queue.clone(),
            artifacts: Arc::new(MemoryArtifacts::new(0, 0)),
            live: Arc::new(MemoryLive::new(0, 0)),
            model: self.model.clone(),
            agents: self.agents.clone(),
            extensions: Vec::new(),
            entries: Arc::new(EntryMemory::default()),
            herald: None,
            clock: self.clock.clone(),
            worker: WorkerId::new(self.ids.fresh()),
            ids: self.ids.clone(),
            probe,
            limits: Limits::default(),
        }
    }

    pub(super) fn key() -> ConversationKey {
        owner().key("c")
    }

    pub(super) async fn head(&self) -> Option<Head> {
        let partition = Partition::Conversation(Self::key());
        let stored = self.store.read(&partition, HEAD_ID, Freshness::Latest).await.ok()??;
        Some(record::read_head(&stored).unwrap())
    }

    pub(super) async fn entries(&self) -> Vec<Entry> {
        let partition = Partition::Conversation(Self::key());
        let stored = self
            .store
            .select(&partition, &Selection::all(Kind::Entry), Freshness::Latest)
            .await
            .unwrap();
        stored.iter().map(|stored| record::read(&stored.document).unwrap()).collect()
    }

    pub(super) async fn events(&self) -> Vec<Event> {
        let partition = Partition::Conversation(Self::key());
        let stored = self
            .store
            .select(&partition, &Selection::all(Kind::Events), Freshness::Latest)
            .await
            .unwrap();
        stored
            .iter()
            .flat_map(|stored| record::read::<EventsBody>(&stored.document).unwrap().events)
            .collect()
    }

    /// The client: sends the prompt until it is accepted.
    pub(super) async fn ask(&mut self, world: &World) {
        let sender =
            Sender { source: Source::User, traceparent: None, when_busy: WhenBusy::Refuse };
        for _ in 0..50 {
            let request = FirstPromptRequest {
                conversation_id: Some("c".to_owned()),
                input: Some(Content::Text("go".to_owned())),
                ..FirstPromptRequest::default()
            };
            let accepted =
                begin_conversation(world, &owner(), request, &idempotency("ask"), &sender).await;
            match accepted {
                Ok(_) => return,
                Err(error) => self.story.push(format!("the prompt was not accepted: {error}")),
            }
            tokio::time::sleep(Duration::from_secs(1)).await;
        }
        panic!("the prompt was never accepted: {:#?}", self.story);
    }

    /// Takes what is on the queue, one delivery each; a crash leaves its message to come back.
    pub(super) async fn deliver(&mut self) -> bool {
        let received =
            self.queue.receive(queue::TURNS, 2, Duration::from_secs(90)).await.unwrap_or_default();
        let is_any = !received.is_empty();
        let mut running = Vec::new();
        for message in received {
            let (crashed, mut crash) = watch::channel(None);
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
                        format!("{}: {outcome:?}", world.worker)
                    }
                    at = crash.wait_for(Option::is_some) => format!("{} crashed at {:?}", world.worker, at.unwrap().unwrap()),
                }
            });
        }
        let told = futures_util::future::join_all(running).await;
        self.story.extend(told);
        is_any
    }

    /// Decides what is asked, as somebody who looks at what really happened.
    pub(super) async fn decide(&mut self) {
        let Some(head) = self.head().await else { return };
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
            } else {
                "approve"
            };
            let said = Said { decision: decision.to_owned(), reason: None, value: None };
            let who = Decider::Person {
                tenant: TenantId::new("t"),
                user: UserId::new("u"),
                roles: Vec::new(),
            };
            let outcome = decide(&world, &Self::key(), request.id.as_str(), said, &who).await;
            self.story.push(format!(
                "decided {}: {decision}: {:?}",
                request.id,
                outcome.map(|answer| answer.status)
            ));
        }
    }

    /// Until the prompt has ended. Time passes when nothing is to be done, and the sweep runs each minute.
    pub(super) async fn run(&mut self) {
        let mut swept = self.clock.monotonic();
        for _ in 0..3_000 {
            let is_busy = self.deliver().await;
            self.decide().await;
            let has_ended = self.head().await.is_some_and(|head| {
                head.prompt.is_none() && !head.prompts.is_empty() && head.waiting == 0
            });
            if has_ended {
                return;
            }
            if self.clock.monotonic() > swept + Duration::from_mins(1) {
                swept = self.clock.monotonic();
                let world = self.worker(Arc::new(NoProbe));
                let swept = sweep::sweep(&world, sweep::GRACE).await;
                self.story.push(format!("swept: {swept:?}"));
            }
            if !is_busy {
                tokio::time::sleep(Duration::from_secs(5)).await;
            }
        }
        panic!("the prompt never ended: {:#?}", self.story);
    }

    /// The record without what differs from run to run; tries after the first are marks of a fault.
    pub(super) async fn normal(&self) -> Vec<Value> {
        let mut normal = Vec::new();
        for entry in self.entries().await {
            let mut value = serde_json::to_value(&entry.body).unwrap();
            match &entry.body {
                EntryBody::ToolStarted(started) if started.attempt > 1 => continue,
                EntryBody::Message(_) => {
                    value["message"]["timestamp"] = Value::Null;
                    value["startedAt"] = Value::Null;
                    value["call"]["answer"] = Value::Null;
                }
                EntryBody::ToolStarted(_) => {
                    value["effectId"] = Value::Null;
                    value["call"] = Value::Null;
                }
                EntryBody::Request(_) => value = json!({"request": value["request"]["reason"]}),
                EntryBody::Decision(_) => {
                    value = json!({"decision": value["decision"]["decision"]});
                }
                _ => {}
            }
            normal.push(value);
        }
        normal
    }
}

fn owner() -> Owner {
    Owner { tenant: TenantId::new("t"), user: UserId::new("u") }
}

fn idempotency(key: &str) -> Idempotency {
    Idempotency {
        key: key.to_owned(),
        is_repeatable: true,
        route: "POST /prompts",
        body_hash: "h".to_owned(),
    }
}
