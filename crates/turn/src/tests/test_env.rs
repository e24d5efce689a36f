//! Test environment: several workers, one store, one queue, tools that count their calls, and
//! clients that retry until accepted.

mod clients;
mod deliveries;
mod deterministic_store;
mod fail_points;
mod faults;
mod input_clients;
mod isolated_process;
mod request_log;
mod run_log;
mod scripted_agent;
mod small_window_model;
mod store_decorator;
mod tree_clients;
mod version_mix;

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use serde_json::Value;
use tokio::time::Instant;

pub(super) use self::clients::{owner_decider, rejecting_sender};
pub(super) use self::deterministic_store::DeterministicStore;
pub(super) use self::fail_points::{HookFailPoint, PauseFailPoint, RuntimeClock, TURN_FAIL_POINTS};
pub(super) use self::faults::{
    kill_at, usual_artifact_faults, usual_queue_faults, usual_store_faults,
};
use self::input_clients::ClientInput as Chat;
pub(super) use self::request_log::{AbortChecks, LoggedRequests, RequestLogStore};
pub(super) use self::run_log::{RunLog, WorkerPosition};
pub(super) use self::scripted_agent::{
    APPROVAL_EXPIRES, ExecutionCounts, LONG_APPROVAL_EXPIRES, Script, ScriptedModel, call, text,
    three_rounds,
};
pub(super) use self::small_window_model::SmallWindowModel;
pub(super) use self::store_decorator::StoreDecorator;
use self::tree_clients::TreeRequest;
pub(super) use self::version_mix::{VersionMix, find_lost_updates};
use super::finish_turn::{DecideFn, DecidingExtension};
use crate::{invariants, sweep};
use turnwheel_agent_files::SharedCatalog;
use turnwheel_conversation::entry::Entry;
use turnwheel_conversation::event::Event;
use turnwheel_conversation::head::Head;
use turnwheel_conversation::inbox::InboxItem;
use turnwheel_conversation::phase::Phase;
use turnwheel_conversation::settings::{Settings, ToolExecution};
use turnwheel_extensions::{Extension, FinishTurn};
use turnwheel_json::raw::RawJson;
use turnwheel_model::Model;
use turnwheel_platform::clock::Clock as _;
use turnwheel_platform::fail_points::{FailPoints, NoFailPoints};
use turnwheel_platform::ids::fault_plan::FaultPlan;
use turnwheel_platform::ids::{ConversationKey, Ids, SeededIds, TenantId, UserId, WorkerId};
use turnwheel_platform::settings::pauses::Pauses;
use turnwheel_platform::telemetry::Telemetry;
use turnwheel_record::contract::Owner;
use turnwheel_record::documents::{self, EventsBody};
use turnwheel_record::entry_cache::EntryCache;
use turnwheel_record::idempotency::Idempotency;
use turnwheel_record::ledger::spending_limits::SpendingLimits;
use turnwheel_record::notifications::sender::NotificationSender;
use turnwheel_record::nudge::Nudge;
use turnwheel_record::services::{ServicePorts, Services};
use turnwheel_storage::artifacts::{self, MemoryArtifacts};
use turnwheel_storage::live::MemoryLive;
use turnwheel_storage::queue::{MemoryQueue, QueueFaults};
use turnwheel_storage::store::memory::{MemoryStore, StoreFaults};
use turnwheel_storage::store::{
    ConversationStore, Document, DocumentKind, Freshness, HEAD_ID, Partition, Selection,
    StoredDocument,
};

