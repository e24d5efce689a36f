//! The environment of a run: a temporary store, queues in memory, a clock that also advances when
//! idle, and a trap at one fail point.

use std::collections::BTreeSet;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use async_trait::async_trait;
use tokio::sync::Notify;

use crate::call_log::{CallLog, with_counted_tools};
use crate::conversation::Conversation;
use crate::fault_run::InjectionPoint;
use crate::scripted_model::ConversationModel;
use crate::store::RunStore;
use crate::{CertifyOptions, StoreKind, ToolMode};
use turnwheel_agent_files::{AgentDefinition, Catalog, SharedCatalog};
use turnwheel_conversation::notification::Notification;
use turnwheel_platform::clock::{Clock, SystemClock, Timestamp, millis};
use turnwheel_platform::fail_points::FailPoints;
use turnwheel_platform::ids::{ConversationKey, Ids as _, SeededIds, WorkerId};
use turnwheel_record::notifications::sender::{NotificationSender, SendOutcome};
use turnwheel_record::services::{ServicePorts, Services};
use turnwheel_storage::artifacts::MemoryArtifacts;
use turnwheel_storage::live::EmbeddedLive;
use turnwheel_storage::queue::{self, MemoryQueue, Queue as _, QueueMessage};
use turnwheel_storage::store::embedded::OpenError;

/// How long a received message stays hidden.
const MESSAGE_VISIBILITY_TIMEOUT: Duration = Duration::from_secs(90);

/// Real time plus the skipped waits.
#[derive(Debug, Default)]
pub(super) struct SkippingClock {
    system: SystemClock,
    skipped: AtomicU64,
}

impl SkippingClock {
    pub(super) fn skip(&self, span: Duration) {
        self.skipped.fetch_add(millis(span), Ordering::SeqCst);
    }

    fn skipped(&self) -> Duration {
        Duration::from_millis(self.skipped.load(Ordering::SeqCst))
    }
}

impl Clock for SkippingClock {
    fn now(&self) -> Timestamp {
        self.system.now().plus(self.skipped())
    }

    fn monotonic(&self) -> Duration {
        self.system.monotonic() + self.skipped()
    }
}

/// Records every fail point, and blocks the task that hits one of them for the n-th time.
#[derive(Debug)]
pub(super) struct Trap {
    cut: Option<InjectionPoint>,
    hits: Mutex<Vec<&'static str>>,
    pub(super) reached: Notify,
    pub(super) resume: Notify,
}

impl Trap {
    fn new(cut: Option<InjectionPoint>) -> Self {
        Self { cut, hits: Mutex::default(), reached: Notify::new(), resume: Notify::new() }
    }

    /// In the order of their hits.
    pub(super) fn hits(&self) -> Vec<&'static str> {
        self.hits.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// True if this is the fail point and the occurrence of the trap.
    fn record_hit(&self, fail_point: &'static str) -> bool {
        let mut hits = self.hits.lock().unwrap_or_else(PoisonError::into_inner);
        hits.push(fail_point);
        self.cut.is_some_and(|cut| {
            let times = hits.iter().filter(|hits| **hits == fail_point).count();
            cut.fail_point == fail_point && times == cut.occurrence as usize
        })
    }
}

#[async_trait]
impl FailPoints for Trap {
    async fn hit(&self, fail_point: &'static str) {
        if self.record_hit(fail_point) {
            self.reached.notify_one();
            self.resume.notified().await;
        }
    }
}

/// Accepts every notification and records its id.
#[derive(Debug, Default)]
pub(super) struct RecordingNotificationSender(Mutex<BTreeSet<String>>);

impl RecordingNotificationSender {
    pub(super) fn has_sent(&self, id: &str) -> bool {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).contains(id)
    }
}

#[async_trait]
impl NotificationSender for RecordingNotificationSender {
    async fn send(&self, _key: &ConversationKey, notice: &Notification) -> SendOutcome {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).insert(notice.id.clone());
        SendOutcome::Accepted
    }
}

