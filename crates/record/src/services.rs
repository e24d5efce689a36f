//! The services and limits that commands, queries and turns use.

use std::sync::Arc;
use std::time::Duration;

use crate::abort_channel::AbortSignals;
use crate::entry_cache::EntryCache;
use crate::frame_documents::FrameDocuments;
use crate::isolator::Isolation;
use crate::ledger::documents::LedgerDocuments;
use crate::ledger::locks::LedgerLocks;
use crate::ledger::spending_limits::SpendingLimits;
use crate::notifications::sender::NotificationSender;
use crate::request_locks::RequestLocks;
use crate::user_documents::UserDocumentsCache;
use crate::workspace_context_cache::WorkspaceContextCache;
use turnwheel_agent_files::{AgentDefinition, SharedCatalog};
use turnwheel_conversation::head::{Head, READER_VERSION};
use turnwheel_extensions::context::{HookAccess, HookEvent, HookFacts, HookSite};
use turnwheel_extensions::http_access::HookClient;
use turnwheel_extensions::runner::{ErrorListeners, HookRunner};
use turnwheel_extensions::{Extension, Hook, HookContext};
use turnwheel_model::Model;
use turnwheel_platform::clock::Clock;
use turnwheel_platform::fail_points::{FailPoints, NoFailPoints};
use turnwheel_platform::ids::{Ids, WorkerId};
use turnwheel_platform::settings::pauses::Pauses;
use turnwheel_platform::shutdown::Shutdown;
use turnwheel_platform::telemetry::Telemetry;
use turnwheel_storage::artifacts::Artifacts;
use turnwheel_storage::live::Live;
use turnwheel_storage::queue::Queue;
use turnwheel_storage::store::ConversationStore;

/// The services and settings that turns use.
#[derive(Clone, Debug)]
pub struct Services {
    pub store: Arc<dyn ConversationStore>,
    pub queue: Arc<dyn Queue>,
    pub artifacts: Arc<dyn Artifacts>,
    pub live: Arc<dyn Live>,
    pub model: Arc<dyn Model>,
    pub agents: SharedCatalog,
    /// Extensions of the app. They run for every agent.
    pub extensions: Vec<Arc<dyn Extension>>,
    pub extension_error_listeners: ErrorListeners,
    /// The HTTP client of hooks.
    pub hook_client: HookClient,
    pub entry_cache: Arc<EntryCache>,
    pub user_documents: Arc<UserDocumentsCache>,
    pub workspace_contexts: Arc<WorkspaceContextCache>,
    pub frame_documents: Arc<FrameDocuments>,
    pub abort_signals: AbortSignals,
    pub shutdown: Shutdown,
    /// Serialise requests with the same idempotency key.
    pub request_locks: Arc<RequestLocks>,
    /// Serialise this process's writes to one tenant's usage ledger.
    pub ledger_locks: Arc<LedgerLocks>,
    pub ledger_documents: Arc<LedgerDocuments>,
    /// Sends notifications. `None`: commits write no notifications.
    pub notification_sender: Option<Arc<dyn NotificationSender>>,
    pub clock: Arc<dyn Clock>,
    pub ids: Arc<dyn Ids>,
    pub fail_points: Arc<dyn FailPoints>,
    pub worker: WorkerId,
    /// Version and build of the program, for the record.
    pub build: &'static str,
    pub limits: Limits,
    pub spending_limits: Arc<SpendingLimits>,
    /// The operator's pauses, fixed for the life of the process.
    pub pauses: Arc<Pauses>,
    /// Where suspect steps run.
    pub isolation: Isolation,
    pub telemetry: Telemetry,
}

/// The ports that every process needs.
#[derive(Clone, Debug)]
pub struct ServicePorts {
    pub store: Arc<dyn ConversationStore>,
    pub queue: Arc<dyn Queue>,
    pub artifacts: Arc<dyn Artifacts>,
    pub live: Arc<dyn Live>,
    pub model: Arc<dyn Model>,
    pub clock: Arc<dyn Clock>,
    pub ids: Arc<dyn Ids>,
}