pub(super) struct TestEnv {
    /// Store that workers use: the memory store, unless a test sets another.
    pub(super) worker_store: Arc<dyn ConversationStore>,
    pub(super) store: Arc<MemoryStore>,
    pub(super) queue: Arc<MemoryQueue>,
    pub(super) artifacts: Arc<MemoryArtifacts>,
    pub(super) executions: ExecutionCounts,
    pub(super) model: Arc<ScriptedModel>,
    /// Replaces the scripted model.
    pub(super) model_override: Option<Arc<dyn Model>>,
    pub(super) clock: RuntimeClock,
    ids: Arc<dyn Ids>,
    pub(super) agents: SharedCatalog,
    /// Of instances, which cache the heads of their conversations. A delivery runs on one of them.
    entry_caches: [Arc<EntryCache>; 2],
    /// Decides which responses of tools are lost.
    response_loss: Option<(FaultPlan, f64)>,
    pub(super) rng: fastrand::Rng,
    /// Replaces `rng`, so that a run with the same injected faults can be repeated.
    pub(super) fault_plan: Option<FaultPlan>,
    /// Number of workers and clients created so far.
    worker_count: u32,
    /// Set while two versions work side by side.
    pub(super) version_mix: Option<VersionMix>,
    /// By request id: true if the request is never decided.
    undecided_requests: BTreeMap<String, bool>,
    /// Number of commits at the time when no undecided request was left.
    decided_at_commit: Option<u64>,
    /// Chance in percent of a crash at each fail point.
    pub(super) crash_percent: u8,
    /// Chance in percent that a worker stalls at a fail point, possibly beyond the end of its
    /// lease.
    pub(super) stall_percent: u8,
    /// Upper bound of the difference between the wall clocks of workers.
    pub(super) clock_offset_max: Duration,
    /// Chance in percent that a request is never decided.
    pub(super) undecided_percent: u8,
    pub(super) run_log: RunLog,
    pub(super) has_outcome_request: bool,
    /// Set if the workers are one process with an embedded store.
    embedded_store: Option<Arc<DeterministicStore>>,
    /// The conversation whose tool calls kill their process.
    pub(super) killer_id: Option<&'static str>,
    /// True if the deliveries of one round run in one process, which crashes as a whole.
    pub(super) has_shared_process: bool,
    /// Chance in percent that a client patches a conversation between two deliveries.
    pub(super) patch_percent: u8,
    pub(super) conversations: Vec<ConversationKey>,
    /// Chance in percent that a client sends, edits or clears an input during a delivery.
    pub(super) client_input_percent: u8,
    /// Upper bound of the number of inputs that such clients send.
    pub(super) client_inputs_max: usize,
    client_inputs: Vec<Chat>,
    /// Upper bound of the number of requests of clients that use the session tree.
    pub(super) tree_requests_max: usize,
    tree_requests: Vec<TreeRequest>,
    /// Chance in percent that both queues are deleted between two deliveries.
    pub(super) queue_loss_percent: u8,
    /// Initial settings of conversations.
    pub(super) settings: Settings,
    /// Telemetry of workers.
    pub(super) telemetry: Telemetry,
    /// Used by workers created from now on; without it no notification is written.
    pub(super) notifier: Option<Arc<dyn NotificationSender>>,
    /// Budgets and rates.
    pub(super) budget_limits: Arc<SpendingLimits>,
    /// Used by workers created from now on.
    pub(super) pauses: Arc<Pauses>,
    /// Used by workers created from now on.
    pub(super) extensions: Vec<Arc<dyn Extension>>,
}

impl TestEnv {
    pub(super) fn new(seed: u64) -> Self {
        Self::build(seed, None)
    }

    /// An environment whose faults are decided by `fault_plan`; a share of the tools' responses is
    /// lost.
    pub(super) fn with_fault_plan(
        seed: u64,
        fault_plan: &FaultPlan,
        script: Script,
        response_loss: f64,
    ) -> Self {
        let env = Self::build(seed, Some(&(fault_plan.clone(), response_loss)));
        *env.model.script.lock().unwrap() = script;
        let run_log = env.run_log.clone();
        fault_plan.set_observer(move |fault| run_log.push_fault(fault));
        env
    }

    fn build(seed: u64, plan: Option<&(FaultPlan, f64)>) -> Self {
        let executions = ExecutionCounts::default();
        let clock = RuntimeClock { started_at: Instant::now(), offset: Duration::ZERO };
        let (fault_plan, none) = (plan.map(|(plan, _)| plan.clone()), QueueFaults::default());
        let (store, queue, artifacts) = match &fault_plan {
            None => (
                MemoryStore::with_faults(seed, StoreFaults::default()),
                MemoryQueue::new(Arc::new(clock), seed, none),
                MemoryArtifacts::new(0, 0),
            ),
            Some(plan) => (
                MemoryStore::with_fault_plan(plan.clone(), StoreFaults::default()),
                MemoryQueue::with_fault_plan(Arc::new(clock), plan.clone(), none),
                MemoryArtifacts::with_fault_plan(
                    plan.clone(),
                    artifacts::ArtifactFaults::default(),
                ),
            ),
        };
        let store = Arc::new(store);
        Self {
            worker_store: store.clone(),
            store,
            queue: Arc::new(queue),
            artifacts: Arc::new(artifacts),
            agents: scripted_agent::catalog(&executions, plan).into(),
            response_loss: plan.cloned(),
            entry_caches: Default::default(),
            fault_plan,
            worker_count: 0,
            version_mix: None,
            undecided_requests: BTreeMap::new(),
            decided_at_commit: None,
            executions,
            model: Arc::default(),
            model_override: None,
            clock,
            ids: Arc::new(SeededIds::new(seed)),
            rng: fastrand::Rng::with_seed(seed),
            crash_percent: 0,
            stall_percent: 0,
            clock_offset_max: Duration::ZERO,
            undecided_percent: 0,
            run_log: RunLog::default(),
            has_outcome_request: false,
            embedded_store: None,
            killer_id: None,
            has_shared_process: false,
            patch_percent: 0,
            conversations: vec![owner().conversation_key("c")],
            client_input_percent: 0,
            client_inputs_max: 0,
            client_inputs: Vec::new(),
            tree_requests_max: 0,
            tree_requests: Vec::new(),
            queue_loss_percent: 0,
            settings: Settings::default(),
            telemetry: Telemetry::default(),
            notifier: None,
            budget_limits: Arc::default(),
            pauses: Arc::default(),
            extensions: Vec::new(),
        }
    }