fn new_queue(skipping_clock: &Arc<SkippingClock>) -> Arc<MemoryQueue> {
    let clock: Arc<dyn Clock> = Arc::clone(skipping_clock) as _;
    Arc::new(MemoryQueue::new(clock, 0, queue::QueueFaults::default()))
}

pub(super) struct Environment {
    pub(super) store: RunStore,
    pub(super) queue: Arc<MemoryQueue>,
    pub(super) artifacts: Arc<MemoryArtifacts>,
    pub(super) clock: Arc<SkippingClock>,
    pub(super) ids: Arc<SeededIds>,
    pub(super) trap: Arc<Trap>,
    pub(super) notifications: Arc<RecordingNotificationSender>,
    pub(super) call_log: Arc<CallLog>,
    pub(super) model: Arc<ConversationModel>,
    pub(super) agents: SharedCatalog,
}

impl Environment {
    /// # Errors
    /// There is no folder for the store.
    pub(super) async fn new(
        options: &CertifyOptions,
        agent: &AgentDefinition,
        conversation: &Conversation,
        store_kind: StoreKind,
        cut: Option<InjectionPoint>,
    ) -> Result<Self, OpenError> {
        let clock = Arc::new(SkippingClock::default());
        let call_log = Arc::new(CallLog::default());
        let is_stub =
            |tool: &str| options.tools == ToolMode::Stub && !options.harmless.contains(tool);
        let mut agent = with_counted_tools(agent, &call_log, is_stub);
        agent.extensions.retain(|extension| options.runs_hooks_of(&**extension));
        agent.plugins.retain(|plugin| options.runs_hooks_of(&*plugin.hook()));
        let mut agents = Catalog::default();
        agents.agents.insert(agent.name.clone(), Arc::new(agent));
        Ok(Self {
            store: RunStore::open(store_kind).await?,
            queue: new_queue(&clock),
            artifacts: Arc::new(MemoryArtifacts::new(0, 0)),
            clock,
            ids: Arc::new(SeededIds::new(0)),
            trap: Arc::new(Trap::new(cut)),
            notifications: Arc::default(),
            call_log,
            model: Arc::new(ConversationModel::new(conversation)),
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
            self.queue = new_queue(&self.clock);
        }
        Ok(is_alone)
    }

    pub(super) async fn receive(&self, queue: &str, count_max: usize) -> Vec<QueueMessage> {
        let received = self.queue.receive(queue, count_max, MESSAGE_VISIBILITY_TIMEOUT).await;
        received.unwrap_or_default()
    }

    /// Deletes a message. After a failure it is delivered again.
    pub(super) async fn delete(&self, queue: &str, message: &QueueMessage) {
        let _ = self.queue.delete(queue, &message.id, &message.pop_receipt).await;
    }

    /// Creates an instance with its own memory; everything else is shared.
    pub(super) fn instance(&self, options: &CertifyOptions) -> Arc<Services> {
        let worker = WorkerId::new(self.ids.new_id());
        let extensions = options.extensions.iter();
        let extensions = extensions.filter(|extension| options.runs_hooks_of(&***extension));
        let ports = ServicePorts {
            store: self.store.instance_store(),
            queue: Arc::clone(&self.queue) as _,
            artifacts: Arc::clone(&self.artifacts) as _,
            live: Arc::new(EmbeddedLive::default()),
            model: Arc::clone(&self.model) as _,
            clock: Arc::clone(&self.clock) as _,
            ids: Arc::clone(&self.ids) as _,
        };
        Arc::new(Services {
            agents: self.agents.clone(),
            extensions: extensions.cloned().collect(),
            notification_sender: Some(Arc::clone(&self.notifications) as _),
            fail_points: Arc::clone(&self.trap) as _,
            ..Services::new(worker, ports)
        })
    }
}