impl Services {
    /// Services of one worker: without agents, extensions, notifications, spending limits and
    /// pauses, and with the default limits.
    pub fn new(worker: WorkerId, ports: ServicePorts) -> Self {
        let ServicePorts { store, queue, artifacts, live, model, clock, ids } = ports;
        Self {
            store,
            queue,
            artifacts,
            live,
            model,
            agents: SharedCatalog::default(),
            extensions: Vec::new(),
            extension_error_listeners: ErrorListeners::default(),
            hook_client: HookClient::default(),
            entry_cache: Arc::default(),
            user_documents: Arc::default(),
            workspace_contexts: Arc::default(),
            frame_documents: Arc::default(),
            abort_signals: AbortSignals::default(),
            shutdown: Shutdown::default(),
            request_locks: Arc::default(),
            ledger_locks: Arc::default(),
            ledger_documents: Arc::default(),
            notification_sender: None,
            clock,
            ids,
            fail_points: Arc::new(NoFailPoints),
            worker,
            build: env!("CARGO_PKG_VERSION"),
            limits: Limits::default(),
            spending_limits: Arc::default(),
            pauses: Arc::default(),
            isolation: Isolation::default(),
            telemetry: Telemetry::default(),
        }
    }

    /// The facts that all extensions at one event share. `agent`: that of the conversation, if it
    /// still exists.
    pub fn hook_site(
        &self,
        event: HookEvent,
        head: &Head,
        facts: HookFacts,
        agent: Option<&AgentDefinition>,
    ) -> Arc<HookSite> {
        let access = HookAccess {
            model: Arc::clone(&self.model),
            client: self.hook_client.clone(),
            extension_settings: agent.map(|agent| Arc::clone(&agent.extension_settings)),
        };
        HookSite::new(event, head, facts, access)
    }

    /// A context for each extension that has this hook, all of the same `site`. Without any, nothing
    /// is allocated.
    pub fn hook_contexts(
        &self,
        hook: Hook,
        agent: Option<&AgentDefinition>,
        site: impl FnOnce() -> Arc<HookSite>,
    ) -> Vec<HookContext> {
        let has_hook = |it: &&Arc<dyn Extension>| it.events().contains(hook);
        let mut extensions = self.extensions_of(agent).filter(has_hook).peekable();
        if extensions.peek().is_none() {
            return Vec::new();
        }
        let site = site();
        extensions.map(|it| HookContext::new(Arc::clone(&site), Arc::clone(it))).collect()
    }

    /// Runs hooks. `time_left`: for all of them before the next commit; `None`: no limit.
    pub fn hook_runner(&self, time_left: Option<Duration>) -> HookRunner<'_> {
        HookRunner {
            timeout: self.limits.hook_timeout,
            time_left,
            telemetry: &self.telemetry,
            listeners: &self.extension_error_listeners,
        }
    }

    /// The app's extensions, then those of the agent.
    pub fn extensions_of<'a>(
        &'a self,
        agent: Option<&'a AgentDefinition>,
    ) -> impl Iterator<Item = &'a Arc<dyn Extension>> {
        self.extensions.iter().chain(agent.into_iter().flat_map(|agent| &agent.extensions))
    }
}

#[derive(Clone, Copy, Debug)]
pub struct Limits {
    /// Half of the host's `functionTimeout`. When one invocation exceeds that time-out, the host
    /// kills the whole process.
    pub turn_duration: Duration,
    /// Delay from a model call to its entry in the usage ledger, if no limit applies. One entry
    /// covers all calls made meanwhile.
    pub settle_after: Duration,
    /// Newest supported `minReader`. Conversations that need a newer one are left to newer workers.
    pub reader_version: u32,
    /// Time-out of one extension hook, at most 30 s.
    pub hook_timeout: Duration,
    /// True if all callers are one user, as with shared keys: its memory is off.
    pub has_shared_user: bool,
    /// Prompts in a row that extensions may start in a conversation.
    pub extension_prompts_max: u32,
}

/// Default time-out of an extension hook.
pub(crate) const HOOK_TIMEOUT_DEFAULT: Duration = Duration::from_secs(5);

/// Default number of prompts in a row that extensions may start.
const EXTENSION_PROMPTS_DEFAULT: u32 = 8;

impl Default for Limits {
    fn default() -> Self {
        Self {
            turn_duration: Duration::from_mins(5),
            settle_after: Duration::from_mins(10),
            reader_version: READER_VERSION,
            hook_timeout: HOOK_TIMEOUT_DEFAULT,
            has_shared_user: false,
            extension_prompts_max: EXTENSION_PROMPTS_DEFAULT,
        }
    }
}
