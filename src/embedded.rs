//! An agent in your own process: the same engine as the service, without HTTP.

mod branches;
mod builder;
mod builder_prompt;
mod driver;
mod event;
mod replace_messages;
mod run_state;
mod session;
mod setters;
mod setup;
mod state;
mod stream;
mod subscription;
mod waiting_command;

#[cfg(test)]
mod tests;

use std::fmt;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use tokio::sync::watch;
use tokio_util::task::AbortOnDropHandle;

use crate::start::start_error::StartError;
use turnwheel_agent_files::{Skill, SystemPromptParts};
use turnwheel_commands::abort::{AbortRequest, abort};
use turnwheel_commands::continue_prompt::accept_continue;
use turnwheel_commands::decide::{DecisionRequest, decide};
use turnwheel_commands::inbox_clear::clear_queues;
use turnwheel_commands::prompt::{Mode, PromptRequest};
use turnwheel_conversation::content::Content;
use turnwheel_conversation::prompt_view::PromptView;
use turnwheel_conversation::settings::Settings;
use turnwheel_extensions::permissions::ExtensionSettings;
use turnwheel_extensions::plugin::RegisteredPlugin;
use turnwheel_json::raw::RawJson;
use turnwheel_platform::ids::{ConversationKey, PromptId, RequestId};
use turnwheel_queries::approvals::ApprovalView;
use turnwheel_queries::event_stream::StreamEvent;
use turnwheel_queries::{conversation, prompts};
use turnwheel_record::contract::{CommandError, Decider, Owner, RequestIntent};
use turnwheel_record::idempotency::{AGENT_ROUTE, Idempotency, canonical_hash};
use turnwheel_record::{load, services::Services};
use turnwheel_tools::CallableTool;

pub use branches::{NavigateOptions, Navigation};
pub use builder::AgentBuilder;
pub use event::AgentEvent;
pub use session::{CycleDirection, Fork};
pub use state::AgentState;
pub use stream::{AgentEvents, EventStream};
pub use subscription::Subscription;

use replace_messages::{AcceptedRequest, ConversationSwitch, queued_request};
use run_state::{RunPermit, RunState};
use state::ObservedState;