    /// As [`Self::new`], with a model that follows another script.
    pub(super) fn with_script(seed: u64, script: Script) -> Self {
        let env = Self::new(seed);
        *env.model.script.lock().unwrap() = script;
        env
    }

    /// Conversations created from now on run up to `most` calls in parallel.
    pub(super) fn enable_parallel_calls(&mut self, most: u32) {
        self.settings.tool_execution = Some(ToolExecution::Parallel);
        self.settings.parallel_tools_max = Some(most);
    }

    /// Workers created from now on have an extension that continues each prompt once after its
    /// first text, and then ends it.
    pub(super) fn set_turn_decisions(&mut self, is_decided: bool) {
        let decide: DecideFn = |turn| match (turn.tool_results.is_empty(), turn.rounds % 2) {
            (true, 1) => Some(FinishTurn::Continue),
            (true, _) => Some(FinishTurn::End),
            (false, _) => None,
        };
        self.extensions.clear();
        self.extensions
            .extend(is_decided.then(|| DecidingExtension::new(decide) as Arc<dyn Extension>));
    }

    /// Creates a worker process; a crash loses all its memory.
    pub(super) fn new_worker(&mut self, probe: Arc<dyn FailPoints>) -> Services {
        self.worker_count += 1;
        let offset = self.next_clock_offset();
        let worker = WorkerId::new(self.ids.new_id());
        let ports = ServicePorts {
            store: self.worker_store.clone(),
            queue: self.queue.clone(),
            artifacts: self.artifacts.clone(),
            live: Arc::new(MemoryLive::new(0, 0)),
            model: self.model_override.clone().unwrap_or_else(|| self.model.clone()),
            clock: Arc::new(RuntimeClock { offset, ..self.clock }),
            ids: self.ids.clone(),
        };
        let services = Services {
            agents: self.agents.clone(),
            extensions: self.extensions.clone(),
            notification_sender: self.notifier.clone(),
            fail_points: probe,
            spending_limits: Arc::clone(&self.budget_limits),
            pauses: Arc::clone(&self.pauses),
            telemetry: self.telemetry.clone(),
            ..Services::new(worker, ports)
        };
        self.pick_version(services)
    }

    pub(super) fn key() -> ConversationKey {
        owner().conversation_key("c")
    }

    pub(super) fn nudge() -> Nudge {
        Nudge::for_conversation(Self::key(), None)
    }

    pub(super) async fn head(&self) -> Option<Head> {
        self.head_of(&Self::key()).await
    }

    pub(super) async fn head_of(&self, key: &ConversationKey) -> Option<Head> {
        let partition = Partition::Conversation(key.clone());
        let stored = if self.has_fault_free_reads() {
            self.store.read_newest(&partition, HEAD_ID)?
        } else {
            self.worker_store.read(&partition, HEAD_ID, Freshness::Latest).await.ok()??
        };
        Some(documents::read_head(&stored).unwrap())
    }

    pub(super) async fn entries(&self) -> Vec<Entry> {
        self.entries_of(&Self::key()).await
    }

    pub(super) async fn entries_of(&self, key: &ConversationKey) -> Vec<Entry> {
        let partition = Partition::Conversation(key.clone());
        let all = Selection::all(DocumentKind::Entry);
        let stored = self.worker_store.select(&partition, &all, Freshness::Latest).await.unwrap();
        // Entries keep the member that the newer version adds, and runs are compared without it.
        let without_next = |stored: StoredDocument| {
            let mut body = stored.document.body.members().unwrap();
            body.retain(|(name, _)| name != "next");
            let body = RawJson::from_members(body);
            StoredDocument { document: Document { body, ..stored.document }, ..stored }
        };
        let stored: Vec<_> = stored.into_iter().map(without_next).collect();
        let entries = documents::read_entries(&stored).unwrap();
        entries.into_iter().map(Arc::unwrap_or_clone).collect()
    }