/// A model with tools, a stored conversation and a loop that runs until no work is pending.
///
/// It is the engine of the service over a data folder: every turn is committed before the next one
/// begins. A new agent on the same folder continues the conversation.
///
/// ```
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> Result<(), turnwheel::AgentError> {
/// use turnwheel::Agent;
/// use turnwheel::events::AgentEvent;
/// use turnwheel::models::ScriptedModel;
///
/// let agent = Agent::builder()
///     .system_prompt("You are a helpful assistant.")
///     .models(std::sync::Arc::new(ScriptedModel))
///     .start()
///     .await?;
/// let subscription = agent.subscribe(|event| {
///     if let AgentEvent::MessageUpdate { event, .. } = event {
///         println!("{}", serde_json::to_string(event).unwrap_or_default());
///     }
/// });
/// let prompt = agent.prompt("Hello!").await?;
/// assert_eq!(prompt.output.len(), 1);
/// assert_eq!(agent.state().messages.len(), 2);
/// subscription.unsubscribe();
/// # Ok(())
/// # }
/// ```
#[derive(Clone)]
pub struct Agent {
    inner: Arc<AgentInner>,
    /// Tasks of the agent. They end with the last handle.
    _tasks: Arc<[AbortOnDropHandle<()>; 2]>,
}

/// Error of an agent's method.
#[derive(Debug, thiserror::Error)]
pub enum AgentError {
    /// A prompt runs or waits for an approval: queue the input, or wait.
    #[error("{0}")]
    Busy(&'static str),
    #[error("No model configured: {0}")]
    NoModel(String),
    /// Invalid tools or settings, one sentence for each mistake.
    #[error("{}", .0.join("; "))]
    Mistakes(Vec<String>),
    /// The data folder cannot be opened.
    #[error(transparent)]
    Start(Box<dyn std::error::Error + Send + Sync>),
    /// A compaction or a summary of a branch failed or was cancelled.
    #[error("{0}")]
    Compaction(String),
    /// A command of an extension failed.
    #[error("{0}")]
    Command(String),
    #[error(transparent)]
    Refused(CommandError),
}

impl From<StartError> for AgentError {
    fn from(error: StartError) -> Self {
        Self::Start(error.into())
    }
}

impl From<CommandError> for AgentError {
    #[expect(clippy::wildcard_enum_match_arm, reason = "all other errors are returned unchanged")]
    fn from(error: CommandError) -> Self {
        match error {
            CommandError::AlreadyProcessing { intent: RequestIntent::Prompt, .. } => {
                Self::Busy(BUSY_PROMPT)
            }
            CommandError::AlreadyProcessing { intent: RequestIntent::Continue, .. } => {
                Self::Busy(BUSY_CONTINUE)
            }
            error => Self::Refused(error),
        }
    }
}

/// Error texts of the source documents (s3 §1.3, §1.5).
const BUSY_PROMPT: &str = "Agent is already processing a prompt. Use steer() or followUp() to queue messages, or wait for completion.";
const BUSY_CONTINUE: &str = "Agent is already processing. Wait for completion before continuing.";

/// Configuration for the next model call.
#[derive(Clone)]
struct AgentConfig {
    system_prompt: String,
    settings: Settings,
    tools: Vec<Arc<dyn CallableTool>>,
    plugins: Vec<Arc<RegisteredPlugin>>,
    prompt_parts: SystemPromptParts,
    /// True if the default text is the base of a system prompt without one.
    has_default_prompt: bool,
    skills: Vec<Arc<Skill>>,
    session_id: Option<String>,
    has_automatic_title: bool,
    extension_settings: Arc<ExtensionSettings>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
struct CurrentConversation {
    key: ConversationKey,
    /// Number of its last event before it became the current one.
    last_event: u64,
}

type EventListener = Arc<dyn Fn(&AgentEvent) + Send + Sync>;

struct AgentInner {
    services: Services,
    owner: Owner,
    config: Mutex<AgentConfig>,
    conversation: watch::Sender<CurrentConversation>,
    observed: Mutex<ObservedState>,
    switch: tokio::sync::Mutex<ConversationSwitch>,
    run_state: watch::Sender<RunState>,
    listeners: Mutex<Vec<(u64, EventListener)>>,
    /// Temporary data folder, if the builder has none.
    _temp_dir: Option<tempfile::TempDir>,
}

impl fmt::Debug for Agent {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let key = self.inner.key();
        f.debug_struct("Agent").field("conversation", &key.conversation_id).finish_non_exhaustive()
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Agent {
    pub fn builder() -> AgentBuilder {
        AgentBuilder::default()
    }

    /// Runs a prompt. Returns when the agent is idle or waits for an approval: see
    /// [`Agent::approvals`].
    ///
    /// A text `/name arguments` runs the command of an extension, also while a prompt runs. Then, and
    /// if an extension handles the input, no prompt starts: the returned prompt is not stored. It has
    /// the output of the command, and its failure as `error`. See [`Agent::run_command`].
    ///
    /// # Errors
    /// Returns [`AgentError::Busy`] while a prompt runs: queue the input, or wait. A failed model
    /// call is not an `Err`; it is in the `error` of the returned prompt.
    pub async fn prompt(&self, input: impl Into<Content>) -> Result<PromptView, AgentError> {
        let request = PromptRequest {
            input: Some(input.into()),
            mode: Some(Mode::Prompt),
            ..PromptRequest::default()
        };
        self.run_prompt(request).await
    }

    /// Runs the prompt of a request. See [`Agent::prompt`].
    async fn run_prompt(&self, request: PromptRequest) -> Result<PromptView, AgentError> {
        // Boxed to keep the caller's future small.
        let (key, accepted) = Box::pin(self.accept_prompt(request)).await?;
        match accepted {
            AcceptedRequest::Input(id) => {
                self.wait_until_inactive().await;
                self.prompt_view(&key, &id).await
            }
            AcceptedRequest::Handled(handled) => Box::pin(self.handled_view(&key, *handled)).await,
        }
    }

    /// Queues an input that the running prompt reads as soon as the current call ends. If the agent
    /// is idle, the next prompt reads it.
    ///
    /// # Errors
    /// The text is a command, which cannot be queued. Otherwise the input was not stored: try again.
    pub async fn steer(&self, input: impl Into<Content>) -> Result<(), AgentError> {
        self.enqueue_input(queued_request(Mode::Steer, Some(input.into()))).await
    }

    /// Queues an input that the agent reads when it would otherwise stop. If the agent is idle, it
    /// follows the next prompt.
    ///
    /// # Errors
    /// The text is a command, which cannot be queued. Otherwise the input was not stored: try again.
    pub async fn follow_up(&self, input: impl Into<Content>) -> Result<(), AgentError> {
        self.enqueue_input(queued_request(Mode::FollowUp, Some(input.into()))).await
    }

    async fn enqueue_input(&self, request: PromptRequest) -> Result<(), AgentError> {
        let inner = &self.inner;
        // The item stays in the current conversation, so that an active run reads it. If messages
        // were replaced, the next run moves it to the new conversation.
        let _switch = inner.switch.lock().await;
        inner.accept_request(request, &inner.new_idempotency()).await?;
        Ok(())
    }

    /// Continues the conversation from an input or result without a response, or from a response
    /// with the queued inputs.
    ///
    /// # Errors
    /// Returns [`AgentError::Busy`] while a prompt runs: wait. Returns [`AgentError::Refused`] if
    /// the conversation has nothing to continue from: send a prompt.
    pub async fn continue_(&self) -> Result<PromptView, AgentError> {
        let inner = &self.inner;
        let permit = RunPermit::acquire(&inner.run_state, BUSY_CONTINUE)?;
        let (key, id) = {
            let mut switch = inner.switch.lock().await;
            inner.switch_if_changed(&mut switch).await?;
            let (services, key, idempotency) =
                (&inner.services, inner.key(), inner.new_idempotency());
            accept_continue(services, &key, &idempotency, &setup::user_sender()).await?;
            let id = PromptId::from_input(&idempotency.input_id(&key));
            (key, id)
        };
        permit.commit();
        self.wait_until_inactive().await;
        self.prompt_view(&key, &id).await
    }

    /// Aborts the running prompt. The conversation keeps the partial response, and no further work
    /// starts. Has no effect on an idle agent.
    ///
    /// # Errors
    /// The request was not stored: try again.
    pub async fn abort(&self) -> Result<(), AgentError> {
        let (services, key) = (&self.inner.services, self.inner.key());
        abort(services, &key, AbortRequest::default(), &self.inner.new_idempotency()).await?;
        Ok(())
    }

    /// Removes the queued steers.
    ///
    /// # Errors
    /// The store is unavailable: try again.
    pub async fn clear_steering_queue(&self) -> Result<(), AgentError> {
        self.clear_queue(Some(Mode::Steer)).await
    }

    /// Removes the queued follow-ups.
    ///
    /// # Errors
    /// The store is unavailable: try again.
    pub async fn clear_follow_up_queue(&self) -> Result<(), AgentError> {
        self.clear_queue(Some(Mode::FollowUp)).await
    }

    /// Removes all queued steers and follow-ups.
    ///
    /// # Errors
    /// The store is unavailable: try again.
    pub async fn clear_all_queues(&self) -> Result<(), AgentError> {
        self.clear_queue(None).await
    }

    async fn clear_queue(&self, queue: Option<Mode>) -> Result<(), AgentError> {
        let mut switch = self.inner.switch.lock().await;
        self.inner.move_queued_inputs(&mut switch).await?;
        let (services, key) = (&self.inner.services, self.inner.key());
        clear_queues(services, &key, queue).await?;
        Ok(())
    }

    /// Removes all messages and queued inputs. The configuration of the agent stays.
    ///
    /// # Errors
    /// Returns [`AgentError::Busy`] while a prompt runs: wait, or abort it.
    pub async fn reset(&self) -> Result<(), AgentError> {
        let _permit = RunPermit::acquire(&self.inner.run_state, BUSY_PROMPT)?;
        self.clear_all_queues().await?;
        lock(&self.inner.observed).clear();
        Ok(())
    }

    /// Waits until no prompt runs. A prompt that waits for an approval does not count as running.
    pub async fn wait_for_idle(&self) {
        self.wait_until_inactive().await;
    }

    /// Calls the listener with every event from now on, in order. The listener must not block.
    pub fn subscribe(
        &self,
        listener: impl Fn(&AgentEvent) + Send + Sync + 'static,
    ) -> Subscription {
        let mut listeners = lock(&self.inner.listeners);
        let number = listeners.last().map_or(0, |(number, _)| number + 1);
        listeners.push((number, Arc::new(listener)));
        Subscription { inner: Arc::clone(&self.inner), number }
    }

    /// Streams events from now on until the end of the run. The result of the stream is the list of
    /// new messages of that run.
    ///
    /// ```
    /// # use turnwheel::models::ScriptedModel;
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> Result<(), turnwheel::AgentError> {
    /// # let agent = turnwheel::Agent::builder().models(std::sync::Arc::new(ScriptedModel)).start().await?;
    /// let mut events = agent.events();
    /// let (prompt, count) = tokio::join!(agent.prompt("Hello!"), async {
    ///     let mut count = 0;
    ///     while let Some(_event) = events.next().await {
    ///         count += 1;
    ///     }
    ///     count
    /// });
    /// assert!(prompt.is_ok() && count > 4);
    /// assert_eq!(events.result().await.len(), 2);
    /// # Ok(())
    /// # }
    /// ```
    pub fn events(&self) -> AgentEvents {
        let stream = EventStream::new(stream::final_messages);
        let producer = stream.clone();
        let subscription = self.subscribe(move |event| producer.push(event.clone()));
        AgentEvents { stream, _subscription: subscription }
    }

    /// State of the agent after the events that subscribers have received.
    pub fn state(&self) -> AgentState {
        let key = self.inner.key();
        let is_streaming = self.inner.run_state.borrow().is_active();
        let snapshot = is_streaming.then(|| self.inner.services.live.subscribe(&key).0).flatten();
        let config = lock(&self.inner.config).clone();
        let observed = lock(&self.inner.observed).clone();
        AgentState {
            system_prompt: config.system_prompt,
            model: config.settings.model,
            thinking_level: config.settings.thinking_level.unwrap_or_default(),
            tools: config.tools.iter().map(|tool| tool.definition().name.clone()).collect(),
            messages: observed.messages,
            is_streaming,
            stream_message: snapshot.map(|snapshot| snapshot.content),
            pending_tool_calls: observed.pending_tool_calls,
            error: observed.error,
        }
    }

    /// Pending approval requests.
    ///
    /// # Errors
    /// The conversation could not be read: try again.
    pub async fn approvals(&self) -> Result<Vec<ApprovalView>, AgentError> {
        let services = &self.inner.services;
        let key = self.inner.key();
        let (view, _) = conversation::current_view(services, &key).await?;
        Ok(view.pending_approvals)
    }

    /// Decides an approval request, then waits like [`Agent::prompt`].
    ///
    /// # Errors
    /// The request does not exist, has another decision, or does not allow this decision: read
    /// [`Agent::approvals`] again.
    pub async fn decide(&self, id: &str, request: DecisionRequest) -> Result<(), AgentError> {
        let services = &self.inner.services;
        let key = self.inner.key();
        let owner = &self.inner.owner;
        let decider = Decider::User {
            tenant: owner.tenant.clone(),
            user: owner.user.clone(),
            roles: Vec::new(),
        };
        let outcome = Box::pin(decide(services, &key, id, request, &decider)).await?;
        let id = outcome.body.and_then(|outcome| outcome.string_member("id")).unwrap_or_default();
        let id = RequestId::new(id);
        let mut run_state = self.inner.run_state.subscribe();
        let is_finished =
            |run_state: &RunState| !run_state.is_approval_open(&id) && !run_state.is_active();
        let _ = run_state.wait_for(is_finished).await;
        Ok(())
    }

    /// Stores a prompt and marks the agent as running, or runs the command that the input names.
    async fn accept_prompt(
        &self,
        request: PromptRequest,
    ) -> Result<(ConversationKey, AcceptedRequest), AgentError> {
        let inner = &self.inner;
        if inner.is_command(&request) {
            let mut switch = inner.switch.lock().await;
            inner.switch_if_idle(&mut switch).await?;
            let handled = inner.accept_request(request, &inner.new_idempotency()).await?;
            return Ok((inner.key(), handled));
        }
        let permit = RunPermit::acquire(&inner.run_state, BUSY_PROMPT)?;
        inner.current_model().map_err(AgentError::NoModel)?;
        let mut switch = inner.switch.lock().await;
        inner.switch_if_changed(&mut switch).await?;
        let accepted = inner.accept_request(request, &inner.new_idempotency()).await?;
        if let AcceptedRequest::Input(_) = accepted {
            permit.commit();
        }
        Ok((inner.key(), accepted))
    }

    async fn wait_until_inactive(&self) {
        let mut run_state = self.inner.run_state.subscribe();
        let _ = run_state.wait_for(|run_state| !run_state.is_active()).await;
    }

    async fn prompt_view(
        &self,
        key: &ConversationKey,
        id: &PromptId,
    ) -> Result<PromptView, AgentError> {
        let services = &self.inner.services;
        let (head, _) = load::head(services, key).await?;
        Ok(prompts::read_prompt(services, &head, id).await?)
    }
}

impl AgentInner {
    /// Key of the current conversation.
    fn key(&self) -> ConversationKey {
        self.conversation.borrow().key.clone()
    }

    /// Idempotency data of a request that is never repeated.
    fn new_idempotency(&self) -> Idempotency {
        Idempotency {
            key: self.services.ids.new_id(),
            is_repeatable: false,
            route: AGENT_ROUTE.to_owned(),
            body_hash: canonical_hash(&RawJson::from_value(&())),
        }
    }

    fn on_event(&self, stream_event: &StreamEvent) {
        let event = &AgentEvent::from_stream(stream_event);
        lock(&self.observed).apply(event);
        let listeners: Vec<EventListener> =
            lock(&self.listeners).iter().map(|(_, listener)| Arc::clone(listener)).collect();
        for listener in listeners {
            listener(event);
        }
        self.run_state.send_if_modified(|run_state| run_state.apply(stream_event));
    }
}