    pub(super) async fn events(&self) -> Vec<Event> {
        self.events_of(&Self::key()).await
    }

    pub(super) async fn events_of(&self, key: &ConversationKey) -> Vec<Event> {
        let partition = Partition::Conversation(key.clone());
        let all = Selection::all(DocumentKind::Events);
        let stored = self.worker_store.select(&partition, &all, Freshness::Latest).await.unwrap();
        stored
            .iter()
            .flat_map(|stored| documents::read::<EventsBody>(&stored.document).unwrap().events)
            .collect()
    }

    pub(super) async fn is_idle(&self) -> bool {
        for key in &self.conversations {
            let Some(head) = self.head_of(key).await else { return false };
            let partition = Partition::Conversation(key.clone());
            let inbox = if self.has_fault_free_reads() {
                Ok(self.store.select_newest(&partition, DocumentKind::Inbox))
            } else {
                let all = Selection::all(DocumentKind::Inbox);
                self.worker_store.select(&partition, &all, Freshness::Latest).await
            };
            let is_held = |stored: &StoredDocument| {
                let item: InboxItem = documents::read(&stored.document).unwrap();
                !item.has_effect_when_idle()
            };
            let is_empty = inbox.is_ok_and(|inbox| inbox.iter().all(is_held));
            let is_due = head.due.is_some_and(|due| due <= self.clock.now());
            let is_pending = head.waiting_items > 0 || head.phase != Phase::Idle || is_due;
            if head.prompt.is_some() || head.prompts.is_empty() || !is_empty || is_pending {
                return false;
            }
        }
        true
    }

    /// Runs until all prompts have ended. If nothing is to be done, virtual time passes; the
    /// recovery sweep runs each minute.
    pub(super) async fn run_until_idle(&mut self) {
        assert!(self.try_run_until_idle().await, "the prompts never ended: {:#?}", self.run_log);
    }

    /// True if reads of the test bypass the injected faults.
    fn has_fault_free_reads(&self) -> bool {
        self.fault_plan.is_some() && self.embedded_store.is_none()
    }

    /// Runs until all prompts have ended; false if they never do.
    pub(super) async fn try_run_until_idle(&mut self) -> bool {
        const SWEEP_INTERVAL: Duration = Duration::from_mins(1);
        const STUCK_AFTER: Duration = Duration::from_hours(12);
        let mut swept = self.clock.monotonic();
        let (mut last_progress, mut commits) = (swept, 0);
        for _ in 0..6_000 {
            let is_busy = self.deliver().await;
            self.patch_at_random().await;
            self.lose_queues_at_random();
            // Without a new commit there is no new request to decide.
            let now = self.store.commit_count();
            if now != commits {
                (last_progress, commits) = (self.clock.monotonic(), now);
            } else if self.has_fault_free_reads()
                && self.clock.monotonic() > last_progress + STUCK_AFTER
            {
                return false;
            }
            if !self.has_fault_free_reads() || self.decided_at_commit != Some(commits) {
                let are_all_decided = self.decide_requests().await;
                self.decided_at_commit = are_all_decided.then_some(commits);
                if self.is_idle().await {
                    return true;
                }
            }
            if self.clock.monotonic() > swept + SWEEP_INTERVAL {
                swept = self.clock.monotonic();
                self.run_sweep().await;
            }
            if !is_busy {
                // Sleep until the next message or sweep.
                let until_swept = (swept + SWEEP_INTERVAL).saturating_sub(self.clock.monotonic());
                let next_message = self.queue.next_visible_in().unwrap_or(until_swept);
                let wait = next_message.min(until_swept) + Duration::from_millis(1);
                tokio::time::sleep(wait).await;
            }
        }
        false
    }

    pub(super) async fn run_sweep(&mut self) {
        let services = self.new_worker(Arc::new(NoFailPoints));
        let swept = sweep::sweep(&services, sweep::GRACE_PERIOD).await;
        self.run_log.push(format!("swept: {swept:?}"));
    }

    /// The entries without the members that differ from run to run.
    pub(super) async fn normalised_entries(&self) -> Vec<Value> {
        invariants::normalise(&self.entries().await)
    }
}

pub(super) fn owner() -> Owner {
    Owner { tenant: TenantId::new("t"), user: UserId::new("u") }
}

pub(super) fn idempotency(key: &str) -> Idempotency {
    Idempotency {
        key: key.to_owned(),
        is_repeatable: true,
        route: "POST /prompts".to_owned(),
        body_hash: "h".to_owned(),
    }
}
